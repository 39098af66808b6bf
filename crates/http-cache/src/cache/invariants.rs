//! What must hold between calls.

use std::collections::BTreeSet;

use super::Cache;
use crate::object::{NONE, Phase};
use crate::store::Store;

impl<S: Store> Cache<S> {
    /// Checks all invariants: the memory limit, what is accounted for, blocks that belong to one
    /// object each, chains that have every linked object once.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check_invariants(&self) {
        self.directory.check_invariants();
        let mut lines = BTreeSet::new();
        let mut linked = 0;
        let (mut reserved, mut small, mut pins) = (0, 0, 0);
        for (number, object) in self.objects.iter().enumerate() {
            let Some(object) = object else { continue };
            for line in &object.lines {
                assert!(lines.insert(*line), "line {line} belongs to two objects");
            }
            assert!(object.is_linked || object.pins > 0, "{number} is unused");
            assert!(!object.is_resident || object.phase == Phase::Complete);
            assert!(
                !object.is_resident || object.is_linked,
                "{number} is resident"
            );
            let blocks = self.settings.block.blocks(object.received - object.base);
            assert_eq!(blocks, object.lines.len() as u64, "blocks of {number}");
            assert!(object.total.is_none_or(|total| object.received <= total));
            if object.is_linked {
                linked += 1;
                let mut at = self.chain(object.verdict.hash);
                while at != number as u32 {
                    assert_ne!(at, NONE, "{number} is in its chain");
                    at = self.object(at).next;
                }
            }
            reserved += u64::from(object.reserved);
            small += object.memory;
            pins += object.pins;
        }
        assert_eq!(self.chained(), linked, "chains");
        assert_eq!(self.used.lines, lines.len() as u64, "lines");
        assert_eq!(self.used.reserved, reserved, "reserved lines");
        for line in &self.free_lines {
            assert!(lines.insert(*line), "line {line} is free and in use");
        }
        assert_eq!(
            lines.len() as u32,
            self.fresh_line,
            "lines that were ever used"
        );
        let users = self
            .fetches
            .iter()
            .map(|(_, one)| u32::from(one.fills.is_some()) + u32::from(one.validates.is_some()));
        assert_eq!(pins, users.sum::<u32>() + self.readers.len() as u32, "pins");
        assert!(self.used.small >= small, "small memory");
        let used = self.bytes_used();
        assert!(used <= self.settings.bytes || linked == 0, "{used} bytes");
        for (shared, ticket) in &self.leaders {
            let leader = self.fetches.get(*ticket);
            assert_eq!(leader.and_then(|one| one.leads), Some(*shared), "leaders");
        }
        let waiting = self.fetches.iter().flat_map(|(_, one)| &one.waiters);
        for ticket in waiting {
            assert!(
                self.waiters.get(*ticket).is_some(),
                "waiters of a fetch exist"
            );
        }
    }

    /// Objects in chains.
    fn chained(&self) -> u32 {
        let mut chained = 0;
        for line in 0..self.directory.lines() {
            let held = self.directory.key_of(line).is_some();
            let mut at = if held {
                self.chains[line as usize]
            } else {
                NONE
            };
            while at != NONE {
                chained += 1;
                at = self.object(at).next;
            }
        }
        chained
    }
}
