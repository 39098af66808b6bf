//! `content::Device`: arbitrary descriptors, and packets sent in between.

use fairlead_content::{
    BlockSize, Command, DESCRIPTOR_BYTES, Device, Extent, Flags, HostAddress, Limits, Outcome,
    Piece, Store,
};

use super::Target;
use crate::novelty::note;

pub(super) const TARGET: Target = Target {
    name: "descriptors",
    about: "a device's commands: pieces are inside the cache, queues keep their limits, no read is \
        left behind",
    run,
    bytes_max: 2_000,
    tokens: &[
        b"\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\x02\0",
        b"\0\0\0\0\0\0\0\x30\x03\0\0\0\0\0\x40\0\0",
        b"\0\0\0\0\0\0\0\x40\x01\0\0\0\0\0\x40\0\0",
        b"\0\0\0\0\0\0\0\x40\x02\0\x02\0\0\0\0\x02\0",
    ],
};

const BLOCKS: u64 = 8;
const BLOCK: u64 = 512;
const LIMITS: Limits = Limits {
    commands: 32,
    packets: 4,
    pieces_per_packet: 8,
    completions: 16,
};

/// Counts what it is asked, and checks that it may be.
#[derive(Debug)]
struct Checked {
    can_detach: bool,
    packet_bytes: u64,
    is_open: bool,
    sent: Vec<u64>,
}

impl Store for Checked {
    fn cache_bytes(&self) -> u64 {
        BLOCKS * BLOCK
    }

    fn insert(&mut self, _from: HostAddress, to: Extent) {
        assert!(to.end() <= BLOCKS * BLOCK && to.len > 0);
    }

    fn send(&mut self, piece: Piece, flags: Flags) {
        assert_eq!(flags.first, !self.is_open, "packets begin and end");
        if flags.first {
            self.packet_bytes = 0;
        }
        let len = match piece {
            Piece::Memory { len, .. } => len,
            Piece::Cache { from, .. } => {
                assert!(from.end() <= BLOCKS * BLOCK);
                let block = BlockSize::new(BLOCK).expect("a power of two");
                assert_eq!(from.lines(block).count(), 1, "within one block");
                from.len
            }
        };
        self.packet_bytes += u64::from(len);
        self.is_open = !flags.last;
        if flags.last {
            self.sent.push(self.packet_bytes);
        }
    }

    fn detach(&mut self, extent: Extent) -> bool {
        assert!(extent.end() <= BLOCKS * BLOCK);
        self.can_detach
    }
}

fn complete(device: &mut Device<Checked>) {
    while let Some(completion) = device.poll_complete() {
        match completion.outcome {
            Outcome::Sent { bytes } => {
                note("descriptors.sent", u64::from(bytes > 100));
                let sent = device.store_mut().sent.remove(0);
                assert_eq!(sent, bytes);
            }
            Outcome::Ready { bytes } => assert_eq!(bytes, BLOCKS * BLOCK),
            Outcome::Refused(refusal) => note(&format!("descriptors.{refusal:?}"), 0),
        }
    }
}

fn run(bytes: &[u8]) {
    let store = Checked {
        can_detach: bytes.len().is_multiple_of(2),
        packet_bytes: 0,
        is_open: false,
        sent: Vec::new(),
    };
    let block = BlockSize::new(BLOCK).expect("a power of two");
    let mut device = Device::new(store, block, LIMITS);
    let mut submitted = 0u64;
    for step in bytes.chunks_exact(DESCRIPTOR_BYTES + 1) {
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor.copy_from_slice(&step[..DESCRIPTOR_BYTES]);
        if let Ok(command) = Command::decode(&descriptor) {
            assert_eq!(command.encode(), Some(descriptor));
        }
        submitted += u64::from(device.submit(descriptor).is_ok());
        let order = step[DESCRIPTOR_BYTES];
        if order & 1 == 0 {
            device.run();
        }
        if order & 2 != 0 {
            device.transmit();
        }
        if order & 4 != 0 {
            complete(&mut device);
        }
        assert!(device.packets_waiting() <= LIMITS.packets);
    }
    // Each round executes a command or sends a packet.
    for _ in 0..2 * submitted + 2 {
        complete(&mut device);
        device.run();
        device.transmit();
    }
    complete(&mut device);
    assert_eq!(device.executed(), submitted, "no command waits for ever");
    assert_eq!(device.packets_waiting(), 0);
}
