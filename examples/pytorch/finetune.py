#!/usr/bin/env python3
"""Trains a BERT to classify sentences, with Transformers' Trainer on all ranks.

Nothing is downloaded: the model is tiny and has random weights, the vocabulary is that of the
sentences. To fine-tune, replace both by from_pretrained("...") and the sentences by your data.
"""

import os
import random
import socket

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

THINGS = ["film", "book", "meal", "song", "trip"]
GOOD = ["great", "lovely", "brilliant", "fine"]
BAD = ["awful", "boring", "dreadful", "poor"]


def sentences(count, seed):
    """Returns sentences that praise (1) or criticize (0) something."""
    dice = random.Random(seed)
    for _ in range(count):
        label = dice.randrange(2)
        word = dice.choice(GOOD if label else BAD)
        yield f"the {dice.choice(THINGS)} was {dice.choice(['very', 'quite', 'really'])} {word}", label


def tokenizer():
    words = sorted({word for text, _ in sentences(2000, 0) for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


def dataset(count, seed, encode):
    return [{**encode(text), "labels": label} for text, label in sentences(count, seed)]


def accuracy(predictions):
    right = predictions.predictions.argmax(-1) == predictions.label_ids
    return {"accuracy": float(right.mean())}


def main():
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    print(f"rank {rank}/{world} on {socket.gethostname()}", flush=True)
    torch.manual_seed(1)
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    cuda = torch.cuda.is_available()
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=os.environ.get("OUTPUT", "/tmp/model"),
            use_cpu=not cuda,
            ddp_backend="nccl" if cuda else "gloo",
            num_train_epochs=3,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            logging_steps=20,
            disable_tqdm=True,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=dataset(1000, 1, words),
        eval_dataset=dataset(200, 2, words),
        processing_class=words,
        compute_metrics=accuracy,
    )
    trainer.train()
    share = trainer.evaluate()["eval_accuracy"]
    trainer.save_model()
    if rank == "0":
        print(f"fine-tuned, accuracy {share:.4f}", flush=True)
    torch.distributed.destroy_process_group()
    if share < 0.9:
        raise SystemExit(f"accuracy {share:.4f} is below 0.9")


if __name__ == "__main__":
    main()
