//! The driver's side: from the parts of a packet to commands (step 3 and 4 of figure 5 of the
//! paper).
//!
//! File parts are split at blocks. A cached block is appended from the cache. A block that is not
//! cached is inserted and then appended, if its file is admitted; otherwise its bytes are appended
//! from memory. Headers and generated content are always appended from memory.

use crate::block::{BlockKey, BlockSize, Extent, FileId, HostAddress, Revision};
use crate::bus::Traffic;
use crate::command::{Command, DESCRIPTOR_BYTES, Flags};
use crate::directory::{Directory, Found};
use crate::residency::{Admission, Policy, Residency};

/// A contiguous part of a packet, in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Ethernet, IP and TCP headers.
    NetworkHeader {
        /// Where.
        from: HostAddress,
        /// Bytes.
        len: u32,
    },
    /// The head of a response.
    ApplicationHeader {
        /// Where.
        from: HostAddress,
        /// Bytes.
        len: u32,
    },
    /// Content that is part of no file.
    Generated {
        /// Where.
        from: HostAddress,
        /// Bytes.
        len: u32,
    },
    /// Content of a file that must not be cached: it may change without a new revision.
    Uncacheable {
        /// Where.
        from: HostAddress,
        /// Bytes.
        len: u32,
    },
    /// A range of a file. The memory of each of its blocks is contiguous.
    File {
        /// The file.
        file: FileId,
        /// The version of its contents.
        revision: Revision,
        /// The file's length.
        file_bytes: u64,
        /// Where the range begins in the file.
        offset: u64,
        /// Where its first byte is in memory.
        from: HostAddress,
        /// Bytes.
        len: u32,
    },
}

/// What a sender is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Bytes of the device's cache.
    pub cache_bytes: u64,
    /// The size of a block.
    pub block: BlockSize,
    /// Which blocks stay.
    pub policy: Policy,
    /// Which files are cached.
    pub admission: Admission,
    /// Of the directory's hashes.
    pub seed: u64,
}

/// Blocks by outcome, per part of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Appended from the cache.
    pub hits: u64,
    /// Not cached, and inserted.
    pub inserts: u64,
    /// Of these: an old revision was there.
    pub stale: u64,
    /// Not cached, and appended from memory.
    pub passed: u64,
    /// Evicted.
    pub evictions: u64,
    /// Content bytes that did not cross the bus.
    pub bytes_saved: u64,
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.inserts += other.inserts;
        self.stale += other.stale;
        self.passed += other.passed;
        self.evictions += other.evictions;
        self.bytes_saved += other.bytes_saved;
    }
}

/// The driver's state for one device: its directory, and which blocks stay.
#[derive(Debug)]
pub struct Sender {
    block: BlockSize,
    admission: Admission,
    directory: Directory,
    residency: Box<dyn Residency + Send>,
    /// Lines that the current packet uses. Evicting one would make the device wait for a packet
    /// that is not complete.
    pinned: Vec<u32>,
    counts: Counts,
    traffic: Traffic,
}

/// Lines that one packet may use; the rest of its blocks are appended from memory.
const PINNED_MAX: usize = 32;

/// Commands of one packet, of which the last append must be marked.
struct Packet<'a> {
    emit: &'a mut dyn FnMut(Command),
    held: Option<Command>,
    is_first: bool,
    checksum: bool,
}

impl Sender {
    /// A sender for an empty cache.
    pub fn new(config: SenderConfig) -> Self {
        let lines = config.cache_bytes / u64::from(config.block.bytes());
        let lines = lines.min(u64::from(Directory::LINES_MAX)) as u32;
        Self {
            block: config.block,
            admission: config.admission,
            directory: Directory::new(lines, config.seed),
            residency: config.policy.build(lines, u64::from(lines)),
            pinned: Vec::with_capacity(PINNED_MAX),
            counts: Counts::default(),
            traffic: Traffic::default(),
        }
    }

    /// Emits the commands for one packet, in order. A packet without bytes has none.
    pub fn packet(&mut self, parts: &[Part], checksum: bool, emit: &mut dyn FnMut(Command)) {
        self.pinned.clear();
        let mut packet = Packet {
            emit,
            held: None,
            is_first: true,
            checksum,
        };
        for part in parts {
            match *part {
                Part::NetworkHeader { from, len } => {
                    self.traffic.bytes.network_headers += u64::from(len);
                    self.traffic.transfers.network_headers += u64::from(len > 0);
                    self.memory(&mut packet, from, len);
                }
                Part::ApplicationHeader { from, len } => {
                    self.traffic.bytes.application_headers += u64::from(len);
                    self.traffic.transfers.application_headers += u64::from(len > 0);
                    self.memory(&mut packet, from, len);
                }
                Part::Generated { from, len } => {
                    self.traffic.bytes.other += u64::from(len);
                    self.traffic.transfers.other += u64::from(len > 0);
                    self.memory(&mut packet, from, len);
                }
                Part::Uncacheable { from, len } => {
                    self.traffic.bytes.content += u64::from(len);
                    self.traffic.transfers.content += u64::from(len > 0);
                    self.memory(&mut packet, from, len);
                }
                Part::File { .. } => self.file(&mut packet, part),
            }
        }
        packet.end();
    }

    /// Removes a block that left the host's page cache.
    pub fn forget(&mut self, key: BlockKey) {
        if let Some(line) = self.directory.forget(key) {
            self.residency.on_remove(line);
        }
    }

    /// Removes the first `blocks` blocks of a file.
    pub fn forget_file(&mut self, file: FileId, blocks: u32) {
        for index in 0..blocks {
            self.forget(BlockKey { file, index });
        }
    }

    /// What became of file blocks so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What its commands transfer over the bus, descriptors included.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    fn memory(&mut self, packet: &mut Packet<'_>, from: HostAddress, len: u32) {
        if len > 0 {
            self.describe();
            let flags = Flags::default();
            packet.append(Command::AppendMemory { from, len, flags });
        }
    }

    fn describe(&mut self) {
        self.traffic.bytes.descriptors += DESCRIPTOR_BYTES as u64;
        self.traffic.transfers.descriptors += 1;
    }

    fn content(&mut self, len: u32) {
        self.traffic.bytes.content += u64::from(len);
        self.traffic.transfers.content += 1;
    }

    fn file(&mut self, packet: &mut Packet<'_>, part: &Part) {
        let Part::File {
            file,
            revision,
            file_bytes,
            offset,
            from,
            len,
        } = *part
        else {
            return;
        };
        let end = offset.saturating_add(u64::from(len));
        let is_admitted = self.admission.admits(file_bytes) && end <= file_bytes;
        let (mut at, mut memory) = (offset, from.0);
        while at < end {
            let within = self.block.within(at);
            let bytes = u64::from(self.block.bytes() - within).min(end - at) as u32;
            let source = HostAddress(memory);
            let index = u32::try_from(self.block.index_of(at)).ok();
            let line = index.filter(|_| is_admitted).and_then(|index| {
                let key = BlockKey { file, index };
                // The block begins before the range, in memory too.
                let start = HostAddress(memory.checked_sub(u64::from(within))?);
                let whole = (file_bytes - (at - u64::from(within)))
                    .min(u64::from(self.block.bytes())) as u32;
                self.line(packet, key, revision, (start, whole), bytes)
            });
            match line {
                Some(line) => {
                    self.describe();
                    let mut at = self.block.offset_of(line);
                    at.0 += u64::from(within);
                    let from = Extent { at, len: bytes };
                    let flags = Flags::default();
                    packet.append(Command::AppendCache { from, flags });
                }
                None => {
                    self.counts.passed += 1;
                    self.content(bytes);
                    self.memory(packet, source, bytes);
                }
            }
            at += u64::from(bytes);
            memory = memory.saturating_add(u64::from(bytes));
        }
    }

    /// The line of a block, inserted if it is not cached. `None` if it cannot be.
    fn line(
        &mut self,
        packet: &mut Packet<'_>,
        key: BlockKey,
        revision: Revision,
        (start, whole): (HostAddress, u32),
        bytes: u32,
    ) -> Option<u32> {
        if self.pinned.len() >= PINNED_MAX {
            return None;
        }
        match self.directory.look_up(key, revision) {
            Found::Hit(line) => {
                self.residency.on_hit(line);
                self.pinned.push(line);
                self.counts.hits += 1;
                self.counts.bytes_saved += u64::from(bytes);
                return Some(line);
            }
            Found::Stale(line) => {
                if self.pinned.contains(&line) {
                    return None;
                }
                self.counts.stale += 1;
                self.directory.remove(line);
                self.residency.on_remove(line);
            }
            Found::Miss => {}
        }
        let name = self.directory.name(key);
        self.residency.on_miss(name);
        if self.directory.len() == self.directory.lines() {
            let victim = self.residency.victim()?;
            if self.pinned.contains(&victim) {
                return None;
            }
            self.residency.on_evict(victim);
            self.directory.remove(victim);
            self.counts.evictions += 1;
        }
        let line = self.directory.insert(key, revision)?;
        self.residency.on_insert(line, name, 1);
        self.pinned.push(line);
        self.counts.inserts += 1;
        self.describe();
        self.content(whole);
        let to = Extent {
            at: self.block.offset_of(line),
            len: whole,
        };
        packet.insert(Command::Insert { from: start, to });
        Some(line)
    }
}

impl Packet<'_> {
    fn append(&mut self, command: Command) {
        self.release();
        self.held = Some(command);
    }

    /// An insert is not the end of a packet, so the append before it can go.
    fn insert(&mut self, command: Command) {
        self.release();
        (self.emit)(command);
    }

    fn release(&mut self) {
        if let Some(command) = self.held.take() {
            self.send(command, false);
        }
    }

    fn end(mut self) {
        if let Some(command) = self.held.take() {
            self.send(command, true);
        }
    }

    fn send(&mut self, mut command: Command, last: bool) {
        if let Command::AppendMemory { flags, .. } | Command::AppendCache { flags, .. } =
            &mut command
        {
            *flags = Flags {
                first: core::mem::take(&mut self.is_first),
                last,
                checksum: last && self.checksum,
            };
        }
        (self.emit)(command);
    }
}

#[cfg(test)]
mod tests;
