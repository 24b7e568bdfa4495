//! Results on disk: one file per metric, written after every pair, so that an interrupted run can be resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Named numbers of one run.
pub type Figures = BTreeMap<String, f64>;

/// The side that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The floor client.
    Floor,
    /// The operator.
    Ours,
    /// The published Go operator with its default flags.
    Go,
    /// The same with several threads and 1,000 requests a second.
    Tuned,
}

/// Runs to compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The baseline: the floor client, or the operator under easier conditions.
    pub floor: Figures,
    /// The operator's figures.
    pub ours: Figures,
    /// The Go operator's, if it was measured.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub go: Figures,
    /// The same with other flags.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub tuned: Figures,
}

impl Pair {
    /// A pair of a baseline and the operator.
    pub fn new(floor: Figures, ours: Figures) -> Self {
        Self {
            floor,
            ours,
            ..Self::default()
        }
    }

    /// Returns the operator's figure over the baseline's.
    pub fn ratio(&self, name: &str) -> Option<f64> {
        let (floor, ours) = (self.floor.get(name)?, self.ours.get(name)?);
        (*floor > 0.0).then(|| ours / floor)
    }

    /// Returns one side's figures.
    pub fn of(&self, side: Side) -> &Figures {
        match side {
            Side::Floor => &self.floor,
            Side::Ours => &self.ours,
            Side::Go => &self.go,
            Side::Tuned => &self.tuned,
        }
    }

    /// Sets one side's figures.
    pub fn set(&mut self, side: Side, figures: Figures) {
        *match side {
            Side::Floor => &mut self.floor,
            Side::Ours => &mut self.ours,
            Side::Go => &mut self.go,
            Side::Tuned => &mut self.tuned,
        } = figures;
    }

    /// Returns the share of the machine that other processes used, in the worst of the runs.
    pub fn foreign(&self) -> f64 {
        let share = |figures: &Figures| figures.get("foreign_share").copied().unwrap_or(0.0);
        let all = [&self.floor, &self.ours, &self.go, &self.tuned];
        all.into_iter().map(share).fold(0.0, f64::max)
    }
}

/// The results of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Pairs, in the order of their runs.
    pub pairs: Vec<Pair>,
    /// Why runs did not count.
    pub faults: Vec<String>,
}

/// The result directory of one size, one kind of jobs and one build of its operator.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Opens the directory; each kind and build has its own.
    pub fn open(target: &Path, size: &str, kind: &str, binary: &Path) -> Result<Self> {
        let bytes =
            fs::read(binary).with_context(|| format!("no operator at {}", binary.display()))?;
        let dir = target
            .join("bench")
            .join(format!("{size}-{kind}-{:016x}", digest(&bytes)));
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads the results of a metric.
    pub fn read(&self, metric: &str) -> Result<Record> {
        match fs::read(self.path(metric)) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} can't be read; remove it", self.path(metric).display())
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores the results of a metric atomically.
    pub fn write(&self, metric: &str, record: &Record) -> Result<()> {
        let new = self.path(&format!("{metric}.new"));
        fs::write(&new, serde_json::to_vec_pretty(record)?)?;
        Ok(fs::rename(new, self.path(metric))?)
    }

    /// Deletes all results.
    pub fn clear(&self) -> Result<()> {
        fs::remove_dir_all(&self.dir)?;
        Ok(fs::create_dir_all(&self.dir)?)
    }

    fn path(&self, metric: &str) -> PathBuf {
        self.dir.join(format!("{metric}.json"))
    }
}

/// FNV-1a: distinguishes builds, and needs no crate.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, value: f64) -> Figures {
        [(name.to_owned(), value)].into()
    }

    #[test]
    fn what_was_kept_is_found_again_and_another_kind_or_build_finds_nothing() {
        let target = std::env::temp_dir().join(format!("bench-store-{}", std::process::id()));
        fs::create_dir_all(&target).unwrap();
        let (one, other) = (target.join("one"), target.join("other"));
        fs::write(&one, "a").unwrap();
        fs::write(&other, "b").unwrap();
        let store = Store::open(&target, "smoke", "tf", &one).unwrap();
        assert_eq!(store.read("pace").unwrap(), Record::default());
        let pair = Pair::new(figures("x", 2.0), figures("x", 3.0));
        assert_eq!((pair.ratio("x"), pair.ratio("y")), (Some(1.5), None));
        let record = Record {
            pairs: vec![pair],
            faults: Vec::new(),
        };
        store.write("pace", &record).unwrap();
        let again = Store::open(&target, "smoke", "tf", &one).unwrap();
        assert_eq!(again.read("pace").unwrap(), record);
        for (kind, binary) in [("tf", &other), ("xgboost", &one)] {
            let foreign = Store::open(&target, "smoke", kind, binary).unwrap();
            assert_eq!(foreign.read("pace").unwrap(), Record::default());
        }
        again.clear().unwrap();
        assert_eq!(again.read("pace").unwrap(), Record::default());
        fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        let pair = Pair::new(figures("x", 0.0), figures("x", 3.0));
        assert_eq!(pair.ratio("x"), None);
    }
}
