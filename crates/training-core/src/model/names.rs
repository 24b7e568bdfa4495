//! Names of pods and services, derived from job, role and index, so that a repeated create conflicts instead of duplicating.

/// The longest name of a pod or service whose DNS name is one label. Source: RFC 1123.
pub const MAX_NAME: usize = 63;

/// The name of a replica's pod and of its service. Shape: `<job>-<replica type in lower case>-<index>`.
pub fn replica(job: &str, role_label: &str, index: u32) -> String {
    format!("{job}-{role_label}-{index}")
}

/// Returns true if `name` is what [`replica`] returns, without building it.
pub fn is_replica(name: &str, job: &str, role_label: &str, index: u32) -> bool {
    let Some(rest) = name.strip_prefix(job).and_then(|r| r.strip_prefix('-')) else {
        return false;
    };
    let Some(number) = rest
        .strip_prefix(role_label)
        .and_then(|r| r.strip_prefix('-'))
    else {
        return false;
    };
    number.parse() == Ok(index) && (number == "0" || !number.starts_with(['0', '+']))
}

/// Parses the index at the end of a replica's name.
pub fn index(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

/// Returns the length of the longest replica name of a role, in bytes.
pub fn longest(job: &str, role_label: &str, replicas: u32) -> usize {
    let digits = replicas.saturating_sub(1).checked_ilog10().unwrap_or(0) as usize + 1;
    job.len() + 1 + role_label.len() + 1 + digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{is_replica, longest, replica};

    proptest! {
        #[test]
        fn a_name_is_recognised_by_exactly_its_parts(job in "[a-z][a-z0-9-]{0,20}", index in 0u32..2000, other in 0u32..2000) {
            let name = replica(&job, "worker", index);
            prop_assert!(is_replica(&name, &job, "worker", index));
            prop_assert_eq!(is_replica(&name, &job, "worker", other), other == index);
            prop_assert!(!is_replica(&name, &job, "master", index));
        }

        #[test]
        fn the_longest_name_is_the_last_one(replicas in 1u32..20_000) {
            prop_assert_eq!(longest("job", "worker", replicas), replica("job", "worker", replicas - 1).len());
        }
    }

    #[test]
    fn other_spellings_of_a_number_are_other_names() {
        for name in ["j-worker-01", "j-worker-+1", "j-worker-", "j-worker-1x"] {
            assert!(!is_replica(name, "j", "worker", 1), "{name}");
        }
    }
}
