//! Waits for a host name, as our init container does. It is part of the operator's binary, so that one file is the whole image.

use std::time::Duration;

use tokio::net::lookup_host;

/// The pause between two lookups. Source: the published init container.
const PAUSE: Duration = Duration::from_secs(2);

/// The host name to wait for.
#[derive(clap::Args, Clone, Debug)]
pub struct WaitArgs {
    /// The host name
    pub host: String,

    /// Lookups before giving up, two seconds apart
    #[arg(long, default_value_t = 100)]
    pub tries: u32,
}

/// Waits until the name resolves.
///
/// # Errors
/// If the name does not resolve by the last try.
#[expect(
    clippy::print_stdout,
    reason = "a container's output is its log, and people wait for this line"
)]
pub async fn for_host(args: &WaitArgs) -> anyhow::Result<()> {
    for attempt in 1..=args.tries.max(1) {
        match lookup_host((args.host.as_str(), 0)).await {
            Ok(mut found) => {
                if let Some(address) = found.next() {
                    println!("{} is {}", args.host, address.ip());
                    return Ok(());
                }
            }
            Err(error) if attempt == 1 => println!("waiting for master {}: {error}", args.host),
            Err(_) => {}
        }
        if attempt < args.tries {
            tokio::time::sleep(PAUSE).await;
        }
    }
    anyhow::bail!("{} does not resolve after {} tries", args.host, args.tries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_resolves_ends_the_wait_and_one_that_never_does_fails_it() {
        assert!(
            for_host(&WaitArgs {
                host: "localhost".to_owned(),
                tries: 1
            })
            .await
            .is_ok()
        );
        let error = for_host(&WaitArgs {
            host: "no-such-host.invalid".to_owned(),
            tries: 1,
        })
        .await
        .unwrap_err();
        assert!(error.to_string().contains("after 1 tries"), "{error}");
    }
}
