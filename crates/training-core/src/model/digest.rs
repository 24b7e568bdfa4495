//! A short hash of a value, stored and compared later, also by other versions of the operator.

use std::fmt;
use std::io;

use serde::Serialize;

/// FNV-1a of a value's JSON. It need not resist attackers: whoever can forge it can edit the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Returns the digest of a value. Types must keep the order of their fields and must not serialize absent fields.
    pub fn of(value: &impl Serialize) -> Self {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        // Neither the sink nor Trainyard's types can fail. If they did, the digest would differ from every other and be computed
        // again.
        let _ = serde_json::to_writer(&mut hash, value);
        Self(hash.0)
    }

    /// Parses the printed form.
    pub fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }

    /// Folds the digest into 32 bits, for uses where a collision is harmless.
    #[must_use]
    pub fn short(self) -> u32 {
        let folded = (self.0 ^ (self.0 >> 32)) & u64::from(u32::MAX);
        u32::try_from(folded).unwrap_or_default()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

struct Fnv(u64);

impl io::Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn a_digest_is_the_same_for_ever() {
        // Digests are stored in clusters: another number would look like an edit of every job.
        assert_eq!(Digest::of(&"trainyard").to_string(), "bd491526815edd45");
        assert_ne!(Digest::of(&(1, 2)), Digest::of(&(2, 1)));
    }

    #[test]
    fn a_digest_can_be_read_back() {
        let digest = Digest::of(&[1, 2, 3]);
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        assert_eq!(Digest::parse("odd"), None);
    }
}
