//! Escaping for Java properties files.
//!
//! Source: the format that `java.util.Properties` writes to a writer; it doesn't escape characters outside ASCII.

use std::collections::BTreeMap;

/// The position of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Key,
    Value,
}

/// Formats a file: comments, then one line per property, sorted by key, so that equal properties yield equal bytes.
pub fn file(comments: &[String], properties: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    for comment in comments {
        out.push_str("# ");
        // Keep the comment on one line.
        out.extend(comment.chars().filter(|c| !c.is_control()));
        out.push('\n');
    }
    for (key, value) in properties {
        out.push_str(&line(key, value));
        out.push('\n');
    }
    out
}

/// Formats one property.
pub fn line(key: &str, value: &str) -> String {
    let mut out = String::with_capacity(key.len() + value.len() + 1);
    escaped(key, Place::Key, &mut out);
    out.push('=');
    escaped(value, Place::Value, &mut out);
    out
}

fn escaped(text: &str, place: Place, out: &mut String) {
    for (at, c) in text.chars().enumerate() {
        let special = match c {
            '\t' => 't',
            '\n' => 'n',
            '\r' => 'r',
            '\u{c}' => 'f',
            '\\' | ':' | '=' | '#' | '!' => c,
            ' ' if at == 0 || place == Place::Key => c,
            _ => {
                out.push(c);
                continue;
            }
        };
        out.push('\\');
        out.push(special);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_the_file_is_escaped() {
        for (key, value, expected) in [
            ("spark.e", "#x!y:z=w", r"spark.e=\#x\!y\:z\=w"),
            ("spark.a", " lead space", r"spark.a=\ lead space"),
            ("spark.d", r"a\b", r"spark.d=a\\b"),
            ("spark.b", "tab\tnl\nend", r"spark.b=tab\tnl\nend"),
            ("spark.f f", "key space", r"spark.f\ f=key space"),
            ("spark.c", "é漢", "spark.c=é漢"),
            ("spark.r", "\r\u{c}", r"spark.r=\r\f"),
            ("a=b", "", r"a\=b="),
        ] {
            assert_eq!(line(key, value), expected);
        }
    }

    #[test]
    fn a_file_is_sorted_and_its_comments_stay_comments() {
        let properties = [("b", "2"), ("a", "1")];
        let properties = properties.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let text = file(&["of x\nspark.evil=1".to_owned()], &properties);
        assert_eq!(text, "# of xspark.evil=1\na=1\nb=2\n");
    }
}
