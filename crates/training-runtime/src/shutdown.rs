//! Shutdown by signals.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listens for SIGTERM and SIGINT.
///
/// The first signal cancels the returned token: no new work begins, running requests end, the lease is released. A second one exits
/// the process at once with status 1, for users who can't wait.
///
/// # Errors
/// If signal handlers can't be installed; the process should not run then, as it could not be stopped in order.
pub fn listen() -> std::io::Result<CancellationToken> {
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    tokio::spawn(cancel_on_signal(terminate, interrupt, token.clone()));
    Ok(token)
}

async fn cancel_on_signal(mut terminate: Signal, mut interrupt: Signal, token: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    tracing::info!("received a signal: finishing running requests");
    token.cancel();
    next(&mut terminate, &mut interrupt).await;
    tracing::warn!("received a second signal: exiting at once");
    std::process::exit(1);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    const CHILD: &str = "TRAINYARD_TEST_SIGNALS";

    /// The process that receives the signals: this test again, with the variable set.
    #[tokio::main(flavor = "current_thread")]
    async fn child() {
        let stop = listen().unwrap();
        println!("\nlistening");
        stop.cancelled().await;
        println!("\nstopping");
        tokio::time::sleep(Duration::from_secs(20)).await;
    }

    struct Process {
        child: Child,
        lines: BufReader<std::process::ChildStdout>,
    }

    impl Process {
        fn start() -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "shutdown::tests::the_first_signal_asks_and_the_second_ends_at_once",
                    "--nocapture",
                ])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            Self { child, lines }
        }

        fn says(&mut self, word: &str) {
            let mut line = String::new();
            while self.lines.read_line(&mut line).unwrap() > 0 {
                if line.trim() == word {
                    return;
                }
                line.clear();
            }
            panic!("it ended without saying {word}");
        }

        fn signal(&self, name: &str) {
            let pid = self.child.id().to_string();
            assert!(
                Command::new("kill")
                    .args([name, &pid])
                    .status()
                    .unwrap()
                    .success()
            );
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn the_first_signal_asks_and_the_second_ends_at_once() {
        if std::env::var_os(CHILD).is_some() {
            return child();
        }
        for signal in ["-TERM", "-INT"] {
            let mut process = Process::start();
            process.says("listening");
            process.signal(signal);
            process.says("stopping");
            process.signal(signal);
            assert_eq!(process.child.wait().unwrap().code(), Some(1), "{signal}");
        }
    }
}
