//! From a signal to the end of the process.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listens for SIGTERM and SIGINT.
///
/// The first signal cancels the returned token: no new work begins, running calls end, the lease is
/// released. A second one ends the process at once with status 1, for those who can't wait.
///
/// # Errors
/// If the process may not install signal handlers; it should not run then, as it couldn't be stopped
/// in order.
pub fn listen() -> std::io::Result<CancellationToken> {
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    tokio::spawn(obey(terminate, interrupt, token.clone()));
    Ok(token)
}

async fn obey(mut terminate: Signal, mut interrupt: Signal, token: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    tracing::info!("a signal asks to stop: finishing what is under way");
    token.cancel();
    next(&mut terminate, &mut interrupt).await;
    tracing::warn!("a second signal: ending at once");
    std::process::exit(1);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
