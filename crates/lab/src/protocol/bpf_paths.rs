//! What the kernel program does for a packet: frames go through it in a virtual machine
//! (`BPF_PROG_TEST_RUN`), and its own instructions are counted apart from those of the helpers that
//! it calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fairlead_trace::references::{Event, Header, Reader, Writer};

use super::spread::{Spread, Values};
use super::stacks::built_beside;
use super::tracer::{GuestSpec, trace_guest};
use crate::control::Control;
use crate::error::LabError;

/// The guest program, and what builds it.
const PROGRAM: &str = "fairlead-kernel-guest";
const RECIPE: &str = "scripts/stacks --kernel";
const PROGRAM_VARIABLE: &str = "FAIRLEAD_KERNEL_GUEST";
/// The module that its interfaces need, where a kernel's modules are.
const MODULE: &str = "kernel/drivers/net/dummy.ko";
/// Name of memory of large maps.
const MAP_AREA: &str = "bpf_map_area";
const LINE_SHIFT: u32 = 6;
/// Frames of each kind, at most.
const ROUNDS_MAX: u32 = 10_000;

/// What frames of one kind cost. What the kernel does before and after the program is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct PathCounts {
    /// The kind.
    pub name: String,
    /// How many frames.
    pub frames: u64,
    /// Instructions of the program itself.
    pub own: Spread,
    /// Instructions of what it calls, from its first instruction to its last one.
    pub helpers: Spread,
    /// Distinct lines of 64 bytes with instructions of either.
    pub instruction_lines: Spread,
    /// Distinct lines of 64 bytes that either reads or writes.
    pub data_lines: Spread,
    /// Of these, lines of maps that are larger than 32 KiB.
    pub map_lines: Spread,
}

/// The virtual machine for this kernel: `rounds` frames of each kind.
///
/// # Errors
/// A number out of range; no guest program, or no module of this kernel.
pub fn spec(kernel: &Path, rounds: u32) -> Result<GuestSpec, LabError> {
    if !(1..=ROUNDS_MAX).contains(&rounds) {
        let problem = format!("write a number from 1 to {ROUNDS_MAX}");
        return Err(LabError::option("--packets", rounds.to_string(), problem));
    }
    let program = built_beside(PROGRAM, RECIPE, PROGRAM_VARIABLE)?;
    let module = module_of(kernel)?;
    let read = |path: &Path| fs::read(path).map_err(|error| LabError::file(path, error));
    Ok(GuestSpec {
        kernel: kernel.to_owned(),
        program: read(&program)?,
        files: vec![("dummy.ko".to_owned(), read(&module)?)],
        arguments: vec![rounds.to_string()],
        cpu: None,
        packets: 17 * u64::from(rounds),
    })
}

/// The module, where packages put it: `boot/vmlinuz-VERSION` has `lib/modules/VERSION` beside
/// `boot`.
fn module_of(kernel: &Path) -> Result<PathBuf, LabError> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let version = name.strip_prefix("vmlinuz-").unwrap_or(&name);
    let root = kernel.parent().and_then(Path::parent);
    let modules = [root, Some(Path::new("/"))].into_iter().flatten();
    let candidates = modules.flat_map(|root| {
        let folder = root.join("lib/modules").join(version);
        [
            folder.join(MODULE),
            root.join("usr").join(&folder).join(MODULE),
        ]
    });
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        LabError::Protocol(format!(
            "{}: no lib/modules/{version}/{MODULE} beside its folder, which the interfaces of the \
             machine need (a compressed one must be unpacked)",
            kernel.display()
        ))
    })
}

/// The compilers of the BPF programs within a program, as they say themselves.
pub(super) fn compilers(program: &[u8]) -> Vec<String> {
    let said = program.split(|byte| !(b' '..=b'~').contains(byte));
    let mut found: Vec<String> = said
        .map(String::from_utf8_lossy)
        .filter(|text| text.contains("clang version ") && text.len() < 100)
        .map(std::borrow::Cow::into_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Traces the machine and counts, by kind of frame.
///
/// # Errors
/// It cannot be traced, or its program failed.
pub fn measure(
    spec: &GuestSpec,
    control: &dyn Control,
) -> Result<(Header, Vec<PathCounts>), LabError> {
    count(&traced(spec, control)?)
}

/// The machine's trace, as a file has it.
///
/// # Errors
/// It cannot be traced, or its program failed.
pub fn traced(spec: &GuestSpec, control: &dyn Control) -> Result<Vec<u8>, LabError> {
    let unwritten = |error| LabError::Protocol(format!("the trace in memory: {error}"));
    let mut writer = Writer::new(Vec::new()).map_err(unwritten)?;
    let outcome = trace_guest(spec, control, &mut |events| {
        let pushed = events.iter().try_for_each(|event| writer.push(*event));
        pushed.map_err(unwritten)
    })?;
    match outcome.trouble {
        Some(trouble) => Err(LabError::Protocol(trouble)),
        None => writer.finish(outcome.header).map_err(unwritten),
    }
}

/// Counts a trace of the machine. What is whose is known only from its end.
///
/// # Errors
/// It cannot be read.
pub fn count(trace: &[u8]) -> Result<(Header, Vec<PathCounts>), LabError> {
    let mut reader = Reader::new("the trace", Cursor::new(trace)).map_err(super::unreadable)?;
    let mut paths = Paths::new(reader.header());
    let mut events = Vec::new();
    while reader.next_chunk(&mut events).map_err(super::unreadable)? {
        events.iter().for_each(|event| paths.add(event));
    }
    let header = reader.header().clone();
    let counts = paths.finish(&header);
    Ok((header, counts))
}

/// What is known of one frame.
#[derive(Debug, Default)]
struct Frame {
    own: u64,
    helpers: u64,
    lines: Lines,
    /// Since the last instruction of the program, which may have been the last of all.
    since: u64,
    lines_since: Vec<(bool, u64)>,
    is_inside: bool,
    /// The instruction at hand is the program's.
    is_own: bool,
}

#[derive(Debug, Default)]
struct Lines {
    instructions: BTreeSet<u64>,
    data: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Kind {
    own: Values,
    helpers: Values,
    instruction_lines: Values,
    data_lines: Values,
    map_lines: Values,
}

/// Counts frames.
#[derive(Debug)]
struct Paths {
    own: Vec<Range<u64>>,
    maps: Vec<Range<u64>>,
    frame: Frame,
    kinds: BTreeMap<u8, Kind>,
}

impl Paths {
    fn new(header: &Header) -> Self {
        let of = |is_it: &dyn Fn(&str) -> bool| {
            let symbols = header.symbols.iter().filter(|one| is_it(&one.name));
            let mut ranges: Vec<Range<u64>> = symbols
                .map(|one| one.address..one.address.saturating_add(one.size))
                .collect();
            ranges.sort_by_key(|range| range.start);
            ranges
        };
        Self {
            own: of(&is_translated),
            maps: of(&|name| name == MAP_AREA),
            frame: Frame::default(),
            kinds: BTreeMap::new(),
        }
    }

    fn add(&mut self, event: &Event) {
        let frame = &mut self.frame;
        match *event {
            Event::Begin { .. } => *frame = Frame::default(),
            Event::End { kind } => self.end(kind),
            Event::Instruction {
                address,
                length,
                repeat,
                ..
            } => {
                frame.is_own = within(&self.own, address);
                if frame.is_own {
                    frame.take();
                    frame.is_inside = true;
                    frame.own += 1;
                } else if frame.is_inside {
                    frame.since += u64::from(!repeat);
                }
                frame.touch(true, address, length);
            }
            Event::Read { address, size } | Event::Write { address, size } => {
                frame.touch(false, address, size);
            }
        }
    }

    fn end(&mut self, kind: u8) {
        let frame = std::mem::take(&mut self.frame);
        let kept = self.kinds.entry(kind).or_default();
        let in_maps = |line: &&u64| within(&self.maps, **line << LINE_SHIFT);
        kept.own.add(frame.own);
        kept.helpers.add(frame.helpers);
        kept.instruction_lines
            .add(frame.lines.instructions.len() as u64);
        kept.data_lines.add(frame.lines.data.len() as u64);
        kept.map_lines
            .add(frame.lines.data.iter().filter(in_maps).count() as u64);
    }

    fn finish(&self, header: &Header) -> Vec<PathCounts> {
        let counts = self.kinds.iter().map(|(kind, kept)| PathCounts {
            name: header.kind_name(*kind),
            frames: kept.own.number(),
            own: kept.own.spread(),
            helpers: kept.helpers.spread(),
            instruction_lines: kept.instruction_lines.spread(),
            data_lines: kept.data_lines.spread(),
            map_lines: kept.map_lines.spread(),
        });
        counts.collect()
    }
}

impl Lines {
    fn insert(&mut self, is_instruction: bool, line: u64) {
        match is_instruction {
            true => self.instructions.insert(line),
            false => self.data.insert(line),
        };
    }
}

impl Frame {
    /// The program goes on, so what came since was called by it.
    fn take(&mut self) {
        self.helpers += std::mem::take(&mut self.since);
        for (is_instruction, line) in self.lines_since.drain(..) {
            self.lines.insert(is_instruction, line);
        }
    }

    fn touch(&mut self, is_instruction: bool, address: u64, size: u8) {
        if !self.is_inside {
            return;
        }
        let last = address.saturating_add(u64::from(size).saturating_sub(1)) >> LINE_SHIFT;
        for line in address >> LINE_SHIFT..=last {
            if self.is_own {
                self.lines.insert(is_instruction, line);
            } else if self.lines_since.last() != Some(&(is_instruction, line)) {
                self.lines_since.push((is_instruction, line));
            }
        }
    }
}

/// Whether this is the name of a translated BPF program: `bpf_prog_TAG`, or `bpf_prog_TAG_NAME`.
/// Functions of the kernel have similar names.
fn is_translated(name: &str) -> bool {
    const TAG_DIGITS: usize = 16;
    let tag = name
        .strip_prefix("bpf_prog_")
        .and_then(|rest| rest.split('_').next());
    tag.is_some_and(|tag| tag.len() == TAG_DIGITS && tag.bytes().all(|one| one.is_ascii_hexdigit()))
}

fn within(ranges: &[Range<u64>], address: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= address);
    after > 0 && ranges[after - 1].contains(&address)
}

#[cfg(test)]
mod tests {
    use fairlead_trace::references::Symbol;

    use super::*;

    fn symbol(address: u64, size: u64, name: &str) -> Symbol {
        let name = name.to_owned();
        Symbol {
            address,
            size,
            name,
        }
    }

    #[test]
    fn the_program_is_told_from_what_it_calls() {
        let header = Header {
            symbols: vec![
                symbol(0x1000, 0x100, "bpf_prog_test_run_skb"),
                symbol(0x8000, 0x100, "bpf_prog_0123456789abcdef_fairlead_tc"),
                symbol(0x9000, 0x40, "bpf_prog_0123456789abcdef"),
                symbol(0x10_0000, 0x1000, MAP_AREA),
            ],
            ..Header::default()
        };
        let run = |address, repeat| Event::Instruction {
            address,
            length: 4,
            branch: false,
            repeat,
        };
        let mut paths = Paths::new(&header);
        let read = |address| Event::Read { address, size: 8 };
        for event in [
            Event::Begin { kind: 3 },
            run(0x1000, false),
            read(0x10_0000), // before the program
            run(0x8000, false),
            read(0x10_0040),
            run(0x2000, false), // a helper, with a round of `rep`
            run(0x2000, true),
            read(0x10_007c), // over the end of a line
            run(0x9000, false),
            read(0x20_0000), // no map
            run(0x1004, false),
            read(0x10_0400), // after the program
            Event::End { kind: 3 },
        ] {
            paths.add(&event);
        }
        let counts = &paths.finish(&header)[0];
        let medians = [
            counts.own,
            counts.helpers,
            counts.instruction_lines,
            counts.data_lines,
            counts.map_lines,
        ];
        assert_eq!(medians.map(|one| one.median), [2, 1, 3, 3, 2]);
        assert_eq!(counts.frames, 1);
    }

    #[test]
    fn names_of_translated_programs_have_a_tag() {
        assert!(is_translated("bpf_prog_2d84a2108683b442_fl_stray"));
        assert!(is_translated("bpf_prog_4886df04e14e137e"));
        for other in [
            "bpf_prog_test_run_skb",
            "bpf_prog_4886df04e14e137",
            "tcp_ack",
        ] {
            assert!(!is_translated(other), "{other}");
        }
    }

    #[test]
    fn kernels_without_the_module_and_numbers_out_of_range_are_refused() {
        let kernel = Path::new("/nowhere/boot/vmlinuz-0.0");
        let said = module_of(kernel).unwrap_err().to_string();
        assert!(
            said.contains("lib/modules/0.0/kernel/drivers/net/dummy.ko"),
            "{said}"
        );
        assert_eq!(spec(kernel, 0).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn compilers_are_found_among_bytes() {
        let bytes = b"\x01Debian clang version 14.0.6\0\0Debian clang version 14.0.6\0GCC: 12\0";
        assert_eq!(compilers(bytes), ["Debian clang version 14.0.6"]);
    }
}
