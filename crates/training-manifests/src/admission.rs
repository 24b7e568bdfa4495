//! Generates `ValidatingAdmissionPolicy` objects. Warnings report at submission what events report later: settings without
//! effect, and unusual but valid values. Refusals cover jobs that could never run and that no schema rule can detect, because
//! schema rules see neither namespaces nor most metadata.

use serde_json::{Value, json};
use training_api::labels as keys;

use crate::install::labels;
use crate::operator::{Kind, Operator};

/// The checks of a kind at admission.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// The checks that warn.
    pub warnings: Vec<Check>,
    /// The checks that refuse.
    pub refusals: Vec<Check>,
}

/// A check.
#[derive(Clone, Debug)]
pub struct Check {
    /// A CEL expression that is true if the check passes.
    pub unless: String,
    /// The message.
    pub message: Text,
}

impl Check {
    fn fixed(unless: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            unless: unless.into(),
            message: Text::Fixed(text.into()),
        }
    }

    fn expression(unless: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            unless: unless.into(),
            message: Text::Expression(text.into()),
        }
    }
}

/// The message of a check.
#[derive(Clone, Debug)]
pub enum Text {
    /// A fixed text.
    Fixed(String),
    /// A CEL expression.
    Expression(String),
}

/// Returns the warnings of every kind with a run policy and replica specs.
pub fn shared(replica_map: &str) -> Vec<Check> {
    let every = |text: &str, unless: &str| {
        let template = format!("object.spec.{replica_map}[t].template");
        Check::fixed(
            format!(
                "object.spec.{replica_map}.all(t, {})",
                unless.replace("TEMPLATE", &template)
            ),
            format!("spec.{replica_map}: {text}"),
        )
    };
    let ours = keys::OWN.map(|key| format!("'{key}'")).join(", ");
    vec![
        clean_up("runPolicy.?cleanPodPolicy", ""),
        every(
            "restartPolicy within a template is replaced by the one beside the template",
            "!has(TEMPLATE.spec.restartPolicy)",
        ),
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
            "finalizers within a template are ignored; they would block the replacement of a deleted pod until they are removed",
            "!has(TEMPLATE.metadata) || !has(TEMPLATE.metadata.finalizers)",
        ),
        every(
            "hostname and subdomain within a template are ignored; each pod has its own name",
            "!has(TEMPLATE.spec.hostname) && !has(TEMPLATE.spec.subdomain) && !has(TEMPLATE.spec.hostnameOverride)",
        ),
        every(
            "with hostNetwork, pods of one job on the same node get in each other's way",
            "!has(TEMPLATE.spec.hostNetwork) || !TEMPLATE.spec.hostNetwork",
        ),
        Check::fixed(
            "!object.spec.?runPolicy.?schedulingPolicy.hasValue()",
            "spec.runPolicy.schedulingPolicy has an effect only where the operator runs with a gang scheduler, or in a queueing system",
        ),
    ]
}

/// Returns the warnings of `PyTorchJob`.
pub fn pytorch() -> Vec<Check> {
    let elastic = "object.spec.?elasticPolicy";
    let workers = "object.spec.pytorchReplicaSpecs[?'Worker'].?replicas.orValue(1)";
    vec![
        // The published text.
        Check::fixed(
            format!("!{elastic}.?nProcPerNode.hasValue()"),
            "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead",
        ),
        Check::fixed(
            format!(
                "{workers} >= {elastic}.?minReplicas.orValue({workers}) && \
                 {workers} <= {elastic}.?maxReplicas.orValue({workers})"
            ),
            "spec.pytorchReplicaSpecs[Worker].replicas is outside the bounds of spec.elasticPolicy",
        ),
    ]
}

/// Returns the warnings of `MPIJob`: a job of `v1` may have its clean-up policy beside the run policy.
pub fn mpi() -> Vec<Check> {
    let unless = "object.spec.?runPolicy.?cleanPodPolicy.hasValue() || ";
    vec![clean_up("cleanPodPolicy", unless)]
}

/// Returns the warning of an unknown clean-up policy at this optional path of the spec, unless the CEL expression, which ends with its
/// operator, holds.
fn clean_up(path: &str, unless: &str) -> Check {
    let field = format!("spec.{}", path.replace('?', ""));
    Check::expression(
        format!("{unless}object.spec.?{path}.orValue('None') in ['None', 'Running', 'All']"),
        format!(
            r#"'{field}: "' + object.{field} + '" is none of None, Running, All and works as All'"#
        ),
    )
}

/// Returns the warnings of `TFJob`.
pub fn tensorflow() -> Vec<Check> {
    let map = "object.spec.tfReplicaSpecs";
    let has = |types: &str| format!("{map}.exists(t, t.lowerAscii() in [{types}])");
    let leader = has("'chief', 'master'");
    let policy = "object.spec.?successPolicy.orValue('')";
    vec![
        Check::fixed(
            format!("{policy} in ['', 'AllWorkers']"),
            "spec.successPolicy is none of AllWorkers and the empty one, and works as the empty one",
        ),
        Check::fixed(
            format!("{policy} != 'AllWorkers' || !{leader}"),
            "spec.successPolicy has no effect beside a Chief or Master, which decides the job's end",
        ),
        Check::fixed(
            has("'chief', 'master', 'worker'"),
            "spec.tfReplicaSpecs: no role can complete this job; add a Chief, a Master or a Worker",
        ),
        Check::fixed(
            format!(
                "{map}.all(t, !(t.lowerAscii() in ['chief', 'master', 'evaluator']) || {map}[t].?replicas.orValue(1) <= 1)"
            ),
            "spec.tfReplicaSpecs: TensorFlow knows one Chief, one Master and one Evaluator only",
        ),
        Check::fixed(
            format!(
                "{map}.all(t, t.lowerAscii() in ['chief', 'master', 'ps', 'worker', 'evaluator'])"
            ),
            "spec.tfReplicaSpecs: pods of roles that TensorFlow doesn't have run, and don't count for the job's end",
        ),
    ]
}

/// Returns the checks of an application, which is at `path` in an object of this kind.
pub fn spark(kind: &str, path: &str) -> Checks {
    let app = format!("object.{path}");
    let warnings = vec![
        Check::fixed(
            format!("!has({app}.failureRetries)"),
            format!(
                "{path}.failureRetries has no effect; use {path}.restartPolicy.onFailureRetries"
            ),
        ),
        Check::fixed(
            format!("!has({app}.retryInterval)"),
            format!(
                "{path}.retryInterval has no effect; use {path}.restartPolicy.onFailureRetryInterval"
            ),
        ),
        Check::fixed(
            format!("{app}.sparkVersion.matches('^v?[0-9]+([.+-]|$)')"),
            format!("{path}.sparkVersion is no version; the driver is made for Spark 3.5"),
        ),
        // Not refused: queueing systems add templates that don't change Spark's behaviour.
        Check::fixed(
            format!(
                "!{app}.sparkVersion.matches('^v?[0-2]([.+-]|$)') || \
                 !({app}.?driver.?template.hasValue() || {app}.?executor.?template.hasValue())"
            ),
            format!(
                "{path}.sparkVersion: pod template feature requires Spark version 3.0.0 or higher"
            ),
        ),
        Check::fixed(
            format!("!has({app}.monitoring) || has({app}.monitoring.prometheus)"),
            format!("{path}.monitoring has no effect without {path}.monitoring.prometheus"),
        ),
    ];
    let key = "spark.kubernetes.namespace";
    let said = format!("{app}.?sparkConf[?'{key}'].orValue(object.metadata.namespace)");
    let before = said.replacen("object.", "oldObject.", 1);
    // Objects that were stored before can still be edited in other fields: suspended, finished, cleaned up.
    let refusals = vec![
        Check::expression(
            "request.operation == 'UPDATE' || \
             object.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && object.metadata.name.size() <= 63",
            format!(
                "'invalid {kind} name \"' + object.metadata.name + '\": a DNS-1035 label has at most 63 lower-case letters, digits and \
                 hyphens, starts with a letter and ends with a letter or digit'"
            ),
        ),
        // The published text.
        Check::expression(
            format!(
                "request.operation == 'UPDATE' && {said} == {before} || {said} == object.metadata.namespace"
            ),
            format!(
                "'sparkConf key \"{key}\" is not allowed: must equal the application namespace \"' + object.metadata.namespace + \
                 '\", got \"' + {said} + '\"'"
            ),
        ),
    ];
    Checks { warnings, refusals }
}

/// Returns the policy that sets executors' memory limit from their application: Spark overrides the template's.
pub fn executor_memory_limit(operator: &Operator) -> Vec<Value> {
    let key = spark_operator::label::MEMORY_LIMIT;
    let condition = format!(
        "object.metadata.?labels['spark-role'].orValue('') == 'executor' && object.metadata.?annotations[?'{key}'].hasValue()"
    );
    // Spark's own container. If a template chose its name, it is the last one.
    let limit = format!(
        "Object{{spec: Object.spec{{containers: [Object.spec.containers{{\
         name: object.spec.containers.exists(c, c.name == 'spark-kubernetes-executor') \
         ? 'spark-kubernetes-executor' : object.spec.containers[size(object.spec.containers) - 1].name, \
         resources: Object.spec.containers.resources{{limits: {{'memory': object.metadata.annotations['{key}']}}}}}}]}}}}"
    );
    on_creation(
        operator,
        "trainyard-spark-executor-memory-limit",
        ["", "v1", "pods"],
        ["an-executor-with-a-limit", &condition],
        &json!({
            "patchType": "ApplyConfiguration",
            "applyConfiguration": { "expression": limit },
        }),
    )
}

/// Returns the policy that writes defaults into an application when it is created, for tools that read stored applications. Later
/// writes would be edits and start a new run.
pub fn stored_defaults(operator: &Operator) -> Vec<Value> {
    let property = |key: &str| format!("object.spec.?sparkConf[?'spark.{key}']");
    let unless_said = |role: &str, field: &str, value: &str| {
        format!(
            "(has(object.spec.{role}.{field}) || {}.hasValue() ? [] : \
             [JSONPatch{{op: 'add', path: '/spec/{role}/{field}', value: {value}}}])",
            property(&format!("{role}.{field}"))
        )
    };
    let sizes = [
        ("driver", "cores", "1"),
        ("driver", "memory", "'1g'"),
        ("executor", "cores", "1"),
        ("executor", "memory", "'1g'"),
    ];
    let sizes = sizes.map(|(role, field, value)| unless_said(role, field, value));
    let dynamic = format!(
        "(has(object.spec.dynamicAllocation) ? object.spec.dynamicAllocation.?enabled.orValue(false) \
         : {}.orValue('').trim().lowerAscii() == 'true')",
        property("dynamicAllocation.enabled")
    );
    let count = unless_said("executor", "instances", "1");
    let expression = format!("{} + ({dynamic} ? [] : {count})", sizes.join(" + "));
    on_creation(
        operator,
        "trainyard-spark-defaults",
        ["sparkoperator.k8s.io", "v1beta2", "sparkapplications"],
        [
            "with-driver-and-executors",
            "has(object.spec.driver) && has(object.spec.executor)",
        ],
        &json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }),
    )
}

/// Returns a policy that mutates objects of one resource (group, version, name) on creation if a condition (name, expression) is
/// true. Failures are ignored: it is better to store the object unchanged than to refuse it.
fn on_creation(
    operator: &Operator,
    name: &str,
    [group, version, resource]: [&str; 3],
    [condition, holds]: [&str; 2],
    mutation: &Value,
) -> Vec<Value> {
    let metadata = json!({ "name": name, "labels": labels(operator) });
    let api = "admissionregistration.k8s.io/v1";
    vec![
        json!({
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "Never",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [group],
                    "apiVersions": [version],
                    "operations": ["CREATE"],
                    "resources": [resource],
                    "scope": "Namespaced",
                }] },
                "matchConditions": [{ "name": condition, "expression": holds }],
                "mutations": [mutation],
            },
        }),
        json!({
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": { "policyName": name },
        }),
    ]
}

/// Returns the policies of every kind, with their bindings.
pub fn policies(operator: &Operator) -> Vec<Value> {
    let of = |kind: &Kind| [warnings(operator, kind), refusals(operator, kind)];
    let all = operator.kinds.iter().flat_map(of).flatten().flatten();
    all.collect()
}

fn warnings(operator: &Operator, kind: &Kind) -> Option<[Value; 2]> {
    // A failing warning must not refuse the object.
    let spec = json!({ "failurePolicy": "Ignore" });
    let name = format!("trainyard-{}-warnings", kind.plural);
    pair(operator, kind, (&name, "Warn"), &kind.checks.warnings, spec)
}

fn refusals(operator: &Operator, kind: &Kind) -> Option<[Value; 2]> {
    let spec = json!({ "failurePolicy": "Fail" });
    let name = format!("trainyard-{}-rules", kind.plural);
    pair(operator, kind, (&name, "Deny"), &kind.checks.refusals, spec)
}

/// Returns a policy and its binding; `None` without checks.
fn pair(
    operator: &Operator,
    kind: &Kind,
    (name, action): (&str, &str),
    checks: &[Check],
    mut spec: Value,
) -> Option<[Value; 2]> {
    if checks.is_empty() {
        return None;
    }
    let metadata = json!({ "name": name, "labels": labels(operator) });
    spec["matchConstraints"] = json!({ "resourceRules": [{
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [kind.plural],
        // The explicit default: lists are compared as a whole, and a second apply should change nothing.
        "scope": "*",
    }] });
    let validations = checks.iter().map(|check| {
        let (key, text) = match &check.message {
            Text::Fixed(text) => ("message", text),
            Text::Expression(text) => ("messageExpression", text),
        };
        json!({ "expression": check.unless, key: text })
    });
    spec["validations"] = validations.collect();
    let api = "admissionregistration.k8s.io/v1";
    Some([
        json!({ "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec }),
        json!({
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": { "policyName": name, "validationActions": [action] },
        }),
    ])
}
