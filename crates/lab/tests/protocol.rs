//! Sweeps over a trace of references against caches simulated one at a time.

use std::io::Cursor;

use fairlead_cache::memory::{Geometry, Hierarchy, Level, PolicyLevel, REPLACEMENTS};
use fairlead_lab::protocol::caches::count;
use fairlead_lab::protocol::layouts::compare;
use fairlead_lab::protocol::machine::Machine;
use fairlead_lab::protocol::paper::page::page;
use fairlead_lab::protocol::paper::{Scenario, Study, StudySpec};
use fairlead_lab::protocol::sweep::{SweepSpec, sweep};
use fairlead_lab::protocol::tally::{Part, State};
use fairlead_lab::{Silent, Size};
use fairlead_trace::references::{Event, Header, Reader, Writer};

/// Numbers by chance, from a seed (a linear congruential generator).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const PACKETS: usize = 40;
const WARM_UP: usize = 3;

/// Packets of two kinds: loops over code of several KiB, and data all over the place.
fn packets() -> Vec<(u8, Vec<Event>)> {
    let mut chance = Chance(1);
    let packet = |at: usize| {
        let kind = (at % 2) as u8;
        let mut events = Vec::new();
        for step in 0..2_000u64 {
            events.push(Event::Instruction {
                address: 0x40_0000 + u64::from(kind) * 70_000 + (step * 7) % 9_000,
                length: 7,
                branch: false,
                repeat: false,
            });
            let address = 0x7fff_0000_0000 + chance.below(40_000);
            if step % 3 == 0 {
                events.push(Event::Read { address, size: 8 });
            }
            if step % 7 == 0 {
                events.push(Event::Write {
                    address: address + 1,
                    size: 16,
                });
            }
        }
        (kind, events)
    };
    (0..PACKETS).map(packet).collect()
}

fn trace(packets: &[(u8, Vec<Event>)]) -> Reader<Cursor<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (kind, events) in packets {
        writer.push(Event::Begin { kind: *kind }).unwrap();
        events.iter().for_each(|event| writer.push(*event).unwrap());
        writer.push(Event::End { kind: *kind }).unwrap();
    }
    let header = Header {
        kinds: vec!["even".to_owned(), "odd".to_owned()],
        ..Header::default()
    };
    Reader::new("x.refs", Cursor::new(writer.finish(header).unwrap())).unwrap()
}

/// One cache alone: what is asked of it.
trait Alone {
    fn misses(&mut self, address: u64, size: u32) -> bool;
    fn flush(&mut self);
}

impl Alone for Level {
    fn misses(&mut self, address: u64, size: u32) -> bool {
        Self::misses(self, address, size)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }
}

impl Alone for PolicyLevel {
    fn misses(&mut self, address: u64, size: u32) -> bool {
        Self::misses(self, address, size)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }
}

/// Misses in one cache, by kind.
fn alone(
    packets: &[(u8, Vec<Event>)],
    part: Part,
    state: State,
    mut level: impl Alone,
) -> [u64; 2] {
    let mut misses = [0; 2];
    let mut seen = [0; 2];
    for (kind, events) in packets {
        let kind = usize::from(*kind);
        if state == State::Cold {
            level.flush();
        }
        seen[kind] += 1;
        let counts = state == State::Cold || seen[kind] > WARM_UP;
        for event in events {
            let missed = match (part, *event) {
                (
                    Part::Instruction,
                    Event::Instruction {
                        address, length, ..
                    },
                ) => level.misses(address, u32::from(length)),
                (Part::Data, Event::Read { address, size } | Event::Write { address, size }) => {
                    level.misses(address, u32::from(size))
                }
                _ => false,
            };
            misses[kind] += u64::from(missed && counts);
        }
    }
    misses
}

#[test]
fn policies_are_swept_one_cache_at_a_time() {
    let packets = packets();
    for replacement in REPLACEMENTS {
        let spec = SweepSpec {
            sizes: [4, 16].map(|size| Size(size << 10)).to_vec(),
            ways: vec![1, 4],
            lines: vec![16, 64],
            policy: replacement.name.to_owned(),
            warm_up: WARM_UP as u64,
            ..SweepSpec::default()
        };
        let report = sweep(&mut trace(&packets), &spec, 2, &Silent).unwrap();
        assert_eq!(report.misses.len(), 2 * 2 * 2 * 2 * 2 * 2);
        for row in &report.misses {
            let geometry = Geometry::new(row.size.0, row.ways, row.line).unwrap();
            let level = PolicyLevel::new(geometry, replacement).unwrap();
            let kind = usize::from(row.kind == "odd");
            let wanted = alone(&packets, row.part, row.state, level)[kind];
            assert_eq!(row.misses, wanted, "{}: {row:?}", replacement.name);
        }
    }
}

#[test]
fn a_sweep_equals_each_cache_alone() {
    let packets = packets();
    let spec = SweepSpec {
        sizes: [4, 8, 32, 48].map(|size| Size(size << 10)).to_vec(),
        ways: vec![1, 4, 12],
        lines: vec![16, 64],
        machines: vec![Machine::find("r4400-100").unwrap()],
        warm_up: WARM_UP as u64,
        ..SweepSpec::default()
    };
    let report = sweep(&mut trace(&packets), &spec, 2, &Silent).unwrap();
    assert_eq!(report.packets.len(), 2);
    assert_eq!(report.packets[0].packets, PACKETS as u64 / 2);
    assert_eq!(report.packets[0].instructions.median, 2_000);
    let mut checked = 0;
    for row in &report.misses {
        let geometry = Geometry::new(row.size.0, row.ways, row.line).unwrap();
        let kind = usize::from(row.kind == "odd");
        let wanted = alone(&packets, row.part, row.state, Level::new(geometry))[kind];
        assert_eq!(row.misses, wanted, "{row:?}");
        let counted = match row.state {
            State::Cold => PACKETS / 2,
            State::Warm => PACKETS / 2 - WARM_UP,
        };
        assert_eq!(row.packets, counted as u64);
        checked += 1;
    }
    // 4 sizes × 2 numbers of ways, and 48 KiB of 12 ways; 2 lines, parts, states, kinds.
    assert_eq!(checked, (3 * 2 + 1) * 16);
    let fit = |kind: &str, ways| {
        let is_it = |row: &&fairlead_lab::protocol::report::FitRow| {
            row.part == Part::Instruction
                && (row.kind.as_str(), row.line, row.ways) == (kind, 64, ways)
        };
        report.fits.iter().find(is_it).unwrap().size
    };
    assert_eq!(
        fit("even", 4),
        Some(Size(32 << 10)),
        "two loops of 9,000 bytes"
    );
    for row in &report.machines {
        let counted = row.packets * row.cycles_ideal.round() as u64;
        assert_eq!(counted, row.packets * 2_000);
        assert!(row.cycles_ideal_data < row.cycles.mean);
        assert!(row.mcpi_instructions > 0.0 && row.mcpi_data > 0.0);
    }
    assert_eq!(report.machines.len(), 4);
    assert_eq!(report.clocks.len(), 4 * spec.clocks.len());
    let lines = report.packet_table().csv().lines().count();
    assert_eq!(lines, 5);
}

#[test]
fn counts_have_the_documented_names() {
    let geometry = |size, ways, line| Geometry::new(size, ways, line).unwrap();
    let first = geometry(32 << 10, 8, 64);
    let mut caches = Hierarchy::new(first, first, geometry(1 << 20, 16, 64));
    let counts = count(&mut trace(&packets()), &mut caches, &Silent).unwrap();
    let json = serde_json::to_value(counts).unwrap();
    assert_eq!(json["i1"]["references"], 2_000 * PACKETS);
    assert_eq!(json["d1"]["reads"], 667 * PACKETS);
    assert_eq!(json["d1"]["writes"], 286 * PACKETS);
    for (cache, name) in [
        ("i1", "misses"),
        ("d1", "read_misses"),
        ("d1", "write_misses"),
        ("ll", "instruction_misses"),
        ("ll", "read_misses"),
        ("ll", "write_misses"),
    ] {
        assert!(json[cache][name].as_u64().unwrap() > 0, "{cache} {name}");
    }
}

#[test]
fn impossible_sweeps_are_refused() {
    let said = |spec: SweepSpec| {
        let error = sweep(&mut trace(&packets()[..1]), &spec, 1, &Silent).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    let usual = SweepSpec::default;
    assert!(
        said(SweepSpec {
            ways: vec![17],
            ..usual()
        })
        .contains("from 1 to 16")
    );
    assert!(
        said(SweepSpec {
            lines: vec![48],
            ..usual()
        })
        .contains("32 or 64")
    );
    assert!(
        said(SweepSpec {
            sizes: vec![Size(3000)],
            ..usual()
        })
        .contains("power of two")
    );
    let many = SweepSpec {
        sizes: (12..26).map(|at| Size(1 << at)).collect(),
        ..usual()
    };
    assert!(
        said(SweepSpec {
            lines: [16, 32, 64].repeat(30),
            ..many
        })
        .contains("at most")
    );
}

/// A stack whose packets run once through this number of bytes of code.
fn straight(stack: &str, code_bytes: u64, asked: &StudySpec) -> Scenario {
    let instruction = |step: u64| Event::Instruction {
        address: 0x40_0000 + step * 4,
        length: 4,
        branch: false,
        repeat: false,
    };
    let events: Vec<Event> = (0..code_bytes / 4).map(instruction).collect();
    let packets: Vec<(u8, Vec<Event>)> = (0..30).map(|_| (0, events.clone())).collect();
    let report = sweep(&mut trace(&packets), &asked.sweep, 1, &Silent).unwrap();
    Scenario {
        stack: stack.to_owned(),
        size: 1,
        connections: 1,
        report,
        layers: None,
    }
}

#[test]
fn claims_are_judged_by_stack() {
    let asked = StudySpec::new(true).unwrap();
    // In 16 KiB the one misses everything, the other nothing; 64 KiB hold both.
    let scenarios = vec![
        straight("smoltcp-tcp", 40 << 10, &asked),
        straight("smoltcp-udp", 8 << 10, &asked),
        straight("datapath", 8 << 10, &asked),
    ];
    let study = Study::new(asked, scenarios);
    let verdict = |number: &str, stack: &str| {
        let is_it = |claim: &&fairlead_lab::paper::Claim| {
            claim.says.starts_with(number) && claim.trace == stack
        };
        study.claims.iter().find(is_it).unwrap().holds
    };
    assert_eq!(
        verdict("1:", "smoltcp-tcp"),
        Some(true),
        "one miss in 8 instructions"
    );
    assert_eq!(
        verdict("3:", "smoltcp-tcp"),
        Some(true),
        "there are no data"
    );
    assert_eq!(verdict("4:", "smoltcp-udp"), Some(true));
    assert_eq!(
        verdict("4:", "smoltcp-tcp"),
        Some(true),
        "the second level is cold"
    );
    assert_eq!(verdict("5:", "datapath"), None);
    assert_eq!(
        verdict("6:", "smoltcp-tcp"),
        Some(false),
        "a loop in LRU misses with more ways, too"
    );
    assert_eq!(verdict("7:", "smoltcp-tcp"), Some(true));
    assert_eq!(verdict("7:", "datapath"), None);
    assert_eq!(
        verdict("8:", "smoltcp-udp"),
        Some(true),
        "nothing is waited for"
    );
    assert_eq!(verdict("8:", "smoltcp-tcp"), Some(false));
    assert_eq!(study.claims.len(), 3 * 8);
    let html = page(&study);
    assert!(html.starts_with("<!doctype html>") && html.matches("<svg").count() >= 2);
    assert_eq!(
        html.matches("does not hold").count(),
        study.claim_table().csv().matches("does not").count()
    );
    let tables = study.tables();
    assert!(tables.iter().all(|(name, _)| name.ends_with(".csv")));
    assert!(tables[1].1.rows.len() == 3 * 4 * 2, "machines and states");
}

#[test]
fn builds_are_compared_with_the_first() {
    let asked = StudySpec::new(true).unwrap();
    let report = |code_bytes| straight("smoltcp-tcp", code_bytes, &asked).report;
    let rows = compare(&[report(8 << 10), report(40 << 10), report(4 << 10)]);
    let row = |what: &str, machine: &str| {
        let is_it = |row: &&fairlead_lab::protocol::layouts::LayoutRow| {
            (&row.what[..], &row.machine[..]) == (what, machine)
        };
        let row = rows.iter().find(is_it).unwrap();
        [row.first, row.least, row.most].map(|value| value as u64)
    };
    assert_eq!(row("instructions", ""), [2_048, 1_024, 10_240]);
    assert_eq!(row("I lines (64 B)", ""), [128, 64, 640]);
    // 40 KiB in 16 KiB of one way: every set has two or three lines in turn.
    assert_eq!(row("I misses, warm", "r4400-100"), [0, 0, 1_280]);
}
