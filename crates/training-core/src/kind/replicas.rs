//! What a kind's map of replica specs is, as data; and from it the roles of a job.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use training_api::{ReplicaSpec, ReplicaSpecs, RestartPolicy};

use crate::kind::check;
use crate::model::error::SpecError;
use crate::model::roles::{RoleSet, RoleSpec};

/// What becomes of replica types that a kind doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// The job can't run.
    Refused,
    /// They get pods and services, and rank after the known ones, by name.
    Served,
}

/// The replica specs of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// The field of the spec, e.g. `pytorchReplicaSpecs`.
    pub field: &'static str,
    /// The replica types in global rank order.
    pub types: &'static [&'static str],
    /// What becomes of other types.
    pub others: Others,
    /// The first of these that a job has speaks for it.
    pub speakers: &'static [&'static str],
    /// Where a job has none of them, replica 0 of this one speaks.
    pub stand_in: Option<&'static str>,
    /// The container that counts.
    pub container: &'static str,
    /// Name and default number of its port.
    pub port: (&'static str, i32),
    /// The restart policy where none is written.
    pub restart: RestartPolicy,
}

impl Replicas {
    /// The roles of a job in global rank order with their defaults, checked as far as all kinds have the same rules.
    ///
    /// # Errors
    /// The first field that makes the job impossible.
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
        let mut speakers = self.speakers.iter().chain(&self.stand_in);
        if let Some(at) = speakers.find_map(|s| roles.iter().position(|r| r.key == *s)) {
            roles[at].speaks = true;
            roles[at].stands_in = self.stand_in == Some(roles[at].key.as_str());
        }
        for role in &roles {
            check::template(role, Some(self.container))?;
            check::name(job, role)?;
        }
        Ok(RoleSet::new(roles))
    }

    /// The place of a replica type in the order of ranks, and its published spelling.
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
            Others::Refused => Err(SpecError::new(
                field(),
                format!("{}; \"{spelled}\" is none", self.rule()),
            )),
            Others::Served if is_label(spelled) => Ok((self.types.len(), spelled)),
            Others::Served => Err(SpecError::new(
                field(),
                format!(
                    "{}; \"{spelled}\" can't",
                    training_api::schema::ODD_REPLICA_TYPE
                ),
            )),
        }
    }

    /// What holds for replica types, in the words of the CRD.
    fn rule(&self) -> String {
        match self.others {
            Others::Refused => training_api::schema::only_types(self.types),
            Others::Served => training_api::schema::SAME_REPLICA_TYPE.to_owned(),
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
            speaks: false,
            stands_in: false,
            path,
        })
    }

    /// The number of the kind's port in a role: the user's where the template names one, else the default, also where there is
    /// no such role.
    pub fn port(&self, roles: &RoleSet<'_>, key: &str) -> i32 {
        let (name, number) = self.port;
        roles
            .get(key)
            .map_or(number, |r| port_number(r, self.container, name, number))
    }
}

/// The number of replicas of a role with its default.
///
/// # Errors
/// On the field, if it is negative.
pub fn count(path: &str, spec: &ReplicaSpec, default: i32) -> Result<u32, SpecError> {
    u32::try_from(spec.replicas.unwrap_or(default)).map_err(|_| {
        let least = "should be greater than or equal to 0";
        SpecError::new(format!("{path}.replicas"), least)
    })
}

/// The restart policy of a role with its default.
///
/// # Errors
/// On the field, if it is a word that nobody published.
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

/// Letters, digits and dashes, none of these at an end: in lower case, a part of the names of pods.
fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    !text.is_empty() && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// The number of the kind's port in a role: the user's where the template names one, else the default.
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
        others: Others::Served,
        speakers: &["Chief"],
        stand_in: Some("Worker"),
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
        let keys: Vec<_> = roles.iter().map(|r| (r.key.as_str(), r.speaks)).collect();
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
            others: Others::Refused,
            ..OPEN
        };
        let error = closed.roles("j", &specs(&["Zeta"])).unwrap_err();
        assert!(error.problem.contains("\"Chief\", \"Worker\""), "{error}");
    }
}
