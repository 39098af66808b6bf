//! A table on a terminal.

use crate::screen::print_while_read;

/// A table that is drawn over the one before.
#[derive(Default)]
pub(super) struct Live {
    lines: usize,
}

impl Live {
    /// False if nobody reads.
    pub(super) fn show(&mut self, table: &str) -> bool {
        let up = match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        self.lines = table.lines().count();
        print_while_read(&format!("{up}{table}"))
    }
}
