//! Which connections are handed off, whose they are, and how many bytes passed each way.
//!
//! ```text
//!            enter               carried              leave            restored
//!   owner's ───────► Entering ───────────► Carried ─────────► Leaving ──────────► owner's
//!              │                   ▲  │              │  │
//!              └► owner's: stayed  │  └► over: ended │  └► over: ended
//!                                  └───── stays ─────┘
//! ```

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::budget::{Limits, Rate};
use crate::counts::Counts;
use crate::message::{Cid, Kind, Op, Side};
use crate::policy::{Facts, Policy};
use crate::refusal::Refusal;

/// Who hands connections off: a user of the system, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u32);

/// Where a connection is between its owner and the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Its packets are held up, its sockets are still its owner's.
    Entering,
    /// The carrier has it.
    Carried,
    /// It is being given back: the carrier has it until sockets have it.
    Leaving,
}

/// A handed-off connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub cid: Cid,
    /// Whose it is.
    pub owner: Owner,
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub phase: Phase,
    /// The carrier's own line, once it has one.
    pub record: Option<u32>,
    /// Bytes seen from the client and from the server since the handoff.
    pub bytes: [u64; 2],
    /// When this phase began, ms.
    pub since_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Line {
    generation: u8,
    entry: Option<Entry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    connections: u32,
    restores: Rate,
}

/// All handed-off connections.
#[derive(Clone, Debug)]
pub struct Ledger {
    limits: Limits,
    policy: Policy,
    lines: Vec<Line>,
    free: Vec<u32>,
    owners: BTreeMap<Owner, Share>,
    moving: u32,
    /// Commands and refusals.
    pub counts: Counts,
}

impl Ledger {
    /// An empty one. It allocates as connections come.
    pub fn new(limits: Limits, policy: Policy) -> Self {
        let connections = limits.connections.min(Cid::LINES);
        Self {
            limits: Limits {
                connections,
                ..limits
            },
            policy,
            lines: Vec::new(),
            free: Vec::new(),
            owners: BTreeMap::new(),
            moving: 0,
            counts: Counts::default(),
        }
    }

    /// Its limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Connections handed off now, moving ones included.
    pub fn len(&self) -> u32 {
        (self.lines.len() - self.free.len()) as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All connections, by line.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().filter_map(|line| line.entry.as_ref())
    }

    /// The connection of this number.
    pub fn find(&self, cid: Cid) -> Option<&Entry> {
        let entry = self.lines.get(cid.line() as usize)?.entry.as_ref()?;
        (entry.cid == cid).then_some(entry)
    }

    /// Begins a handoff: the owner's sockets are about to be locked.
    ///
    /// # Errors
    /// [`Refusal::Policy`], [`Refusal::Budget`], [`Refusal::TableFull`] or [`Refusal::Busy`].
    pub fn enter(
        &mut self,
        owner: Owner,
        kind: Kind,
        facts: &Facts,
        now_ms: u64,
    ) -> Result<Cid, Refusal> {
        let admitted = self.admit(owner, facts);
        admitted.inspect_err(|&reason| self.counts.refusal(Op::Handoff, reason))?;
        let line = self.free.pop().unwrap_or_else(|| {
            self.lines.push(Line::default());
            self.lines.len() as u32 - 1
        });
        let at = &mut self.lines[line as usize];
        at.generation = at.generation.wrapping_add(1);
        let cid = Cid::new(line, at.generation);
        at.entry = Some(Entry {
            cid,
            owner,
            kind,
            phase: Phase::Entering,
            record: None,
            bytes: [0; 2],
            since_ms: now_ms,
        });
        self.moving += 1;
        self.owners.entry(owner).or_default().connections += 1;
        Ok(cid)
    }

    fn admit(&self, owner: Owner, facts: &Facts) -> Result<(), Refusal> {
        if !self.policy.allows(facts) {
            return Err(Refusal::Policy);
        }
        let budget = match self.owners.get(&owner) {
            Some(share) => share.connections < self.limits.budget.connections,
            None => (self.owners.len() as u32) < self.limits.owners,
        };
        if !budget || self.limits.budget.connections == 0 {
            return Err(Refusal::Budget);
        }
        if facts.free_lines <= self.limits.kept_free || self.len() >= self.limits.connections {
            return Err(Refusal::TableFull);
        }
        if self.moving >= self.limits.moving {
            return Err(Refusal::Busy);
        }
        Ok(())
    }

    /// The carrier has it now, on this line of its own.
    pub fn carried(&mut self, cid: Cid, record: u32, now_ms: u64) {
        self.change(cid, Phase::Entering, Phase::Carried, now_ms);
        if let Some(entry) = self.find_mut(cid) {
            entry.record = Some(record);
        }
    }

    /// Takes over a connection that an earlier run of the carrier had, on this line of its own.
    /// False where that cannot be: the number is taken, or none that this would give.
    pub fn inherit(
        &mut self,
        cid: Cid,
        owner: Owner,
        kind: Kind,
        record: u32,
        now_ms: u64,
    ) -> bool {
        let line = cid.line() as usize;
        if line >= self.limits.connections as usize {
            return false;
        }
        while self.lines.len() <= line {
            self.free.push(self.lines.len() as u32);
            self.lines.push(Line::default());
        }
        let Some(free) = self.free.iter().position(|free| *free as usize == line) else {
            return false;
        };
        self.free.swap_remove(free);
        let at = &mut self.lines[line];
        at.generation = cid.generation();
        at.entry = Some(Entry {
            cid,
            owner,
            kind,
            phase: Phase::Carried,
            record: Some(record),
            bytes: [0; 2],
            since_ms: now_ms,
        });
        self.owners.entry(owner).or_default().connections += 1;
        true
    }

    /// The handoff failed, and the sockets stay the owner's.
    pub fn stayed(&mut self, cid: Cid, reason: Refusal) {
        debug_assert_eq!(self.phase(cid), Some(Phase::Entering));
        self.counts.refusal(Op::Handoff, reason);
        self.forget(cid);
    }

    /// Begins to give it back.
    ///
    /// # Errors
    /// [`Refusal::Gone`], [`Refusal::Busy`] or [`Refusal::Budget`].
    pub fn leave(&mut self, cid: Cid, now_ms: u64) -> Result<Entry, Refusal> {
        let begun = self.may_leave(cid, now_ms);
        begun.inspect_err(|&reason| self.counts.refusal(Op::Restore, reason))?;
        self.change(cid, Phase::Carried, Phase::Leaving, now_ms);
        self.find(cid).copied().ok_or(Refusal::Gone)
    }

    fn may_leave(&mut self, cid: Cid, now_ms: u64) -> Result<(), Refusal> {
        let entry = *self.find(cid).ok_or(Refusal::Gone)?;
        if entry.phase != Phase::Carried || self.moving >= self.limits.moving {
            return Err(Refusal::Busy);
        }
        let most = self.limits.budget.restores_per_second;
        let share = self.owners.entry(entry.owner).or_default();
        match share.restores.take(most, now_ms) {
            true => Ok(()),
            false => Err(Refusal::Budget),
        }
    }

    /// It could not be given back: the carrier keeps it.
    pub fn stays(&mut self, cid: Cid, reason: Refusal, now_ms: u64) {
        self.counts.refusal(Op::Restore, reason);
        self.change(cid, Phase::Leaving, Phase::Carried, now_ms);
    }

    /// Its owner has sockets again.
    pub fn restored(&mut self, cid: Cid) {
        debug_assert_eq!(self.phase(cid), Some(Phase::Leaving));
        self.forget(cid);
    }

    /// It is over. Returns what was known of it.
    pub fn ended(&mut self, cid: Cid) -> Option<Entry> {
        debug_assert_ne!(self.phase(cid), Some(Phase::Entering), "nobody carries it");
        let entry = *self.find(cid)?;
        self.forget(cid);
        Some(entry)
    }

    /// This number of bytes has passed since the handoff.
    pub fn seen(&mut self, cid: Cid, from: Side, bytes: u64) {
        let Some(entry) = self.find_mut(cid) else {
            return;
        };
        let total = &mut entry.bytes[from as usize];
        // A settled end may lie before what was seen (RFC 9293, a RST's exact number).
        *total = bytes;
    }

    fn phase(&self, cid: Cid) -> Option<Phase> {
        self.find(cid).map(|entry| entry.phase)
    }

    fn find_mut(&mut self, cid: Cid) -> Option<&mut Entry> {
        let entry = self.lines.get_mut(cid.line() as usize)?.entry.as_mut()?;
        (entry.cid == cid).then_some(entry)
    }

    fn change(&mut self, cid: Cid, from: Phase, to: Phase, now_ms: u64) {
        debug_assert_eq!(self.phase(cid), Some(from), "{cid:?} goes to {to:?}");
        let moves = |phase| u32::from(phase != Phase::Carried);
        let Some(entry) = self.find_mut(cid) else {
            return;
        };
        let before = entry.phase;
        entry.phase = to;
        entry.since_ms = now_ms;
        self.moving = self.moving - moves(before) + moves(to);
    }

    fn forget(&mut self, cid: Cid) {
        let Some(entry) = self.find(cid).copied() else {
            return;
        };
        self.lines[cid.line() as usize].entry = None;
        self.free.push(cid.line());
        self.moving -= u32::from(entry.phase != Phase::Carried);
        let Some(share) = self.owners.get_mut(&entry.owner) else {
            return;
        };
        share.connections -= 1;
        if share.connections == 0 {
            self.owners.remove(&entry.owner);
        }
    }

    /// Panics if what is counted is not what is there. Takes time with the number of lines.
    pub fn check_invariants(&self) {
        let mut owners: BTreeMap<Owner, u32> = BTreeMap::new();
        let mut moving = 0;
        for (at, line) in self.lines.iter().enumerate() {
            let Some(entry) = line.entry else {
                assert!(self.free.contains(&(at as u32)), "line {at} is lost");
                continue;
            };
            assert_eq!(entry.cid, Cid::new(at as u32, line.generation));
            assert_eq!(entry.record.is_some(), entry.phase != Phase::Entering);
            *owners.entry(entry.owner).or_default() += 1;
            moving += u32::from(entry.phase != Phase::Carried);
        }
        assert_eq!(self.moving, moving);
        assert!(moving <= self.limits.moving && self.len() <= self.limits.connections);
        let counted = self.owners.iter();
        let counted: BTreeMap<_, _> = counted.map(|(&o, share)| (o, share.connections)).collect();
        assert_eq!(counted, owners);
        assert!(owners.len() as u32 <= self.limits.owners);
        let most = self.limits.budget.connections;
        assert!(owners.values().all(|&used| used <= most));
    }
}

#[cfg(test)]
mod tests;
