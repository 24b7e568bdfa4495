//! How large an object is.

use std::io;

use serde::Serialize;

/// How long an object is as JSON, which is not built for that.
///
/// Units: bytes.
pub fn json_size(object: &impl Serialize) -> usize {
    let mut size = Size(0);
    // Objects of ours can be written, and the count holds in any case.
    let _ = serde_json::to_writer(&mut size, object);
    size.0
}

/// Counts what is written.
struct Size(usize);

impl io::Write for Size {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0 += part.len();
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::json_size;

    #[test]
    fn an_object_is_as_large_as_its_text() {
        let object = serde_json::json!({ "a": [1, 2], "b": "ü\n" });
        assert_eq!(json_size(&object), object.to_string().len());
    }
}
