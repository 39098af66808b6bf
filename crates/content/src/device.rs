//! The network interface: executes commands in order over its memory (section 4.3 of the paper).
//!
//! The caller submits descriptors, calls [`Device::run`] to execute what can be executed, and
//! [`Device::transmit`] when the link takes a packet. A packet reads its blocks when it is
//! transmitted, so until then each of its blocks has a pending read. An insert into such a block
//! waits, and all commands behind it, unless the store can [detach](Store::detach) the memory.

use std::collections::VecDeque;

use crate::block::{BlockSize, CacheOffset, Extent, HostAddress};
use crate::command::{Command, DESCRIPTOR_BYTES, DescriptorError, Flags};
use crate::lease::{Lease, Leases};

/// The device's memory, and its way to the host's memory and to the link.
pub trait Store {
    /// Bytes of cache.
    fn cache_bytes(&self) -> u64;

    /// Copies host memory into the cache.
    fn insert(&mut self, from: HostAddress, to: Extent);

    /// Sends a piece of a packet; pieces of one packet come one after the other. `flags` say where
    /// it begins and ends.
    fn send(&mut self, piece: Piece, flags: Flags);

    /// Gives these blocks other memory, so that pending reads keep the old bytes: for a memory
    /// file, punching a hole. What the new memory holds before the insert is not defined; a host
    /// inserts whole blocks. False if this is not possible; then inserts wait.
    fn detach(&mut self, extent: Extent) -> bool {
        let _ = extent;
        false
    }
}

/// A contiguous part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// From host memory.
    Memory {
        /// Where.
        from: HostAddress,
        /// How much.
        len: u32,
    },
    /// From the cache, within one block.
    Cache {
        /// Where.
        from: Extent,
        /// How often the block's memory was replaced before this piece was appended.
        epoch: u32,
    },
}

/// Sizes of a device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands that wait.
    pub commands: usize,
    /// Packets that wait for the link.
    pub packets: usize,
    /// Pieces of one packet.
    pub pieces_per_packet: usize,
    /// Completions that were not taken.
    pub completions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            commands: 1_024,
            packets: 256,
            pieces_per_packet: 64,
            completions: 1_024,
        }
    }
}

/// The queue of commands is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The end of a command, or of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the command, from 0; of a packet, its last one.
    pub command: u64,
    /// Its result.
    pub outcome: Outcome,
}

/// Result of a command or packet. An insert that is executed has no completion of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cache is ready.
    Ready {
        /// Its size.
        bytes: u64,
    },
    /// The packet was transmitted; its memory may be reused.
    Sent {
        /// Its length.
        bytes: u64,
    },
    /// The command was not executed. If it was part of a packet, that packet is not sent.
    Refused(Refusal),
}

/// Why a command is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The descriptor is no command.
    Descriptor(DescriptorError),
    /// Before `Init`.
    NotReady,
    /// The extent ends behind the cache.
    Extent,
    /// A piece that is not the first, without a packet.
    NoPacket,
    /// A first piece, or an init, inside a packet: that packet ends here, unsent.
    InsidePacket,
    /// More pieces than a packet may have.
    Pieces,
    /// More pending reads of a block than are counted.
    Reads,
    /// An insert into a block that the unfinished packet uses: waiting would never end.
    OwnBlock,
}

/// A network interface.
#[derive(Debug)]
pub struct Device<S> {
    store: S,
    block: BlockSize,
    limits: Limits,
    leases: Leases,
    commands: VecDeque<[u8; DESCRIPTOR_BYTES]>,
    /// Pieces of all packets that wait, and of the unfinished one behind them.
    pieces: VecDeque<Queued>,
    packets: VecDeque<Packet>,
    open: Option<Open>,
    completions: VecDeque<Completion>,
    executed: u64,
    memory_bytes: u64,
    is_ready: bool,
    #[cfg(test)]
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    piece: Piece,
    lease: Option<Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    pieces: usize,
    bytes: u64,
    /// Number of its last command.
    command: u64,
    checksum: bool,
}

/// The unfinished packet.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    pieces: usize,
    bytes: u64,
    /// Its rest is skipped.
    is_refused: bool,
}

/// Whether a command was executed.
enum Step {
    Done,
    Waits,
}

/// Deliberate errors in the interlock, which the shadow model must find.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mutant {
    #[default]
    None,
    /// Inserts do not wait.
    NoWait,
    /// Inserts look at their first block only.
    FirstBlockOnly,
    /// Pending reads end when a packet is complete, not when it is sent.
    EarlyEnd,
    /// A detached block is overwritten in place.
    NoDetach,
}

impl<S: Store> Device<S> {
    /// A device over a store, in blocks of this size; a last part of a block is not used.
    pub fn new(store: S, block: BlockSize, limits: Limits) -> Self {
        let lines = store.cache_bytes() / u64::from(block.bytes());
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        let pieces = (limits.packets + 1) * limits.pieces_per_packet;
        Self {
            store,
            block,
            limits,
            leases: Leases::new(lines, block),
            commands: VecDeque::with_capacity(limits.commands),
            pieces: VecDeque::with_capacity(pieces),
            packets: VecDeque::with_capacity(limits.packets),
            open: None,
            completions: VecDeque::with_capacity(limits.completions),
            executed: 0,
            memory_bytes: 0,
            is_ready: false,
            #[cfg(test)]
            mutant: Mutant::None,
        }
    }

    /// Hands over a descriptor.
    ///
    /// # Errors
    /// When the queue is full.
    pub fn submit(&mut self, descriptor: [u8; DESCRIPTOR_BYTES]) -> Result<(), Full> {
        if self.commands.len() >= self.limits.commands {
            return Err(Full);
        }
        self.commands.push_back(descriptor);
        Ok(())
    }

    /// Executes commands until one waits for a packet to be transmitted or for completions to be
    /// taken, or none is left. Returns how many it executed.
    pub fn run(&mut self) -> u64 {
        let before = self.executed;
        // A command makes at most two completions: of the packet that it ends early, and its own.
        while self.completions.len() + self.packets.len() + 2 <= self.limits.completions
            && let Some(descriptor) = self.commands.front()
        {
            let step = match Command::decode(descriptor) {
                Ok(command) => self.execute(command),
                Err(error) => {
                    self.refuse(Refusal::Descriptor(error));
                    Step::Done
                }
            };
            match step {
                Step::Waits => break,
                Step::Done => {
                    self.commands.pop_front();
                    self.executed += 1;
                }
            }
        }
        self.executed - before
    }

    /// Transmits the packet that has waited longest. False if no packet waits.
    pub fn transmit(&mut self) -> bool {
        let Some(packet) = self.packets.pop_front() else {
            return false;
        };
        for number in 0..packet.pieces {
            let Some(queued) = self.pieces.pop_front() else {
                break;
            };
            let last = number + 1 == packet.pieces;
            let flags = Flags {
                first: number == 0,
                last,
                checksum: last && packet.checksum,
            };
            self.store.send(queued.piece, flags);
            self.end_read(queued);
        }
        self.completions.push_back(Completion {
            command: packet.command,
            outcome: Outcome::Sent {
                bytes: packet.bytes,
            },
        });
        true
    }

    /// The next completion.
    pub fn poll_complete(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Commands executed or refused so far.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Bytes fetched from host memory, without descriptors; those of packets count when a piece is
    /// appended.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Packets that wait for the link.
    pub fn packets_waiting(&self) -> usize {
        self.packets.len()
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The store.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    fn execute(&mut self, command: Command) -> Step {
        if !self.is_ready && command != Command::Init {
            self.refuse(Refusal::NotReady);
            return Step::Done;
        }
        match command {
            Command::Init => self.init(),
            Command::Insert { from, to } => return self.insert(from, to),
            Command::AppendMemory { from, len, flags } => {
                return self.append(flags, len, |device| {
                    device.queue(Piece::Memory { from, len }, None)?;
                    device.memory_bytes += u64::from(len);
                    Ok(())
                });
            }
            Command::AppendCache { from, flags } => {
                if !self.is_inside(from) {
                    self.refuse(Refusal::Extent);
                    return Step::Done;
                }
                return self.append(flags, from.len, |device| device.queue_blocks(from));
            }
        }
        Step::Done
    }

    fn init(&mut self) {
        if self.open.is_some() {
            self.refuse(Refusal::InsidePacket);
            return;
        }
        self.is_ready = true;
        let bytes = self.store.cache_bytes();
        self.complete(Outcome::Ready { bytes });
    }

    fn insert(&mut self, from: HostAddress, to: Extent) -> Step {
        if !self.is_inside(to) {
            self.refuse(Refusal::Extent);
            return Step::Done;
        }
        if self.is_read(to) {
            if self.detach(to) {
                self.leases.detach(to);
            } else if self.is_own(to) {
                self.refuse(Refusal::OwnBlock);
                return Step::Done;
            } else {
                return Step::Waits;
            }
        }
        self.memory_bytes += u64::from(to.len);
        self.store.insert(from, to);
        Step::Done
    }

    /// Appends pieces to the packet. `queue` adds them.
    fn append(
        &mut self,
        flags: Flags,
        len: u32,
        queue: impl FnOnce(&mut Self) -> Result<(), Refusal>,
    ) -> Step {
        if flags.last && self.packets.len() >= self.limits.packets {
            return Step::Waits;
        }
        if flags.first {
            if self.open.is_some_and(|open| !open.is_refused) {
                self.refuse(Refusal::InsidePacket);
            }
            self.open = Some(Open::default());
        }
        let Some(open) = self.open else {
            self.refuse(Refusal::NoPacket);
            return Step::Done;
        };
        if !open.is_refused {
            match queue(self) {
                Ok(()) => {
                    if let Some(open) = &mut self.open {
                        open.bytes += u64::from(len);
                    }
                }
                Err(refusal) => self.refuse(refusal),
            }
        }
        if flags.last
            && let Some(open) = self.open.take()
            && !open.is_refused
        {
            self.close(open, flags.checksum);
        }
        Step::Done
    }

    fn close(&mut self, open: Open, checksum: bool) {
        #[cfg(test)]
        if self.mutant == Mutant::EarlyEnd {
            let from = self.pieces.len() - open.pieces;
            for at in from..self.pieces.len() {
                if let Some(lease) = self.pieces[at].lease.take() {
                    self.leases.give_back(lease);
                }
            }
        }
        self.packets.push_back(Packet {
            pieces: open.pieces,
            bytes: open.bytes,
            command: self.executed,
            checksum,
        });
    }

    fn queue_blocks(&mut self, from: Extent) -> Result<(), Refusal> {
        for part in from.split(self.block) {
            let lease = self.leases.take(part).ok_or(Refusal::Reads)?;
            let epoch = lease.epoch();
            self.queue(Piece::Cache { from: part, epoch }, Some(lease))
                .inspect_err(|_| self.leases.give_back(lease))?;
        }
        Ok(())
    }

    /// Adds a piece to the unfinished packet.
    fn queue(&mut self, piece: Piece, lease: Option<Lease>) -> Result<(), Refusal> {
        let pieces_max = self.limits.pieces_per_packet;
        let open = self.open.as_mut().ok_or(Refusal::NoPacket)?;
        if open.pieces >= pieces_max {
            return Err(Refusal::Pieces);
        }
        open.pieces += 1;
        self.pieces.push_back(Queued { piece, lease });
        Ok(())
    }

    /// Refuses the current command. An unfinished packet is given up.
    fn refuse(&mut self, refusal: Refusal) {
        self.complete(Outcome::Refused(refusal));
        let Some(open) = &mut self.open else {
            return;
        };
        let pieces = core::mem::take(&mut open.pieces);
        open.is_refused = true;
        for _ in 0..pieces {
            if let Some(queued) = self.pieces.pop_back() {
                self.end_read(queued);
            }
        }
    }

    fn complete(&mut self, outcome: Outcome) {
        self.completions.push_back(Completion {
            command: self.executed,
            outcome,
        });
    }

    fn end_read(&mut self, queued: Queued) {
        if let Some(lease) = queued.lease {
            self.leases.give_back(lease);
        }
    }

    fn is_inside(&self, extent: Extent) -> bool {
        extent.end() <= self.leases.bytes()
    }

    fn is_read(&self, to: Extent) -> bool {
        #[cfg(test)]
        match self.mutant {
            Mutant::NoWait => return false,
            Mutant::FirstBlockOnly => {
                let first = to.split(self.block).next();
                return first.is_some_and(|part| self.leases.is_pending(part));
            }
            _ => {}
        }
        self.leases.is_pending(to)
    }

    fn detach(&mut self, to: Extent) -> bool {
        #[cfg(test)]
        if self.mutant == Mutant::NoDetach {
            return true;
        }
        let lines = to.lines(self.block);
        let block = u64::from(self.block.bytes());
        // Whole blocks: a part of a block cannot have other memory than the rest.
        let whole = Extent {
            at: CacheOffset(lines.start * block),
            len: u32::try_from((lines.end - lines.start) * block).unwrap_or(u32::MAX),
        };
        self.store.detach(whole)
    }

    /// True if the unfinished packet reads a block of the extent.
    fn is_own(&self, to: Extent) -> bool {
        let lines = to.lines(self.block);
        let own = self.open.map_or(0, |open| open.pieces);
        let pieces = self.pieces.iter().rev().take(own);
        pieces.into_iter().any(|queued| match queued.piece {
            Piece::Cache { from, .. } => lines.contains(&from.lines(self.block).start),
            Piece::Memory { .. } => false,
        })
    }
}

#[cfg(test)]
mod tests;
