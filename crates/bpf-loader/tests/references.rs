//! The far end of a link with references, packet by packet: what it keeps, what it resolves, and
//! that no list makes it do anything else.

use fairlead_base::Rng;
use fairlead_bpf_loader::{Fate, ResolveProgram, is_built_in, token};
use fairlead_netns::trial::{Needs, in_namespaces, name_of, skip};

const SECRET: &[u8] = b"of both ends of this link";
const EPOCH: u32 = 0x1122_3344;
/// The loopback's.
const INTERFACE: u32 = 1;
const TCP: u8 = 6;
const LIST: u8 = 253;
const REFERENCES: u8 = 1;
const INSERTS: u8 = 2;
/// The store's: 32 blocks.
const STORE_BYTES: u64 = 128 << 10;

fn sum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2);
    let words = pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.fold(0u64, |sum, word| sum + u64::from(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A frame of the one connection of these tests, with this sequence number.
fn frame(protocol: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let mut ip = vec![0x45, 0];
    ip.extend((40 + payload.len() as u16).to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    out.extend(ip);
    out.extend(tcp(seq));
    out.extend(payload);
    out
}

fn tcp(seq: u32) -> Vec<u8> {
    let mut tcp = vec![0x1f, 0x91, 0x9c, 0x40];
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp
}

#[derive(Clone, Copy)]
struct Item {
    block: u32,
    generation: u32,
    from: u16,
    len: u16,
    at: u16,
    sum: u16,
}

/// A list's frame, with a right checksum.
fn list(kind: u8, seq: u32, payload: u16, segment: u16, items: &[Item], rear: &[u8]) -> Vec<u8> {
    let mut list = b"FLR1".to_vec();
    list.extend([kind, items.len() as u8]);
    for half in [rear.len() as u16, payload, segment, 0, 0] {
        list.extend(half.to_be_bytes());
    }
    list.extend(EPOCH.to_be_bytes());
    list.extend(token(SECRET));
    list.extend([0; 4]);
    for item in items {
        list.extend(item.block.to_be_bytes());
        list.extend(item.generation.to_be_bytes());
        for half in [item.from, item.len, item.at, item.sum] {
            list.extend(half.to_be_bytes());
        }
    }
    list.extend(rear);
    let all = [tcp(seq), list.clone()].concat();
    list[12..14].copy_from_slice(&(!sum(&all)).to_be_bytes());
    frame(LIST, seq, &list)
}

fn with_program(name: &str, test: impl FnOnce(&ResolveProgram)) {
    if !is_built_in() {
        return skip(name, "built without the kernel program");
    }
    in_namespaces(
        name,
        Needs::default(),
        |_| {},
        || match ResolveProgram::attach("lo", SECRET, STORE_BYTES) {
            Ok(program) => test(&program),
            Err(why) => skip(name, &format!("no such program here: {why}")),
        },
    );
}

fn run<F: FnOnce(&ResolveProgram)>(test: F) {
    with_program(name_of::<F>(), test);
}

fn drops(program: &ResolveProgram, frame: &[u8]) {
    let fate = program.try_frame(frame, INTERFACE).expect("a run");
    assert_eq!(fate, Fate::Drop);
}

#[test]
fn what_was_announced_is_kept_compared_and_put_in_place() {
    run(|program| {
        let content: Vec<u8> = (0..1_400u32).map(|at| (at * 7 % 251) as u8).collect();
        let item = Item {
            block: 5,
            generation: 7,
            from: 0,
            len: 1_000,
            at: 400,
            sum: sum(&content[400..]),
        };
        let announced = list(INSERTS, 1_000, 1_400, 700, &[item], &[]);
        drops(program, &announced);
        // Two segments; the part begins within the first.
        for at in [0, 700] {
            let segment = frame(TCP, 1_000 + at as u32, &content[at..at + 700]);
            let fate = program.try_frame(&segment, INTERFACE).expect("a run");
            assert_eq!(fate, Fate::Pass);
        }
        assert_eq!(program.counts().stored, 1);
        let refers = |block, generation| {
            let inline = Item {
                block: u32::MAX,
                generation: 0,
                from: 0,
                len: 3,
                at: 0,
                sum: 0,
            };
            let item = Item {
                block,
                generation,
                from: 10,
                len: 990,
                at: 3,
                sum: 0,
            };
            list(REFERENCES, 9_000, 993, 500, &[inline, item], b"abc")
        };
        drops(program, &refers(5, 7));
        let counts = program.counts();
        assert_eq!((counts.references, counts.unknown), (1, 0));
        assert_eq!((counts.segments, counts.bytes), (2, 993));
        // Another generation, another block, no block at all.
        for (block, generation) in [(5, 8), (6, 7), (32, 7), (u32::MAX - 1, 7)] {
            drops(program, &refers(block, generation));
        }
        assert_eq!(program.counts().unknown, 4);
        // From now on segments go the same way, so that none overtakes.
        let fate = program.try_frame(&frame(TCP, 1, b"later"), INTERFACE);
        assert_eq!(fate.expect("a run"), Fate::Redirect);
    });
}

#[test]
fn what_was_damaged_on_the_way_is_not_kept() {
    run(|program| {
        let content = [0x55; 600];
        let item = Item {
            block: 1,
            generation: 1,
            from: 0,
            len: 600,
            at: 0,
            sum: sum(&content) ^ 1,
        };
        drops(program, &list(INSERTS, 50, 600, 600, &[item], &[]));
        let fate = program.try_frame(&frame(TCP, 50, &content), INTERFACE);
        assert_eq!(fate.expect("a run"), Fate::Pass);
        let counts = program.counts();
        assert_eq!((counts.stored, counts.damaged), (0, 1));
        let mut damaged = list(INSERTS, 50, 600, 600, &[item], &[]);
        *damaged.last_mut().expect("bytes") ^= 0x40;
        drops(program, &damaged);
        assert_eq!(program.counts().strange, 1);
    });
}

#[test]
fn random_lists_are_counted_and_never_more_than_dropped() {
    run(|program| {
        let mut rng = Rng::new(11);
        let lists = 20_000u64;
        for number in 0..lists {
            let mut small = |most: u32| rng.below(most);
            let count = 1 + small(26);
            let (payload, rear) = (small(66_000) as u16, small(910) as usize);
            let (segment, seq) = (small(4_200) as u16, small(9));
            let kind = small(6) as u8;
            let items: Vec<Item> = (0..count)
                .map(|_| Item {
                    block: match small(4) {
                        0 => u32::MAX,
                        _ => small(40),
                    },
                    generation: small(3),
                    from: small(4_200) as u16,
                    len: small(4_200) as u16,
                    at: small(9_000) as u16,
                    sum: small(3) as u16,
                })
                .collect();
            let mut frame = list(kind, seq, payload, segment, &items, &vec![1; rear]);
            if number % 3 == 0 {
                let at = 34 + small(frame.len() as u32 - 34) as usize;
                frame[at] ^= 1 << small(8);
            }
            if number % 7 == 0 {
                frame.truncate(34 + 20 + small(200) as usize);
            }
            let fate = program.try_frame(&frame, INTERFACE).expect("a run");
            // A header that says it is shorter than it is belongs to nobody, and goes on.
            assert!(
                matches!(fate, Fate::Drop | Fate::Pass),
                "{number}: {fate:?}"
            );
        }
        let counts = program.counts();
        assert!(counts.lists > lists / 10 * 9, "{counts:?}");
        assert!(counts.strange > 0 && counts.invalid > 0, "{counts:?}");
        assert!(counts.references <= counts.lists, "{counts:?}");
        assert_eq!(counts.failed + counts.replaced, 0, "{counts:?}");
    });
}
