//! Every fault of the reliability programme that can be made between the operator and the API server, each with a job while it is
//! created, runs and finishes.
//!
//! Meanwhile a healthy job in another namespace, served by the same operator, must finish; the auditor watches both namespaces; and a
//! proxy rule that never hits fails its test. `api_election.rs` has the tests of leader election.

#[path = "api_faults/campaign.rs"]
mod campaign;
#[path = "api_faults/client.rs"]
mod client;
#[path = "api_faults/driver.rs"]
mod driver;
#[path = "api_faults/kinds.rs"]
mod kinds;
#[path = "api_faults/life.rs"]
mod life;
#[path = "api_faults/list.rs"]
mod list;
#[path = "api_faults/outage.rs"]
mod outage;
#[path = "api_faults/pods.rs"]
mod pods;
#[path = "api_faults/process.rs"]
mod process;
#[path = "api_faults/rights.rs"]
mod rights;
#[path = "api_faults/server.rs"]
mod server;
#[path = "api_faults/status.rs"]
mod status;
#[path = "api_faults/table.rs"]
mod table;
#[path = "api_faults/transport.rs"]
mod transport;
#[path = "api_faults/unreadable.rs"]
mod unreadable;
#[path = "api_faults/watch.rs"]
mod watch;
