//! The memory requests of an application's pods, in MiB.
//!
//! Source: Spark 3.5 to 4.3 on Kubernetes. All sums are in whole MiB; byte strings are rounded down.

use std::collections::BTreeMap;

use training_core::SpecError;
use training_core::quantity::Amount;

use crate::version::SparkVersion;

/// The minimum memory overhead. Units: MiB. Source: Spark.
pub const LEAST_OVERHEAD: i64 = 384;
/// The memory overhead factor for Java and Scala. Source: Spark.
pub const JVM_FACTOR: f64 = 0.1;
/// The memory overhead factor for Python and R. Source: Spark.
pub const OTHER_FACTOR: f64 = 0.4;

const MIB: u64 = 1 << 20;
const SHARED_FACTOR: &str = "spark.kubernetes.memoryOverheadFactor";

/// The language of an application, as Spark infers it from the extension of the main file.
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
    /// Returns the language for the main file's extension.
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

    /// The default memory overhead factor.
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

/// Parses a Java byte string: an integer and a suffix `b k kb m mb g gb t tb p pb` in any case, since 4.2 also `ki`, `kib` and so
/// on. Returns bytes.
///
/// # Errors
/// A message that follows the name of a field.
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

/// Parses a Java byte string into whole MiB; a bare number means MiB.
///
/// # Errors
/// As [`bytes`].
pub fn mebibytes(text: &str, version: SparkVersion) -> Result<i64, String> {
    bytes(text, Bare::MiB, version).map(whole)
}

fn whole(bytes: u64) -> i64 {
    i64::try_from(bytes / MIB).unwrap_or(i64::MAX)
}

/// Converts a memory limit for a container: Java suffixes of two letters or in lower case become those of Kubernetes (`2g` is
/// `2Gi`); everything else must be a quantity already.
///
/// # Errors
/// A message that follows the name of a field.
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

/// Parses a Kubernetes quantity.
///
/// # Errors
/// A message that follows the name of a field.
pub fn quantity(text: &str) -> Result<Amount, String> {
    Amount::parse(text).ok_or_else(|| {
        format!("\"{text}\" is no quantity; write e.g. 500m or 2 for CPU, 2Gi for memory")
    })
}

/// Formats a number as Java does, e.g. `0.1` and `1.0`; Spark writes factors this way.
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

/// The Spark properties that determine memory. Errors name the properties or their fields.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// All properties of the submission.
    pub properties: &'a BTreeMap<String, String>,
    /// The language of the application.
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

    /// Parses a factor. Spark accepts no negative factor, and zero only for the shared one.
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

    /// Returns the factor that driver and executors share, as written to the properties.
    ///
    /// # Errors
    /// If it is not a positive number.
    pub fn shared_factor(&self) -> Result<f64, SpecError> {
        let given = self.factor(SHARED_FACTOR)?;
        Ok(given.unwrap_or(self.language.factor()))
    }

    /// Returns heap plus overhead of a role.
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
        // Spark has this since 4.0. It applies to every version here, because the published operator submits with Spark 4.
        let least = self.mib(&format!("spark.{role}.minMemoryOverhead"))?;
        let least = least.unwrap_or(LEAST_OVERHEAD);
        Ok(heap.saturating_add(share(factor, heap).max(least)))
    }

    /// The memory request of the driver's container. Units: MiB.
    ///
    /// # Errors
    /// The first property that is not a memory quantity.
    pub fn driver(&self) -> Result<i64, SpecError> {
        self.base("driver")
    }

    /// The memory request of an executor's container. Units: MiB.
    ///
    /// # Errors
    /// The first property that is not a memory quantity.
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

/// Returns a share of a size in MiB, truncated as the JVM does.
fn share(factor: f64, mib: i64) -> i64 {
    // Spark computes in doubles and casts to a 32-bit integer, which saturates.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let cut = (factor * mib as f64) as i32;
    i64::from(cut)
}

fn wrong(key: &str, why: impl Into<String>) -> SpecError {
    SpecError::new(field(key), why)
}

/// Returns the field of the spec that a property comes from, or else the property.
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
