//! Submission ids, and hashes that detect changes of a spec.

use serde_json::{Value, json};
use spark_operator::digest::{
    self, Change, Recorded, SpecDigest, change, spec_digest, submission_id,
};

fn spec() -> Value {
    json!({
        "sparkVersion": "4.0.5", "mainApplicationFile": "local:///a.jar", "mainClass": "A",
        "driver": { "cores": 1, "labels": { "b": "2", "a": "1" } }, "executor": { "instances": 2 },
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = spec();
    spec[field] = value;
    spec
}

fn is_same(recorded: Recorded<'_>, generation: Option<i64>, now: &SpecDigest) -> bool {
    change(recorded, generation, now) == Change::None
}

fn is_new_run(recorded: Recorded<'_>, generation: Option<i64>, now: &SpecDigest) -> bool {
    change(recorded, generation, now) == Change::Run
}

#[test]
fn where_executors_run_is_told_from_everything_else() {
    let digest = spec_digest(&spec()).to_string();
    let recorded = Recorded {
        generation: Some(1),
        digest: Some(&digest),
    };
    let now = |spec: &Value| change(recorded, Some(2), &spec_digest(spec));
    for (field, value) in [
        ("affinity", json!({ "nodeAffinity": {} })),
        ("nodeSelector", json!({ "pool": "b" })),
        ("priorityClassName", json!("low")),
        ("schedulerName", json!("other")),
        ("tolerations", json!([{ "key": "spot" }])),
    ] {
        let mut edited = spec();
        edited["executor"][field] = value.clone();
        assert_eq!(now(&edited), Change::Placement, "{field}");
        edited["executor"]["cores"] = json!(2);
        assert_eq!(now(&edited), Change::Run, "{field} and more");
        let mut edited = spec();
        edited["driver"][field] = value;
        assert_eq!(now(&edited), Change::Run, "{field} of the driver");
    }
}

#[test]
fn a_digest_is_the_same_for_ever() {
    // Stored in clusters: a different digest would rerun every application.
    assert_eq!(
        spec_digest(&spec()).to_string(),
        "2-12eca6338529c275cb7dcab614331366-9318536c7a8f9758"
    );
    let read = SpecDigest::parse("1-abc").unwrap();
    assert_eq!(read.to_string(), "1-abc");
    assert_eq!(SpecDigest::parse("abc"), None);
}

#[test]
fn the_order_of_fields_and_nulls_say_nothing() {
    let text = r#"{"executor": {"instances": 2}, "driver": {"labels": {"a": "1", "b": "2"}, "cores": 1, "memory": null},
        "mainClass": "A", "mainApplicationFile": "local:///a.jar", "sparkVersion": "4.0.5"}"#;
    let other: Value = serde_json::from_str(text).unwrap();
    assert_eq!(spec_digest(&other), spec_digest(&spec()));
}

#[test]
fn suspension_time_to_live_and_defaults_say_nothing() {
    for (field, value) in [
        ("suspend", json!(true)),
        ("timeToLiveSeconds", json!(60)),
        ("type", json!("Scala")),
        ("mode", json!("cluster")),
        ("restartPolicy", json!({ "type": "Never" })),
    ] {
        assert_eq!(
            spec_digest(&with(field, value)),
            spec_digest(&spec()),
            "{field}"
        );
    }
}

#[test]
fn everything_else_does() {
    for (field, value) in [
        ("type", json!("Python")),
        ("restartPolicy", json!({ "type": "Always" })),
        (
            "restartPolicy",
            json!({ "type": "Never", "onFailureRetries": 1 }),
        ),
        ("sparkConf", json!({ "spark.x": "1" })),
        ("arguments", json!(["1", "2"])),
        ("driver", json!({ "cores": 2 })),
        ("fieldOfTomorrow", json!(1)),
    ] {
        assert_ne!(
            spec_digest(&with(field, value)),
            spec_digest(&spec()),
            "{field}"
        );
    }
    let swapped = with("arguments", json!(["2", "1"]));
    assert_ne!(
        spec_digest(&swapped),
        spec_digest(&with("arguments", json!(["1", "2"])))
    );
}

#[test]
fn only_an_edit_that_says_something_is_a_change() {
    let digest = spec_digest(&spec()).to_string();
    let recorded = Recorded {
        generation: Some(3),
        digest: Some(&digest),
    };
    let edited = with("arguments", json!(["1"]));
    assert!(is_new_run(recorded, Some(4), &spec_digest(&edited)));
    assert!(is_same(
        recorded,
        Some(4),
        &spec_digest(&with("timeToLiveSeconds", json!(1)))
    ));
    // A schema change doesn't change the generation, whatever it does to the spec.
    assert!(is_same(recorded, Some(3), &spec_digest(&edited)));
    // Another operator's application.
    assert!(is_same(Recorded::default(), Some(4), &spec_digest(&edited)));
    let unknown = Recorded {
        digest: Some("odd"),
        ..recorded
    };
    assert!(is_same(unknown, Some(4), &spec_digest(&edited)));
}

#[test]
fn a_new_schema_and_then_a_new_time_to_live_run_nothing_again() {
    // Submitted under a schema with a field that the present one lacks, and without a default that the present one sets. The
    // digests of that schema have another version.
    let other = format!("{}-{}", digest::VERSION + 1, "0".repeat(32));
    let recorded = Recorded {
        generation: Some(1),
        digest: Some(&other),
    };
    let now = with("timeToLiveSeconds", json!(60));
    assert!(is_same(recorded, Some(2), &spec_digest(&now)));
    // A new default alone doesn't even change the digest.
    let before = spec_digest(&spec()).to_string();
    let recorded = Recorded {
        generation: Some(1),
        digest: Some(&before),
    };
    let mut now = with("type", json!("Scala"));
    now["timeToLiveSeconds"] = json!(60);
    assert!(is_same(recorded, Some(2), &spec_digest(&now)));
}

#[test]
fn a_submission_has_one_id_and_the_next_another() {
    let uid = "11111111-1111-4111-8111-111111111111";
    let digest = spec_digest(&spec());
    let first = submission_id(uid, None, &digest);
    assert_eq!(first, submission_id(uid, None, &digest));
    assert_eq!(first.len(), 36);
    assert_eq!((&first[14..15], first.as_bytes()[8]), ("8", b'-'));
    assert!("89ab".contains(&first[19..20]), "{first}");
    let second = submission_id(uid, Some(&first), &digest);
    let others = [
        second.clone(),
        submission_id(uid, Some(&second), &digest),
        submission_id("22222222-2222-4222-8222-222222222222", None, &digest),
        submission_id(uid, None, &spec_digest(&with("arguments", json!(["1"])))),
    ];
    for other in others {
        assert_ne!(other, first);
    }
}
