//! The Spark version of an application's image, and how it affects a submission.

/// A line of Spark versions, `major.minor`.
///
/// Invariant: older or unparsable versions count as 3.5, whose form every supported version understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SparkVersion {
    major: u32,
    minor: u32,
}

impl SparkVersion {
    /// The oldest supported line.
    pub const OLDEST: Self = Self { major: 3, minor: 5 };

    /// Returns the line of a version: `4.0.5` and `v4.0` are 4.0.
    pub fn parse(text: &str) -> Self {
        read(text).map_or(Self::OLDEST, |found| found.max(Self::OLDEST))
    }

    /// True for this line and later ones.
    pub fn at_least(self, major: u32, minor: u32) -> bool {
        self >= Self { major, minor }
    }
}

/// True if the version has pod templates, which came with 3.0. Unparsable versions count as older than everything, as published.
pub fn has_templates(text: &str) -> bool {
    read(text).is_some_and(|found| found.major >= 3)
}

/// True if the text is a version before this line, even an unsupported one.
pub fn is_before(text: &str, major: u32, minor: u32) -> bool {
    read(text).is_some_and(|found| found < SparkVersion { major, minor })
}

/// True if the text is a version.
pub fn is_known(text: &str) -> bool {
    read(text).is_some()
}

fn read(text: &str) -> Option<SparkVersion> {
    let text = text.trim();
    let mut parts = text
        .strip_prefix('v')
        .unwrap_or(text)
        .split(['.', '-', '+']);
    let mut number = |unless: Option<u32>| match parts.next() {
        Some(part) => part.parse().ok(),
        None => unless,
    };
    Some(SparkVersion {
        major: number(None)?,
        minor: number(Some(0))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_by_its_line() {
        for (text, major, minor) in [
            ("3.5.9", 3, 5),
            ("4.0.5", 4, 0),
            ("4.3.0-preview1", 4, 3),
            ("v4.1", 4, 1),
            ("4", 4, 0),
            ("3.1.1", 3, 5),
            ("latest", 3, 5),
            ("", 3, 5),
        ] {
            assert_eq!(
                SparkVersion::parse(text),
                SparkVersion { major, minor },
                "{text}"
            );
        }
    }

    #[test]
    fn templates_came_with_the_third_version() {
        for (text, has) in [
            ("3.0.0", true),
            ("2.4.8", false),
            ("4.0", true),
            ("odd", false),
        ] {
            assert_eq!(has_templates(text), has, "{text}");
        }
    }
}
