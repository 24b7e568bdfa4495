//! Keeps an ended job in a few hundred bytes.
//!
//! Ended jobs stay as long as their users want, by the ten thousand, and are rarely read. Each is kept as the difference of its text
//! from another job's: names, times, a uid.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use training_core::{Stored, Uid};

use super::slim::version;

/// Number of texts to compare with; the last match comes first.
const MODELS: usize = 4;
/// Maximum bytes of a text to compare: more would cost more time than the memory is worth.
const MAX_BYTES: usize = 32 * 1024;
/// Minimum equal bytes in a row; fewer are not worth a reference.
const WINDOW: usize = 8;

/// A packed ended job.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The job's uid.
    pub uid: Uid,
    /// The resource version at which it was seen.
    pub version: u64,
    model: Arc<[u8]>,
    difference: Box<[u8]>,
}

impl Ended {
    /// Unpacks the job; `None` only if the packed data is corrupt.
    pub fn unpack<J: Stored>(&self) -> Option<J> {
        serde_json::from_slice(&join(&self.model, &self.difference)?).ok()
    }
}

/// Packs jobs, and remembers what they have in common.
#[derive(Debug, Default)]
pub struct Packer {
    models: VecDeque<Model>,
}

impl Packer {
    /// Packs a job; `None` if it can't be serialized or its uid can't be parsed.
    pub fn pack<J: Stored>(&mut self, job: &J) -> Option<Ended> {
        let uid = Uid::of(job.meta())?;
        let (model, difference) = self.split(&serde_json::to_vec(job).ok()?);
        Some(Ended {
            uid,
            version: version(job.meta()),
            model,
            difference,
        })
    }

    /// Returns a model and the text's difference from it.
    fn split(&mut self, text: &[u8]) -> (Arc<[u8]>, Box<[u8]>) {
        let mut whole = Vec::new();
        reference(&mut whole, &[], 0, text.len());
        let whole = whole.into_boxed_slice();
        if text.len() > MAX_BYTES {
            return (text.into(), whole);
        }
        for at in 0..self.models.len() {
            let difference = self.models[at].differs(text);
            if difference.len() <= text.len() / 2 {
                self.models.swap(0, at);
                return (
                    Arc::clone(&self.models[0].text),
                    difference.into_boxed_slice(),
                );
            }
        }
        let model = Model::new(text);
        let text = Arc::clone(&model.text);
        self.models.push_front(model);
        self.models.truncate(MODELS);
        (text, whole)
    }
}

/// A text that others are compared with.
#[derive(Debug)]
struct Model {
    text: Arc<[u8]>,
    /// The first position of each run of `WINDOW` bytes.
    places: HashMap<[u8; WINDOW], usize>,
}

impl Model {
    fn new(text: &[u8]) -> Self {
        let mut places = HashMap::with_capacity(text.len());
        for (at, window) in text.windows(WINDOW).enumerate() {
            if let Ok(window) = window.try_into() {
                places.entry(window).or_insert(at);
            }
        }
        Self {
            text: text.into(),
            places,
        }
    }

    /// Returns the input of [`join`]: repeated groups of new bytes, then a position and a length in the model.
    fn differs(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        let (mut at, mut told) = (0, 0);
        // After a difference of equal length, similar texts continue at the same distance.
        let mut distance = 0;
        while let Some(window) = text.get(at..at + WINDOW) {
            let Some(place) = self.place(window, at.checked_add_signed(distance)) else {
                at += 1;
                continue;
            };
            let length = text[at..]
                .iter()
                .zip(&self.text[place..])
                .take_while(|(a, b)| a == b)
                .count();
            reference(&mut out, &text[told..at], place, length);
            distance = place.cast_signed() - at.cast_signed();
            at += length;
            told = at;
        }
        reference(&mut out, &text[told..], 0, 0);
        out
    }

    fn place(&self, window: &[u8], likely: Option<usize>) -> Option<usize> {
        let at = likely.filter(|at| self.text.get(*at..*at + WINDOW) == Some(window));
        at.or_else(|| self.places.get(window).copied())
    }
}

fn reference(out: &mut Vec<u8>, new: &[u8], place: usize, length: usize) {
    number(out, new.len());
    out.extend_from_slice(new);
    number(out, place);
    number(out, length);
}

/// Writes a varint: seven bits per byte, the lowest first; the eighth bit means that more bytes follow.
fn number(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn read_number(from: &mut &[u8]) -> Option<usize> {
    let mut value = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Rebuilds a text from a model and its difference.
fn join(model: &[u8], mut difference: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(model.len() + difference.len());
    while !difference.is_empty() {
        let (new, rest) = {
            let length = read_number(&mut difference)?;
            difference.split_at_checked(length)?
        };
        difference = rest;
        text.extend_from_slice(new);
        let (place, length) = (read_number(&mut difference)?, read_number(&mut difference)?);
        text.extend_from_slice(model.get(place..place.checked_add(length)?)?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, uid: u32) -> String {
        format!(
            r#"{{"name":"{name}","uid":"{uid:036}","reason":"PyTorchJobSucceeded","message":"PyTorchJob {name} is successfully completed.","time":"2026-01-01T00:00:{:02}Z"}}"#,
            uid % 60
        )
    }

    fn back((model, difference): &(Arc<[u8]>, Box<[u8]>)) -> Option<String> {
        String::from_utf8(join(model, difference)?).ok()
    }

    #[test]
    fn what_many_texts_have_in_common_is_kept_once() {
        let mut packer = Packer::default();
        let first = packer.split(text("done-1", 1).as_bytes());
        for n in 2..500 {
            let whole = text(&format!("done-{n}"), n);
            let small = packer.split(whole.as_bytes());
            assert!(Arc::ptr_eq(&small.0, &first.0), "{n}");
            assert!(small.1.len() < whole.len() / 3, "{}", small.1.len());
            assert_eq!(back(&small), Some(whole));
        }
        assert_eq!(back(&first), Some(text("done-1", 1)));
    }

    #[test]
    fn texts_that_have_nothing_in_common_come_back_as_well() {
        let mut packer = Packer::default();
        let long = "x".repeat(MAX_BYTES + 1);
        let odd: Vec<String> = ('a'..='z').map(|c| c.to_string().repeat(300)).collect();
        for whole in ["", "short", &long]
            .into_iter()
            .chain(odd.iter().map(String::as_str))
        {
            assert_eq!(
                back(&packer.split(whole.as_bytes())).as_deref(),
                Some(whole)
            );
        }
        assert!(packer.models.len() <= MODELS);
    }

    #[test]
    fn kinds_that_take_turns_do_not_displace_each_other() {
        let mut packer = Packer::default();
        let other = |n: u32| format!("{n}{}", "abcdefghijklmnopqrstuvwxyz".repeat(9));
        for n in 0..20 {
            packer.split(text("done", n).as_bytes());
            packer.split(other(n).as_bytes());
        }
        assert_eq!(packer.models.len(), 2);
    }

    #[test]
    fn a_broken_difference_is_no_text() {
        let (model, difference) = Packer::default().split(b"a text");
        assert!(join(&model, &difference[..difference.len() - 1]).is_none());
        assert!(join(&model[1..], &difference).is_none());
        assert!(join(&model, &[0xff; 20]).is_none());
    }
}
