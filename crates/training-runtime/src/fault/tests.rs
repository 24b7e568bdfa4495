use serde_json::json;

use super::*;

fn fault(body: serde_json::Value) -> Fault {
    let status: Status = serde_json::from_value(body).unwrap();
    Fault::from(kube::Error::Api(Box::new(status)))
}

fn forbidden(message: &str) -> Fault {
    fault(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "details": {"name": "bert-worker-2", "kind": "pods"},
        "code": 403
    }))
}

#[test]
fn f_21_refusals_are_told_apart_by_the_servers_words() {
    for (message, expected) in [
        (
            "pods \"bert-worker-2\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=2, limited: pods=2",
            Denial::Quota,
        ),
        (
            "pods \"bert-worker-2\" is forbidden: failed quota: compute: must specify limits.cpu for: pytorch",
            Denial::Quota,
        ),
        (
            "pods \"bert-worker-2\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
             (container \"pytorch\" must set securityContext.allowPrivilegeEscalation=false)",
            Denial::PodSecurity,
        ),
        (
            "pods \"bert-worker-2\" is forbidden: unable to create new content in namespace team because it is being terminated",
            Denial::NamespaceTerminating,
        ),
        (
            "pods is forbidden: User \"system:serviceaccount:trainyard:pytorch-operator\" cannot create resource \"pods\" \
             in API group \"\" in the namespace \"team\"",
            Denial::Rbac,
        ),
        (
            "pods \"bert-worker-2\" is forbidden: maximum cpu usage per Container is 1, but limit is 2",
            Denial::Policy,
        ),
        (
            "admission webhook \"policy.example.com\" denied the request: no",
            Denial::Policy,
        ),
    ] {
        assert_eq!(
            forbidden(message),
            Fault::Denied {
                what: expected,
                message: message.to_owned()
            },
            "{message}"
        );
    }
}

#[test]
fn f_22_b_045_a_terminating_namespace_is_known_by_its_cause() {
    let fault = fault(json!({
        "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no",
        "details": {"causes": [{"reason": "NamespaceTerminating", "message": "namespace team is being terminated", "field": "metadata.namespace"}]}
    }));
    assert!(matches!(
        fault,
        Fault::Denied {
            what: Denial::NamespaceTerminating,
            ..
        }
    ));
}

#[test]
fn f_22_a_namespace_that_is_gone_counts_as_terminating() {
    let fault = fault(json!({
        "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "namespaces \"team\" not found", "details": {"name": "team", "kind": "namespaces"}
    }));
    assert!(matches!(
        fault,
        Fault::Denied {
            what: Denial::NamespaceTerminating,
            ..
        }
    ));
}

#[test]
fn a_missing_object_differs_from_a_missing_kind() {
    let object = fault(json!({
        "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "pods \"a\" not found", "details": {"name": "a", "kind": "pods"}
    }));
    assert!(matches!(
        object,
        Fault::Missing {
            what: Absent::Object,
            ..
        }
    ));
    let kind = fault(json!({
        "status": "Failure", "reason": "NotFound", "code": 404, "details": {},
        "message": "the server could not find the requested resource"
    }));
    assert!(matches!(
        kind,
        Fault::Missing {
            what: Absent::Kind,
            ..
        }
    ));
    let plain = fault(json!({
        "status": "Failure", "reason": "Failed to parse error data", "code": 404,
        "message": "404 page not found"
    }));
    assert!(matches!(
        plain,
        Fault::Missing {
            what: Absent::Kind,
            ..
        }
    ));
}

#[test]
fn a_rejected_object_names_the_field() {
    let fault = fault(json!({
        "status": "Failure", "reason": "Invalid", "code": 422,
        "message": "Pod \"a\" is invalid: spec.containers: Required value",
        "details": {"name": "a", "kind": "Pod", "causes": [
            {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers"}
        ]}
    }));
    let Fault::Rejected {
        code: 422,
        field: Some(field),
        ..
    } = fault
    else {
        panic!("{fault:?}")
    };
    assert_eq!(field, "spec.containers");
}

#[test]
fn f_24_only_what_the_api_server_itself_cannot_take_is_final() {
    let field =
        json!({"causes": [{"reason": "FieldValueInvalid", "field": "spec.containers[0].image"}]});
    let none = json!({});
    let rows = [
        (
            422,
            "Invalid",
            "Pod \"a\" is invalid: spec.containers[0].image: Required value",
            &field,
            true,
        ),
        (
            400,
            "BadRequest",
            "Pod in version \"v1\" cannot be handled as a Pod: unknown field",
            &none,
            true,
        ),
        (
            413,
            "RequestEntityTooLarge",
            "limit is 3145728",
            &none,
            true,
        ),
        // A webhook without a code, and one with the code and message of a validation.
        (
            400,
            "BadRequest",
            "admission webhook \"a.b.c\" denied the request without explanation",
            &none,
            false,
        ),
        (
            422,
            "Invalid",
            "admission webhook \"a.b.c\" denied the request: no",
            &field,
            false,
        ),
        (
            422,
            "Invalid",
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            &field,
            false,
        ),
        (
            422,
            "Invalid",
            "the mutation made no Pod of it",
            &none,
            false,
        ),
        (400, "Expired", "come again", &none, false),
    ];
    for (code, reason, message, details, is_final) in rows {
        let fault = fault(json!({
            "status": "Failure", "reason": reason, "code": code, "message": message, "details": details,
        }));
        let denied = matches!(
            fault,
            Fault::Denied {
                what: Denial::Policy,
                ..
            }
        );
        assert_eq!(
            matches!(fault, Fault::Rejected { .. }),
            is_final,
            "{message}"
        );
        assert_eq!(denied, !is_final, "{message}");
    }
}

#[test]
fn f_10_the_servers_delay_is_followed_up_to_a_cap() {
    for (asked, seconds) in [
        (json!(1), 1),
        (json!(30), 30),
        (json!(3600), 30),
        (json!(0), 1),
    ] {
        let fault = fault(json!({
            "status": "Failure", "reason": "TooManyRequests", "code": 429,
            "message": "too many requests", "details": {"retryAfterSeconds": asked}
        }));
        assert_eq!(
            fault,
            Fault::Throttled {
                after: Duration::from_secs(seconds)
            }
        );
    }
    let unsaid = fault(json!({"status": "Failure", "message": "slow down", "code": 429}));
    assert_eq!(
        unsaid,
        Fault::Throttled {
            after: Duration::from_secs(1)
        }
    );
}

#[test]
fn f_03_f_12_f_14_server_failures_leave_the_outcome_unknown() {
    for (code, message) in [
        (500, "etcdserver: request timed out"),
        (
            500,
            "Internal error occurred: failed calling webhook \"x\": connection refused",
        ),
        (503, ""),
        (
            504,
            "Timeout: request did not complete within the allotted timeout",
        ),
        (401, "Unauthorized"),
        (407, "Proxy Authentication Required"),
    ] {
        let fault = fault(json!({"status": "Failure", "message": message, "code": code}));
        assert!(matches!(fault, Fault::Transient(_)), "{code}: {fault:?}");
        assert!(fault.outcome_unknown());
        assert!(!fault.to_string().is_empty());
    }
    let asked = fault(json!({
        "status": "Failure", "message": "busy", "code": 503, "details": {"retryAfterSeconds": 5}
    }));
    assert_eq!(
        asked,
        Fault::Throttled {
            after: Duration::from_secs(5)
        }
    );
}

#[test]
fn conflicts_and_taken_names_differ() {
    let body = |reason: &str| {
        let body = json!({"status": "Failure", "reason": reason, "message": "m", "code": 409});
        kube::Error::Api(Box::new(serde_json::from_value(body).unwrap()))
    };
    assert!(!is_already_exists(&body("Conflict")));
    assert!(is_already_exists(&body("AlreadyExists")));
    assert_eq!(
        Fault::from(body("Conflict")),
        Fault::Conflict("m".to_owned())
    );
}

#[test]
fn f_06_an_unreadable_answer_leaves_the_outcome_unknown() {
    let error = serde_json::from_str::<u8>("{\"kind\":").unwrap_err();
    assert!(Fault::from(kube::Error::SerdeError(error)).outcome_unknown());
}

#[test]
fn a_broken_connection_tells_its_whole_story_once() {
    let inner = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
    let Fault::Transient(text) = Fault::from(kube::Error::Service(Box::new(inner))) else {
        panic!("not transient")
    };
    assert_eq!(text.matches("connection refused").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn f_04_i_36_a_call_without_answer_ends_at_its_limit() {
    let start = tokio::time::Instant::now();
    let limit = Duration::from_secs(30);
    let answer = within(limit, std::future::pending::<Result<(), kube::Error>>()).await;
    assert_eq!(answer, Err(Fault::Deadline { limit }));
    assert_eq!(start.elapsed(), limit);
}
