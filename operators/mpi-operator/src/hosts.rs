//! The host names of a job, and the two files that list them.

use std::fmt::Write as _;

use crate::setup::{Implementation, Setup};

/// What the host names of a job are made from.
#[derive(Clone, Copy, Debug)]
pub struct Hosts<'a> {
    /// The job's name, which is also its Service's.
    pub job: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// The cluster's domain after `svc`; empty if the resolver's search list completes names.
    pub domain: &'a str,
    /// Number of workers.
    pub workers: u32,
    /// The launcher runs ranks too.
    pub launcher_works: bool,
}

/// Returns the name of a worker's pod, which is its host name.
pub fn worker(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// Returns the name of the launcher's Job, which is its pod's host name.
pub fn launcher_name(job: &str) -> String {
    format!("{job}-launcher")
}

impl<'a> Hosts<'a> {
    /// The hosts of a job.
    pub fn of(setup: &Setup<'a>, domain: &'a str) -> Self {
        Self {
            job: setup.name,
            namespace: setup.namespace,
            domain,
            workers: setup.worker_count(),
            launcher_works: setup.launcher_works,
        }
    }
}

impl Hosts<'_> {
    /// Returns a host's full name: `<host>.<job>.<namespace>.svc[.<domain>]`.
    pub fn qualified(&self, host: &str) -> String {
        self.service(&format!("{host}.{}", self.job))
    }

    /// Returns the full name of a Service in the job's namespace, or of a host of one.
    pub fn service(&self, name: &str) -> String {
        let dot = if self.domain.is_empty() { "" } else { "." };
        format!("{name}.{}.svc{dot}{}", self.namespace, self.domain)
    }

    /// The hosts that run ranks, in rank order, whether their pods exist or not.
    fn all(&self) -> impl Iterator<Item = String> + '_ {
        let launcher = self.launcher_works.then(|| launcher_name(self.job));
        let workers = (0..self.workers).map(|index| worker(self.job, index));
        launcher
            .into_iter()
            .chain(workers)
            .map(|host| self.qualified(&host))
    }

    /// Returns the file that `mpirun` reads: one line per host with its slots. Every line ends with a newline.
    pub fn hostfile(&self, implementation: Implementation, slots: u32) -> String {
        let mut file = String::new();
        for host in self.all() {
            // Writing into a string can't fail.
            let _ = match implementation {
                Implementation::OpenMpi => writeln!(file, "{host} slots={slots}"),
                Implementation::Intel | Implementation::Mpich => writeln!(file, "{host}:{slots}"),
            };
        }
        file
    }

    /// Returns the script that elastic launchers run to list the running hosts: the workers with these indices, in the lexical
    /// order of their names, so that `worker-10` comes before `worker-2`. `slots` is `None` for a version whose script omits them.
    pub fn discovery(&self, running: impl IntoIterator<Item = u32>, slots: Option<u32>) -> String {
        let mut workers: Vec<String> = running.into_iter().map(|i| worker(self.job, i)).collect();
        workers.sort_unstable();
        let launcher = self.launcher_works.then(|| launcher_name(self.job));
        let mut script = "#!/bin/sh\n".to_owned();
        for host in launcher.into_iter().chain(workers) {
            let host = self.qualified(&host);
            let _ = match slots {
                Some(slots) => writeln!(script, "echo {host}:{slots}"),
                None => writeln!(script, "echo {host}"),
            };
        }
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pi(workers: u32) -> Hosts<'static> {
        Hosts {
            job: "pi",
            namespace: "default",
            domain: "",
            workers,
            launcher_works: false,
        }
    }

    #[test]
    fn every_implementation_has_its_form_of_a_line() {
        let hosts = pi(2);
        assert_eq!(
            hosts.hostfile(Implementation::OpenMpi, 1),
            "pi-worker-0.pi.default.svc slots=1\npi-worker-1.pi.default.svc slots=1\n"
        );
        for hydra in [Implementation::Intel, Implementation::Mpich] {
            assert_eq!(
                hosts.hostfile(hydra, 4),
                "pi-worker-0.pi.default.svc:4\npi-worker-1.pi.default.svc:4\n"
            );
        }
        assert_eq!(pi(0).hostfile(Implementation::OpenMpi, 1), "");
    }

    #[test]
    fn a_launcher_that_works_comes_first_and_the_domain_last() {
        let hosts = Hosts {
            launcher_works: true,
            domain: "cluster.local",
            ..pi(1)
        };
        assert_eq!(
            hosts.hostfile(Implementation::OpenMpi, 1),
            "pi-launcher.pi.default.svc.cluster.local slots=1\npi-worker-0.pi.default.svc.cluster.local slots=1\n"
        );
        let alone = Hosts {
            launcher_works: true,
            ..pi(0)
        };
        assert_eq!(
            alone.hostfile(Implementation::Mpich, 2),
            "pi-launcher.pi.default.svc:2\n"
        );
        assert_eq!(
            alone.discovery([], None),
            "#!/bin/sh\necho pi-launcher.pi.default.svc\n"
        );
    }

    #[test]
    fn the_script_lists_what_runs_sorted_as_text() {
        assert_eq!(pi(2).discovery([], None), "#!/bin/sh\n");
        assert_eq!(
            pi(12).discovery([2, 10, 0], None),
            "#!/bin/sh\necho pi-worker-0.pi.default.svc\necho pi-worker-10.pi.default.svc\necho pi-worker-2.pi.default.svc\n"
        );
        assert_eq!(
            pi(1).discovery([0], Some(2)),
            "#!/bin/sh\necho pi-worker-0.pi.default.svc:2\n"
        );
    }
}
