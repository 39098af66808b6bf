//! A client, a host and its cards as network namespaces of this machine, and what runs in them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::message::MESSAGE_BYTES;
use super::samples::{Samples, Who, said, sample};
use crate::error::LabError;
use crate::protocol::stacks::built_beside;

/// The host's processor, and that of client and cards.
const HOST_PROCESSOR: u32 = 0;
const CARD_PROCESSOR: u32 = 1;
/// Connections of a card, as the paper's.
pub const ROOM: u32 = 256;
/// So that nothing goes back for being idle, s.
const IDLE: u32 = 1_000_000;
/// Beginning of all names, before the number of the process.
const PREFIX: &str = "fl-lab-";
/// The file that messages are sent from.
const FILE: &str = "message";
/// The program that is traced, and what names another one.
const SENDER: &str = "fairlead-sender";
const SENDER_VARIABLE: &str = "FAIRLEAD_SENDER";

/// Who carries the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The host's kernel.
    ByHost,
    /// This many cards, as far as they have room.
    ByCards(u32),
}

/// Where the bytes of messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// In the program's memory: they are copied.
    Memory,
    /// In a file: they are named, as the paper names memory by address and length.
    File,
}

impl Source {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Memory, Self::File];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "copied",
            Self::File => "named",
        }
    }
}

/// What was counted while messages flowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Time.
    pub samples: Samples,
    /// Packets each second at the client, both ways.
    pub packets_per_second: f64,
    /// Messages each second between host and cards, by the paper's names.
    pub messages: BTreeMap<String, f64>,
    /// Connections on the cards.
    pub on_cards: u64,
}

/// Counts of one moment.
struct Counts {
    at: Instant,
    packets: u64,
    messages: BTreeMap<String, u64>,
    on_cards: u64,
}

/// Namespaces, devices and processes, all taken away at the end.
pub struct Bench {
    program: PathBuf,
    folder: PathBuf,
    names: [String; 2],
    cards: Vec<Card>,
}

struct Card {
    name: String,
    process: Child,
}

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn machine(what: &str, why: impl std::fmt::Display) -> LabError {
    LabError::Machine(format!("{what}: {why}"))
}

fn run(words: &[&str]) -> Result<String, LabError> {
    said(Command::new(words[0]).args(&words[1..]))
}

/// Takes away what a run has left that was killed, or that Ctrl-C ended before it had cleaned up.
fn remove_leftovers(program: &Path) {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let number = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split('-').next());
            let process = number.and_then(|number| number.parse::<u32>().ok());
            process.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists())
        })
        .collect();
    // Cards first: they go back to their hosts.
    names.sort();
    for name in &names {
        if let Some((before, _)) = name.split_once("-card") {
            let mut down = inside(&format!("{before}-host"), CARD_PROCESSOR, program);
            let _ = said(down.args(["offload", "down", "--card", name]));
        }
    }
    for name in &names {
        let _ = run(&["ip", "netns", "del", name]);
        if let Some(before) = name.strip_suffix("-host") {
            let _ = fs::remove_dir_all(std::env::temp_dir().join(before));
        }
    }
}

/// A command in a network namespace, on one processor.
fn inside(namespace: &str, processor: u32, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}"));
    command
        .args(["taskset", "-c", &processor.to_string()])
        .arg(program);
    command
}

/// The addresses of wire `at`: the client's, and the host's.
fn addresses(at: usize) -> [String; 2] {
    [1, 2].map(|end| format!("10.88.{at}.{end}"))
}

impl Bench {
    /// Builds it, with this number of cards.
    ///
    /// # Errors
    /// What is missing: rights, a tool, a second processor.
    pub fn new(cards: u32) -> Result<Self, LabError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if processors < 2 {
            return Err(machine("two processors are needed", "this machine has one"));
        }
        let program = std::env::current_exe().map_err(|error| machine("this program", error))?;
        remove_leftovers(&program);
        let prefix = format!("{PREFIX}{}", std::process::id());
        let folder = std::env::temp_dir().join(&prefix);
        fs::create_dir_all(&folder).map_err(|error| LabError::file(&folder, error))?;
        let mut bench = Self {
            program,
            folder,
            names: ["client", "host"].map(|end| format!("{prefix}-{end}")),
            cards: Vec::new(),
        };
        for name in &bench.names {
            run(&["ip", "netns", "add", name])?;
            run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        }
        let file = bench.folder.join(FILE);
        let written = fs::write(&file, [7; MESSAGE_BYTES]);
        written.map_err(|error| LabError::file(&file, error))?;
        for at in 0..cards as usize {
            let card = bench.wire(at, &format!("{prefix}-card{at}"))?;
            bench.cards.push(card);
        }
        Ok(bench)
    }

    /// A wire from the client to the host, with a card in front of the host.
    fn wire(&self, at: usize, card: &str) -> Result<Card, LabError> {
        let [client, host] = &self.names;
        let (near, far) = (format!("c{at}"), format!("eth{at}"));
        run(&[
            "ip", "-n", client, "link", "add", &near, "type", "veth", "peer", "name", &far,
            "netns", host,
        ])?;
        let [at_client, at_host] = addresses(at);
        for (name, device, address) in [(client, &near, at_client), (host, &far, at_host)] {
            let address = format!("{address}/24");
            run(&["ip", "-n", name, "addr", "add", &address, "dev", device])?;
            run(&["ip", "-n", name, "link", "set", device, "up"])?;
        }
        let mut up = inside(host, CARD_PROCESSOR, &self.program);
        said(up.args(["offload", "up", "--card", card, "--wire", &far]))?;
        for (name, device, processor) in [
            (host.as_str(), far.as_str(), HOST_PROCESSOR),
            (card, &far, CARD_PROCESSOR),
            (card, "fl-host", CARD_PROCESSOR),
            (client, &near, CARD_PROCESSOR),
        ] {
            settle(name, device, processor)?;
        }
        let mut serve = inside(host, CARD_PROCESSOR, &self.program);
        serve.args(["offload", "serve", "--card", card]);
        serve.args([
            "--connections",
            &ROOM.to_string(),
            "--idle",
            &IDLE.to_string(),
        ]);
        serve.arg("--socket").arg(self.socket(at));
        serve.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = serve.spawn().map_err(|error| machine("the card", error))?;
        wait_for("ready", &mut process, "the card")?;
        Ok(Card {
            name: card.to_owned(),
            process,
        })
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.folder.join(format!("socket{at}"))
    }

    /// Lets messages flow over this number of connections, and looks for some seconds.
    ///
    /// # Errors
    /// What a program says that fails.
    pub fn measure(
        &self,
        connections: u32,
        carried: Carried,
        source: Source,
        seconds: u64,
    ) -> Result<Seen, LabError> {
        let [client, host] = &self.names;
        let cards = match carried {
            Carried::ByHost => 0,
            Carried::ByCards(cards) => cards as usize,
        };
        let count = connections.to_string();
        let load = ["lab", "handoff", "load"];
        let mut sender = inside(host, HOST_PROCESSOR, &self.program);
        if cards > 0 {
            sender.arg("run");
            for at in 0..cards {
                sender.arg("--socket").arg(self.socket(at));
            }
            sender.arg("--").arg(&self.program);
        }
        sender
            .args(load)
            .args(["--listen", "0.0.0.0:80", "--connections", &count]);
        if source == Source::File {
            sender.arg("--file").arg(self.folder.join(FILE));
        }
        let mut sender = Process(sender.stdout(Stdio::piped()).spawn().map_err(gone)?);
        wait_for("ready", &mut sender.0, "the sender")?;
        let mut reader = inside(client, CARD_PROCESSOR, &self.program);
        reader.args(load).args(["--connections", &count]);
        for at in 0..cards.max(1) {
            reader.args(["--connect", &format!("{}:80", addresses(at)[1])]);
        }
        reader.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reader = Process(reader.spawn().map_err(gone)?);
        wait_for("ready", &mut reader.0, "the reader")?;
        let before = self.counts()?;
        let processes: Vec<u32> = self.cards.iter().map(|card| card.process.id()).collect();
        let who = Who {
            host: HOST_PROCESSOR,
            card: CARD_PROCESSOR,
            cards: &processes,
            program: sender.0.id(),
        };
        let samples = sample(&self.folder.join("samples"), seconds, who)?;
        let after = self.counts()?;
        // The reader ends with its input, and the sender with the reader.
        drop(reader.0.stdin.take());
        let status = reader.0.wait().map_err(gone)?;
        if !status.success() {
            return Err(machine("the reader", status));
        }
        sender.0.wait().map_err(gone)?;
        let seconds = (after.at - before.at).as_secs_f64();
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / seconds;
        let messages = after.messages.into_iter().map(|(name, count)| {
            let rate = rate(count, before.messages.get(&name).copied().unwrap_or(0));
            (name, rate)
        });
        Ok(Seen {
            samples,
            packets_per_second: rate(after.packets, before.packets),
            messages: messages.collect(),
            on_cards: after.on_cards,
        })
    }

    /// Traces a program that sends messages over connections of the first card. Returns the trace.
    ///
    /// # Errors
    /// What is missing, or failed.
    pub fn trace(
        &self,
        connections: u32,
        source: Source,
        messages: u32,
    ) -> Result<PathBuf, LabError> {
        let sender = built_beside(SENDER, "make stacks", SENDER_VARIABLE)?;
        let trace = self.folder.join("trace");
        let [client, host] = &self.names;
        let mut tracer = inside(host, HOST_PROCESSOR, &self.program);
        tracer
            .args(["lab", "-q", "protocol", "run", "-o"])
            .arg(&trace)
            .arg("--");
        let count = connections.to_string();
        tracer
            .arg(sender)
            .args(["0.0.0.0:80", &count, &messages.to_string()]);
        if source == Source::File {
            tracer.arg(self.folder.join(FILE));
        }
        // The library is loaded into the program, not into the emulator.
        tracer.env("QEMU_SET_ENV", self.environment()?);
        let mut tracer = Process(tracer.stdout(Stdio::piped()).spawn().map_err(gone)?);
        wait_for("ready", &mut tracer.0, "the traced sender")?;
        let mut reader = inside(client, CARD_PROCESSOR, &self.program);
        reader.args(["lab", "handoff", "load", "--connections", &count]);
        reader.args(["--connect", &format!("{}:80", addresses(0)[1])]);
        // It fails at the end, when the sender has sent its messages.
        reader
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _reader = Process(reader.spawn().map_err(gone)?);
        let status = tracer.0.wait().map_err(gone)?;
        match status.success() {
            true => Ok(trace),
            false => Err(machine("the traced sender", status)),
        }
    }

    /// What `fairlead run` sets for a program on the first card.
    fn environment(&self) -> Result<String, LabError> {
        let mut run = Command::new(&self.program);
        run.arg("run").arg("--socket").arg(self.socket(0));
        let set = said(run.args(["--", "printenv"]))?;
        let is_meant =
            |line: &&str| line.starts_with("LD_PRELOAD=") || line.starts_with("FAIRLEAD_OFFLOAD_");
        Ok(set.lines().filter(is_meant).collect::<Vec<_>>().join(","))
    }

    fn counts(&self) -> Result<Counts, LabError> {
        let (mut packets, mut messages, mut on_cards) = (0, BTreeMap::new(), 0);
        for card in &self.cards {
            let mut list = Command::new(&self.program);
            list.args(["handoff", "list", "--json", "--card", &card.name]);
            let list = parsed(&said(&mut list)?)?;
            on_cards += list["connections"].as_array().map_or(0, Vec::len) as u64;
            let counts = &list["counts"];
            let commands = counts["commands"].as_array();
            for one in commands.into_iter().flatten() {
                let name = one["command"].as_str().unwrap_or_default();
                let count = one["count"].as_u64().unwrap_or(0);
                *messages.entry(name.to_owned()).or_insert(0) += count;
            }
            let tokens = counts["tokens"].as_u64().unwrap_or(0);
            *messages.entry("tokens".to_owned()).or_insert(0) += tokens;
        }
        for at in 0..self.cards.len() {
            let near = format!("c{at}");
            let shown = [
                "ip",
                "-n",
                &self.names[0],
                "-s",
                "-j",
                "link",
                "show",
                "dev",
                &near,
            ];
            let shown = parsed(&run(&shown)?)?;
            for way in ["rx", "tx"] {
                packets += shown[0]["stats64"][way]["packets"].as_u64().unwrap_or(0);
            }
        }
        Ok(Counts {
            at: Instant::now(),
            packets,
            messages,
            on_cards,
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let [client, host] = &self.names;
        for card in &mut self.cards {
            let _ = card.process.kill();
            let _ = card.process.wait();
            let mut down = inside(host, CARD_PROCESSOR, &self.program);
            let _ = said(down.args(["offload", "down", "--card", &card.name]));
        }
        for name in [client, host] {
            let _ = run(&["ip", "netns", "del", name]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn gone(error: std::io::Error) -> LabError {
    machine("a program of the measurement", error)
}

fn parsed(text: &str) -> Result<Value, LabError> {
    serde_json::from_str(text).map_err(|error| machine("JSON", error))
}

/// Packets stay as TCP cut them, and those that come in here are processed on one processor.
fn settle(namespace: &str, device: &str, processor: u32) -> Result<(), LabError> {
    let net = format!("--net=/run/netns/{namespace}");
    let off = ["tso", "off", "gso", "off", "gro", "off"];
    run(&[&["nsenter", &net, "ethtool", "-K", device], &off[..]].concat())?;
    let queue = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
    let script = format!(
        "mount -t sysfs sysfs /sys && echo {} > {queue}",
        1 << processor
    );
    run(&["nsenter", &net, "unshare", "-m", "sh", "-c", &script]).map(drop)
}

/// Waits until a program says this, which is the first that it says.
fn wait_for(word: &str, process: &mut Child, name: &str) -> Result<(), LabError> {
    let Some(output) = process.stdout.as_mut() else {
        return Err(machine(name, "no output"));
    };
    let mut line = String::new();
    let read = BufReader::new(output.by_ref()).read_line(&mut line);
    match read {
        Ok(_) if line.trim() == word => Ok(()),
        _ => Err(machine(name, "it ended, or said something else; see above")),
    }
}

/// Bytes of one message's payload, for texts.
pub const PAYLOAD: usize = MESSAGE_BYTES;
