use fairlead_base::Rng;

use super::*;
use crate::device::{Device, Limits, Outcome, Piece, Store};

const BLOCK: u64 = 512;

fn config(lines: u64, policy: Policy) -> SenderConfig {
    SenderConfig {
        cache_bytes: lines * BLOCK,
        block: BlockSize::new(BLOCK).expect("a power of two"),
        policy,
        admission: Admission::up_to_the_cache(lines * BLOCK),
        seed: 5,
    }
}

fn part(inode: u64, revision: u64, file_bytes: u64, offset: u64, len: u32) -> Part {
    Part::File {
        file: FileId { device: 1, inode },
        revision: Revision(revision),
        file_bytes,
        offset,
        from: address(inode, revision, offset),
        len,
    }
}

/// Where a file's revision lies in memory.
fn address(inode: u64, revision: u64, offset: u64) -> HostAddress {
    HostAddress((inode << 32) + (revision << 20) + offset)
}

fn host(address: u64) -> u8 {
    (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Memory that is overwritten in place.
#[derive(Debug)]
struct Memory {
    cache: Vec<u8>,
    packet: Vec<u8>,
}

impl Store for Memory {
    fn cache_bytes(&self) -> u64 {
        self.cache.len() as u64
    }

    fn insert(&mut self, from: HostAddress, to: Extent) {
        for offset in 0..u64::from(to.len) {
            self.cache[(to.at.0 + offset) as usize] = host(from.0 + offset);
        }
    }

    fn send(&mut self, piece: Piece, flags: Flags) {
        if flags.first {
            self.packet.clear();
        }
        match piece {
            Piece::Memory { from, len } => self
                .packet
                .extend((0..u64::from(len)).map(|offset| host(from.0 + offset))),
            Piece::Cache { from, .. } => {
                let at = from.at.0 as usize;
                self.packet
                    .extend_from_slice(&self.cache[at..at + from.len as usize]);
            }
        }
    }
}

/// The bytes of a part, from host memory.
fn bytes(parts: &[Part]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        let (Part::NetworkHeader { from, len }
        | Part::ApplicationHeader { from, len }
        | Part::Generated { from, len }
        | Part::Uncacheable { from, len }
        | Part::File { from, len, .. }) = *part;
        out.extend((0..u64::from(len)).map(|offset| host(from.0 + offset)));
    }
    out
}

#[test]
fn devices_send_the_bytes_of_host_memory_whatever_is_cached() {
    for (seed, policy) in (0..40).zip(Policy::ALL.into_iter().cycle()) {
        let mut rng = Rng::new(seed);
        let lines = 1 + u64::from(rng.below(12));
        let mut sender = Sender::new(config(lines, policy));
        let store = Memory {
            cache: vec![0; (lines * BLOCK) as usize],
            packet: Vec::new(),
        };
        let block = BlockSize::new(BLOCK).expect("a power of two");
        let mut device = Device::new(store, block, Limits::default());
        device
            .submit(Command::Init.encode().expect("fits"))
            .expect("room");
        let mut revisions = [0u64; 6];
        let mut waiting: Vec<Vec<u8>> = Vec::new();
        for _ in 0..400 {
            let inode = rng.below(6);
            let revision = &mut revisions[inode as usize];
            *revision += u64::from(rng.chance(50_000));
            let file_bytes = 300 + 700 * u64::from(inode);
            let offset = u64::from(rng.below(file_bytes as u32));
            let len = (1 + rng.below(1_460)).min((file_bytes - offset) as u32);
            let from = HostAddress(77);
            let parts = [
                Part::NetworkHeader { from, len: 54 },
                Part::ApplicationHeader {
                    from,
                    len: rng.below(2) * 200,
                },
                part(u64::from(inode), *revision, file_bytes, offset, len),
                Part::Generated {
                    from,
                    len: rng.below(3),
                },
            ];
            if rng.chance(30_000) {
                let file = FileId {
                    device: 1,
                    inode: u64::from(inode),
                };
                sender.forget_file(file, 8);
            }
            waiting.push(bytes(&parts));
            sender.packet(&parts, true, &mut |command| {
                device
                    .submit(command.encode().expect("fits"))
                    .expect("room");
            });
            while rng.chance(600_000) && send(&mut device, &mut waiting) {}
        }
        while send(&mut device, &mut waiting) {}
        assert!(waiting.is_empty(), "{policy}: all packets are sent");
        let traffic = sender.traffic().bytes;
        let without_descriptors = traffic.total() - traffic.descriptors;
        assert_eq!(device.memory_bytes(), without_descriptors, "{policy}");
        assert!(lines < 4 || sender.counts().hits > 0, "{policy}");
    }
}

/// Sends one packet, and compares it.
fn send(device: &mut Device<Memory>, waiting: &mut Vec<Vec<u8>>) -> bool {
    device.run();
    if !device.transmit() {
        return false;
    }
    while let Some(completion) = device.poll_complete() {
        let refused = matches!(completion.outcome, Outcome::Refused(_));
        assert!(!refused, "{completion:?}");
    }
    assert_eq!(device.store().packet, waiting.remove(0));
    true
}

fn commands(sender: &mut Sender, parts: &[Part]) -> Vec<Command> {
    let mut commands = Vec::new();
    sender.packet(parts, true, &mut |command| commands.push(command));
    commands
}

#[test]
fn a_changed_file_is_inserted_again() {
    let mut sender = Sender::new(config(8, Policy::Lru));
    let first = commands(&mut sender, &[part(1, 1, 100, 0, 100)]);
    assert!(matches!(
        first[..],
        [Command::Insert { .. }, Command::AppendCache { .. }]
    ));
    let again = commands(&mut sender, &[part(1, 1, 100, 10, 20)]);
    assert!(matches!(again[..], [Command::AppendCache { .. }]));
    let changed = commands(&mut sender, &[part(1, 2, 100, 0, 100)]);
    assert!(matches!(
        changed[..],
        [Command::Insert { .. }, Command::AppendCache { .. }]
    ));
    let counts = sender.counts();
    assert_eq!((counts.hits, counts.inserts, counts.stale), (1, 2, 1));
    assert_eq!(counts.bytes_saved, 20);
}

#[test]
fn the_first_and_the_last_append_are_marked() {
    let mut sender = Sender::new(config(8, Policy::Lru));
    let from = HostAddress(3);
    let parts = [
        Part::NetworkHeader { from, len: 54 },
        part(1, 1, 2_000, 0, 1_400),
        Part::Generated { from, len: 0 },
    ];
    let commands = commands(&mut sender, &parts);
    let flags: Vec<Flags> = commands
        .iter()
        .filter_map(|command| match command {
            Command::AppendMemory { flags, .. } | Command::AppendCache { flags, .. } => {
                Some(*flags)
            }
            _ => None,
        })
        .collect();
    assert_eq!(flags.len(), 4);
    for (number, flags) in flags.iter().enumerate() {
        assert_eq!(flags.first, number == 0);
        assert_eq!((flags.last, flags.checksum), (number == 3, number == 3));
    }
}

#[test]
fn large_files_and_ranges_that_do_not_fit_are_passed() {
    let mut sender = Sender::new(config(2, Policy::Lru));
    for part in [part(1, 1, 1_025, 0, 1_025), part(2, 1, 100, 90, 20)] {
        let commands = commands(&mut sender, &[part]);
        assert!(
            commands
                .iter()
                .all(|command| matches!(command, Command::AppendMemory { .. }))
        );
    }
    assert_eq!(sender.counts().inserts, 0);
    assert!(commands(&mut sender, &[]).is_empty());
}

#[test]
fn a_packet_does_not_evict_its_own_blocks() {
    let mut sender = Sender::new(config(2, Policy::Lru));
    let parts = [part(1, 1, 1_024, 0, 1_024), part(2, 1, 512, 0, 512)];
    let commands = commands(&mut sender, &parts);
    let last = commands.last().expect("some");
    assert!(matches!(last, Command::AppendMemory { .. }), "{last:?}");
    assert_eq!(sender.counts().evictions, 0);
}
