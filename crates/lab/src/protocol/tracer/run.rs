//! One run of a program under the tracer.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use fairlead_trace::references::{Event, Header};

use super::emulator::{Emulator, TracerFile, in_path};
use super::load_map::{objects, value};
use super::object_file::ObjectFile;
use super::stream::Stream;
use crate::control::Control;
use crate::error::LabError;

/// Marks of programs that mark packets themselves.
const BEGIN: &str = "fairlead_packet_begin";
const END: &str = "fairlead_packet_end";
const KINDS: &str = "fairlead_packet_kinds";
const NAMES: &str = "fairlead_packet_names";

/// Bytes that are read at a time, and reads that may wait.
const READ_BYTES: usize = 512 << 10;
const READS_WAITING: usize = 4;
/// How often a stop is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// What may still arrive after the program has ended, in units of [`LOOK`].
const LOOKS_AFTER_END: u32 = 20;
/// Seed of what the emulator draws for the program.
pub(super) const SEED: &str = "7";
/// Of what a program writes to standard error, bytes at most.
const STDERR_BYTES_MAX: u64 = 4096;
/// The file from which a workload is started, in the folder of the tracer. The path of a program is
/// on its stack, and one of another length would move what follows.
const COPY: &str = "workload";
/// Stands for the processor in the header when QEMU chooses it.
const CPU_DEFAULT: &str = "QEMU's default";

/// What begins and ends a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Marks {
    /// The program's own marks, if it has them; else the whole run is recorded.
    #[default]
    Own,
    /// The whole run is recorded.
    Whole,
    /// Two symbols, or addresses in the program's file (`0x…`). A packet begins with the first
    /// instruction of the one and ends before the first of the other.
    Symbols {
        /// Of the begin.
        begin: String,
        /// Of the end.
        end: String,
    },
}

/// What to trace.
#[derive(Clone, Debug, Default)]
pub struct TraceSpec {
    /// The program; without a slash it is looked for in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What begins and ends a packet.
    pub marks: Marks,
    /// The processor that is emulated; `None` for a default of the instruction set.
    pub cpu: Option<String>,
    /// The thread that is traced; `None` to refuse programs with threads.
    pub thread: Option<u32>,
    /// Run without environment and output, and show what it writes to standard error only if it
    /// fails.
    pub is_quiet: bool,
    /// The program's name for itself. Then it is started from a copy, by a path of fixed length, so
    /// that its stack and its heap are the same wherever the program is.
    pub name: Option<&'static str>,
    /// Written into the header instead of program and arguments.
    pub description: Option<Vec<String>>,
    /// Packets that are expected, for the progress bar; 0 if unknown.
    pub packets: u64,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was traced.
    pub header: Header,
    /// What is wrong with it: the program failed or was killed, or a packet has no end.
    pub trouble: Option<String>,
}

/// Processors that are emulated unless another one is named: libraries choose code by processor.
fn default_cpu(isa: &str) -> Option<&'static str> {
    match isa {
        "x86_64" => Some("Nehalem"),
        "aarch64" => Some("cortex-a72"),
        _ => None,
    }
}

/// Runs a program and hands its events to `sink`.
///
/// # Errors
/// QEMU or the program cannot be used, marks do not come in pairs or do not come at all, the
/// program has threads, or the sink fails.
pub fn trace(
    spec: &TraceSpec,
    control: &dyn Control,
    sink: &mut dyn FnMut(&[Event]) -> Result<(), LabError>,
) -> Result<Outcome, LabError> {
    let name = spec.program.to_string_lossy().into_owned();
    let path = in_path(&name)
        .ok_or_else(|| LabError::Protocol(format!("{name}: no such program in PATH")))?;
    let program = ObjectFile::read(&path)?;
    let emulator = Emulator::find(&format!("qemu-{}", program.isa), "qemu-user")?;
    let marks = arguments_of_marks(&program, &spec.marks)?;
    let tracer = TracerFile::unpack(emulator.api())?;
    let cpu = spec.cpu.as_deref().or(default_cpu(program.isa));

    let (reader, writer) = io::pipe().map_err(|error| LabError::file(&path, error))?;
    let pipe = format!("/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    let mut plugin = format!(
        "{},out={pipe},text={}",
        tracer.path().display(),
        program.text
    );
    plugin.extend(marks.iter().map(|argument| format!(",{argument}")));
    plugin.extend(spec.thread.map(|thread| format!(",thread={thread}")));
    let stderr = tracer.path().with_file_name("stderr");
    let mut command = command_of(spec, &emulator, cpu, &plugin);
    add_program(&mut command, spec, &path, tracer.folder())
        .map_err(|error| LabError::file(&path, error))?;
    if spec.is_quiet {
        let file = File::create(&stderr).map_err(|error| LabError::file(&stderr, error))?;
        command.stderr(file);
    }
    control.begin("tracing", spec.packets);
    let run = Run::start(command, reader, writer, &emulator)?;
    let ended = run.follow(control, sink, spec.thread.is_some());
    control.end();
    let Ended { status, stream } = ended?;
    let stderr = said_in(&stderr);
    if value(&stream.said(), "isa").is_none() {
        return Err(not_loaded(&emulator, status, &stderr));
    }
    let mut trouble = trouble_of(&name, status, &stream, &stderr);
    if let (None, Some(kind)) = (&trouble, stream.open_packet()) {
        trouble = Some(format!(
            "{name}: its last packet, of kind {kind}, has no end"
        ));
    }
    if stream.packets() == 0 && !marks.is_empty() {
        let why = trouble.unwrap_or_else(|| "it ended without trouble".to_owned());
        return Err(LabError::Protocol(format!(
            "{name}: no packet has begun; {why}"
        )));
    }
    let said = stream.said();
    let words = std::iter::once(&spec.program).chain(&spec.arguments);
    let command = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let header = Header {
        isa: program.isa.to_owned(),
        cpu: cpu.unwrap_or(CPU_DEFAULT).to_owned(),
        emulator: emulator.name,
        command: spec.description.clone().unwrap_or(command),
        whole_run: marks.is_empty(),
        kinds: names_of_kinds(&program, &spec.marks),
        objects: objects(&program, &said),
        ..Header::default()
    };
    Ok(Outcome { header, trouble })
}

/// QEMU with the plugin; program and arguments follow.
fn command_of(spec: &TraceSpec, emulator: &Emulator, cpu: Option<&str>, plugin: &str) -> Command {
    let mut command = Command::new(&emulator.path);
    command.args(["-seed", SEED]);
    command.args(cpu.map(|cpu| ["-cpu", cpu]).into_iter().flatten());
    command.args(["-plugin", plugin]);
    if spec.is_quiet {
        command.env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null());
    }
    command
}

/// The program and its arguments. One with a name of its own is started from a copy in `folder`.
fn add_program(
    command: &mut Command,
    spec: &TraceSpec,
    path: &Path,
    folder: &Path,
) -> io::Result<()> {
    match spec.name {
        Some(name) => {
            let copy = folder.join(COPY);
            fs::copy(path, &copy)?;
            command.args(["-0", name]).arg(copy);
        }
        None => {
            command.arg(path);
        }
    }
    command.args(&spec.arguments);
    Ok(())
}

/// What a quiet program wrote to standard error, up to 4 KiB. It is a file, because a child of the
/// program may keep a pipe open.
pub(super) fn said_in(path: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(STDERR_BYTES_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Arguments for the plugin; none to record everything.
fn arguments_of_marks(program: &ObjectFile, marks: &Marks) -> Result<Vec<String>, LabError> {
    match marks {
        Marks::Whole => Ok(Vec::new()),
        Marks::Own => Ok(arguments_of_own_marks(program).unwrap_or_default()),
        Marks::Symbols { begin, end } => Ok(vec![
            format!("begin={}", address_of(program, "--begin", begin)?),
            format!("end={}", address_of(program, "--end", end)?),
        ]),
    }
}

/// Arguments for the plugin for a program that marks packets itself; `None` for others.
pub(super) fn arguments_of_own_marks(program: &ObjectFile) -> Option<Vec<String>> {
    let range = |name: &str| {
        let found = program.symbol(name)?;
        let end = found.address.saturating_add(found.size.max(1));
        Some(format!("{}-{end}", found.address))
    };
    let kinds = program.symbol(KINDS)?.address;
    Some(vec![
        format!("begin={}", range(BEGIN)?),
        format!("end={}", range(END)?),
        format!("kinds={kinds}"),
    ])
}

fn address_of(program: &ObjectFile, option: &str, name: &str) -> Result<u64, LabError> {
    if let Some(digits) = name.strip_prefix("0x") {
        let address = u64::from_str_radix(digits, 16).ok();
        let inside = address.filter(|address| (program.from..program.to).contains(address));
        return inside.ok_or_else(|| {
            let (from, to) = (program.from, program.to);
            let problem = format!("write an address of the program's file, {from:#x} to {to:#x}");
            LabError::option(option, name, problem)
        });
    }
    program
        .symbol(name)
        .map(|symbol| symbol.address)
        .ok_or_else(|| {
            let path = program.path.display();
            let problem = format!(
                "{path} has no such symbol. If it is stripped, give the address that a build with \
             symbols shows (nm): {option} 0x…; marks in shared libraries are not found"
            );
            LabError::option(option, name, problem)
        })
}

fn names_of_kinds(program: &ObjectFile, marks: &Marks) -> Vec<String> {
    match marks {
        Marks::Own => names_of_own_kinds(program),
        Marks::Whole => Vec::new(),
        Marks::Symbols { begin, .. } => vec![begin.clone()],
    }
}

/// Of a program that marks packets itself.
pub(super) fn names_of_own_kinds(program: &ObjectFile) -> Vec<String> {
    let text = program.text_of(NAMES).unwrap_or_default();
    text.lines().take(256).map(str::to_owned).collect()
}

/// The error for a QEMU that did not load the tracer.
pub(super) fn not_loaded(emulator: &Emulator, status: ExitStatus, stderr: &str) -> LabError {
    let told = if stderr.is_empty() {
        String::new()
    } else {
        format!(": {}", stderr.trim())
    };
    LabError::Protocol(format!(
        "{} did not load the tracer ({status}){told}. The tracer is built for versions 1 and 2 of \
         QEMU's plugin interface; this QEMU has neither, or no plugins at all. Debian's package \
         qemu-user has both",
        emulator.name
    ))
}

fn trouble_of(name: &str, status: ExitStatus, stream: &Stream, stderr: &str) -> Option<String> {
    if status.success() && stream.is_over {
        return None;
    }
    let how = match (status.code(), stream.is_over) {
        (Some(code), _) if code != 0 => format!("it ended with exit code {code}"),
        (Some(_), _) => "its trace has no end; did it close the tracer's pipe?".to_owned(),
        (None, _) => format!("it was killed ({status})"),
    };
    let told = if stderr.is_empty() {
        String::new()
    } else {
        format!(": {}", stderr.trim())
    };
    Some(format!("{name}: {how}{told}"))
}

/// A program that runs, and what reads from it.
pub(super) struct Run {
    child: Running,
    /// Kept open until the program has ended, so that the pipe is not over before it begins.
    writer: Option<PipeWriter>,
    filled: Receiver<io::Result<Vec<u8>>>,
    emptied: SyncSender<Vec<u8>>,
    status: Option<ExitStatus>,
}

pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stream: Stream,
}

impl Run {
    pub(super) fn start(
        mut command: Command,
        reader: PipeReader,
        writer: PipeWriter,
        emulator: &Emulator,
    ) -> Result<Self, LabError> {
        let failed = |error| LabError::file(&emulator.path, error);
        let child = Running(command.spawn().map_err(failed)?);
        let (fill, filled) = sync_channel(READS_WAITING);
        let (emptied, empty) = sync_channel(READS_WAITING + 2);
        std::thread::Builder::new()
            .name("tracer".to_owned())
            .spawn(move || read_all(reader, &fill, &empty))
            .map_err(failed)?;
        Ok(Self {
            child,
            writer: Some(writer),
            filled,
            emptied,
            status: None,
        })
    }

    /// Reads until the program has ended.
    pub(super) fn follow(
        mut self,
        control: &dyn Control,
        sink: &mut dyn FnMut(&[Event]) -> Result<(), LabError>,
        threads_are_welcome: bool,
    ) -> Result<Ended, LabError> {
        let mut stream = Stream::default();
        let mut events = Vec::new();
        let mut looks_after_end = 0;
        while !stream.is_over && looks_after_end < LOOKS_AFTER_END {
            if control.stopped() {
                return Err(LabError::Stopped);
            }
            match self.filled.recv_timeout(LOOK) {
                Ok(bytes) => {
                    let bytes = bytes.map_err(|error| self.pipe_failed(error))?;
                    stream
                        .take(&bytes, &mut events)
                        .map_err(LabError::Protocol)?;
                    let _ = self.emptied.try_send(bytes);
                    sink(&events)?;
                    events.clear();
                    control.reached(stream.packets());
                }
                Err(RecvTimeoutError::Timeout) => {
                    looks_after_end += u32::from(self.status.is_some());
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_after_child()?;
        }
        stream.finish(&mut events);
        sink(&events)?;
        if stream.has_threads && !threads_are_welcome {
            return Err(LabError::Protocol(
                "the program has threads, and its trace would differ from run to run; choose one \
                 with --thread (0 is the first), or let it run with one"
                    .to_owned(),
            ));
        }
        while self.status.is_none() {
            if control.stopped() {
                return Err(LabError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(1));
            self.look_after_child()?;
        }
        let status = self.status.unwrap_or_default();
        Ok(Ended { status, stream })
    }

    fn pipe_failed(&self, error: io::Error) -> LabError {
        LabError::file(&PathBuf::from("the tracer's pipe"), error)
    }

    fn look_after_child(&mut self) -> Result<(), LabError> {
        if self.status.is_none() {
            self.status = self
                .child
                .0
                .try_wait()
                .map_err(|error| self.pipe_failed(error))?;
            if self.status.is_some() {
                self.writer = None;
            }
        }
        Ok(())
    }
}

/// Reads the pipe to its end, in a thread.
fn read_all(
    mut reader: PipeReader,
    fill: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut bytes = empty.try_recv().unwrap_or_default();
        bytes.resize(READ_BYTES, 0);
        let read = reader.read(&mut bytes);
        let is_last = match &read {
            Ok(count) => *count == 0,
            Err(error) => error.kind() != io::ErrorKind::Interrupted,
        };
        let sent = match read {
            Ok(0) => return,
            Ok(count) => {
                bytes.truncate(count);
                fill.send(Ok(bytes))
            }
            Err(_) if !is_last => continue,
            Err(error) => fill.send(Err(error)),
        };
        if is_last || sent.is_err() {
            return;
        }
    }
}

/// A child that is killed when it is no longer needed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
