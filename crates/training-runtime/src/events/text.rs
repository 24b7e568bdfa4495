//! What an event may say.

/// The most bytes of a message. Source: the validation of core/v1 events in Kubernetes.
const LONGEST: usize = 1_024;

/// What an event matters to whoever asks what became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matter {
    /// What was made, deleted, lost on the way.
    Course,
    /// The job is suspended or resumed.
    Turn,
    /// The job has ended, or why, or what is left of it.
    End,
}

/// What a reason tells. The published ones are made of the kind's name.
pub(super) fn matter(reason: &str) -> Matter {
    const ENDS: [&str; 6] = [
        "InvalidSpec",
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "PodsStillRunning",
        "SparkApplicationFailed",
        "SparkApplicationCompleted",
    ];
    // A run that fails is none: others may follow, many a minute.
    const TURNS: [&str; 2] = ["SparkApplicationSuspended", "SparkApplicationResuming"];
    let is = |ends: &[&str]| ends.iter().any(|end| reason.ends_with(end));
    if ENDS.contains(&reason) || is(&["JobSucceeded", "JobFailed"]) {
        Matter::End
    } else if TURNS.contains(&reason) || is(&["JobSuspended", "JobResumed"]) {
        Matter::Turn
    } else {
        Matter::Course
    }
}

/// A message without control characters, cut to what an event takes. Line ends become spaces, so that
/// words don't run together.
pub(super) fn clean(message: &str) -> String {
    const CUT: char = '…';
    let mut text = String::with_capacity(message.len().min(LONGEST));
    let mut characters = message.trim().chars().filter_map(|c| match c {
        '\n' | '\t' => Some(' '),
        c if c.is_control() => None,
        c => Some(c),
    });
    // Room for the mark is needed only if something is left over.
    let mut fits = 0;
    for c in characters.by_ref() {
        if text.len() + c.len_utf8() > LONGEST {
            text.truncate(fits);
            text.push(CUT);
            break;
        }
        text.push(c);
        if text.len() + CUT.len_utf8() <= LONGEST {
            fits = text.len();
        }
    }
    text
}

/// A reason that the API server takes: at most 128 bytes.
pub(super) fn reason(reason: &str) -> String {
    let mut end = reason.len().min(128);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().to_owned()
}

/// The name of an event: its object's, cut so that the whole is at most 253 bytes, and a suffix.
pub(super) fn name(object: &str, suffix: u64) -> String {
    let mut end = object.len().min(253 - 17);
    while !object.is_char_boundary(end) {
        end -= 1;
    }
    let object = object
        .get(..end)
        .unwrap_or_default()
        .trim_end_matches(['.', '-']);
    format!("{object}.{suffix:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mt_23_messages_are_cut_at_a_character_and_cleaned() {
        assert_eq!(clean("a\u{0}b\u{1b}[31m\nc\t\r\n"), "ab[31m c");
        assert_eq!(clean(&"x".repeat(1_024)), "x".repeat(1_024));
        let cut = clean(&"x".repeat(1_025));
        assert_eq!(cut.len(), 1_024);
        assert!(cut.ends_with("x…"));
        for length in 1_000..1_100 {
            for filler in ["ä", "語", "🦀"] {
                let text = format!("{}{}", "x".repeat(length % 7), filler.repeat(length));
                assert!(clean(&text).len() <= 1_024);
            }
        }
    }

    #[test]
    fn names_are_names_however_long_the_object() {
        assert_eq!(name("bert", 0xabc), "bert.0000000000000abc");
        let long = name(&format!("{}-{}", "a".repeat(235), "b".repeat(30)), 1);
        assert!(long.len() <= 253 && !long.contains("-."), "{long}");
    }
}
