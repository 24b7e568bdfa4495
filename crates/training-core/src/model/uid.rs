//! Object identity in sixteen bytes.

use std::fmt;

use kube::core::ObjectMeta;

/// The uid of a Kubernetes object.
///
/// The API server assigns UUIDs in their canonical form, so sixteen bytes hold one without a heap allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uid(pub u128);

impl Uid {
    /// Parses the canonical form, `8-4-4-4-12` lower-case hexadecimal digits. Returns `None` for any other form, because it could
    /// not be printed back exactly.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return None;
        }
        let mut value: u128 = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return None,
            };
            value = value << 4 | u128::from(digit);
        }
        Some(Self(value))
    }

    /// Returns the uid in an object's metadata, if it has one in the canonical form.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        Self::parse(meta.uid.as_deref()?)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            v >> 80 & 0xffff,
            v >> 64 & 0xffff,
            v >> 48 & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Uid;

    #[test]
    fn a_uid_is_written_as_it_was_read() {
        let text = "0b9f3c1e-00aa-4bcd-8eff-000012345678";
        assert_eq!(Uid::parse(text).unwrap().to_string(), text);
    }

    #[test]
    fn anything_but_the_canonical_form_is_refused() {
        for text in [
            "",
            "0B9f3c1e-00aa-4bcd-8eff-000012345678",
            "0b9f3c1e00aa4bcd8eff000012345678abcd",
            "x",
        ] {
            assert_eq!(Uid::parse(text), None, "{text}");
        }
    }
}
