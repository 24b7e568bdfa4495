//! Warnings at admission: a `ValidatingAdmissionPolicy` that never refuses. It tells the person who submits a job what events
//! tell later: settings without effect, odd but runnable values.

use serde_json::{Value, json};
use training_api::labels as keys;

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
    let every = |text: &str, unless: &str| {
        let template = format!("object.spec.{replica_map}[t].template");
        Warning {
            unless: format!(
                "object.spec.{replica_map}.all(t, {})",
                unless.replace("TEMPLATE", &template)
            ),
            message: Text::Fixed(format!("spec.{replica_map}: {text}")),
        }
    };
    let ours = [
        keys::OPERATOR_NAME,
        keys::JOB_NAME,
        keys::REPLICA_TYPE,
        keys::REPLICA_INDEX,
        keys::JOB_ROLE,
    ];
    let ours = ours.map(|key| format!("'{key}'")).join(", ");
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
        every(
            "labels of the operator's own within a template are replaced",
            &format!(
                "!has(TEMPLATE.metadata) || !has(TEMPLATE.metadata.labels) || \
                 !TEMPLATE.metadata.labels.exists(k, k in [{ours}])"
            ),
        ),
        every(
            "name and namespace within a template have no effect",
            "!has(TEMPLATE.metadata) || (!has(TEMPLATE.metadata.name) && !has(TEMPLATE.metadata.namespace))",
        ),
        every(
            "pods with finalizers are not replaced until somebody removes them",
            "!has(TEMPLATE.metadata) || !has(TEMPLATE.metadata.finalizers)",
        ),
        every(
            "hostname and subdomain within a template are not passed on; each pod has its own name",
            "!has(TEMPLATE.spec.hostname) && !has(TEMPLATE.spec.subdomain) && !has(TEMPLATE.spec.hostnameOverride)",
        ),
        every(
            "with hostNetwork, pods of one job on the same node get in each other's way",
            "!has(TEMPLATE.spec.hostNetwork) || !TEMPLATE.spec.hostNetwork",
        ),
        Warning {
            unless: "!object.spec.?runPolicy.?schedulingPolicy.hasValue()".into(),
            message: Text::Fixed(
                "spec.runPolicy.schedulingPolicy has an effect only where the operator runs with a gang scheduler, or in a queueing system".into(),
            ),
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

/// The warnings of `TFJob`.
pub fn tensorflow() -> Vec<Warning> {
    let map = "object.spec.tfReplicaSpecs";
    let has = |types: &str| format!("{map}.exists(t, t.lowerAscii() in [{types}])");
    let leader = has("'chief', 'master'");
    let policy = "object.spec.?successPolicy.orValue('')";
    let fixed = |unless: String, text: &str| Warning {
        unless,
        message: Text::Fixed(text.into()),
    };
    vec![
        fixed(
            format!("{policy} in ['', 'AllWorkers']"),
            "spec.successPolicy is none of AllWorkers and the empty one, and works as the empty one",
        ),
        fixed(
            format!("{policy} != 'AllWorkers' || !{leader}"),
            "spec.successPolicy has no effect beside a Chief or Master, which decides the job's end",
        ),
        fixed(
            has("'chief', 'master', 'worker'"),
            "spec.tfReplicaSpecs: no role can complete this job; add a Chief, a Master or a Worker",
        ),
        fixed(
            format!(
                "{map}.all(t, !(t.lowerAscii() in ['chief', 'master', 'evaluator']) || {map}[t].?replicas.orValue(1) <= 1)"
            ),
            "spec.tfReplicaSpecs: TensorFlow knows one Chief, one Master and one Evaluator only",
        ),
        fixed(
            format!(
                "{map}.all(t, t.lowerAscii() in ['chief', 'master', 'ps', 'worker', 'evaluator'])"
            ),
            "spec.tfReplicaSpecs: pods of roles that TensorFlow doesn't have run, and don't count for the job's end",
        ),
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
