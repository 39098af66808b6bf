//! `fairlead lab`: the laboratory, with Ctrl-C.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_lab::Control;
use fairlead_lab::cli::{self, LabArgs};

/// Says stop once Ctrl-C was pressed.
struct UntilInterrupt(Arc<AtomicBool>);

impl Control for UntilInterrupt {
    fn stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long a command has to end by itself after Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(900);

/// Runs a command of the laboratory. Ctrl-C ends it within a second, with what is finished.
pub fn run(args: &LabArgs) -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    // Its own thread, so that a signal is seen while every other one computes.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                seen.store(true, Ordering::Relaxed);
            }
            // Results are in their files as soon as they are finished: nothing is lost by leaving
            // what does not look up in time.
            tokio::time::sleep(PATIENCE).await;
            std::process::exit(130);
        });
    });
    cli::run(args, &UntilInterrupt(stop))
}
