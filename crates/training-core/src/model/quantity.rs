//! Sums of resource quantities, exact to the nano, printed like the API server prints them.
//!
//! Source: the rules of Kubernetes' `resource.Quantity`. A quantity has at most nano precision, rounded away from zero, and a
//! magnitude below 2^63. The sum of two quantities keeps the format of the first that isn't zero.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// One, in nanos.
const ONE: i128 = 1_000_000_000;
/// The largest magnitude, in nanos.
const MAX_NANOS: i128 = i64::MAX as i128 * ONE;

/// The format of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Spelling {
    /// `500m`, `2`, `3M`.
    #[default]
    Decimal,
    /// `4Gi`.
    Binary,
    /// `2e3`.
    Exponent,
}

/// A quantity as a number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    nanos: i128,
    spelling: Spelling,
}

impl Amount {
    /// Parses a quantity.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (spelling, power, binary) = unit(suffix)?;
        let nanos = nanos(whole, fraction, power, binary);
        Some(Self {
            nanos: if negative { -nanos } else { nanos },
            spelling,
        })
    }

    /// Returns the sum. It keeps the format of `self`, unless that is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, self.nanos.saturating_add(other.nanos))
    }

    /// Multiplies the amount by `count`.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        self.with(self, self.nanos.saturating_mul(i128::from(count)))
    }

    /// Returns the larger amount, or `self` if both are equal.
    #[must_use]
    pub fn or_more(self, other: Self) -> Self {
        if other.nanos > self.nanos {
            other
        } else {
            self
        }
    }

    fn with(self, other: Self, nanos: i128) -> Self {
        Self {
            nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS),
            spelling: if self.nanos == 0 {
                other.spelling
            } else {
                self.spelling
            },
        }
    }

    /// Returns the quantity in its canonical format.
    pub fn to_quantity(self) -> Quantity {
        Quantity(self.print())
    }

    fn print(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let whole = self.nanos % ONE == 0;
        if self.spelling == Spelling::Binary && whole && self.nanos.abs() >= 1024 * ONE {
            let (number, power) = without_factors(self.nanos / ONE, 1024, 6);
            return format!(
                "{number}{}",
                ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]
            );
        }
        let (number, power) = without_factors(self.nanos, 1000, 9);
        if self.spelling == Spelling::Exponent {
            return match power {
                3 => number.to_string(),
                power => format!("{number}e{}", (i64::try_from(power).unwrap_or(0) - 3) * 3),
            };
        }
        let units = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        format!("{number}{}", units[power])
    }
}

/// Divides `number` by `base` while the division is exact, at most `most` times.
fn without_factors(mut number: i128, base: i128, most: usize) -> (i128, usize) {
    let mut power = 0;
    while power < most && number % base == 0 {
        number /= base;
        power += 1;
    }
    (number, power)
}

/// Returns the format of a suffix, with its power of ten and its power of 1024.
fn unit(suffix: &str) -> Option<(Spelling, i32, u32)> {
    let decimal = |power| Some((Spelling::Decimal, power, 0));
    let binary = |power| Some((Spelling::Binary, 0, power));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        other => {
            let power = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            Some((Spelling::Exponent, power, 0))
        }
    }
}

/// Returns `whole.fraction` × 10^`power` × 1024^`binary` in nanos, rounded up, at most [`MAX_NANOS`].
fn nanos(whole: &str, fraction: &str, power: i32, binary: u32) -> i128 {
    let digits = [whole, fraction].concat();
    let digits = digits.trim_start_matches('0');
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = power.saturating_add(9).saturating_sub(places);
    // No number below the limit has more digits than that. The rest only decides the rounding.
    let kept = digits.len().min(30);
    let dropped = i32::try_from(digits.len() - kept).unwrap_or(i32::MAX);
    let lost = digits[kept..].bytes().any(|b| b != b'0');
    let power = power.saturating_add(dropped);
    let mantissa: i128 = digits[..kept].parse().unwrap_or(0);
    if mantissa == 0 {
        return 0;
    }
    let mantissa = 1024_i128
        .checked_pow(binary)
        .and_then(|m| m.checked_mul(mantissa));
    let Some(mantissa) = mantissa else {
        return MAX_NANOS;
    };
    let tens = |n: i32| u32::try_from(n).ok().and_then(|n| 10_i128.checked_pow(n));
    let exact = if power >= 0 {
        tens(power).and_then(|t| t.checked_mul(mantissa))
    } else {
        let divisor = tens(power.saturating_neg()).unwrap_or(i128::MAX);
        let up = i128::from(mantissa % divisor != 0 || lost);
        Some(mantissa / divisor + up)
    };
    exact.map_or(MAX_NANOS, |n| n.min(MAX_NANOS))
}

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;

/// Adds `more`, `times` times, to the amounts of the same names.
pub fn add(to: &mut Amounts, more: &Amounts, times: u32) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.plus(amount.times(times));
    }
}

fn at_least(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = to.entry(name.clone()).or_insert(*amount);
        *known = known.or_more(*amount);
    }
}

fn amounts(of: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    of.into_iter()
        .flatten()
        .filter_map(|(name, q)| Some((name.clone(), Amount::parse(&q.0)?)))
        .collect()
}

/// Returns the requests. For resources without a request it returns the limit, like the API server's defaulting.
fn requested(resources: Option<&ResourceRequirements>) -> Amounts {
    let mut out = amounts(resources.and_then(|r| r.limits.as_ref()));
    out.extend(amounts(resources.and_then(|r| r.requests.as_ref())));
    out
}

fn of_container(container: &Container) -> Amounts {
    requested(container.resources.as_ref())
}

/// Returns the resources that the scheduler counts for a pod.
///
/// Source: Kubernetes 1.37. The larger of: the sum of all containers and sidecars, or the largest init container plus the sidecars
/// before it. Pod-level resources replace that. The pod's overhead is added.
pub fn of_pod(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of_container(container), 1);
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        let mut needed = sidecars.clone();
        add(&mut needed, &own, 1);
        at_least(&mut starting, &needed);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = needed;
        }
    }
    add(&mut running, &sidecars, 1);
    at_least(&mut running, &starting);
    if let Some(whole) = &spec.resources {
        for (name, limit) in amounts(whole.limits.as_ref()) {
            running.entry(name).or_insert(limit);
        }
        running.extend(amounts(whole.requests.as_ref()));
    }
    add(&mut running, &amounts(spec.overhead.as_ref()), 1);
    running
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn canonical(text: &str) -> String {
        Amount::parse(text).unwrap().print()
    }

    #[test]
    fn quantities_are_spelled_as_the_api_server_spells_them() {
        let rows = [
            ("1", "1"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            (".25", "250m"),
            ("+2", "2"),
            ("-1500m", "-1500m"),
            ("1000", "1k"),
            ("1100", "1100"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1000Ki", "1000Ki"),
            ("0.1Gi", "107374182400m"),
            ("2e3", "2e3"),
            ("2E3", "2e3"),
            ("12e-3", "12e-3"),
            ("1E", "1E"),
            ("100e0", "100"),
            ("0Gi", "0"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("9223372036854775807", "9223372036854775807"),
            (
                "99999999999999999999999999999999999999999",
                "9223372036854775807",
            ),
            ("100Ei", "9223372036854775807"),
        ];
        for (text, expected) in rows {
            assert_eq!(canonical(text), expected, "{text}");
        }
        for odd in ["", "x", "1x", ".", "1..2", "1.2.3", "1e", "--1", "1 "] {
            assert!(Amount::parse(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_sum_keeps_the_spelling_of_the_first_that_is_not_zero() {
        let sum = |texts: &[&str]| {
            let amounts = texts.iter().map(|t| Amount::parse(t).unwrap());
            amounts.fold(Amount::default(), Amount::plus).print()
        };
        assert_eq!(sum(&["512Mi", "512Mi"]), "1Gi");
        assert_eq!(sum(&["512Mi", "1G"]), "1536870912");
        assert_eq!(sum(&["0", "512Mi", "512Mi"]), "1Gi");
        assert_eq!(sum(&["100m", "200m", "0.7"]), "1");
        assert_eq!(sum(&["1", "1Gi"]), "1073741825");
    }

    proptest! {
        #[test]
        fn what_is_printed_is_the_same_number(number in 0u64..u64::MAX / 4, unit in 0usize..12) {
            let units = ["n", "u", "m", "", "k", "M", "Ki", "Mi", "Gi", "e3", "e-6", ""];
            let amount = Amount::parse(&format!("{number}{}", units[unit])).unwrap();
            let again = Amount::parse(&amount.print()).unwrap();
            prop_assert_eq!(again.nanos, amount.nanos);
            prop_assert_eq!(again.print(), amount.print());
        }

        #[test]
        fn many_times_is_the_sum_of_so_many(number in 0u32..10_000, count in 0u32..50) {
            let one = Amount::parse(&format!("{number}m")).unwrap();
            let sum = (0..count).fold(Amount::default(), |sum, _| sum.plus(one));
            prop_assert_eq!(one.times(count).print(), sum.print());
        }
    }

    fn of(spec: serde_json::Value) -> BTreeMap<String, String> {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let amounts = of_pod(&spec).into_iter();
        amounts.map(|(name, a)| (name, a.print())).collect()
    }

    #[test]
    fn a_pod_counts_as_the_scheduler_counts_it() {
        let with = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}});
        let cpu = |spec| of(spec).remove("cpu").unwrap_or_default();
        let rows = [
            (
                "containers add up",
                json!({"containers": [with("1"), with("500m")]}),
                "1500m",
            ),
            (
                "a large init container counts",
                json!({"containers": [with("1")], "initContainers": [with("3"), with("2")]}),
                "3",
            ),
            (
                "a small one does not",
                json!({"containers": [with("1")], "initContainers": [with("500m")]}),
                "1",
            ),
            (
                "a sidecar runs beside the containers",
                json!({"containers": [with("1")], "initContainers": [sidecar]}),
                "1100m",
            ),
            (
                "and beside init containers after it",
                json!({"containers": [with("1")], "initContainers": [sidecar, with("2")]}),
                "2100m",
            ),
            (
                "not beside those before it",
                json!({"containers": [with("1")], "initContainers": [with("2"), sidecar]}),
                "2",
            ),
            (
                "overhead comes on top",
                json!({"containers": [with("1")], "overhead": {"cpu": "250m"}}),
                "1250m",
            ),
            (
                "the pod's own request rules",
                json!({"containers": [with("1")], "resources": {"requests": {"cpu": "4"}}}),
                "4",
            ),
            (
                "its limit where nothing else is",
                json!({"containers": [{"name": "c"}], "resources": {"limits": {"cpu": "4"}}}),
                "4",
            ),
        ];
        for (row, spec, expected) in rows {
            assert_eq!(cpu(spec), expected, "{row}");
        }
    }

    #[test]
    fn a_limit_stands_in_for_a_request_that_is_not_there_one_by_one() {
        let spec = json!({"containers": [{"name": "c", "resources": {
            "requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}
        }}]});
        let expected = [("cpu", "1"), ("nvidia.com/gpu", "1")];
        assert_eq!(
            of(spec),
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }
}
