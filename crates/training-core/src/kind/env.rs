//! The environment variables that a framework sets in pods.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};

/// The containers that receive the environment; part of each kind's published contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvOn {
    /// Every container of `spec.containers`.
    Every,
    /// The first container with the kind's name.
    Main,
    /// Container 0.
    First,
}

/// The maximum bytes of a variable, including its name, `=` and the terminating zero: Linux's limit for one string of a process.
pub const MAX_VARIABLE_BYTES: usize = 131_072;

/// Variables in the order in which they are added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvSet {
    vars: Vec<(EnvVar, Precedence)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precedence {
    Require,
    Offer,
}

impl EnvSet {
    /// Sets a variable that the rendezvous needs. It replaces the user's value.
    pub fn require(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.push(text(name, value), Precedence::Require)
    }

    /// Like [`EnvSet::require`], with the value of a pod field, e.g. `status.podIP`.
    pub fn require_field(&mut self, name: &str, path: &str) -> &mut Self {
        let field = ObjectFieldSelector {
            field_path: path.to_owned(),
            ..ObjectFieldSelector::default()
        };
        let source = EnvVarSource {
            field_ref: Some(field),
            ..EnvVarSource::default()
        };
        let var = EnvVar {
            name: name.to_owned(),
            value_from: Some(source),
            ..EnvVar::default()
        };
        self.push(var, Precedence::Require)
    }

    /// Sets a variable unless the user set it.
    pub fn offer(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.push(text(name, value), Precedence::Offer)
    }

    fn push(&mut self, var: EnvVar, voice: Precedence) -> &mut Self {
        self.vars.push((var, voice));
        self
    }

    /// Returns the variables in order, for tests and documentation.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.vars
            .iter()
            .map(|(v, _)| (v.name.as_str(), v.value.as_deref().unwrap_or_default()))
    }

    /// Returns the first variable that exceeds the maximum size of a variable, with its size in bytes.
    pub fn oversized(&self) -> Option<(&str, usize)> {
        self.iter()
            .map(|(name, value)| (name, name.len() + value.len() + 2))
            .find(|(_, size)| *size > MAX_VARIABLE_BYTES)
    }

    /// Appends the variables to the receiving containers, one entry per name. Returns the names that replaced a different user
    /// value, each once.
    ///
    /// Variables are appended, not prepended, so that `$(RANK)` expands in commands, arguments and later variables only, as users
    /// of these kinds expect.
    pub fn install(&self, spec: &mut PodSpec, on: EnvOn, main: &str) -> Vec<String> {
        let mut replaced = Vec::new();
        let containers: Vec<&mut Container> = match on {
            EnvOn::Every => spec.containers.iter_mut().collect(),
            EnvOn::Main => spec
                .containers
                .iter_mut()
                .find(|c| c.name == main)
                .into_iter()
                .collect(),
            EnvOn::First => spec.containers.first_mut().into_iter().collect(),
        };
        for container in containers {
            let env = container.env.get_or_insert_with(Vec::new);
            for (var, voice) in &self.vars {
                let users = env.iter().position(|e| e.name == var.name);
                match (users, voice) {
                    (Some(_), Precedence::Offer) => continue,
                    (Some(at), Precedence::Require) => {
                        if env[at] != *var && !replaced.contains(&var.name) {
                            replaced.push(var.name.clone());
                        }
                        env.retain(|e| e.name != var.name);
                    }
                    (None, _) => {}
                }
                env.push(var.clone());
            }
        }
        replaced
    }
}

fn text(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.into()),
        value_from: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(env: &[(&str, &str)]) -> PodSpec {
        let env = env
            .iter()
            .map(|(n, v)| EnvVar {
                name: (*n).to_owned(),
                value: Some((*v).to_owned()),
                value_from: None,
            })
            .collect();
        let container = |name: &str, env| Container {
            name: name.to_owned(),
            env,
            ..Container::default()
        };
        PodSpec {
            containers: vec![container("side", None), container("main", Some(env))],
            ..PodSpec::default()
        }
    }

    fn names(container: &Container) -> Vec<String> {
        container
            .env
            .iter()
            .flatten()
            .map(|e| format!("{}={}", e.name, e.value.as_deref().unwrap_or("")))
            .collect()
    }

    #[test]
    fn a_required_variable_replaces_the_users_and_comes_last() {
        let mut set = EnvSet::default();
        set.require("RANK", "1").require("WORLD_SIZE", "2");
        let mut spec = spec(&[("RANK", "9"), ("A", "$(RANK)"), ("RANK", "8")]);
        assert_eq!(set.install(&mut spec, EnvOn::Every, "main"), ["RANK"]);
        assert_eq!(
            names(&spec.containers[1]),
            ["A=$(RANK)", "RANK=1", "WORLD_SIZE=2"]
        );
        assert_eq!(names(&spec.containers[0]), ["RANK=1", "WORLD_SIZE=2"]);
    }

    #[test]
    fn an_offered_variable_yields_to_the_users() {
        let mut set = EnvSet::default();
        set.offer("BOOT", "ssh").offer("X", "1");
        let mut spec = spec(&[("BOOT", "rsh")]);
        assert!(set.install(&mut spec, EnvOn::Main, "main").is_empty());
        assert_eq!(names(&spec.containers[1]), ["BOOT=rsh", "X=1"]);
        assert!(spec.containers[0].env.is_none());
    }
}
