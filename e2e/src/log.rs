//! Checks of operators' logs.

use anyhow::{Result, ensure};
use serde_json::Value;

/// Fields that quote texts of others, in whatever form those are.
const QUOTES: [&str; 3] = ["message", "error", "fault"];

/// Fails if a field of a JSON log has a value in Rust's debug form, such as `Some("a")` or `["a"]`: users search by fields.
pub fn assert_plain_fields(log: &str) -> Result<()> {
    for line in log.lines() {
        // A usage error is plain text.
        let fields: Value = serde_json::from_str(line).unwrap_or_default();
        ensure!(
            !has_debug_form(&fields),
            "a log field in Rust's debug form: {line}"
        );
    }
    Ok(())
}

fn has_debug_form(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| !QUOTES.contains(&name.as_str()) && has_debug_form(value)),
        Value::Array(items) => items.iter().any(has_debug_form),
        Value::String(text) => is_debug_form(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_debug_form(text: &str) -> bool {
    let begins = ["[", "{", "(", "\"", "Ok(", "Err("];
    let begins = begins.iter().any(|begin| text.starts_with(begin));
    begins || text == "None" || text.contains("Some(")
}
