//! A client, a host and its cards as network namespaces of this machine, and what runs in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::message::MESSAGE_BYTES;
use super::programs::{Client, Process};
use super::samples::{Samples, Who, read, record, said};
use super::web::site::Site;
use crate::error::LabError;
use crate::protocol::stacks::built_beside;

/// The host's processor, and that of client and cards.
pub(super) const HOST_PROCESSOR: u32 = 0;
pub(super) const CARD_PROCESSOR: u32 = 1;
/// So that nothing goes back for being idle, s.
const IDLE: u32 = 1_000_000;
/// Beginning of all names, before the number of the process.
const PREFIX: &str = "fl-lab-";
/// The file that messages are sent from.
pub(super) const FILE: &str = "message";
/// The program that is traced, and what names another one.
const SENDER: &str = "fairlead-sender";
const SENDER_VARIABLE: &str = "FAIRLEAD_SENDER";

/// Who carries the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The host's kernel.
    ByHost,
    /// Cards, as far as they have room.
    ByCards {
        /// How many.
        cards: u32,
        /// After how many answers a connection is handed off.
        after: u32,
    },
}

/// What passes over the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Messages from the program's memory: they are copied.
    Copied,
    /// Messages from a file: they are named, as the paper names memory by address and length.
    Named,
    /// Answers of a web server to SPECweb99's default mix.
    Web,
    /// Its answers to the static requests of that mix.
    StaticWeb,
}

impl Load {
    /// Messages, both ways.
    pub const MESSAGES: [Self; 2] = [Self::Copied, Self::Named];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Named => "named",
            Self::Web => "web",
            Self::StaticWeb => "static web",
        }
    }

    /// Does a web server answer?
    pub fn is_web(self) -> bool {
        matches!(self, Self::Web | Self::StaticWeb)
    }
}

/// What was counted under load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Time.
    pub samples: Samples,
    /// Packets each second at the client, both ways.
    pub packets_per_second: f64,
    /// Messages or answers each second, and their bytes without heads.
    pub answers_per_second: f64,
    /// See there.
    pub bytes_per_second: f64,
    /// Messages each second between host and cards, by the paper's names.
    pub messages: BTreeMap<String, f64>,
    /// Connections on the cards.
    pub on_cards: u64,
}

/// Counts of one moment.
struct Counts {
    at: Instant,
    /// Of the client: answers and bytes.
    totals: [u64; 2],
    packets: u64,
    messages: BTreeMap<String, u64>,
    on_cards: u64,
}

/// Namespaces, devices and processes, all taken away at the end.
pub struct Bench {
    pub(super) program: PathBuf,
    pub(super) folder: PathBuf,
    names: [String; 2],
    cards: Vec<Card>,
    site: Option<Site>,
}

struct Card {
    name: String,
    process: Process,
}

pub(super) fn machine(what: &str, why: impl std::fmt::Display) -> LabError {
    LabError::Machine(format!("{what}: {why}"))
}

fn run(words: &[&str]) -> Result<String, LabError> {
    said(Command::new(words[0]).args(&words[1..]))
}

/// Is there a web server?
///
/// # Errors
/// nginx is missing.
pub fn web_server() -> Result<(), LabError> {
    run(&["nginx", "-v"]).map(drop)
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
pub(super) fn inside(namespace: &str, processor: u32, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}"));
    command
        .args(["taskset", "-c", &processor.to_string()])
        .arg(program);
    command
}

/// The addresses of wire `at`: the client's, and the host's.
pub(super) fn addresses(at: usize) -> [String; 2] {
    [1, 2].map(|end| format!("10.88.{at}.{end}"))
}

impl Bench {
    /// Builds it, with this number of cards, each with room for this number of connections.
    ///
    /// # Errors
    /// What is missing: rights, a tool, a second processor.
    pub fn new(cards: u32, room: u32) -> Result<Self, LabError> {
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
            site: None,
        };
        for name in &bench.names {
            run(&["ip", "netns", "add", name])?;
            run(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        }
        let file = bench.folder.join(FILE);
        let written = fs::write(&file, [7; MESSAGE_BYTES]);
        written.map_err(|error| LabError::file(&file, error))?;
        for at in 0..cards as usize {
            let card = bench.wire(at, &format!("{prefix}-card{at}"), room)?;
            bench.cards.push(card);
        }
        Ok(bench)
    }

    /// A wire from the client to the host, with a card in front of the host.
    fn wire(&self, at: usize, card: &str, room: u32) -> Result<Card, LabError> {
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
            &room.to_string(),
            "--idle",
            &IDLE.to_string(),
        ]);
        serve.arg("--socket").arg(self.socket(at));
        let process = Process::ready(serve.stdin(Stdio::null()), "the card")?;
        Ok(Card {
            name: card.to_owned(),
            process,
        })
    }

    /// Writes what a web server needs.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_site(&mut self) -> Result<(), LabError> {
        self.site = Some(Site::write(&self.folder)?);
        Ok(())
    }

    pub(super) fn site(&self) -> Result<&Site, LabError> {
        let site = self.site.as_ref();
        site.ok_or_else(|| machine("the web server", "it has no files"))
    }

    pub(super) fn client(&self) -> &str {
        &self.names[0]
    }

    pub(super) fn host(&self) -> &str {
        &self.names[1]
    }

    pub(super) fn socket(&self, at: usize) -> PathBuf {
        self.folder.join(format!("socket{at}"))
    }

    /// Puts a load on this number of connections, and looks for some seconds.
    ///
    /// # Errors
    /// What a program says that fails.
    pub fn measure(
        &self,
        connections: u32,
        carried: Carried,
        load: Load,
        seconds: u64,
    ) -> Result<Seen, LabError> {
        let mut running = match load {
            Load::Copied | Load::Named => self.messages(connections, carried, load)?,
            Load::Web | Load::StaticWeb => self.web(connections, carried, load)?,
        };
        let file = self.folder.join("samples");
        let before = self.counts(&mut running.client)?;
        record(&file, seconds, [HOST_PROCESSOR, CARD_PROCESSOR])?;
        let after = self.counts(&mut running.client)?;
        let programs = running.end()?;
        let processes: Vec<u32> = self.cards.iter().map(|card| card.process.id()).collect();
        let who = Who {
            host: HOST_PROCESSOR,
            card: CARD_PROCESSOR,
            cards: &processes,
            programs: &programs,
        };
        let samples = read(&file, who)?;
        let seconds = (after.at - before.at).as_secs_f64();
        let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / seconds;
        let messages = after.messages.into_iter().map(|(name, count)| {
            let rate = rate(count, before.messages.get(&name).copied().unwrap_or(0));
            (name, rate)
        });
        Ok(Seen {
            samples,
            packets_per_second: rate(after.packets, before.packets),
            answers_per_second: rate(after.totals[0], before.totals[0]),
            bytes_per_second: rate(after.totals[1], before.totals[1]),
            messages: messages.collect(),
            on_cards: after.on_cards,
        })
    }

    /// Traces a program that sends messages over connections of the first card. Returns the trace.
    ///
    /// # Errors
    /// What is missing, or failed.
    pub fn trace(&self, connections: u32, load: Load, messages: u32) -> Result<PathBuf, LabError> {
        let sender = built_beside(SENDER, "make stacks", SENDER_VARIABLE)?;
        let trace = self.folder.join("trace");
        let mut tracer = inside(self.host(), HOST_PROCESSOR, &self.program);
        tracer
            .args(["lab", "-q", "protocol", "run", "-o"])
            .arg(&trace)
            .arg("--");
        let count = connections.to_string();
        tracer
            .arg(sender)
            .args(["0.0.0.0:80", &count, &messages.to_string()]);
        if load == Load::Named {
            tracer.arg(self.folder.join(FILE));
        }
        // The library is loaded into the program, not into the emulator.
        tracer.env("QEMU_SET_ENV", self.environment()?);
        let name = "the traced sender";
        let mut tracer = Process::ready(&mut tracer, name)?;
        let _reader = self.reader(connections)?;
        tracer.end(name).map(|()| trace)
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

    fn counts(&self, client: &mut Client) -> Result<Counts, LabError> {
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
            totals: client.totals()?,
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
            card.process.kill();
            let mut down = inside(host, CARD_PROCESSOR, &self.program);
            let _ = said(down.args(["offload", "down", "--card", &card.name]));
        }
        for name in [client, host] {
            let _ = run(&["ip", "netns", "del", name]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
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

/// Bytes of one message's payload, for texts.
pub const PAYLOAD: usize = MESSAGE_BYTES;
