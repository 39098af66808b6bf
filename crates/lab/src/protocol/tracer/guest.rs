//! A virtual machine whose kernel is traced: a Linux kernel of the user's, and a first program that
//! marks packets and says what the kernel's functions are called.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fairlead_trace::references::{Event, Header, Symbol};

use super::emulator::{Emulator, TracerFile};
use super::initramfs;
use super::load_map::value;
use super::object_file::{ObjectFile, Symbol as FileSymbol};
use super::run::{
    Ended, Outcome, Run, SEED, arguments_of_own_marks, names_of_own_kinds, not_loaded, said_in,
};
use crate::control::Control;
use crate::error::LabError;

/// Name of all code of the first program.
const GUEST: &str = "fairlead_guest";
/// By these a guest says text.
const SAY: &str = "fairlead_guest_say";
const LETTERS: &str = "fairlead_guest_letters";
/// Options of the kernel: addresses are not drawn; the emulated processor executes nothing
/// speculatively, so nothing is to be mitigated; what only takes time is left out; a panic ends the
/// machine, as a restart does.
const KERNEL_OPTIONS: &str = "quiet nokaslr norandmaps mitigations=off tsc=reliable \
     cryptomgr.notests panic=-1 reboot=t console=ttyS0 rdinit=/init --";
/// The processor that is emulated, unless another one is named.
const CPU: &str = "Nehalem";
/// The machine's clock begins with this day and counts instructions.
const RTC: &str = "base=2000-01-01T00:00:00,clock=vm";
/// The emulator, and its package.
const EMULATOR: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");
const ISA: &str = "x86_64";
/// Of the machine.
const MEMORY: &str = "256M";
/// From the start of the machine to its first packet. Emulated kernels take 10 to 60 seconds.
const BOOT_PATIENCE: Duration = Duration::from_secs(300);
/// Functions in the header, at most.
const SYMBOLS_MAX: usize = 1 << 14;
/// Areas of data in the header, at most.
const AREAS_MAX: usize = 1 << 10;
/// Code is noted in pieces of this many bytes.
const PIECE_SHIFT: u32 = 4;
/// Pieces of code that are noted, at most.
const PIECES_MAX: usize = 1 << 20;
/// Where the upper half of addresses begins, which is the kernel's.
const KERNEL_FROM: u64 = 1 << 63;
/// Longest function of which the last one is taken.
const LAST_BYTES: u64 = 1 << 12;

/// What to trace.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// The kernel, as boot loaders take it.
    pub kernel: PathBuf,
    /// The first program: its file's contents. It is linked statically and has marks of packets.
    pub program: Vec<u8>,
    /// Other files of the machine: path from the root, and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// Its arguments, without spaces.
    pub arguments: Vec<String>,
    /// The processor that is emulated; `None` for the default.
    pub cpu: Option<String>,
    /// Packets that are expected, for the progress bar.
    pub packets: u64,
}

/// Whether virtual machines can be traced.
pub fn has_machine_emulator() -> bool {
    Emulator::find(EMULATOR.0, EMULATOR.1).is_ok()
}

/// Runs a virtual machine and hands its events to `sink`.
///
/// # Errors
/// No emulator, a file that is no kernel, a guest that fails, or that has no packet in time.
pub fn trace_guest(
    spec: &GuestSpec,
    control: &dyn Control,
    sink: &mut dyn FnMut(&[Event]) -> Result<(), LabError>,
) -> Result<Outcome, LabError> {
    check_kernel(&spec.kernel)?;
    let emulator = Emulator::find(EMULATOR.0, EMULATOR.1)?;
    let files = Files::new(spec, &emulator)?;
    let (reader, writer) = io::pipe().map_err(|error| LabError::file(&spec.kernel, error))?;
    let pipe = format!("/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    let mut plugin = format!("{},out={pipe}", files.tracer.path().display());
    for argument in arguments(&files.program)? {
        plugin += &format!(",{argument}");
    }
    let mut command = command_of(spec, &emulator, &files);
    command.args(["-plugin", &plugin]);
    let stderr = File::create(&files.stderr);
    command.stderr(stderr.map_err(|error| LabError::file(&files.stderr, error))?);

    control.begin("tracing a virtual machine", spec.packets);
    let patient = Patient::new(control);
    let mut code = Code::default();
    let mut noting = |events: &[Event]| {
        code.note(events);
        sink(events)
    };
    let run = Run::start(command, reader, writer, &emulator)?;
    let ended = run.follow(&patient, &mut noting, true);
    control.end();
    match ended {
        Err(LabError::Stopped) if !control.stopped() => {
            let seconds = BOOT_PATIENCE.as_secs();
            Err(LabError::Protocol(format!(
                "{}: no packet after {seconds} seconds; the console: {}",
                spec.kernel.display(),
                last_of(&files.console)
            )))
        }
        ended => outcome(spec, &files, emulator, &ended?, &code),
    }
}

/// What a machine is made of, and what it writes: files of this run's own.
struct Files {
    program: ObjectFile,
    initial: PathBuf,
    console: PathBuf,
    stderr: PathBuf,
    /// The last one: with it the folder is removed.
    tracer: TracerFile,
}

impl Files {
    fn new(spec: &GuestSpec, emulator: &Emulator) -> Result<Self, LabError> {
        let tracer = TracerFile::unpack(emulator.api())?;
        let in_folder = |name: &str| tracer.folder().join(name);
        let (path, initial) = (in_folder("init"), in_folder("initial"));
        fs::write(&path, &spec.program).map_err(|error| LabError::file(&path, error))?;
        let program = ObjectFile::read(&path)?;
        if program.isa != ISA {
            let isa = program.isa;
            let problem = format!("a guest program for {isa}, where the machine is {ISA}");
            return Err(LabError::Protocol(problem));
        }
        let archive = initramfs::archive(&spec.program, &spec.files);
        fs::write(&initial, archive).map_err(|error| LabError::file(&initial, error))?;
        Ok(Self {
            program,
            initial,
            console: in_folder("console"),
            stderr: in_folder("stderr"),
            tracer,
        })
    }
}

/// What a machine that has ended leaves.
fn outcome(
    spec: &GuestSpec,
    files: &Files,
    emulator: Emulator,
    ended: &Ended,
    code: &Code,
) -> Result<Outcome, LabError> {
    let Ended { status, stream } = ended;
    let said = stream.said();
    if value(&said, "isa").is_none() {
        return Err(not_loaded(&emulator, *status, &said_in(&files.stderr)));
    }
    let name = spec.kernel.display();
    let trouble = match value(&said, "guest") {
        Some("is done") if status.success() && stream.open_packet().is_none() => None,
        Some("is done") => Some(format!("{name}: the emulator ended with {status}")),
        Some(why) => Some(format!("{name}: the guest program {why}")),
        None => Some(format!(
            "{name}: the machine ended before its program did ({status}); the console: {}",
            last_of(&files.console)
        )),
    };
    if stream.packets() == 0 {
        let why = trouble.unwrap_or_else(|| "it ended without trouble".to_owned());
        return Err(LabError::Protocol(format!("{why}; no packet has begun")));
    }
    let kernel = value(&said, "kernel").unwrap_or("of unknown version");
    let mut command = spec.arguments.clone();
    command.push(format!("on Linux {kernel}"));
    // Marks are of the first program.
    let program = &files.program;
    let mut symbols = vec![Symbol {
        address: program.from,
        size: program.to - program.from,
        name: GUEST.to_owned(),
    }];
    symbols.extend(code.symbols(&said));
    symbols.extend(said.lines().filter_map(area).take(AREAS_MAX));
    let header = Header {
        isa: program.isa.to_owned(),
        cpu: spec.cpu.clone().unwrap_or_else(|| CPU.to_owned()),
        emulator: emulator.name,
        command,
        kinds: names_of_own_kinds(program),
        symbols,
        ..Header::default()
    };
    Ok(Outcome { header, trouble })
}

fn command_of(spec: &GuestSpec, emulator: &Emulator, files: &Files) -> Command {
    let mut command = Command::new(&emulator.path);
    command.args(["-accel", "tcg,thread=single", "-smp", "1", "-m", MEMORY]);
    command.args(["-cpu", spec.cpu.as_deref().unwrap_or(CPU)]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none"]);
    // Time is the number of instructions, and nothing is drawn: boots are equal.
    command.args(["-icount", "shift=0,sleep=off", "-rtc", RTC, "-seed", SEED]);
    command
        .arg("-kernel")
        .arg(&spec.kernel)
        .arg("-initrd")
        .arg(&files.initial);
    let options = format!("{KERNEL_OPTIONS} {}", spec.arguments.join(" "));
    command.args(["-append", &options]);
    command
        .arg("-serial")
        .arg(format!("file:{}", files.console.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Arguments for the plugin: the guest's marks, and how it says text.
fn arguments(program: &ObjectFile) -> Result<Vec<String>, LabError> {
    let none = || {
        let path = program.path.display();
        LabError::Protocol(format!("{path}: no guest program: it marks no packets"))
    };
    let mut arguments = arguments_of_own_marks(program).ok_or_else(none)?;
    let say = program.symbol(SAY).ok_or_else(none)?;
    let FileSymbol { address, .. } = program.symbol(LETTERS).ok_or_else(none)?;
    arguments.push(format!(
        "say={}-{}",
        say.address,
        say.address + say.size.max(1)
    ));
    arguments.push(format!("letters={address}"));
    Ok(arguments)
}

/// A file for boot loaders: QEMU would start a machine with anything.
fn check_kernel(path: &Path) -> Result<(), LabError> {
    /// Where the boot protocol of Linux on x86 has these bytes.
    const MAGIC: (u64, [u8; 4]) = (0x202, *b"HdrS");
    let failed = |error| LabError::file(path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut found = [0; 4];
    let read = file
        .seek(SeekFrom::Start(MAGIC.0))
        .and_then(|_| file.read_exact(&mut found));
    match read {
        Ok(()) if found == MAGIC.1 => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(failed(error)),
        _ => Err(LabError::Protocol(format!(
            "{}: no Linux kernel for x86-64 (vmlinuz)",
            path.display()
        ))),
    }
}

/// The last lines of the console.
fn last_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.len() {
        0 => "is empty".to_owned(),
        count => lines[count.saturating_sub(5)..].join(" / "),
    }
}

/// Stops a machine that has no packet in time.
struct Patient<'a> {
    inner: &'a dyn Control,
    since: Instant,
    has_packets: Cell<bool>,
}

impl<'a> Patient<'a> {
    fn new(inner: &'a dyn Control) -> Self {
        Self {
            inner,
            since: Instant::now(),
            has_packets: Cell::new(false),
        }
    }
}

impl Control for Patient<'_> {
    fn stopped(&self) -> bool {
        let is_late = !self.has_packets.get() && self.since.elapsed() > BOOT_PATIENCE;
        is_late || self.inner.stopped()
    }

    fn reached(&self, step: u64) {
        self.has_packets.set(step > 0);
        self.inner.reached(step);
    }
}

/// Which code of the kernel was executed.
#[derive(Default)]
struct Code {
    pieces: HashSet<u64>,
    last: u64,
}

impl Code {
    fn note(&mut self, events: &[Event]) {
        for event in events {
            let Event::Instruction { address, .. } = *event else {
                continue;
            };
            let piece = address >> PIECE_SHIFT;
            if piece != self.last && address >= KERNEL_FROM && self.pieces.len() < PIECES_MAX {
                self.pieces.insert(piece);
                self.last = piece;
            }
        }
    }

    /// The functions that were executed, by address. A function ends where the next one begins.
    fn symbols(&self, said: &str) -> Vec<Symbol> {
        let mut all: Vec<(u64, &str)> = said.lines().filter_map(symbol).collect();
        all.sort_unstable();
        // Of several names for one function the first is taken.
        all.dedup_by(|next, kept| next.0 == kept.0);
        let mut symbols = Vec::new();
        for (at, (address, name)) in all.iter().enumerate() {
            let end = all
                .get(at + 1)
                .map_or(address.saturating_add(LAST_BYTES), |next| next.0);
            let mut pieces = (*address >> PIECE_SHIFT..=(end - 1) >> PIECE_SHIFT).take(1 << 12);
            if pieces.any(|piece| self.pieces.contains(&piece)) && symbols.len() < SYMBOLS_MAX {
                symbols.push(Symbol {
                    address: *address,
                    size: end - address,
                    name: (*name).to_owned(),
                });
            }
        }
        symbols
    }
}

/// What a line `area ADDRESS BYTES NAME` says: memory for data.
fn area(line: &str) -> Option<Symbol> {
    let mut words = line.strip_prefix("area ")?.split_ascii_whitespace();
    Some(Symbol {
        address: u64::from_str_radix(words.next()?, 16).ok()?,
        size: words.next()?.parse().ok()?,
        name: words.next()?.to_owned(),
    })
}

/// Address and name of a line `symbol ADDRESS NAME`, or of one with a module after the name.
fn symbol(line: &str) -> Option<(u64, &str)> {
    let mut words = line.strip_prefix("symbol ")?.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    Some((address, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executed_functions_are_named() {
        let fetch = |address| Event::Instruction {
            address,
            length: 3,
            branch: false,
            repeat: false,
        };
        let base = 0xffff_ffff_8100_0000;
        let mut code = Code::default();
        code.note(&[fetch(base + 0x18), fetch(base + 0x128), fetch(0x40_0000)]);
        let said = "isa x86_64\nsymbol ffffffff81000120 tcp_ack\t[tcp]\n\
                    symbol ffffffff81000000 first\nsymbol ffffffff81000020 idle\n\
                    symbol 0000000000400000 user\nsymbol x y\nguest is done\n";
        let symbols = code.symbols(said);
        let found: Vec<_> = symbols
            .iter()
            .map(|one| (one.address - base, one.size, one.name.as_str()))
            .collect();
        assert_eq!(found, [(0, 0x20, "first"), (0x120, LAST_BYTES, "tcp_ack")]);
    }

    #[test]
    fn other_files_are_no_kernels() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let said = check_kernel(&own).unwrap_err().to_string();
        assert!(said.contains("no Linux kernel"), "{said}");
    }
}
