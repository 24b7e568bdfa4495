//! Warnings at admission: a `ValidatingAdmissionPolicy` that never refuses. It tells the person who submits a job what events
//! tell later: settings without effect, odd but runnable values.

use serde_json::{Value, json};

use crate::install::labels;
use crate::operator::Operator;

/// One warning.
#[derive(Clone, Debug)]
pub struct Warning {
    /// CEL: true if there is nothing to warn of.
    pub unless: String,
    /// The text.
    pub message: Text,
}

/// The text of a warning.
#[derive(Clone, Debug)]
pub enum Text {
    /// As it stands.
    Fixed(String),
    /// A CEL expression.
    Expression(String),
}

/// The warnings of every kind with a run policy and replica specs.
pub fn shared(replica_map: &str) -> Vec<Warning> {
    vec![
        Warning {
            unless: "object.spec.?runPolicy.?cleanPodPolicy.orValue('None') in ['None', 'Running', 'All']".into(),
            message: Text::Expression(
                r#"'spec.runPolicy.cleanPodPolicy: "' + object.spec.runPolicy.cleanPodPolicy + '" is none of None, Running, All and works as All'"#
                    .into(),
            ),
        },
        Warning {
            unless: format!(
                "object.spec.{replica_map}.all(t, \
                 !has(object.spec.{replica_map}[t].template.spec.restartPolicy))"
            ),
            message: Text::Fixed(format!(
                "spec.{replica_map}: restartPolicy within a template is replaced by the one beside the template"
            )),
        },
    ]
}

/// The warnings of `PyTorchJob`.
pub fn pytorch() -> Vec<Warning> {
    let elastic = "object.spec.?elasticPolicy";
    let workers = "object.spec.pytorchReplicaSpecs[?'Worker'].?replicas.orValue(1)";
    vec![
        Warning {
            unless: format!("!{elastic}.?nProcPerNode.hasValue()"),
            // The published text.
            message: Text::Fixed(
                "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead".into(),
            ),
        },
        Warning {
            unless: format!(
                "{workers} >= {elastic}.?minReplicas.orValue({workers}) && \
                 {workers} <= {elastic}.?maxReplicas.orValue({workers})"
            ),
            message: Text::Fixed(
                "spec.pytorchReplicaSpecs[Worker].replicas is outside the bounds of spec.elasticPolicy".into(),
            ),
        },
    ]
}

/// The policy and its binding.
pub fn policy(operator: &Operator) -> [Value; 2] {
    let name = format!("trainyard-{}-warnings", operator.plural);
    let metadata = json!({ "name": name, "labels": labels(operator) });
    let validations: Vec<Value> = operator
        .warnings
        .iter()
        .map(|warning| {
            let (key, text) = match &warning.message {
                Text::Fixed(text) => ("message", text),
                Text::Expression(text) => ("messageExpression", text),
            };
            json!({ "expression": warning.unless, key: text })
        })
        .collect();
    let api = "admissionregistration.k8s.io/v1";
    [
        json!({
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                // A warning is never worth a refusal.
                "failurePolicy": "Ignore",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [operator.group],
                    "apiVersions": [operator.version],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": [operator.plural],
                    // The default, spelled out: a list is compared whole, and a second apply should change nothing.
                    "scope": "*",
                }] },
                "validations": validations,
            },
        }),
        json!({
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": { "policyName": name, "validationActions": ["Warn"] },
        }),
    ]
}
