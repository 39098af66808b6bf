//! The caller's hand on a long run: how far it is, and whether it should stop.

/// Shown progress and a way to stop. Every method is called on the thread that called the
/// laboratory, at least every 100 ms while it simulates, so an implementation may look at what
/// belongs to that thread (an interpreter's signals, a progress bar).
pub trait Control {
    /// True if the run should stop; finished results are kept.
    fn stopped(&self) -> bool {
        false
    }

    /// A new part of the work starts: its description and number of steps (0 = unknown).
    fn begin(&self, what: &str, steps: u64) {
        let _ = (what, steps);
    }

    /// Steps of the current part that are done by now.
    fn reached(&self, step: u64) {
        let _ = step;
    }

    /// The current part is over.
    fn end(&self) {}
}

/// Shows nothing and never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Control for Silent {}
