//! Names of an application's objects.
//!
//! Source: Spark on Kubernetes and the published operator. Where Spark uses random names, these derive from the submission's id,
//! so that a retried submission creates the same objects.

use md5::Md5;
use sha2::{Digest as _, Sha256};

/// The maximum length of a Service's name and of a label value.
pub const MAX_LABEL: usize = 63;

/// Returns the first `digits` hexadecimal digits of the SHA-256 of `parts`. At most 64.
pub(crate) fn hash(parts: &[&str], digits: usize) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        // Include the lengths, so that no two lists collide.
        sha.update(part.len().to_be_bytes());
        sha.update(part.as_bytes());
    }
    hex(&sha.finalize(), digits)
}

/// Returns the first `digits` hexadecimal digits of bytes.
pub(crate) fn hex(bytes: &[u8], digits: usize) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    halves
        .take(digits)
        .map(|half| DIGITS[usize::from(half)])
        .collect()
}

/// The id that Spark gives a run: `spark-` and the 32 digits of the submission's id.
pub fn app_id(submission_id: &str) -> String {
    let digits: String = submission_id.chars().filter(|c| *c != '-').collect();
    if digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        format!("spark-{}", digits.to_ascii_lowercase())
    } else {
        format!("spark-{}", hash(&["app-id", submission_id], 32))
    }
}

/// Sixteen digits, unique for one purpose within a submission.
pub fn unique(submission_id: &str, thing: &str) -> String {
    hash(&[thing, submission_id], 16)
}

/// A path element in UUID form, for Spark's scratch directory.
pub fn scratch(submission_id: &str) -> String {
    let digits = hash(&["scratch", submission_id], 32);
    let at = |from: usize, to: usize| digits[from..to].to_owned();
    [at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)].join("-")
}

/// Converts to lower case, and replaces each run of invalid characters by one `-`.
fn dashed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.trim().to_lowercase().chars() {
        let plain = c.is_ascii_lowercase() || c.is_ascii_digit();
        if plain {
            out.push(c);
        } else if !out.ends_with('-') {
            out.push('-');
        }
    }
    out
}

/// The name prefix of Spark's own objects: the application's name and sixteen digits. Not shortened.
pub fn prefix(application: &str, unique: &str) -> String {
    let name = dashed(&format!("{application}-{unique}"));
    let name = name.strip_prefix('-').unwrap_or(&name);
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        return format!("x{}", &name[1..]);
    }
    name.to_owned()
}

/// The label [`crate::label::SPARK_APP_NAME`].
pub fn app_name_label(application: &str) -> String {
    let name = dashed(application);
    let cut: String = name.chars().take(MAX_LABEL).collect();
    let cut = cut.strip_prefix('-').unwrap_or(&cut);
    cut.strip_suffix('-').unwrap_or(cut).to_owned()
}

/// The name of the headless Service through which executors find the driver.
pub fn driver_service(prefix: &str, submission_id: &str) -> String {
    let name = format!("{prefix}-driver-svc");
    if name.len() <= MAX_LABEL {
        return name;
    }
    format!("spark-{}-driver-svc", unique(submission_id, "service"))
}

/// A name `<application>-<suffix>` that fits a Service: longer names are cut, and made unique by a hash.
pub fn with_suffix(application: &str, suffix: &str) -> String {
    let name = format!("{application}-{suffix}");
    if name.len() <= MAX_LABEL {
        return name;
    }
    let told_apart = hex(&Md5::digest(name.as_bytes()), 8);
    let room = MAX_LABEL.saturating_sub(suffix.len() + 10);
    let cut: String = application.chars().take(room).collect();
    format!("{cut}-{told_apart}-{suffix}")
}

/// The name of the Service of an application's web UI.
pub fn ui_service(application: &str) -> String {
    with_suffix(application, "ui-svc")
}

/// The name of the Ingress of an application's web UI.
pub fn ui_ingress(application: &str) -> String {
    with_suffix(application, "ui-ingress")
}

/// The name of the Service of one of a driver's ports.
pub fn driver_port(application: &str, port: i32) -> String {
    with_suffix(application, &format!("driver-{port}"))
}

/// The name of the Ingress of one of a driver's ports.
pub fn driver_ingress(application: &str, port: i32) -> String {
    with_suffix(application, &format!("ing-{port}"))
}

/// The name of a ConfigMap's volume: `<name>-vol`, or a valid label derived from it.
pub fn config_map_volume(config_map: &str) -> String {
    let name = format!("{config_map}-vol");
    if name.len() <= MAX_LABEL && !config_map.contains('.') {
        return name;
    }
    let told_apart = hex(&Sha256::digest(config_map.as_bytes()), 8);
    let plain = config_map.replace('.', "-");
    // Leave room for `-`, the digits and `-vol`.
    let cut: String = plain.chars().take(MAX_LABEL - 13).collect();
    format!("{}-{told_apart}-vol", cut.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "this-is-a-very-long-application-name-that-exceeds-the-limit-of-63";
    const UNIQUE: &str = "0123456789abcdef";

    #[test]
    fn names_are_made_as_spark_makes_them() {
        for (name, start, label) in [
            ("spark-pi", "spark-pi-", "spark-pi"),
            ("My Py.App_1", "my-py-app-1-", "my-py-app-1"),
            ("9App__x", "xapp-x-", "9app-x"),
            (" -odd- ", "odd-", "odd"),
            (
                LONG,
                "this-is-a-very-long-application-name-that-exceeds-the-limit-of-63-",
                "this-is-a-very-long-application-name-that-exceeds-the-limit-of",
            ),
        ] {
            assert_eq!(prefix(name, UNIQUE), format!("{start}{UNIQUE}"), "{name}");
            assert_eq!(app_name_label(name), label, "{name}");
        }
    }

    #[test]
    fn b_173_only_the_service_s_name_is_shortened() {
        let id = "6f1c9a52-0000-8000-8000-000000000001";
        let short = driver_service(&prefix("spark-pi", UNIQUE), id);
        assert_eq!(short, "spark-pi-0123456789abcdef-driver-svc");
        let long = driver_service(&prefix(LONG, UNIQUE), id);
        assert_eq!(long.len(), "spark--driver-svc".len() + 16);
        assert!(
            long.starts_with("spark-") && long.ends_with("-driver-svc"),
            "{long}"
        );
        assert_ne!(long, driver_service(&prefix(LONG, UNIQUE), "another"));
    }

    #[test]
    fn an_application_s_id_is_its_submission_s_without_dashes() {
        let id = "6F1c9a52-0000-8000-8000-000000000001";
        assert_eq!(app_id(id), "spark-6f1c9a52000080008000000000000001");
        let odd = app_id("odd");
        assert_eq!(odd.len(), "spark-".len() + 32);
        assert_ne!(odd, app_id("other"));
    }

    #[test]
    fn things_of_one_submission_have_different_digits() {
        assert_ne!(unique("a", "prefix"), unique("a", "service"));
        assert_ne!(unique("a", "prefix"), unique("b", "prefix"));
        assert_eq!(unique("a", "prefix").len(), 16);
        assert_eq!(scratch("a").len(), 36);
    }

    #[test]
    fn b_173_long_names_of_services_are_cut_and_told_apart() {
        assert_eq!(with_suffix("spark-pi", "ui-svc"), "spark-pi-ui-svc");
        let (a, b) = ("a".repeat(60), "a".repeat(61));
        let name = with_suffix(&a, "ui-svc");
        // The first eight digits of md5("<60 times a>-ui-svc").
        assert_eq!(name, format!("{}-9df9eea7-ui-svc", "a".repeat(47)));
        assert_eq!(name.len(), 63);
        assert_ne!(name, with_suffix(&b, "ui-svc"));
    }

    #[test]
    fn volumes_of_config_maps_have_names_that_volumes_may_have() {
        assert_eq!(config_map_volume("settings"), "settings-vol");
        let dotted = config_map_volume("my.conf.map");
        assert!(
            dotted.starts_with("my-conf-map-") && dotted.ends_with("-vol"),
            "{dotted}"
        );
        assert_ne!(dotted, config_map_volume("my-conf.map"));
        let long = config_map_volume(&"c".repeat(100));
        assert!(long.len() <= MAX_LABEL, "{long}");
    }
}
