//! Refuses applications that can't run, and finds settings without effect.
//!
//! The API server already refuses most of these. This catches specs stored before a rule existed, and problems that no schema
//! rule can detect.

use std::collections::BTreeSet;

use training_core::check::no_system_class;
use training_core::{Note, SpecError};

use super::conf::says_more;
use super::cx::Cx;
use super::ingress;
use super::properties::{INTERNAL, LOCAL_DIR, Properties, below, list};
use super::settings::DriverIngress;
use super::volume;
use super::web::Url;
use crate::api::rule::{
    DENIED_CONF, NO_INGRESS_PORT, NO_INGRESS_URL, NODE_SELECTORS, SAME_INGRESS_PORT,
    SAME_INGRESS_URL,
};
use crate::api::{Role, SparkApplicationSpec};
use crate::memory::{Language, field};
use crate::{defaults, label, memory, names, version};

type Verdict = Result<(), SpecError>;

fn refuse(field: impl Into<String>, why: impl Into<String>) -> Verdict {
    Err(SpecError::new(field, why))
}

const ROLES: [Role; 2] = [Role::Driver, Role::Executor];

/// Checks the spec; returns events about settings without effect.
///
/// # Errors
/// The first field that makes the application impossible to run.
pub fn spec(cx: &Cx<'_>) -> Result<Vec<Note>, SpecError> {
    let spec = cx.spec;
    name(cx.name)?;
    mode(spec)?;
    node_selectors(spec)?;
    ingresses(cx)?;
    conf_keys(cx)?;
    templates(spec)?;
    executor_memory_limit(cx)?;
    if cx.inputs.settings.strict.is_on() {
        priority_classes(spec)?;
    }
    main_file(cx)?;
    Ok(advice(cx))
}

fn mode(spec: &SparkApplicationSpec) -> Verdict {
    match spec.mode.as_deref().unwrap_or_default() {
        "cluster" => Ok(()),
        mode => refuse(
            "spec.mode",
            format!("\"{mode}\" would run the driver outside a pod of its own; use cluster"),
        ),
    }
}

fn node_selectors(spec: &SparkApplicationSpec) -> Verdict {
    let own = ROLES
        .iter()
        .any(|role| !spec.role(*role).node_selector.is_empty());
    if own && !spec.node_selector.is_empty() {
        return refuse("spec.nodeSelector", NODE_SELECTORS);
    }
    Ok(())
}

fn name(name: &str) -> Verdict {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let fine = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(plain)
        && !name.ends_with('-')
        && name.len() <= names::MAX_LABEL;
    if fine {
        return Ok(());
    }
    let why = format!(
        "invalid SparkApplication name \"{name}\": a DNS-1035 label has at most 63 lower-case letters, digits and '-', starts with a \
         letter and ends with a letter or digit"
    );
    refuse("metadata.name", why)
}

fn service_type(field: &str, asked: Option<&String>) -> Verdict {
    match asked.map(String::as_str) {
        None | Some("" | "ClusterIP" | "NodePort" | "LoadBalancer") => Ok(()),
        Some(other) => refuse(
            format!("{field}.serviceType"),
            format!("\"{other}\": supported values: \"ClusterIP\", \"NodePort\", \"LoadBalancer\""),
        ),
    }
}

fn ingresses(cx: &Cx<'_>) -> Verdict {
    let limits = &cx.inputs.settings.ingress_limits;
    if let Some(ui) = &cx.spec.spark_ui_options {
        service_type("spec.sparkUIOptions", ui.service_type.as_ref())?;
        let field = "spec.sparkUIOptions";
        ingress::annotations(limits, field, &ui.ingress_annotations)?;
        ingress::tls(limits, field, &ui.ingress_tls)?;
    }
    let all = &cx.spec.driver_ingress_options;
    if !all.is_empty() && cx.inputs.settings.strict.is_on() {
        let why = "this operator runs with --strict, which allows no Ingresses; remove the field";
        return refuse("spec.driverIngressOptions", why);
    }
    if !all.is_empty() && cx.inputs.settings.driver_ingress == DriverIngress::Refused {
        let why = "this operator is set up to make no Ingresses for drivers (--driver-ingress=false); remove the field, or have the operator's setting changed";
        return refuse("spec.driverIngressOptions", why);
    }
    let (mut ports, mut urls) = (BTreeSet::new(), BTreeSet::new());
    for (at, one) in all.iter().enumerate() {
        let field = format!("spec.driverIngressOptions[{at}]");
        let Some(port) = one.service_port else {
            return refuse(format!("{field}.servicePort"), NO_INGRESS_PORT);
        };
        if !ports.insert(port) {
            let why = format!("{SAME_INGRESS_PORT}: {port}");
            return refuse(format!("{field}.servicePort"), why);
        }
        let url = one.ingress_url_format.as_deref().unwrap_or_default();
        if url.is_empty() {
            return refuse(format!("{field}.ingressURLFormat"), NO_INGRESS_URL);
        }
        if !urls.insert(url) {
            let why = format!("{SAME_INGRESS_URL}: {url}");
            return refuse(format!("{field}.ingressURLFormat"), why);
        }
        service_type(&field, one.service_type.as_ref())?;
        ingress::host(limits, &field, &Url::of(url, cx))?;
        ingress::annotations(limits, &field, &one.ingress_annotations)?;
        ingress::tls(limits, &field, &one.ingress_tls)?;
    }
    Ok(())
}

/// Strict mode allows no system priority classes.
fn priority_classes(spec: &SparkApplicationSpec) -> Verdict {
    let batch = spec.batch_scheduler_options.as_ref();
    let own = [
        (
            "spec.driver.priorityClassName",
            spec.driver.priority_class_name.as_deref(),
        ),
        (
            "spec.executor.priorityClassName",
            spec.executor.priority_class_name.as_deref(),
        ),
        (
            "spec.batchSchedulerOptions.priorityClassName",
            batch.and_then(|b| b.priority_class_name.as_deref()),
        ),
    ];
    for (field, class) in own {
        no_system_class(|| field.to_owned(), class)?;
    }
    for role in ROLES {
        let template = spec.role(role).template.as_deref();
        let pod = template.and_then(|t| t.spec.as_ref());
        let class = pod.and_then(|pod| pod.priority_class_name.as_deref());
        let field = || format!("spec.{}.template.spec.priorityClassName", role.as_str());
        no_system_class(field, class)?;
    }
    Ok(())
}

fn conf_keys(cx: &Cx<'_>) -> Verdict {
    let conf = &cx.spec.spark_conf;
    let field = |key: &str| format!("spec.sparkConf[{key}]");
    for (keys, why) in DENIED_CONF {
        if let Some(key) = keys.iter().find(|key| conf.contains_key(**key)) {
            let why = format!("sparkConf key \"{key}\" is not allowed: {why}");
            return refuse(field(key), why);
        }
    }
    let key = "spark.kubernetes.namespace";
    if let Some(other) = conf.get(key).filter(|ns| *ns != cx.namespace) {
        let why = format!(
            "sparkConf key \"{key}\" is not allowed: must equal the application namespace \"{}\", got \"{other}\"",
            cx.namespace
        );
        return refuse(field(key), why);
    }
    Ok(())
}

fn templates(spec: &SparkApplicationSpec) -> Verdict {
    let with = ROLES.into_iter().find(|role| says_more(spec.role(*role)));
    match with {
        Some(role) if !version::has_templates(&spec.spark_version) => refuse(
            format!("spec.{}.template", role.as_str()),
            format!(
                "pod template feature requires Spark version 3.0.0 or higher, and spec.sparkVersion is \"{}\"",
                spec.spark_version
            ),
        ),
        Some(_) | None => Ok(()),
    }
}

/// If an admission policy enforces the limit, it must be a memory quantity.
fn executor_memory_limit(cx: &Cx<'_>) -> Verdict {
    let said = cx.spec.executor.pod.memory_limit.as_deref();
    match said.filter(|l| !l.is_empty() && cx.inputs.settings.memory_limit_policy.is_on()) {
        Some(said) => memory::limit(said)
            .map(|_| ())
            .or_else(|why| refuse("spec.executor.memoryLimit", why)),
        None => Ok(()),
    }
}

/// Spark's classes that only run where they are submitted. Source: Spark.
const SERVERS: [(&str, &str); 3] = [
    (
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "Spark Connect server",
    ),
    (
        "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver",
        "Spark SQL shell",
    ),
    (
        "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2",
        "Spark Thrift server",
    ),
];

fn main_file(cx: &Cx<'_>) -> Verdict {
    let spec = cx.spec;
    let main = spec.main_application_file.as_str();
    if main.is_empty() {
        return refuse(
            "spec.mainApplicationFile",
            "is required; set it to the URI of a jar, Python or R file",
        );
    }
    if main != INTERNAL {
        remote("spec.mainApplicationFile", main)?;
    }
    let class = spec.main_class.as_deref().unwrap_or_default();
    if let Some((_, what)) = SERVERS.iter().find(|(known, _)| *known == class) {
        let why = format!(
            "Cluster deploy mode is not applicable to {what}: it serves whoever started it; run it in a pod of its own"
        );
        return refuse("spec.mainClass", why);
    }
    if cx.language == Language::Jvm && class.is_empty() {
        let why = format!(
            "Failed to get main class in JAR {main}. Please specify one with --class. Set spec.mainClass"
        );
        return refuse("spec.mainClass", why);
    }
    Ok(())
}

/// `spark-submit` would upload files of its machine; the operator has none.
fn remote(field: &str, uri: &str) -> Verdict {
    let scheme = uri
        .split_once(':')
        .map(|(scheme, _)| scheme)
        .filter(|scheme| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
            scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(plain)
        });
    if scheme.is_some_and(|scheme| !scheme.eq_ignore_ascii_case("file")) {
        return Ok(());
    }
    let why = format!(
        "\"{uri}\" is a file of the machine that runs spark-submit. Please specify spark.kubernetes.file.upload.path property. Nothing is \
         uploaded here: write local:// for a file of the image, or the URL of a file that the driver can fetch"
    );
    refuse(field, why)
}

/// Checks the properties as a whole.
///
/// # Errors
/// The first one that makes the application impossible to run.
pub fn properties(cx: &Cx<'_>, all: &Properties, notes: &mut Vec<Note>) -> Verdict {
    let conf = |key: &str| format!("spec.sparkConf[{key}]");
    let key = "spark.driver.bindAddress";
    if all.contains_key(key) {
        let why = "spark.driver.bindAddress is not supported in Kubernetes mode, as the driver's bind address is managed and set to the \
                   driver pod's IP address; remove it";
        return refuse(conf(key), why);
    }
    let images = [
        "spark.kubernetes.driver.container.image",
        "spark.kubernetes.container.image",
    ];
    if !images.iter().any(|key| all.contains_key(*key)) {
        return refuse(
            "spec.image",
            "Must specify the driver container image; set spec.image or spec.driver.image",
        );
    }
    unreachable_files(all)?;
    for (key, field) in [
        ("spark.jars", "jars"),
        ("spark.files", "files"),
        ("spark.archives", "archives"),
        ("spark.submit.pyFiles", "pyFiles"),
    ] {
        let main = cx.spec.main_application_file.as_str();
        let text = all.get(key).map(String::as_str).unwrap_or_default();
        for uri in list(text).filter(|uri| *uri != main) {
            remote(&format!("spec.deps.{field} ({key})"), uri)?;
        }
    }
    secret_references(all)?;
    for role in ROLES {
        reserved_labels(all, role)?;
        volume::check(all, role)?;
        whole_number(all, &format!("spark.{}.cores", role.as_str()), "cores")?;
    }
    // With dynamic allocation, Spark may start with no executors.
    if defaults::allocates_dynamically(cx.spec) {
        allocation(all, notes)?;
    } else {
        whole_number(all, "spark.executor.instances", "executors")?;
    }
    cx.memory(all).executor()?;
    overwritten(cx, notes);
    Ok(())
}

/// Refuses properties that need local files, or credentials, of a submitting process.
fn unreachable_files(all: &Properties) -> Verdict {
    let kerberos = "reads a file of the machine that runs spark-submit, and there is none; mount it from a Secret or ConfigMap";
    let keytab = "reads a file of the machine that runs spark-submit, and there is none; mount it from a Secret, and write its path in the driver as local:///path";
    let credentials = "would have the operator copy credentials; let the driver use its ServiceAccount, spec.driver.serviceAccount";
    for (key, why) in [
        ("spark.kerberos.keytab", keytab),
        ("spark.yarn.keytab", keytab),
        ("spark.kubernetes.kerberos.krb5.path", kerberos),
        (
            "spark.kubernetes.authenticate.driver.oauthToken",
            credentials,
        ),
        (
            "spark.kubernetes.authenticate.driver.oauthTokenFile",
            credentials,
        ),
        (
            "spark.kubernetes.authenticate.driver.clientKeyFile",
            credentials,
        ),
        (
            "spark.kubernetes.authenticate.driver.clientCertFile",
            credentials,
        ),
        (
            "spark.kubernetes.authenticate.driver.caCertFile",
            credentials,
        ),
    ] {
        // A file of the driver's image or volumes needs no upload.
        let in_the_driver =
            |value: &String| key.ends_with(".keytab") && value.starts_with("local:/");
        if all.get(key).is_some_and(|value| !in_the_driver(value)) {
            return refuse(format!("spec.sparkConf[{key}]"), format!("{key} {why}"));
        }
    }
    Ok(())
}

/// Checks the driver's Secret references: they have two parts. Only the driver reads those of executors.
fn secret_references(all: &Properties) -> Verdict {
    let prefix = "spark.kubernetes.driver.secretKeyRef.";
    for (name, reference) in below(all, prefix) {
        let two = reference
            .split_once(':')
            .is_some_and(|(_, key)| !key.is_empty() && !key.contains(':'));
        if !two {
            let why = format!(
                "\"{reference}\": SecretKeyRef must be in the form name:key, with a colon between the two and no other"
            );
            return refuse(format!("spec.sparkConf[{prefix}{name}]"), why);
        }
    }
    Ok(())
}

fn reserved_labels(all: &Properties, role: Role) -> Verdict {
    let more: &[&str] = match role {
        Role::Driver => &[],
        Role::Executor => &label::RESERVED_OF_EXECUTORS,
    };
    for key in label::RESERVED.iter().chain(more) {
        let property = format!("spark.kubernetes.{}.label.{key}", role.as_str());
        if all.contains_key(&property) {
            let why = format!(
                "Label with key {key} is not allowed as it is reserved for Spark bookkeeping operations. Remove it from the labels of \
                 the application and of its {}",
                role.as_str()
            );
            return refuse(format!("spec.{}.labels[{key}]", role.as_str()), why);
        }
    }
    Ok(())
}

fn whole_number(all: &Properties, key: &str, what: &str) -> Verdict {
    match all.get(key) {
        Some(text) if !text.trim().parse::<i32>().is_ok_and(|n| n > 0) => refuse(
            field(key),
            format!("\"{text}\": the number of {what} must be a positive number"),
        ),
        Some(_) | None => Ok(()),
    }
}

/// Spark exits at once if the bounds allow no number of executors. Source: `ExecutorAllocationManager.validateSettings`.
fn allocation(all: &Properties, notes: &mut Vec<Note>) -> Verdict {
    let number = |name: &str| -> Option<i64> {
        let text = all.get(&format!("spark.dynamicAllocation.{name}Executors"))?;
        text.trim().parse().ok()
    };
    let (least, most) = (number("min").unwrap_or(0), number("max"));
    if most.is_some_and(|most| most <= 0 || most < least) {
        let why = format!(
            "{} is to be positive, and not below minExecutors, which is {least}",
            most.unwrap_or_default()
        );
        return refuse("spec.dynamicAllocation.maxExecutors", why);
    }
    if let Some(first) = number("initial")
        && (first < least || most.is_some_and(|most| first > most))
    {
        notes.push(ignored(format!(
            "spec.dynamicAllocation.initialExecutors {first} is outside of the bounds, which are {least} and {}",
            most.map_or("none".to_owned(), |most| most.to_string())
        )));
    }
    Ok(())
}

fn ignored(text: impl Into<String>) -> Note {
    Note::warning("SettingIgnored", text)
}

/// Returns events about settings that have no effect, or an unexpected one.
fn advice(cx: &Cx<'_>) -> Vec<Note> {
    let spec = cx.spec;
    let mut notes = Vec::new();
    let mut say = |text: String| notes.push(ignored(text));
    if !version::is_known(&spec.spark_version) {
        say(format!(
            "spec.sparkVersion \"{}\" is no version; the driver is made for Spark 3.5",
            spec.spark_version
        ));
    }
    if spec.failure_retries.is_some() {
        say(
            "spec.failureRetries has no effect; use spec.restartPolicy.onFailureRetries".to_owned(),
        );
    }
    if spec.retry_interval.is_some() {
        say(
            "spec.retryInterval has no effect; use spec.restartPolicy.onFailureRetryInterval"
                .to_owned(),
        );
    }
    if spec.python_version.is_some() && cx.version.at_least(4, 1) {
        say("spec.pythonVersion has no effect from Spark 4.1 on; choose the image".to_owned());
    }
    if spec
        .monitoring
        .as_ref()
        .is_some_and(|m| m.prometheus.is_none())
    {
        say("spec.monitoring has no effect without spec.monitoring.prometheus".to_owned());
    }
    let policy = cx.inputs.settings.memory_limit_policy;
    let limit = spec.executor.pod.memory_limit.as_deref();
    if limit.is_some_and(|l| !l.is_empty()) && !policy.is_on() {
        say("spec.executor.memoryLimit has no effect: Spark sets the memory limit of executors to what they request. Install the \
             operator's admission policy for it, or raise spec.executor.memoryOverhead"
            .to_owned());
    }
    for role in ROLES {
        let (word, of) = (role.as_str(), spec.role(role));
        if of
            .gpu
            .as_ref()
            .is_some_and(|g| g.name.is_empty() || g.quantity <= 0)
        {
            say(format!(
                "spec.{word}.gpu has no effect without a name and a positive quantity"
            ));
        }
        for (at, mount) in of.volume_mounts.iter().enumerate() {
            let known = spec.volumes.iter().any(|v| v.name == mount.name);
            if !known && !mount.name.starts_with(LOCAL_DIR) {
                say(format!(
                    "spec.{word}.volumeMounts[{at}] has no effect: there is no volume {} in spec.volumes",
                    mount.name
                ));
            }
        }
    }
    let batch = &cx.inputs.settings.batch;
    if spec.batch_scheduler.is_some() && !batch.enabled.is_on() {
        say("spec.batchScheduler only names the scheduler of the pods: batch schedulers are not enabled in this operator, so there is no \
             group"
            .to_owned());
    }
    notes
}

/// Reports user properties that are overwritten, as `spark-submit` and the published operator do.
fn overwritten(cx: &Cx<'_>, notes: &mut Vec<Note>) {
    let template = "the operator writes the pod template itself; use spec.driver.template and spec.executor.template";
    let name = "the application's name is metadata.name";
    let chosen = "it is chosen for every submission";
    let submitter = "no spark-submit runs";
    let rows = [
        ("spark.app.id", chosen),
        ("spark.app.name", name),
        ("spark.driver.host", chosen),
        ("spark.kubernetes.driver.resourceNamePrefix", chosen),
        ("spark.kubernetes.driver.podTemplateFile", template),
        ("spark.kubernetes.executor.podTemplateFile", template),
        ("spark.kubernetes.submission.waitAppCompletion", submitter),
        ("spark.kubernetes.file.upload.path", submitter),
        (
            "spark.submit.deployMode",
            "an application runs in cluster mode",
        ),
    ];
    let mut say = |key: &str, why: &str| {
        notes.push(ignored(format!(
            "spec.sparkConf[{key}] has no effect: {why}"
        )));
    };
    for (key, why) in rows {
        if cx.spec.spark_conf.contains_key(key) {
            say(key, why);
        }
    }
    let prefix = "spark.kubernetes.authenticate.submission.";
    for key in cx
        .spec
        .spark_conf
        .keys()
        .filter(|key| key.starts_with(prefix))
    {
        say(key, submitter);
    }
    let key = "spark.kubernetes.driver.pod.excludedFeatureSteps";
    let steps = cx
        .spec
        .spark_conf
        .get(key)
        .map(String::as_str)
        .unwrap_or_default();
    if list(steps).any(|step| !step.ends_with(".NetworkPolicyFeatureStep")) {
        say(
            key,
            "of Spark's steps only the one of the NetworkPolicy can be left out",
        );
    }
}
