//! Cron schedules, compared with the published parser.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use spark_operator::cron::{Schedule, zone};

fn schedule(text: &str, zone_name: &str) -> Schedule {
    let zone = zone(zone_name, &TimeZone::UTC).unwrap();
    Schedule::parse(text, &zone, &TimeZone::UTC).unwrap()
}

/// Returns the next times after one, with their offsets from UTC.
fn following(text: &str, zone_name: &str, after: &str, count: usize) -> Vec<String> {
    let times = schedule(text, zone_name);
    let zone = zone(zone_name, &TimeZone::UTC).unwrap();
    let mut at: Timestamp = after.parse().unwrap();
    (0..count)
        .map(|_| {
            at = times.next(at).unwrap();
            at.to_zoned(zone.clone())
                .strftime("%Y-%m-%dT%H:%M:%S%:z")
                .to_string()
        })
        .collect()
}

#[test]
fn the_next_time_is_found() {
    for (text, after, expected) in [
        ("* * * * *", "2026-07-09T14:45:00Z", "2026-07-09T14:46:00"),
        ("* * * * *", "2026-07-09T14:59:59Z", "2026-07-09T15:00:00"),
        (
            "*/15 * * * *",
            "2026-07-09T14:45:00Z",
            "2026-07-09T15:00:00",
        ),
        (
            "20-35/15 * * * *",
            "2026-07-09T15:45:59Z",
            "2026-07-09T16:20:00",
        ),
        (
            "5/20 * * * *",
            "2026-07-09T15:26:00Z",
            "2026-07-09T15:45:00",
        ),
        (
            "*/15 * * * *",
            "2026-12-31T23:59:45Z",
            "2027-01-01T00:00:00",
        ),
        ("30 3 * * *", "2026-07-09T03:30:00Z", "2026-07-10T03:30:00"),
        (
            "0 0 9 Apr-Oct ?",
            "2026-11-01T00:00:00Z",
            "2027-04-09T00:00:00",
        ),
        (
            "0 0 * * Mon,FRI",
            "2026-07-09T00:00:00Z",
            "2026-07-10T00:00:00",
        ),
        ("0 0 * * 0", "2026-07-09T00:00:00Z", "2026-07-12T00:00:00"),
        ("0 0 29 2 *", "2026-07-09T00:00:00Z", "2028-02-29T00:00:00"),
        // Either day matches if both are set.
        ("0 0 13 * 5", "2026-07-09T00:00:00Z", "2026-07-10T00:00:00"),
        ("0 0 13 * 5", "2026-07-10T00:00:00Z", "2026-07-13T00:00:00"),
        // Both must match if one of them is `*`.
        ("0 0 * * 5", "2026-07-10T00:00:00Z", "2026-07-17T00:00:00"),
        ("0 0 13 * ?", "2026-07-09T00:00:00Z", "2026-07-13T00:00:00"),
        // A step makes a field count as set.
        (
            "0 0 */10 * 0",
            "2026-07-09T00:00:00Z",
            "2026-07-11T00:00:00",
        ),
        (
            "0 0 */10 * 0",
            "2026-07-11T00:00:00Z",
            "2026-07-12T00:00:00",
        ),
        ("@hourly", "2026-07-09T14:45:00Z", "2026-07-09T15:00:00"),
        ("@daily", "2026-07-09T14:45:00Z", "2026-07-10T00:00:00"),
        ("@midnight", "2026-07-09T14:45:00Z", "2026-07-10T00:00:00"),
        ("@weekly", "2026-07-09T14:45:00Z", "2026-07-12T00:00:00"),
        ("@monthly", "2026-07-09T14:45:00Z", "2026-08-01T00:00:00"),
        ("@yearly", "2026-07-09T14:45:00Z", "2027-01-01T00:00:00"),
        ("@annually", "2026-07-09T14:45:00Z", "2027-01-01T00:00:00"),
        ("@every 15s", "2026-07-09T14:45:00Z", "2026-07-09T14:45:15"),
        (
            "@every 1h30m",
            "2026-07-09T14:45:00.7Z",
            "2026-07-09T16:15:00",
        ),
        ("@every 1.5m", "2026-07-09T14:45:00Z", "2026-07-09T14:46:30"),
        ("@every 10ms", "2026-07-09T14:45:00Z", "2026-07-09T14:45:01"),
    ] {
        let found = following(text, "UTC", after, 1);
        assert_eq!(found, [format!("{expected}+00:00")], "{text} after {after}");
    }
}

#[test]
fn a_time_that_never_comes_is_none() {
    let after: Timestamp = "2026-07-09T00:00:00Z".parse().unwrap();
    assert_eq!(schedule("0 0 30 2 *", "UTC").next(after), None);
}

#[test]
fn a_zone_shifts_the_times() {
    let after = "2026-07-09T00:00:00Z";
    assert_eq!(
        following("0 9 * * *", "Asia/Tokyo", after, 1),
        ["2026-07-10T09:00:00+09:00"]
    );
    assert_eq!(
        following("0 9 * * *", "America/New_York", after, 1),
        ["2026-07-09T09:00:00-04:00"]
    );
    // A zone in the text overrides the default.
    for text in ["CRON_TZ=Asia/Tokyo 0 9 * * *", "TZ=Asia/Tokyo 0 9 * * *"] {
        assert_eq!(
            following(text, "UTC", "2026-07-09T00:00:00Z", 1),
            ["2026-07-10T00:00:00+00:00"]
        );
    }
}

#[test]
fn a_local_time_that_is_left_out_never_comes() {
    // On 8 March 2026 New York's clocks go from 02:00 to 03:00.
    let (zone, after) = ("America/New_York", "2026-03-08T05:30:00Z");
    assert_eq!(
        following("30 2 * * *", zone, after, 2),
        ["2026-03-09T02:30:00-04:00", "2026-03-10T02:30:00-04:00"]
    );
    assert_eq!(
        following("0 * * * *", zone, after, 3),
        [
            "2026-03-08T01:00:00-05:00",
            "2026-03-08T03:00:00-04:00",
            "2026-03-08T04:00:00-04:00"
        ]
    );
    // Only on that date: next year the change is on another date.
    assert_eq!(
        following("30 2 8 3 *", zone, after, 1),
        ["2027-03-08T02:30:00-05:00"]
    );
    // The gap can include midnight; the day still exists.
    assert_eq!(
        following("0 12 * * *", "America/Santiago", "2026-09-05T20:00:00Z", 1),
        ["2026-09-06T12:00:00-03:00"]
    );
}

#[test]
fn a_local_time_that_is_repeated_comes_twice() {
    // On 1 November 2026 New York's clocks go from 02:00 back to 01:00.
    let (zone, after) = ("America/New_York", "2026-11-01T04:30:00Z");
    assert_eq!(
        following("30 1 * * *", zone, after, 3),
        [
            "2026-11-01T01:30:00-04:00",
            "2026-11-01T01:30:00-05:00",
            "2026-11-02T01:30:00-05:00"
        ]
    );
    assert_eq!(
        following("*/30 * * * *", zone, after, 6),
        [
            "2026-11-01T01:00:00-04:00",
            "2026-11-01T01:30:00-04:00",
            "2026-11-01T01:00:00-05:00",
            "2026-11-01T01:30:00-05:00",
            "2026-11-01T02:00:00-05:00",
            "2026-11-01T02:30:00-05:00",
        ]
    );
    // Back past midnight, to the day before.
    assert_eq!(
        following("45 23 * * *", "America/Santiago", "2026-04-04T20:00:00Z", 3),
        [
            "2026-04-04T23:45:00-03:00",
            "2026-04-04T23:45:00-04:00",
            "2026-04-05T23:45:00-04:00"
        ]
    );
}

#[test]
fn a_repeated_hour_can_begin_on_the_day_before() {
    // On 7 November 2010 Newfoundland's clocks went from 00:01 back to 23:01.
    let zone = "America/St_Johns";
    assert_eq!(
        following("*/30 * * * *", zone, "2010-11-07T01:45:00Z", 5),
        [
            "2010-11-06T23:30:00-02:30",
            "2010-11-07T00:00:00-02:30",
            "2010-11-06T23:30:00-03:30",
            "2010-11-07T00:00:00-03:30",
            "2010-11-07T00:30:00-03:30",
        ]
    );
    assert_eq!(
        following("30 23 * * *", zone, "2010-11-07T02:30:30Z", 1),
        ["2010-11-06T23:30:00-03:30"]
    );
}

#[test]
fn what_is_no_schedule_is_refused_in_the_published_words() {
    for (text, expected) in [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("* * * * * *", "expected exactly 5 fields, found 6"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* 24 * * *", "end of range (24) above maximum (23): 24"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * 13 *", "end of range (13) above maximum (12): 13"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        (
            "9-4 * * * *",
            "beginning of range (9) beyond end of range (4): 9-4",
        ),
        (
            "*/0 * * * *",
            "step of range should be a positive number: */0",
        ),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("x * * * *", "failed to parse int from x"),
        ("@often", "unrecognized descriptor: @often"),
        ("@every often", "failed to parse duration @every often"),
        ("@every ", "unrecognized descriptor"),
        (
            "TZ=Nowhere/Land * * * * *",
            "provided bad location Nowhere/Land: unknown time zone Nowhere/Land",
        ),
    ] {
        let error = Schedule::parse(text, &TimeZone::UTC, &TimeZone::UTC).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(
        zone("Nowhere", &TimeZone::UTC).unwrap_err(),
        "unknown time zone Nowhere"
    );
}
