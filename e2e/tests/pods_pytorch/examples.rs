//! The examples with checkpoints, with shards, and with a language model.

use anyhow::{Result, ensure};
use e2e::pods::{Site, Volume, Weight, after, example};

/// Runs an example to its end, and returns the logs of its pods.
async fn run(site: &Site, file: &str, name: &str, pods: [&str; 2]) -> Result<[String; 2]> {
    site.jobs.create(&example(file)?).await?;
    site.until_true(name, "Succeeded").await?;
    let [first, second] = pods;
    Ok([site.log(first).await?, site.log(second).await?])
}

/// Runs an example with a checkpoint twice. The second run has nothing left to train. Returns the logs of the first.
async fn run_twice(site: &Site, name: &str, pods: [&str; 2]) -> Result<[String; 2]> {
    let _volume = Volume::of_example(site, "pytorch/volume.yaml").await?;
    let file = format!("pytorch/{name}.yaml");
    let first = run(site, &file, name, pods).await?;
    let trained = result(&first)?;
    let accuracy: f64 = trained[1].parse()?;
    ensure!(accuracy > 0.9, "{first:?}");
    site.jobs.delete(name).await?;
    site.until_no_pods(name).await?;
    let second = run(site, &file, name, pods).await?;
    for log in &second {
        ensure!(
            log.contains(&format!("from epoch {}\n", trained[0])),
            "{log}"
        );
        ensure!(!log.contains(" loss "), "it trained again: {log}");
    }
    // The same parameters give the same answers.
    assert_eq!(result(&second)?, trained);
    Ok(first)
}

/// The number of epochs and the accuracy that rank 0 reports at the end.
fn result(logs: &[String; 2]) -> Result<[String; 2]> {
    let all = logs.concat();
    let of = |word| after(&all, word).map(str::to_owned);
    Ok([of("trained ")?, of(" epochs, accuracy ")?])
}

#[tokio::test]
async fn an_elastic_example_trains_and_resumes_from_its_checkpoint() -> Result<()> {
    let site = Site::open("elastic-example", Weight::Heavy).await?;
    let pods = ["elastic-worker-0", "elastic-worker-1"];
    let logs = run_twice(&site, "elastic", pods).await?;
    for log in &logs {
        ensure!(log.contains("from epoch 0\n"), "{log}");
    }
    site.finish(&format!("epochs and accuracy {:?}", result(&logs)?))
        .await
}

#[tokio::test]
async fn an_example_with_sharded_parameters_trains_and_resumes_from_its_checkpoint() -> Result<()> {
    let site = Site::open("fsdp", Weight::Heavy).await?;
    let logs = run_twice(&site, "fsdp", ["fsdp-master-0", "fsdp-worker-0"]).await?;
    let mut held = 0;
    for log in &logs {
        let (mine, all): (u64, u64) = (after(log, " holds ")?.parse()?, whole(log)?);
        ensure!(mine < all, "{log}");
        held += mine;
    }
    assert_eq!(held, whole(&logs[0])?);
    site.finish(&format!("{held} parameters in two shards"))
        .await
}

/// The number of parameters of the whole model.
fn whole(log: &str) -> Result<u64> {
    let shard = after(log, " holds ")?;
    Ok(after(log, &format!(" holds {shard} of "))?.parse()?)
}

#[tokio::test]
async fn a_language_model_is_fine_tuned_on_two_ranks() -> Result<()> {
    let site = Site::open("finetune", Weight::Heavy).await?;
    let pods = ["finetune-master-0", "finetune-worker-0"];
    let logs = run(&site, "pytorch/finetune.yaml", "finetune", pods).await?;
    for (rank, (pod, log)) in pods.iter().zip(&logs).enumerate() {
        ensure!(log.contains(&format!("rank {rank}/2 on {pod}")), "{log}");
    }
    let accuracy: f64 = after(&logs[0], "fine-tuned, accuracy ")?.parse()?;
    ensure!(accuracy > 0.9, "{}", logs[0]);
    site.finish(&format!("accuracy {accuracy}")).await
}
