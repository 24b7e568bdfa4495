//! `PyTorchJob` with real containers: training, failures and waits, and what the user reads of them. One test program, so that the
//! scenarios run in parallel.

use std::time::Duration;

use e2e::pods::Site;

#[path = "pods_pytorch/elastic.rs"]
mod elastic;
#[path = "pods_pytorch/ending.rs"]
mod ending;
#[path = "pods_pytorch/examples.rs"]
mod examples;
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

/// Whether the processes of the cluster's containers can't be killed from outside; if so, prints it.
fn out_of_reach(site: &Site) -> bool {
    if !site.cluster.is_open() {
        e2e::skip("the processes of this cluster are out of reach");
    }
    !site.cluster.is_open()
}
