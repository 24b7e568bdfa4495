//! User texts that a careless operator would run, parse or print, and a search for them.

use serde_json::Value;

/// Texts with a special meaning to a shell, a template, YAML, a properties file or a terminal.
pub const HOSTILE: [&str; 12] = [
    "; touch /tmp/harm",
    "$(touch /tmp/harm)",
    "`touch /tmp/harm`",
    "a\ntouch /tmp/harm",
    "$'\\x3b'touch",
    "${IFS}touch",
    "'; touch /tmp/harm; '",
    "\"; touch /tmp/harm; \"",
    "{{.MasterAddr}}",
    "a: b\n- c\n",
    "\r\nspark.master=x\\",
    "\u{1b}[2Jharm\u{0}",
];

/// A string in an object that contains a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its path: `.spec.containers[0].args[1]`.
    pub path: String,
    /// The string equals the text.
    pub whole: bool,
}

/// Finds every string in these objects that contains the text, including map keys.
pub fn places(objects: &[Value], text: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for object in objects {
        walk(object, text, String::new(), &mut places);
    }
    places
}

fn walk(value: &Value, text: &str, path: String, places: &mut Vec<Place>) {
    match value {
        Value::String(string) if string.contains(text) => places.push(Place {
            path,
            whole: string == text,
        }),
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                walk(item, text, format!("{path}[{at}]"), places);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                if key.contains(text) {
                    places.push(Place {
                        path: path.clone(),
                        whole: key == text,
                    });
                }
                walk(value, text, path, places);
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_found_as_a_whole_and_as_a_part() {
        let objects = [json!({"a": ["x", "y x"], "x": 1, "b": {"c": "z"}})];
        let found = places(&objects, "x").into_iter();
        let found: Vec<_> = found.map(|p| (p.path, p.whole)).collect();
        let expected = [(".a[0]", true), (".a[1]", false), (".x", true)];
        assert_eq!(found, expected.map(|(p, w)| (p.to_owned(), w)));
    }
}
