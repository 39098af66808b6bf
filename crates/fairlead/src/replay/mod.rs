//! `fairlead replay`: shows what the switch would do with a capture.
//!
//! A capture contains connections between clients and real servers. Each connection to a port of
//! the configuration is replayed as if the client had addressed the service there ([`player`]): the
//! switch answers it, reads its first bytes, decides, and translates the packets of both sides.
//! Every translated packet is compared with the captured one ([`check`]).

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::check::failure;
use crate::config::{load, path_or_standard};
use crate::number::one_or_more;
use crate::screen::{Paint, print, print_error};
use fairlead_driver_pcap::{CaptureError, CaptureReader};

pub mod check;
mod connection;
pub mod edit;
mod leaving;
pub mod outlet;
mod outputs;
pub mod player;
pub mod prepare;
pub mod report;
pub mod survey;
pub mod tally;
pub mod target;

use outlet::Outlet;
use player::Player;
use report::Summary;
use survey::Survey;
use target::{PortMap, Targets};

/// Arguments of `fairlead replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArgs {
    /// Capture file: pcap or pcapng, optionally compressed with gzip or zstd
    #[arg(value_name = "CAPTURE")]
    pub capture: PathBuf,
    /// Configuration file [default: $FAIRLEAD_CONFIG, then /etc/fairlead/fairlead.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the packets on both sides of the switch to this file (pcapng); with - they go to
    /// standard output and the report to standard error
    #[arg(short, long, value_name = "OUT.pcapng")]
    pub write: Option<PathBuf>,
    /// Replay captured connections to SERVERPORT to this service; may be repeated
    #[arg(long, value_name = "SERVERPORT=SERVICE")]
    pub map: Vec<PortMap>,
    /// Stop after this many packets of the capture
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    pub limit: Option<u64>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

impl ReplayArgs {
    /// The configuration file.
    fn config(&self) -> PathBuf {
        path_or_standard(self.config.as_deref())
    }

    /// True if the packets go to standard output.
    fn is_pipe(&self) -> bool {
        self.write
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-")
    }

    /// Description of the packet output.
    fn place(&self) -> String {
        match &self.write {
            _ if self.is_pipe() => "standard output".to_owned(),
            Some(path) => path.display().to_string(),
            None => String::new(),
        }
    }

    /// Prints text to the stream that is not used for packets.
    fn say(&self, text: &str) {
        match self.is_pipe() {
            true => print_error(text),
            false => print(text),
        }
    }
}

/// Replays the capture. Exit code 0 if it was replayed to its end and every packet was correct; 1
/// if the configuration, the capture or a packet was wrong, or nothing was replayed.
pub fn run(args: &ReplayArgs) -> ExitCode {
    match replay(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print_error(&format!("{error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Packets between updates of the progress bar.
const PROGRESS_PACKETS: u64 = 1_024;

fn replay(args: &ReplayArgs) -> Result<bool> {
    let loaded = match load(&args.config()) {
        Ok(loaded) => loaded,
        Err(error) => {
            print_error(&failure(&error, Paint::stderr()));
            return Ok(false);
        }
    };
    if args.is_pipe() && io::stdout().is_terminal() {
        bail!("captures are binary: use -w FILE, or pipe the output of -w -");
    }
    let config = loaded.settings.switch;
    let targets = Targets::new(&config, &args.map).context("--map")?;
    let is_stream =
        |path: &Path| path.as_os_str() == "-" || path.metadata().is_ok_and(|it| !it.is_file());
    if is_stream(&args.capture) {
        let name = args.capture.display();
        bail!(
            "{name} is not a regular file; the capture is read twice, so save it to a file first"
        );
    }
    let limit = args.limit.unwrap_or(u64::MAX);
    let progress = Progress::new(&args.capture);

    let mut reader = progress.open(&args.capture, "scanning")?;
    let survey = Survey::of(&mut reader, &config, &targets, limit, |_| progress.show());
    let mut reader = progress.open(&args.capture, "replaying")?;
    let outlet = outlet(args)?;
    let mut player = Player::new(config, targets, survey, outlet)?;
    let damage = play(&mut player, &mut reader, limit, args, &progress)?;
    progress.end();
    let summary = Summary::of(&player, reader.format());
    if args.json {
        args.say(&format!("{}\n", serde_json::to_string(&summary)?));
    } else {
        let mut text = summary.text();
        if args.write.is_some() {
            let place = args.place();
            text += &format!("written     {} packets to {place}\n", summary.written);
        }
        args.say(&text);
    }
    if let Some(damage) = &damage {
        print_error(&format!(
            "{damage}; the part before the damage was replayed\n"
        ));
    } else if summary.connections == 0 {
        let name = args.capture.display();
        print_error(&format!(
            "{name}: contains no connection that could be replayed\n"
        ));
    }
    // A replay without connections proves nothing, so it fails.
    let sound = summary.different == 0 && summary.unsound == 0;
    Ok(damage.is_none() && summary.connections > 0 && sound)
}

/// Opens the packet output, which must not be one of the inputs.
fn outlet(args: &ReplayArgs) -> Result<Outlet> {
    Ok(match &args.write {
        Some(_) if args.is_pipe() => Outlet::to(io::stdout()).context("standard output")?,
        Some(path) if is_same_file(path, &args.capture) => {
            bail!(
                "{} is the capture itself; choose another output file",
                path.display()
            )
        }
        Some(path) if is_same_file(path, &args.config()) => {
            bail!(
                "{} is the configuration; choose another output file",
                path.display()
            )
        }
        Some(path) => {
            Outlet::file(path).with_context(|| format!("cannot write {}", path.display()))?
        }
        None => Outlet::none(),
    })
}

/// Replays all packets. Returns damage of the capture, if any.
fn play(
    player: &mut Player,
    reader: &mut CaptureReader,
    limit: u64,
    args: &ReplayArgs,
    progress: &Progress,
) -> Result<Option<CaptureError>> {
    let written = || format!("cannot write {}", args.place());
    let mut damage = None;
    while player.tally().packets < limit {
        let captured = match reader.next_packet() {
            Ok(Some(captured)) => captured,
            Ok(None) => break,
            Err(error) => {
                damage = Some(error);
                break;
            }
        };
        player.play(&captured).with_context(written)?;
        if player.tally().packets.is_multiple_of(PROGRESS_PACKETS) {
            progress.show();
            tell(player, args, progress)?;
        }
    }
    player.finish().with_context(written)?;
    tell(player, args, progress)?;
    Ok(damage)
}

/// Writes the lines of ended connections.
fn tell(player: &mut Player, args: &ReplayArgs, progress: &Progress) -> Result<()> {
    let finished = player.take_finished();
    if finished.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    for connection in &finished {
        if args.json {
            text += &serde_json::to_string(connection)?;
            text.push('\n');
        } else {
            text += &connection.line();
        }
    }
    progress.aside(|| args.say(&text));
    Ok(())
}

/// True if both paths refer to the same file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Minimum file size for a progress bar.
const LONG_FILE_BYTES: u64 = 4 << 20;

/// A progress bar on standard error, if that is a terminal and the file is large.
struct Progress {
    bar: Option<ProgressBar>,
    read: Arc<AtomicU64>,
}

impl Progress {
    fn new(path: &Path) -> Self {
        let length = path.metadata().map_or(0, |metadata| metadata.len());
        let wanted = io::stderr().is_terminal() && length >= LONG_FILE_BYTES;
        let bar = wanted.then(|| {
            let bar = ProgressBar::new(length);
            let style = "{msg} [{bar:40}] {bytes}/{total_bytes} {eta}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        Self {
            bar,
            read: Arc::default(),
        }
    }

    /// Opens the capture and connects the bar to its read position.
    fn open(&self, path: &Path, what: &'static str) -> Result<CaptureReader> {
        self.read.store(0, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_message(what);
        }
        if self.bar.is_none() {
            return Ok(CaptureReader::open(path)?);
        }
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let counted = Counted {
            file,
            read: Arc::clone(&self.read),
        };
        Ok(CaptureReader::from_source(
            path.display().to_string(),
            counted,
        )?)
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.read.load(Ordering::Relaxed));
        }
    }

    /// Prints with the bar hidden.
    fn aside(&self, act: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(act),
            None => act(),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A file that counts the bytes read.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
