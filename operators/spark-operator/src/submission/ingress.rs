//! Limits for the Ingresses of applications.
//!
//! An ingress controller serves the whole cluster, so a host or an annotation may affect other users' applications.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::IngressTLS;
use training_core::SpecError;

use super::settings::{CLASS_ANNOTATION, IngressLimits};
use super::web::Url;

type Verdict = Result<(), SpecError>;

/// Checks the host of a driver's Ingress.
///
/// # Errors
/// If the administrator doesn't allow it.
pub fn host(limits: &IngressLimits, field: &str, url: &Url) -> Verdict {
    // The API server refuses a port; here it must only not hide the host.
    let host = url.host.split(':').next().unwrap_or_default();
    allowed_host(limits, &format!("{field}.ingressURLFormat"), host)
}

/// Checks the TLS hosts of an Ingress.
///
/// # Errors
/// As [`host`].
pub fn tls(limits: &IngressLimits, field: &str, all: &[IngressTLS]) -> Verdict {
    for (at, one) in all.iter().enumerate() {
        for (number, host) in one.hosts.iter().flatten().enumerate() {
            let field = format!("{field}.ingressTLS[{at}].hosts[{number}]");
            allowed_host(limits, &field, host)?;
        }
    }
    Ok(())
}

fn allowed_host(limits: &IngressLimits, field: &str, host: &str) -> Verdict {
    let suffixes = &limits.host_suffixes;
    let lower = host.to_ascii_lowercase();
    let below = |suffix: &String| {
        let suffix = suffix.trim_start_matches('.').to_ascii_lowercase();
        let rest = lower.strip_suffix(&suffix);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if suffixes.is_empty() || suffixes.iter().any(below) {
        return Ok(());
    }
    let what = if host.is_empty() {
        "no host, which means every host,".to_owned()
    } else {
        format!("the host \"{host}\"")
    };
    refuse(field, &what, ("--ingress-allowed-host-suffixes", suffixes))
}

/// Checks the annotations of an Ingress.
///
/// # Errors
/// For a snippet, or an annotation that the administrator doesn't allow.
pub fn annotations(limits: &IngressLimits, field: &str, all: &BTreeMap<String, String>) -> Verdict {
    for (key, value) in all {
        let field = format!("{field}.ingressAnnotations[{key}]");
        // Controllers have several snippet annotations, with different prefixes, in singular and plural.
        if key.to_ascii_lowercase().contains("snippet") {
            let why = "configures the ingress controller itself, which no application may do; remove the annotation";
            return Err(SpecError::new(field, why));
        }
        let (classes, keys) = (&limits.classes, &limits.annotations);
        if key == CLASS_ANNOTATION && !classes.is_empty() {
            if !classes.contains(value) {
                let what = format!("the class \"{value}\"");
                return refuse(&field, &what, ("--ingress-allowed-classes", classes));
            }
        } else if !keys.is_empty() && !keys.iter().any(|allowed| covers(allowed, key)) {
            let what = format!("the annotation with the value \"{value}\"");
            return refuse(&field, &what, ("--ingress-allowed-annotations", keys));
        }
    }
    Ok(())
}

fn covers(allowed: &str, key: &str) -> bool {
    let prefix = allowed.strip_suffix('*');
    let prefix = prefix.or(Some(allowed).filter(|a| a.ends_with('/')));
    prefix.map_or(allowed == key, |prefix| key.starts_with(prefix))
}

fn refuse(field: &str, what: &str, (flag, allowed): (&str, &[String])) -> Verdict {
    let why = format!(
        "{what} is not allowed by the operator's flag {flag}={}; use what it allows, or ask an administrator to extend it",
        allowed.join(",")
    );
    Err(SpecError::new(field, why))
}
