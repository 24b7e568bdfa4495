//! Describes a kind's map of replica specs as data, and derives the roles of a job from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use training_api::{ReplicaSpec, ReplicaSpecs, RestartPolicy};

use crate::kind::check;
use crate::model::error::SpecError;
use crate::model::roles::{RoleSet, RoleSpec};

/// How a kind handles replica types that it doesn't define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherTypes {
    /// Reject the job.
    Refused,
    /// Create pods and services for them. They rank after the defined types, by name.
    Served,
}

/// The replica specs of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// The field of the spec, e.g. `pytorchReplicaSpecs`.
    pub field: &'static str,
    /// The replica types in global rank order.
    pub types: &'static [&'static str],
    /// How to handle other types.
    pub others: OtherTypes,
    /// The first of these roles that a job has represents the job.
    pub master_types: &'static [&'static str],
    /// The role whose replica 0 represents a job that has none of the above.
    pub fallback_master_type: Option<&'static str>,
    /// The main container.
    pub container: &'static str,
    /// The name and default number of its port.
    pub port: (&'static str, i32),
    /// The default restart policy.
    pub restart: RestartPolicy,
}

impl Replicas {
    /// Returns the roles of a job in global rank order with defaults applied, after the validation that all kinds share.
    ///
    /// # Errors
    /// The error names the first invalid field.
    pub fn roles<'a>(&self, job: &str, specs: &'a ReplicaSpecs) -> Result<RoleSet<'a>, SpecError> {
        let map = format!("spec.{}", self.field);
        if specs.is_empty() {
            return Err(SpecError::new(map, "should have at least 1 properties"));
        }
        let mut ranked = Vec::new();
        let mut spellings: BTreeMap<String, &str> = BTreeMap::new();
        for (spelled, spec) in specs {
            let (at, key) = self.rank(spelled)?;
            if let Some(other) = spellings.insert(key.to_ascii_lowercase(), spelled) {
                let problem = format!("{}; {other} and {spelled} are the same", self.rule());
                return Err(SpecError::new(map, problem));
            }
            ranked.push((at, key, spelled, spec));
        }
        ranked.sort_by_key(|(at, key, ..)| (*at, *key));
        let mut roles = ranked
            .into_iter()
            .map(|(_, key, spelled, spec)| self.role(key, spelled, spec))
            .collect::<Result<Vec<_>, _>>()?;
        let mut master_types = self.master_types.iter().chain(&self.fallback_master_type);
        if let Some(at) = master_types.find_map(|s| roles.iter().position(|r| r.key == *s)) {
            roles[at].is_master = true;
            roles[at].is_fallback_master =
                self.fallback_master_type == Some(roles[at].key.as_str());
        }
        for role in &roles {
            check::template(role, Some(self.container))?;
            check::name(job, role)?;
        }
        Ok(RoleSet::new(roles))
    }

    /// Returns the rank and the published spelling of a replica type.
    fn rank<'k>(&self, spelled: &'k str) -> Result<(usize, &'k str), SpecError>
    where
        'static: 'k,
    {
        if let Some(at) = self
            .types
            .iter()
            .position(|t| t.eq_ignore_ascii_case(spelled))
        {
            return Ok((at, self.types[at]));
        }
        let field = || format!("spec.{}", self.field);
        match self.others {
            OtherTypes::Refused => Err(SpecError::new(
                field(),
                format!("{}; \"{spelled}\" is none", self.rule()),
            )),
            OtherTypes::Served if is_label(spelled) => Ok((self.types.len(), spelled)),
            OtherTypes::Served => Err(SpecError::new(
                field(),
                format!(
                    "{}; \"{spelled}\" can't",
                    training_api::schema::ODD_REPLICA_TYPE
                ),
            )),
        }
    }

    /// The rule for replica types, in the CRD's words.
    fn rule(&self) -> String {
        match self.others {
            OtherTypes::Refused => training_api::schema::only_types(self.types),
            OtherTypes::Served => training_api::schema::SAME_REPLICA_TYPE.to_owned(),
        }
    }

    fn role<'a>(
        &self,
        key: &str,
        spelled: &str,
        spec: &'a ReplicaSpec,
    ) -> Result<RoleSpec<'a>, SpecError> {
        let path = format!("spec.{}[{spelled}]", self.field);
        let replicas = count(&path, spec, 1)?;
        let restart = restart(&path, spec, self.restart)?;
        Ok(RoleSpec {
            key: key.to_owned(),
            label: key.to_ascii_lowercase(),
            replicas,
            restart,
            template: spec.template.as_deref(),
            is_master: false,
            is_fallback_master: false,
            is_host: false,
            path,
        })
    }

    /// Returns the kind's port in a role: the template's if it sets one, else the default. The default also applies if the role
    /// doesn't exist.
    pub fn port(&self, roles: &RoleSet<'_>, key: &str) -> i32 {
        let (name, number) = self.port;
        roles
            .get(key)
            .map_or(number, |r| port_number(r, self.container, name, number))
    }
}

/// Returns the number of replicas of a role, or the default.
///
/// # Errors
/// The error names the field, if it is negative.
pub fn count(path: &str, spec: &ReplicaSpec, default: i32) -> Result<u32, SpecError> {
    u32::try_from(spec.replicas.unwrap_or(default)).map_err(|_| {
        let least = "should be greater than or equal to 0";
        SpecError::new(format!("{path}.replicas"), least)
    })
}

/// Returns the restart policy of a role, or the default.
///
/// # Errors
/// The error names the field, if the policy is not a published one.
pub fn restart(
    path: &str,
    spec: &ReplicaSpec,
    default: RestartPolicy,
) -> Result<RestartPolicy, SpecError> {
    let read = RestartPolicy::parse(spec.restart_policy.as_deref()).unwrap_or(Ok(default));
    read.map_err(|unknown| {
        let problem = format!(
            "\"{unknown}\": supported values: \"\", \"Always\", \"OnFailure\", \"Never\", \"ExitCode\""
        );
        SpecError::new(format!("{path}.restartPolicy"), problem)
    })
}

/// Returns true for letters, digits and dashes, without a dash at either end: in lower case, a valid part of a pod's name.
fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns the kind's port in a role: the template's if it sets one, else the default.
pub fn port_number(role: &RoleSpec<'_>, container: &str, name: &str, default: i32) -> i32 {
    let containers = role
        .template
        .and_then(|t| t.spec.as_ref())
        .map(|s| s.containers.as_slice())
        .unwrap_or_default();
    let main: Option<&Container> = containers.iter().find(|c| c.name == container);
    main.and_then(|c| {
        c.ports
            .as_ref()?
            .iter()
            .find(|p| p.name.as_deref() == Some(name))
    })
    .map_or(default, |p| p.container_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};

    const OPEN: Replicas = Replicas {
        field: "toySpecs",
        types: &["Chief", "Worker"],
        others: OtherTypes::Served,
        master_types: &["Chief"],
        fallback_master_type: Some("Worker"),
        container: "toy",
        port: ("toy-port", 1),
        restart: RestartPolicy::Never,
    };

    fn specs(keys: &[&str]) -> ReplicaSpecs {
        let spec = PodSpec {
            containers: vec![Container {
                name: "toy".to_owned(),
                image: Some("i".to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        };
        let template = PodTemplateSpec {
            spec: Some(spec),
            ..PodTemplateSpec::default()
        };
        let replica = ReplicaSpec {
            template: Some(Box::new(template)),
            ..ReplicaSpec::default()
        };
        keys.iter()
            .map(|k| ((*k).to_owned(), replica.clone()))
            .collect()
    }

    #[test]
    fn known_types_come_first_in_rank_order_and_others_after_them_by_name() {
        let specs = specs(&["Zeta", "Alpha", "WORKER", "chief"]);
        let roles = OPEN.roles("j", &specs).unwrap();
        let keys: Vec<_> = roles
            .iter()
            .map(|r| (r.key.as_str(), r.is_master))
            .collect();
        assert_eq!(
            keys,
            [
                ("Chief", true),
                ("Worker", false),
                ("Alpha", false),
                ("Zeta", false)
            ]
        );
        assert_eq!(roles.get("Worker").unwrap().path, "spec.toySpecs[WORKER]");
    }

    #[test]
    fn types_that_can_not_be_told_apart_or_name_pods_are_refused() {
        for keys in [
            &["Zeta", "zeta"][..],
            &["Worker", "worker"],
            &["a_b"],
            &["-a"],
        ] {
            let error = OPEN.roles("j", &specs(keys)).unwrap_err();
            assert_eq!(error.field, "spec.toySpecs", "{keys:?}");
        }
        let closed = Replicas {
            others: OtherTypes::Refused,
            ..OPEN
        };
        let error = closed.roles("j", &specs(&["Zeta"])).unwrap_err();
        assert!(error.problem.contains("\"Chief\", \"Worker\""), "{error}");
    }
}
