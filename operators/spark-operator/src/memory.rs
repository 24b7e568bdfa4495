//! How much memory the pods of an application ask for, to the MiB.
//!
//! Source: Spark 3.5 to 4.3 on Kubernetes. All sums are in whole MiB; what a byte string has beyond that is cut off.

use std::collections::BTreeMap;

use training_core::SpecError;
use training_core::quantity::Amount;

use crate::version::SparkVersion;

/// Memory beside the heap is at least this. Units: MiB. Source: Spark.
pub const LEAST_OVERHEAD: i64 = 384;
/// The share of memory beside the heap for Java and Scala. Source: Spark.
pub const JVM_FACTOR: f64 = 0.1;
/// The same for Python and R. Source: Spark.
pub const OTHER_FACTOR: f64 = 0.4;

const MIB: u64 = 1 << 20;
const SHARED_FACTOR: &str = "spark.kubernetes.memoryOverheadFactor";

/// What runs an application, as Spark tells it by the ending of the main file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Java and Scala.
    Jvm,
    /// Python.
    Python,
    /// R.
    R,
}

impl Language {
    /// By the ending of the main file.
    pub fn of(main_file: &str) -> Self {
        match main_file.rsplit_once('.').map(|(_, ending)| ending) {
            Some("py") => Self::Python,
            Some("R" | "r") => Self::R,
            Some(_) | None => Self::Jvm,
        }
    }

    /// The value of `spark.kubernetes.resource.type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Jvm => "java",
            Self::Python => "python",
            Self::R => "r",
        }
    }

    /// The share of memory beside the heap where nothing else is said.
    pub fn factor(self) -> f64 {
        match self {
            Self::Jvm => JVM_FACTOR,
            Self::Python | Self::R => OTHER_FACTOR,
        }
    }
}

/// The unit of a byte string without a suffix. Units: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// One byte.
    Byte,
    /// One MiB, as for most memory properties.
    MiB,
}

/// Bytes that a Java byte string means: an integer and a suffix `b k kb m mb g gb t tb p pb` in any case, from 4.2 on also
/// `ki`, `kib` and so on.
///
/// # Errors
/// In words that follow the name of a field.
pub fn bytes(text: &str, bare: Bare, version: SparkVersion) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let end = lower
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(lower.len());
    let (number, suffix) = lower.split_at(end);
    let wrong = || {
        format!(
            "\"{text}\" is no amount of memory; write an integer with a suffix, e.g. 512m or 2g"
        )
    };
    if suffix.starts_with('.') {
        return Err(format!(
            "\"{text}\": fractional values are not supported; write an integer with a smaller unit, e.g. 1536m instead of 1.5g"
        ));
    }
    let power = match suffix {
        "" => match bare {
            Bare::Byte => 0,
            Bare::MiB => 2,
        },
        "b" => 0,
        "k" | "kb" => 1,
        "m" | "mb" => 2,
        "g" | "gb" => 3,
        "t" | "tb" => 4,
        "p" | "pb" => 5,
        "ki" | "kib" | "mi" | "mib" | "gi" | "gib" | "ti" | "tib" | "pi" | "pib" => {
            if !version.at_least(4, 2) {
                return Err(format!(
                    "\"{text}\" must be a positive number with a suffix that Spark knows: before 4.2 it has no suffix {suffix}; \
                     write {}",
                    text.trim()
                        .trim_end_matches(['b', 'B'])
                        .trim_end_matches(['i', 'I'])
                ));
            }
            suffix
                .chars()
                .next()
                .map_or(0, |first| "_kmgtp".find(first).unwrap_or(0))
        }
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = 1_u64.checked_shl(u32::try_from(power * 10).unwrap_or(u32::MAX));
    unit.and_then(|unit| number.checked_mul(unit))
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| format!("\"{text}\" is more memory than can be counted"))
}

/// Whole MiB that a Java byte string means; a bare number means MiB.
///
/// # Errors
/// As [`bytes`].
pub fn mebibytes(text: &str, version: SparkVersion) -> Result<i64, String> {
    bytes(text, Bare::MiB, version).map(whole)
}

fn whole(bytes: u64) -> i64 {
    i64::try_from(bytes / MIB).unwrap_or(i64::MAX)
}

/// An amount of memory as a container's limit: Java suffixes of two letters or in lower case become those of Kubernetes (`2g` is
/// `2Gi`), and everything else has to be a quantity already.
///
/// # Errors
/// In words that follow the name of a field.
pub fn limit(text: &str) -> Result<String, String> {
    let trimmed = text.trim();
    let lower = trimmed.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let suffix = &lower[digits.len()..];
    let unit = match suffix {
        "k" | "kb" => "Ki",
        "m" | "mb" => "Mi",
        "g" | "gb" => "Gi",
        "t" | "tb" => "Ti",
        "p" | "pb" => "Pi",
        _ => "",
    };
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if whole && !unit.is_empty() {
        return Ok(format!("{digits}{unit}"));
    }
    quantity(trimmed)?;
    Ok(trimmed.to_owned())
}

/// Checks that a text is a Kubernetes quantity.
///
/// # Errors
/// In words that follow the name of a field.
pub fn quantity(text: &str) -> Result<Amount, String> {
    Amount::parse(text).ok_or_else(|| {
        format!("\"{text}\" is no quantity; write e.g. 500m or 2 for CPU, 2Gi for memory")
    })
}

/// A number as Java prints it, e.g. `0.1` and `1.0`: the form in which Spark writes factors.
pub fn java_double(number: f64) -> String {
    let plain = number == 0.0 || (1e-3..1e7).contains(&number.abs());
    if plain {
        return format!("{number:?}");
    }
    let text = format!("{number:E}");
    let (mantissa, exponent) = text.split_once('E').unwrap_or((&text, "0"));
    let point = if mantissa.contains('.') { "" } else { ".0" };
    format!("{mantissa}{point}E{exponent}")
}

/// The Spark properties that memory is counted from, with the names under which errors speak of them.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// All properties of the submission.
    pub properties: &'a BTreeMap<String, String>,
    /// What runs the application.
    pub language: Language,
    /// The version of Spark.
    pub version: SparkVersion,
}

impl Memory<'_> {
    fn mib(&self, key: &str) -> Result<Option<i64>, SpecError> {
        let Some(text) = self.properties.get(key) else {
            return Ok(None);
        };
        let mib = mebibytes(text, self.version).map_err(|why| wrong(key, why))?;
        Ok(Some(mib))
    }

    /// A factor. Spark takes none below zero, and zero itself only for the one that both roles share.
    fn factor(&self, key: &str) -> Result<Option<f64>, SpecError> {
        let Some(text) = self.properties.get(key) else {
            return Ok(None);
        };
        let fits = |factor: &f64| {
            factor.is_finite() && (*factor > 0.0 || *factor == 0.0 && key == SHARED_FACTOR)
        };
        let number = text.trim().parse().ok().filter(fits);
        let why = || format!("\"{text}\" must be a positive number, e.g. 0.2");
        number.ok_or_else(|| wrong(key, why())).map(Some)
    }

    /// The factor that driver and executors share, as it is written to the properties.
    ///
    /// # Errors
    /// If it is no positive number.
    pub fn shared_factor(&self) -> Result<f64, SpecError> {
        let given = self.factor(SHARED_FACTOR)?;
        Ok(given.unwrap_or(self.language.factor()))
    }

    /// Heap and what is beside it, of a role.
    fn base(&self, role: &str) -> Result<i64, SpecError> {
        let key = format!("spark.{role}.memory");
        let heap = self.mib(&key)?.unwrap_or(1024);
        if heap <= 0 {
            let word = if role == "driver" {
                "Driver"
            } else {
                "Executor"
            };
            let why = format!("{word} memory must be a positive number of at least 1m");
            return Err(wrong(&key, why));
        }
        let overhead = self.mib(&format!("spark.{role}.memoryOverhead"))?;
        if let Some(overhead) = overhead {
            return Ok(heap.saturating_add(overhead));
        }
        let own = self.factor(&format!("spark.{role}.memoryOverheadFactor"))?;
        let factor = own.map_or_else(|| self.shared_factor(), Ok)?;
        // Since 4.0, and here for every version: the published operator submits with a Spark 4.
        let least = self.mib(&format!("spark.{role}.minMemoryOverhead"))?;
        let least = least.unwrap_or(LEAST_OVERHEAD);
        Ok(heap.saturating_add(share(factor, heap).max(least)))
    }

    /// What the driver's container asks for. Units: MiB.
    ///
    /// # Errors
    /// The first property that is no amount of memory.
    pub fn driver(&self) -> Result<i64, SpecError> {
        self.base("driver")
    }

    /// What an executor's container will ask for. Units: MiB.
    ///
    /// # Errors
    /// The first property that is no amount of memory.
    pub fn executor(&self) -> Result<i64, SpecError> {
        let mut sum = self.base("executor")?;
        if self.language == Language::Python {
            let python = self.mib("spark.executor.pyspark.memory")?;
            sum = sum.saturating_add(python.unwrap_or(0));
        }
        let flag = self.properties.get("spark.memory.offHeap.enabled");
        if flag.is_some_and(|f| f.trim().eq_ignore_ascii_case("true")) {
            let key = "spark.memory.offHeap.size";
            if let Some(text) = self.properties.get(key) {
                let size = bytes(text, Bare::Byte, self.version).map_err(|why| wrong(key, why))?;
                sum = sum.saturating_add(whole(size));
            }
        }
        Ok(sum)
    }
}

/// A share of so many MiB, cut as the JVM cuts it.
fn share(factor: f64, mib: i64) -> i64 {
    // Spark counts in doubles and casts to a 32-bit integer, which keeps what doesn't fit at the highest.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let cut = (factor * mib as f64) as i32;
    i64::from(cut)
}

fn wrong(key: &str, why: impl Into<String>) -> SpecError {
    SpecError::new(field(key), why)
}

/// The field of the spec that a property comes from, where there is one.
pub fn field(key: &str) -> String {
    let field = match key {
        "spark.driver.memory" => "spec.driver.memory",
        "spark.driver.memoryOverhead" => "spec.driver.memoryOverhead",
        "spark.driver.cores" => "spec.driver.cores",
        "spark.kubernetes.driver.request.cores" => "spec.driver.coreRequest",
        "spark.kubernetes.driver.limit.cores" => "spec.driver.coreLimit",
        "spark.executor.memory" => "spec.executor.memory",
        "spark.executor.memoryOverhead" => "spec.executor.memoryOverhead",
        "spark.executor.cores" => "spec.executor.cores",
        "spark.executor.instances" => "spec.executor.instances",
        "spark.kubernetes.executor.request.cores" => "spec.executor.coreRequest",
        "spark.kubernetes.executor.limit.cores" => "spec.executor.coreLimit",
        SHARED_FACTOR => "spec.memoryOverheadFactor",
        _ => return format!("spec.sparkConf[{key}]"),
    };
    format!("{field} ({key})")
}
