//! JSON merge patches. Source: RFC 7386.

use serde_json::{Map, Value};

/// Returns the merge patch that turns `old` into `new`. It replaces whole arrays and sets removed keys to `null`.
///
/// Returns `None` if nothing differs. Both values are read as objects; nulls in `new` count as absent.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    let empty = Map::new();
    let patch = diff(
        old.as_object().unwrap_or(&empty),
        new.as_object().unwrap_or(&empty),
    );
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn diff(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new.iter().filter(|(_, v)| !v.is_null()) {
        match (old.get(key), value) {
            (Some(Value::Object(before)), Value::Object(after)) => {
                let inner = diff(before, after);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Some(before), after) if before == after => {}
            (_, after) => {
                patch.insert(key.clone(), after.clone());
            }
        }
    }
    for key in old
        .keys()
        .filter(|k| new.get(*k).is_none_or(Value::is_null))
    {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

/// Applies a merge patch like the API server does.
pub fn apply(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut out = target.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            out.remove(key);
        } else {
            let merged = apply(out.get(key).unwrap_or(&Value::Null), value);
            out.insert(key.clone(), merged);
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{apply, merge_patch};

    fn object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<u8>().prop_map(|n| json!(n)),
            "[a-b]{1}".prop_map(|s| json!(s)),
            Just(json!([1, 2])),
            Just(json!([]))
        ];
        let inner = leaf.prop_recursive(3, 20, 4, |inner| {
            proptest::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| json!(m))
        });
        proptest::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| json!(m))
    }

    proptest! {
        #[test]
        fn applying_the_patch_gives_the_new_object(old in object(), new in object()) {
            let result = merge_patch(&old, &new).map_or(old.clone(), |patch| apply(&old, &patch));
            prop_assert_eq!(result, new);
        }
    }

    #[test]
    fn arrays_are_replaced_whole_and_removed_keys_are_null() {
        let old =
            json!({"conditions": [1], "replicaStatuses": {"Worker": {"active": 2}}, "gone": 1});
        let new = json!({"conditions": [1, 2], "replicaStatuses": {"Worker": {}}});
        let expected = json!({"conditions": [1, 2], "replicaStatuses": {"Worker": {"active": null}}, "gone": null});
        assert_eq!(merge_patch(&old, &new), Some(expected));
    }
}
