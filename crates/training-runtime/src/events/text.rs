//! The limits and ranks of event texts.

/// Maximum bytes of a message. Source: the validation of core/v1 events in Kubernetes.
const MAX_MESSAGE: usize = 1_024;

/// How much an event matters to the outcome of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Importance {
    /// Objects were created, deleted or lost on the way.
    Progress,
    /// The job is suspended, resumed or restarted.
    StateChange,
    /// The job has ended, why it ended, or what it left behind.
    End,
}

/// Returns how much a reason matters. Published reasons contain the kind's name.
pub(super) fn importance(reason: &str) -> Importance {
    const ENDS: [&str; 6] = [
        "InvalidSpec",
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "PodsStillRunning",
        "SparkApplicationFailed",
        "SparkApplicationCompleted",
    ];
    // A failed run of an application does not count: others may follow, many per minute.
    const STATE_CHANGES: [&str; 2] = ["SparkApplicationSuspended", "SparkApplicationResuming"];
    let is = |suffixes: &[&str]| suffixes.iter().any(|suffix| reason.ends_with(suffix));
    if ENDS.contains(&reason) || is(&["JobSucceeded", "JobFailed"]) {
        Importance::End
    } else if STATE_CHANGES.contains(&reason)
        || is(&["JobSuspended", "JobResumed", "JobRestarting"])
    {
        Importance::StateChange
    } else {
        Importance::Progress
    }
}

/// Removes control characters from a message and cuts it to the limit. Line ends become spaces, so that words stay separate. Spaces at the
/// end stay: published messages have some.
pub(super) fn clean(message: &str) -> String {
    const CUT: char = '…';
    let mut text = String::with_capacity(message.len().min(MAX_MESSAGE));
    let mut characters = message
        .trim_start()
        .trim_end_matches(char::is_control)
        .chars()
        .filter_map(|c| match c {
            '\n' | '\t' => Some(' '),
            c if c.is_control() => None,
            c => Some(c),
        });
    // Leave room for the mark only if text remains.
    let mut fits = 0;
    for c in characters.by_ref() {
        if text.len() + c.len_utf8() > MAX_MESSAGE {
            text.truncate(fits);
            text.push(CUT);
            break;
        }
        text.push(c);
        if text.len() + CUT.len_utf8() <= MAX_MESSAGE {
            fits = text.len();
        }
    }
    text
}

/// Cuts a reason to the API server's limit of 128 bytes.
pub(super) fn reason(reason: &str) -> String {
    let mut end = reason.len().min(128);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().to_owned()
}

/// Names an event after its object, cut to at most 253 bytes with the suffix.
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
        assert_eq!(clean(" Pod Message: \n"), "Pod Message: ");
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
