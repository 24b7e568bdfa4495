//! `PyTorchJob` with real containers: what trains, what fails, what waits, what becomes of the job, and what its user
//! reads of that. One program, so that the scenarios run side by side.

use std::time::Duration;

use e2e::pods::Site;

#[path = "pods_pytorch/elastic.rs"]
mod elastic;
#[path = "pods_pytorch/ending.rs"]
mod ending;
#[path = "pods_pytorch/faults.rs"]
mod faults;
#[path = "pods_pytorch/kubectl.rs"]
mod kubectl;
#[path = "pods_pytorch/limits.rs"]
mod limits;
#[path = "pods_pytorch/suspend.rs"]
mod suspend;
#[path = "pods_pytorch/training.rs"]
mod training;
#[path = "pods_pytorch/waiting.rs"]
mod waiting;

/// Long enough to see that something does not happen.
const STAYS: Duration = Duration::from_secs(2);

/// Whether the processes of the cluster can't be killed from outside their containers. Says so.
fn out_of_reach(site: &Site) -> bool {
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
    }
    !site.cluster.is_open()
}
