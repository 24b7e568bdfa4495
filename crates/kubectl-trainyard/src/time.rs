//! Formats and parses times and durations.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Formats a duration in one unit: `45s`, `6m`, `3h`, `2d`. Units: seconds.
pub fn duration(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7_200 => format!("{}m", s / 60),
        s @ 7_200..172_800 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

/// Formats the time that has passed since `then`.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    duration(now.duration_since(then).as_secs())
}

/// Formats a time in UTC, with the date unless it is today.
pub fn clock(at: Timestamp, now: Timestamp) -> String {
    let day = |t: Timestamp| t.strftime("%Y-%m-%d").to_string();
    if day(at) == day(now) {
        at.strftime("%H:%M:%SZ").to_string()
    } else {
        at.strftime("%Y-%m-%d %H:%MZ").to_string()
    }
}

/// Formats a time in the future: `at 14:11:30Z, in 90s`.
pub fn upcoming(at: Timestamp, now: Timestamp) -> String {
    let left = at.duration_since(now).as_secs();
    format!("at {}, in {}", clock(at, now), duration(left))
}

/// Adds seconds to a time. Returns `None` if the result is out of range.
pub fn after(start: Timestamp, seconds: i64) -> Option<Timestamp> {
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Parses `90s`, `5m`, `1h30m` or a number of seconds.
pub fn parse(text: &str) -> Result<std::time::Duration, String> {
    let invalid = || format!("\"{text}\" is not a duration: use 90s, 5m or 1h30m");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(std::time::Duration::from_secs(seconds));
    }
    let parsed: SignedDuration = text.parse().map_err(|_| invalid())?;
    parsed.try_into().map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let texts = [-5, 0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(duration);
        assert_eq!(texts, ["0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn a_time_of_another_day_has_a_date() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-11-25T14:10:00Z");
        assert_eq!(clock(at("2026-11-25T14:02:05Z"), now), "14:02:05Z");
        assert_eq!(clock(at("2026-11-24T14:02:05Z"), now), "2026-11-24 14:02Z");
        assert_eq!(
            upcoming(at("2026-11-25T14:11:30Z"), now),
            "at 14:11:30Z, in 90s"
        );
    }

    #[test]
    fn a_timeout_is_parsed_as_kubectl_does() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h30m", 5_400), ("20", 20)] {
            assert_eq!(parse(text).map(|d| d.as_secs()), Ok(seconds), "{text}");
        }
        assert!(parse("soon").is_err() && parse("-1s").is_err());
    }
}
