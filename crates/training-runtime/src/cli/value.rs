//! Parsers of single values in Go's notation.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use thiserror::Error;

/// Arguments that contradict each other or ask for missing features.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UsageError(pub(super) String);

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// One line of text.
    Compact,
}

/// The address a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// Disabled.
    Off,
    /// Every address of the machine, at this port.
    Any(u16),
    /// One address, as `host:port`; the host may be a name.
    At(String),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text == "0" {
            return Ok(Self::Off);
        }
        let wrong = || format!("\"{text}\" is neither host:port nor :port nor 0");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        // A bare IPv6 address has colons of its own; without brackets its end would pass for a port.
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(format!(
                "the IPv6 address in \"{text}\" must be in brackets"
            ));
        }
        Ok(if host.is_empty() {
            Self::Any(port)
        } else {
            Self::At(text.to_owned())
        })
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::Any(port) => write!(f, ":{port}"),
            Self::At(address) => f.write_str(address),
        }
    }
}

/// Parses a duration in Go's notation: numbers with units, such as `1m30s`, `500ms`, `1.5h`, or a plain `0`.
///
/// # Errors
/// Names the accepted form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a duration such as 500ms, 15s, 1m30s or 1h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(wrong());
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    Ok(total)
}

/// Parses a boolean in any spelling of Go's flag package.
///
/// # Errors
/// If it is neither true nor false.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("\"{text}\" is neither true nor false")),
    }
}

/// Parses a namespace. An empty value means all namespaces.
pub(super) fn parse_namespace(text: &str) -> Result<String, String> {
    let name = text.trim();
    let legal = name.len() <= 63
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if legal {
        Ok(name.to_owned())
    } else {
        Err(format!("\"{name}\" is not the name of a namespace"))
    }
}

/// Parses the name of a scheduler, a DNS subdomain. "none" in any case means no scheduler.
pub(super) fn parse_scheduler(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.eq_ignore_ascii_case("none") {
        return Ok(String::new());
    }
    let edge = |b: u8| b.is_ascii_alphanumeric();
    let legal = |b: u8| edge(b) || matches!(b, b'-' | b'.');
    let (first, last) = (name.bytes().next(), name.bytes().last());
    if name.len() <= 253
        && name.bytes().all(legal)
        && first.is_none_or(edge)
        && last.is_none_or(edge)
    {
        Ok(name.to_owned())
    } else {
        Err(format!("\"{name}\" is not the name of a scheduler"))
    }
}

/// A gang scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GangMode {
    /// Pods are scheduled one by one
    None,
    /// Volcano, by its `PodGroup`
    Volcano,
    /// The coscheduling plugin of scheduler-plugins, by its `PodGroup`
    SchedulerPlugins,
    /// Kubernetes itself, by its `Workload` and `PodGroup`
    Native,
    /// Kueue, which suspends and resumes whole jobs
    Kueue,
}

impl GangMode {
    /// Returns the value of the flag.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Volcano => "volcano",
            Self::SchedulerPlugins => "scheduler-plugins",
            Self::Native => "native",
            Self::Kueue => "kueue",
        }
    }
}

/// Parses a DNS domain in lower case; it may be empty.
///
/// # Errors
/// If it is anything else.
pub fn parse_domain(text: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |l: &str| !l.is_empty() && l.bytes().all(plain);
    if text.is_empty() || text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("a domain has labels of lower-case letters, digits and dashes, with one dot between them".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::parse_domain;

    #[test]
    fn a_domain_that_no_address_can_end_in_is_refused() {
        for good in ["", "cluster.local", "a-1.b"] {
            assert!(parse_domain(good).is_ok(), "{good}");
        }
        for bad in [".", ".svc", "a..b", "A.b", "a b", "a.b."] {
            assert!(parse_domain(bad).is_err(), "{bad}");
        }
    }
}
