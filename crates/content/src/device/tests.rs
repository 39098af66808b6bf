//! Commands against a shadow model: a packet has the bytes that it would have if each command were
//! executed completely when it is submitted.

use std::collections::BTreeMap;

use fairlead_base::Rng;

use super::*;

/// The byte at an address of host memory.
fn host(address: u64) -> u8 {
    (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Memory in blocks that can be exchanged under pending reads.
#[derive(Debug)]
struct Memory {
    block: BlockSize,
    cache: Vec<u8>,
    can_detach: bool,
    /// Old memory, by line and epoch.
    old: BTreeMap<(u64, u32), Vec<u8>>,
    epochs: Vec<u32>,
    packet: Vec<u8>,
    sent: Vec<Vec<u8>>,
}

impl Store for Memory {
    fn cache_bytes(&self) -> u64 {
        self.cache.len() as u64
    }

    fn insert(&mut self, from: HostAddress, to: Extent) {
        let at = to.at.0 as usize;
        for offset in 0..to.len as usize {
            self.cache[at + offset] = host(from.0 + offset as u64);
        }
    }

    fn send(&mut self, piece: Piece, flags: Flags) {
        if flags.first {
            self.packet.clear();
        }
        match piece {
            Piece::Memory { from, len } => {
                let bytes = (0..u64::from(len)).map(|offset| host(from.0 + offset));
                self.packet.extend(bytes);
            }
            Piece::Cache { from, epoch } => {
                let line = from.lines(self.block).start;
                let within = self.block.within(from.at.0) as usize;
                let block = self.block.bytes() as usize;
                let start = line as usize * block;
                let old = self.old.get(&(line, epoch)).map(Vec::as_slice);
                let memory = old.unwrap_or(&self.cache[start..start + block]);
                self.packet
                    .extend_from_slice(&memory[within..within + from.len as usize]);
            }
        }
        if flags.last {
            self.sent.push(self.packet.clone());
        }
    }

    fn detach(&mut self, extent: Extent) -> bool {
        if !self.can_detach {
            return false;
        }
        let block = self.block.bytes() as usize;
        for line in extent.lines(self.block) {
            let epoch = &mut self.epochs[line as usize];
            let start = line as usize * block;
            let memory = self.cache[start..start + block].to_vec();
            self.old.insert((line, *epoch), memory);
            *epoch += 1;
        }
        true
    }
}

const LINES: u32 = 6;
const BLOCK: u64 = 512;

fn device(can_detach: bool, limits: Limits) -> Device<Memory> {
    let block = BlockSize::new(BLOCK).expect("a power of two");
    let store = Memory {
        block,
        cache: vec![0; LINES as usize * BLOCK as usize],
        can_detach,
        old: BTreeMap::new(),
        epochs: vec![0; LINES as usize],
        packet: Vec::new(),
        sent: Vec::new(),
    };
    Device::new(store, block, limits)
}

/// Executes each command at once.
#[derive(Default)]
struct Shadow {
    cache: Vec<u8>,
    packet: Option<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Shadow {
    fn execute(&mut self, command: Command) {
        let (bytes, flags): (Vec<u8>, Flags) = match command {
            Command::Init => return,
            Command::Insert { from, to } => {
                for offset in 0..u64::from(to.len) {
                    self.cache[(to.at.0 + offset) as usize] = host(from.0 + offset);
                }
                return;
            }
            Command::AppendMemory { from, len, flags } => (
                (0..u64::from(len))
                    .map(|offset| host(from.0 + offset))
                    .collect(),
                flags,
            ),
            Command::AppendCache { from, flags } => {
                let at = from.at.0 as usize;
                (self.cache[at..at + from.len as usize].to_vec(), flags)
            }
        };
        if flags.first {
            self.packet = Some(Vec::new());
        }
        let Some(packet) = &mut self.packet else {
            return;
        };
        packet.extend(bytes);
        if flags.last {
            self.sent.extend(self.packet.take());
        }
    }
}

/// A random command of a correct driver: packets have a beginning and an end, and no insert touches
/// a block of the unfinished packet.
fn command(rng: &mut Rng, pieces: &mut u32, own: &mut Vec<u64>) -> Command {
    let extent = |rng: &mut Rng| {
        let at = u64::from(rng.below(LINES * BLOCK as u32 - 1));
        let rest = LINES * BLOCK as u32 - at as u32;
        Extent {
            at: CacheOffset(at),
            len: 1 + rng.below(rest.min(3 * BLOCK as u32)),
        }
    };
    let block = BlockSize::new(BLOCK).expect("a power of two");
    let from = HostAddress(u64::from(rng.below(1 << 30)));
    if rng.chance(350_000) {
        let to = extent(rng);
        if !to.lines(block).any(|line| own.contains(&line)) {
            return Command::Insert { from, to };
        }
    }
    let flags = Flags {
        first: *pieces == 0,
        last: *pieces == 5 || rng.chance(400_000),
        checksum: rng.chance(500_000),
    };
    *pieces += 1;
    let append = if rng.chance(600_000) {
        let from = extent(rng);
        own.extend(from.lines(block));
        Command::AppendCache { from, flags }
    } else {
        let len = 1 + rng.below(100);
        Command::AppendMemory { from, len, flags }
    };
    if flags.last {
        *pieces = 0;
        own.clear();
    }
    append
}

/// True if all packets have the shadow's bytes.
fn agrees(seed: u64, can_detach: bool, mutant: Mutant) -> bool {
    let mut rng = Rng::new(seed);
    let limits = Limits {
        commands: 16,
        packets: 4,
        pieces_per_packet: 32,
        completions: 16,
    };
    let mut device = device(can_detach, limits);
    device.mutant = mutant;
    let mut shadow = Shadow {
        cache: vec![0; LINES as usize * BLOCK as usize],
        ..Shadow::default()
    };
    let (mut pieces, mut own) = (0, Vec::new());
    device
        .submit(Command::Init.encode().expect("fits"))
        .expect("room");
    for _ in 0..300 {
        let command = command(&mut rng, &mut pieces, &mut own);
        let descriptor = command.encode().expect("fits");
        while device.submit(descriptor).is_err() {
            device.run();
            device.transmit();
            while device.poll_complete().is_some() {}
        }
        shadow.execute(command);
        if rng.chance(500_000) {
            device.run();
        }
        if rng.chance(200_000) {
            device.transmit();
        }
        if rng.chance(300_000) {
            while let Some(completion) = device.poll_complete() {
                let refused = matches!(completion.outcome, Outcome::Refused(_));
                assert!(!refused, "{completion:?}");
            }
        }
    }
    for _ in 0..1_000 {
        device.run();
        device.transmit();
        while device.poll_complete().is_some() {}
    }
    assert!(device.commands.is_empty(), "seed {seed}: commands are left");
    device.store.sent == shadow.sent
}

#[test]
fn packets_have_the_bytes_of_commands_executed_at_once() {
    for seed in 0..256 {
        assert!(agrees(seed, false, Mutant::None), "seed {seed}, waiting");
        assert!(agrees(seed, true, Mutant::None), "seed {seed}, detaching");
    }
}

#[test]
fn mutants_of_the_interlock_are_caught() {
    let waiting = [Mutant::NoWait, Mutant::FirstBlockOnly, Mutant::EarlyEnd];
    for mutant in waiting {
        let caught = (0..256).filter(|seed| !agrees(*seed, false, mutant));
        assert!(caught.count() > 0, "{mutant:?}");
    }
    let caught = (0..256).filter(|seed| !agrees(*seed, true, Mutant::NoDetach));
    assert!(caught.count() > 0, "NoDetach");
}

fn outcomes(device: &mut Device<Memory>, commands: &[Command]) -> Vec<Outcome> {
    for command in commands {
        device
            .submit(command.encode().expect("fits"))
            .expect("room");
    }
    device.run();
    core::iter::from_fn(|| device.poll_complete())
        .map(|completion| completion.outcome)
        .collect()
}

fn memory(first: bool, last: bool) -> Command {
    Command::AppendMemory {
        from: HostAddress(1),
        len: 10,
        flags: Flags {
            first,
            last,
            checksum: false,
        },
    }
}

fn cached(at: u64, len: u32, first: bool, last: bool) -> Command {
    Command::AppendCache {
        from: Extent {
            at: CacheOffset(at),
            len,
        },
        flags: Flags {
            first,
            last,
            checksum: false,
        },
    }
}

fn insert(at: u64, len: u32) -> Command {
    Command::Insert {
        from: HostAddress(9),
        to: Extent {
            at: CacheOffset(at),
            len,
        },
    }
}

#[test]
fn wrong_commands_are_refused_with_a_reason() {
    let refused = |commands: &[Command]| {
        let mut device = device(false, Limits::default());
        let outcomes = outcomes(&mut device, commands);
        let last = outcomes.last().copied();
        assert!(!device.transmit(), "nothing is sent: {commands:?}");
        match last {
            Some(Outcome::Refused(refusal)) => refusal,
            other => panic!("{commands:?}: {other:?}"),
        }
    };
    let end = u64::from(LINES) * BLOCK;
    assert_eq!(refused(&[insert(0, 1)]), Refusal::NotReady);
    assert_eq!(refused(&[Command::Init, insert(end, 1)]), Refusal::Extent);
    assert_eq!(
        refused(&[Command::Init, insert(0, end as u32 + 1)]),
        Refusal::Extent
    );
    let far = cached(end - 1, 2, true, true);
    assert_eq!(refused(&[Command::Init, far]), Refusal::Extent);
    assert_eq!(
        refused(&[Command::Init, memory(false, true)]),
        Refusal::NoPacket
    );
    let inside = [Command::Init, memory(true, false), Command::Init];
    assert_eq!(refused(&inside), Refusal::InsidePacket);
    let again = [Command::Init, memory(true, false), memory(true, false)];
    assert_eq!(refused(&again), Refusal::InsidePacket);
    let mut many = vec![Command::Init, memory(true, false)];
    many.extend([memory(false, false); 64]);
    assert_eq!(refused(&many), Refusal::Pieces);
    let own = [
        Command::Init,
        cached(0, 10, true, false),
        insert(0, 10),
        memory(false, true),
    ];
    assert_eq!(refused(&own), Refusal::OwnBlock);
}

#[test]
fn a_descriptor_that_is_no_command_ends_the_packet() {
    let mut device = device(false, Limits::default());
    outcomes(&mut device, &[Command::Init, cached(0, 10, true, false)]);
    device.submit([0xff; DESCRIPTOR_BYTES]).expect("room");
    let left = outcomes(&mut device, &[memory(false, true), insert(0, 10)]);
    assert!(matches!(
        left[..],
        [Outcome::Refused(Refusal::Descriptor(_))]
    ));
    assert!(!device.transmit());
    // The packet's reads are over, so the insert did not wait.
    assert_eq!(device.executed(), 5);
}

#[test]
fn an_insert_waits_for_the_packet_that_reads_its_block() {
    let mut device = device(false, Limits::default());
    let packet = [Command::Init, cached(0, 10, true, true)];
    outcomes(&mut device, &packet);
    outcomes(&mut device, &[insert(5, 600), insert(2_000, 1)]);
    assert_eq!(device.executed(), 2);
    assert!(device.transmit());
    device.run();
    assert_eq!(device.executed(), 4);
    let sent = device.poll_complete().expect("sent");
    assert_eq!(
        (sent.command, sent.outcome),
        (1, Outcome::Sent { bytes: 10 })
    );
}

#[test]
fn queues_keep_their_limits() {
    let limits = Limits {
        commands: 8,
        packets: 2,
        pieces_per_packet: 2,
        completions: 4,
    };
    let mut device = device(false, limits);
    let before = device.pieces.capacity();
    device
        .submit(Command::Init.encode().expect("fits"))
        .expect("room");
    let mut sent = 0;
    for _ in 0..500 {
        let packet = memory(true, true).encode().expect("fits");
        while device.submit(packet).is_ok() {}
        device.run();
        assert!(device.packets_waiting() <= 2 && device.completions.len() <= 4);
        sent += u32::from(device.transmit());
        while device.poll_complete().is_some() {}
    }
    assert!(sent > 100);
    assert_eq!(device.pieces.capacity(), before);
}
