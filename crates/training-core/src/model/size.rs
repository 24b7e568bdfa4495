//! The memory that an object takes.

use std::io;
use std::ops::AddAssign;

use serde::Serialize;

/// The memory of one JSON object. Every object takes the space of all its fields, even absent ones: an environment variable with
/// only a name takes as much as one with all its sources.
///
/// Units: bytes.
const PER_OBJECT: usize = 400;

/// The size of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The length of its JSON, in bytes.
    pub text: usize,
    /// The number of JSON objects in it, including itself. Braces in strings count too.
    pub objects: usize,
}

impl Size {
    /// Returns the size of an object without keeping its JSON.
    pub fn of(object: &impl Serialize) -> Self {
        let mut size = Self::default();
        // Trainyard's objects always serialize, and the count is valid in any case.
        let _ = serde_json::to_writer(&mut size, object);
        size
    }

    /// Returns the size of an object, or of a part of one, from its JSON.
    pub fn of_text(text: &[u8]) -> Self {
        Self {
            text: text.len(),
            objects: memchr::memchr_iter(b'{', text).count(),
        }
    }

    /// Estimates the memory of the decoded object, in bytes.
    pub fn memory(self) -> usize {
        self.text + self.objects * PER_OBJECT
    }
}

impl AddAssign for Size {
    fn add_assign(&mut self, more: Self) {
        self.text += more.text;
        self.objects += more.objects;
    }
}

impl io::Write for Size {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        *self += Self::of_text(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{EnvVar, Toleration, VolumeMount};

    use super::*;

    #[test]
    fn an_object_is_as_large_as_its_text_and_what_it_is_made_of() {
        let object = serde_json::json!({ "a": [1, {}], "b": "ü\n", "c": { "d": "{" } });
        let text = object.to_string();
        let size = Size::of(&object);
        assert_eq!((size.text, size.objects), (text.len(), 4));
        assert_eq!(size, Size::of_text(text.as_bytes()));
    }

    #[test]
    fn what_a_template_may_have_by_the_thousand_takes_no_more_than_the_estimate() {
        assert!(size_of::<EnvVar>() <= PER_OBJECT);
        assert!(size_of::<Toleration>() <= PER_OBJECT);
        assert!(size_of::<VolumeMount>() <= PER_OBJECT);
    }
}
