//! `fairlead lab`: runs the laboratory's commands and handles Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_lab::Control;
use fairlead_lab::cli::{self, LabArgs};

/// Reports a stop after Ctrl-C.
struct UntilInterrupt(Arc<AtomicBool>);

impl Control for UntilInterrupt {
    fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long a command may take to stop after Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(900);

/// Runs a command of the laboratory. Ctrl-C stops it within a second and keeps finished results.
pub fn run(args: &LabArgs) -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    // Its own thread, so that a signal is noticed while all others compute.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                seen.store(true, Ordering::Relaxed);
            }
            // Results are written as soon as they are finished, so nothing is lost if a thread does
            // not stop in time.
            tokio::time::sleep(PATIENCE).await;
            std::process::exit(130);
        });
    });
    cli::run(args, &UntilInterrupt(stop))
}
