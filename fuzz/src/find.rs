//! Running a target on one input, and making an input that breaks it smaller.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::targets::Target;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// What the panic said.
    pub message: String,
    /// File, line and column.
    pub place: String,
}

thread_local! {
    static ATTEMPTING: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
}

/// Panics of targets are recorded silently; all others are reported as usual.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |report| {
            if !ATTEMPTING.get() {
                before(report);
                return;
            }
            let payload = report.payload();
            let message = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            let place = report
                .location()
                .map(ToString::to_string)
                .unwrap_or_default();
            LAST.set(Some(Panic { message, place }));
        }));
    });
}

/// Runs a target on an input.
///
/// # Errors
/// The panic, if there was one.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), Panic> {
    install_hook();
    ATTEMPTING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    ATTEMPTING.set(false);
    match outcome {
        Ok(()) => Ok(()),
        Err(_) => Err(LAST.take().unwrap_or_else(|| Panic {
            message: "a panic without a report".into(),
            place: String::new(),
        })),
    }
}

/// Takes pieces out of an input for as long as it still panics at the same place, and no longer
/// than `time`.
pub fn shrink(target: &Target, input: &[u8], place: &str, time: Duration) -> Vec<u8> {
    let began = Instant::now();
    let same = |bytes: &[u8]| attempt(target, bytes).is_err_and(|panic| panic.place == place);
    let mut smallest = input.to_vec();
    let mut piece = smallest.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < smallest.len() {
            if began.elapsed() > time {
                return smallest;
            }
            let mut candidate = smallest.clone();
            candidate.drain(at..(at + piece).min(smallest.len()));
            if same(&candidate) {
                smallest = candidate;
                shorter = true;
            } else {
                at += piece;
            }
        }
        if !shorter || piece > smallest.len() {
            piece /= 2;
        }
    }
    // Bytes that do not matter become zero, which is easier to read.
    for at in 0..smallest.len() {
        if smallest[at] == 0 || began.elapsed() > time {
            continue;
        }
        let mut candidate = smallest.clone();
        candidate[at] = 0;
        if same(&candidate) {
            smallest = candidate;
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails_on_two_marks(bytes: &[u8]) {
        let marks = bytes.iter().filter(|byte| **byte == b'!').count();
        assert!(marks < 2, "{marks} marks");
    }

    const TARGET: Target = Target {
        name: "marks",
        about: "for this test",
        run: fails_on_two_marks,
        bytes_max: 100,
        tokens: &[],
    };

    #[test]
    fn a_panic_is_caught_with_its_message_and_place() {
        assert_eq!(attempt(&TARGET, b"one!"), Ok(()));
        let panic = attempt(&TARGET, b"!!!").unwrap_err();
        assert_eq!(panic.message, "3 marks");
        assert!(panic.place.contains("find.rs:"), "{}", panic.place);
    }

    #[test]
    fn what_does_not_matter_is_taken_out() {
        let input = b"a long input ! in which two marks ! are all that matters";
        let place = attempt(&TARGET, input).unwrap_err().place;
        let small = shrink(&TARGET, input, &place, Duration::from_secs(5));
        assert_eq!(small, b"!!");
    }
}
