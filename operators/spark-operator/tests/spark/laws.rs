//! Property tests.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use proptest::prelude::*;
use spark_operator::cron::{Schedule, zone};
use spark_operator::{escape, names};

/// Parses a properties file as `java.util.Properties` does.
pub fn load(text: &str) -> BTreeMap<String, String> {
    let lines = text
        .split('\n')
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '!']));
    lines.map(pair).collect()
}

fn pair(line: &str) -> (String, String) {
    let (mut key, mut value) = (String::new(), String::new());
    let (mut in_value, mut begun) = (false, false);
    let mut all = line.chars();
    while let Some(c) = all.next() {
        let read = match c {
            '\\' => match all.next() {
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some(other) => other,
                None => continue,
            },
            '=' | ':' if !in_value => {
                in_value = true;
                continue;
            }
            ' ' | '\t' | '\u{c}' if in_value && !begun => continue,
            other => other,
        };
        begun |= in_value;
        if in_value { &mut value } else { &mut key }.push(read);
    }
    (key, value)
}

proptest! {
    #[test]
    fn a_file_says_what_it_was_made_from(
        pairs in prop::collection::btree_map("spark\\.[ -~é\t\n]{1,12}", "[ -~é漢\t\n\r\u{c}]{0,20}", 0..8),
    ) {
        let text = escape::file(&["a comment".to_owned()], &pairs);
        prop_assert_eq!(load(&text), pairs);
    }

    #[test]
    fn names_of_objects_are_names(name in "[ -~]{1,80}") {
        let prefix = names::prefix(&name, "0123456789abcdef");
        prop_assert!(prefix.starts_with(|c: char| c.is_ascii_lowercase()), "{}", prefix);
        prop_assert!(prefix.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        let service = names::driver_service(&prefix, "id");
        prop_assert!(service.len() <= 63 && service.ends_with("-driver-svc"));
        prop_assert!(names::app_name_label(&name).len() <= 63);
        prop_assert!(names::with_suffix(&prefix, "ui-svc").len() <= 63);
    }

    #[test]
    fn no_time_is_left_out_and_none_is_made_up(
        start in 1_780_000_000i64..1_800_000_000,
        minute in 0u32..60,
        step in 1u32..7,
        zone_name in prop::sample::select(vec!["UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Santiago"]),
    ) {
        let zone = zone(zone_name, &TimeZone::UTC).unwrap();
        let text = format!("{minute} */{step} * * *");
        let schedule = Schedule::parse(&text, &zone, &TimeZone::UTC).unwrap();
        let after = Timestamp::from_second(start).unwrap();
        let next = schedule.next(after).unwrap();
        // The first matching minute in local time, found by brute force.
        let first = start.div_euclid(60) * 60 + 60;
        let found = (0..60 * 24 * 3).map(|m| first + m * 60).find(|at| {
            let local = Timestamp::from_second(*at).unwrap().to_zoned(zone.clone());
            u32::try_from(local.minute()).unwrap() == minute && u32::try_from(local.hour()).unwrap() % step == 0
        });
        prop_assert_eq!(Some(next.as_second()), found);
    }
}
