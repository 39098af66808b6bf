//! Commands and refusals, counted.

use alloc::collections::BTreeMap;

use crate::message::{Body, Message, Op};
use crate::refusal::Refusal;

/// How often each command was given, and refused by reason. Bounded: there are twelve commands and
/// as many reasons as [`Refusal::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    given: [u64; 12],
    refused: BTreeMap<(Op, Refusal), u64>,
    /// What was no message.
    malformed: u64,
}

impl Counts {
    /// Counts a command.
    pub fn command(&mut self, op: Op) {
        self.given[op as usize - 1] += 1;
    }

    /// Counts a refusal.
    pub fn refusal(&mut self, op: Op, reason: Refusal) {
        *self.refused.entry((op, reason)).or_default() += 1;
    }

    /// Counts a message: a command, or a refusal of one.
    pub fn message(&mut self, message: &Message) {
        match message.body {
            Body::Command(command) => self.command(command.op()),
            Body::Refused(op, reason) => self.refusal(op, reason),
            Body::Done(..) => {}
        }
    }

    /// Counts bytes that are no message.
    pub fn malformed(&mut self) {
        self.malformed += 1;
    }

    /// How often a command was given.
    pub fn given(&self, op: Op) -> u64 {
        self.given[op as usize - 1]
    }

    /// Refusals: command, reason, how often.
    pub fn refused(&self) -> impl Iterator<Item = (Op, Refusal, u64)> + '_ {
        let all = self.refused.iter();
        all.map(|(&(op, reason), &count)| (op, reason, count))
    }

    /// How often bytes were no message.
    pub fn malformed_total(&self) -> u64 {
        self.malformed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Cid, Command};

    #[test]
    fn commands_and_refusals_are_counted_apart() {
        let mut counts = Counts::default();
        let cid = Cid(1);
        let restore = Message::command(cid, Command::Restore { wait_ms: 1 });
        counts.message(&restore);
        counts.message(&Message::refused(cid, Op::Restore, Refusal::Busy));
        counts.message(&restore);
        counts.message(&Message::refused(cid, Op::Restore, Refusal::Gone));
        counts.message(&Message::done(cid, Op::Restore, 0));
        counts.malformed();
        assert_eq!(counts.given(Op::Restore), 2);
        assert_eq!(counts.given(Op::Handoff), 0);
        let refused: alloc::vec::Vec<_> = counts.refused().collect();
        let expected = [
            (Op::Restore, Refusal::Gone, 1),
            (Op::Restore, Refusal::Busy, 1),
        ];
        assert_eq!(refused, expected);
        assert_eq!(counts.malformed_total(), 1);
    }
}
