//! When a program's connection is handed off.

/// Counts the turns of a connection: a turn ends when the program reads again after it has
/// written. That is a moment between two requests, at which little is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    done: u32,
    has_written: bool,
}

impl Turns {
    /// The program writes.
    pub fn write(&mut self) {
        self.has_written = true;
    }

    /// The program reads.
    pub fn read(&mut self) {
        if self.has_written {
            self.has_written = false;
            self.done = self.done.saturating_add(1);
        }
    }

    /// True once there were this many.
    pub fn reached(&self, wanted: u32) -> bool {
        self.done >= wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_a_read_after_writes() {
        let mut turns = Turns::default();
        assert!(turns.reached(0) && !turns.reached(1));
        turns.read();
        turns.write();
        turns.write();
        assert!(!turns.reached(1));
        turns.read();
        turns.read();
        assert!(turns.reached(1) && !turns.reached(2));
    }
}
