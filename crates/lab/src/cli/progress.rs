//! A progress bar on standard error, only on a terminal.

use std::cell::RefCell;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::control::Control;

/// Shows progress, and delegates stopping to another [`Control`].
pub(crate) struct Shown<'a> {
    outer: &'a dyn Control,
    wanted: bool,
    bar: RefCell<Option<ProgressBar>>,
}

impl<'a> Shown<'a> {
    /// Shows a bar if standard error is a terminal and not `quiet`.
    pub(crate) fn new(outer: &'a dyn Control, quiet: bool) -> Self {
        Self {
            outer,
            wanted: !quiet && std::io::stderr().is_terminal(),
            bar: RefCell::new(None),
        }
    }
}

const TEMPLATE: &str = "{msg:24!} {wide_bar} {percent:>3} % {eta:>5}";
/// Template for input of unknown length, such as a pipe.
const ENDLESS: &str = "{msg:24!} {elapsed}";

fn bar(what: &str, steps: u64) -> ProgressBar {
    let (bar, template) = match steps {
        0 => (ProgressBar::no_length(), ENDLESS),
        steps => (ProgressBar::new(steps), TEMPLATE),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(what.to_owned())
}

impl Control for Shown<'_> {
    fn stopped(&self) -> bool {
        self.outer.stopped()
    }

    fn begin(&self, what: &str, steps: u64) {
        self.outer.begin(what, steps);
        if !self.wanted {
            return;
        }
        *self.bar.borrow_mut() = Some(bar(what, steps));
    }

    fn reached(&self, step: u64) {
        self.outer.reached(step);
        if let Some(bar) = &*self.bar.borrow() {
            bar.set_position(step);
        }
    }

    fn end(&self) {
        self.outer.end();
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_length_is_never_complete() {
        // A bar without steps is complete.
        assert_eq!(bar("reading stdin", 0).length(), None);
        assert_eq!(bar("reading a.log", 7).length(), Some(7));
    }
}
