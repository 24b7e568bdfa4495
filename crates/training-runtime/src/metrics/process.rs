//! The process's resource usage, read from /proc on each scrape.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Clock ticks per second in /proc. Source: `USER_HZ`, 100 on all current architectures of Linux, whatever the kernel's own tick rate.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(bytes) = resident_bytes() {
            let metric = encoder.encode_descriptor(
                "process_resident_memory_bytes",
                "Resident memory in bytes",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX)).encode(metric)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let metric = encoder.encode_descriptor(
                "process_cpu_seconds",
                "User and system CPU time in seconds",
                None,
                MetricType::Counter,
            )?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            let metric = encoder.encode_descriptor(
                "process_open_fds",
                "Open file descriptors",
                None,
                MetricType::Gauge,
            )?;
            // One of them belongs to the listing itself.
            let open = files.count().saturating_sub(1);
            ConstGauge::new(i64::try_from(open).unwrap_or(i64::MAX)).encode(metric)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may contain anything; the fields begin after its closing parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    // utime and stime are the 14th and 15th fields of the line; two are before the parenthesis.
    let mut times = fields.split_ascii_whitespace().skip(11);
    let user: u32 = times.next()?.parse().ok()?;
    let system: u32 = times.next()?.parse().ok()?;
    Some((f64::from(user) + f64::from(system)) / TICKS_PER_SECOND)
}
