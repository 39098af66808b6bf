//! The scene in network namespaces: real servers, the real switch on its TUN device, a real client.
//!
//! ```text
//!   client 10.1.0.10 ───── 10.1.0.2 switch 10.2.0.2 ───── 10.2.0.1 servers
//!                          10.1.0.3 (virtual)
//! ```

mod front;
mod local;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use fairlead_netns::{Host, Running, Signal, World, program};
use serde_json::Value;

use super::client::{Answer, Client};
use super::journal::{Entry, Journal};
use super::origins::{self, Serving, Software};
use super::scene::{
    ADMIN, CLIENT, CONFIG, PROCESSES, Request, SERVERS, SWITCH_BACK, SWITCH_FRONT, VIRTUAL,
};
use super::stage::Stage;

/// Time limit for the switch to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// What it logs: its decisions, too.
const LOG: &str = "info,fairlead::connection=debug";
/// Maximum delay of its log.
const LOG_PATIENCE: Duration = Duration::from_secs(15);
/// Time limit for an answer of its admin pages.
const ADMIN_PATIENCE: Duration = Duration::from_secs(30);

/// A temporary directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("fairlead-demo-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Folder {
    /// The file that the switch runs with.
    fn configuration(&self) -> Result<PathBuf> {
        let path = self.0.join("fairlead.toml");
        fs::write(&path, format!("{CONFIG}{}{}", local::CONFIG, front::CONFIG))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left for the machine's own tidying of its temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The running scene. Fields are dropped in order: client and switch before servers.
pub(super) struct Live {
    client: Client,
    anchor: Running,
    switch: Running,
    switch_host: Host,
    servers_host: Host,
    serving: Vec<(&'static str, Serving)>,
    software: Software,
    journal: Journal,
    folder: Folder,
    as_root: bool,
}

impl Live {
    /// Builds the network and starts all processes. `as_root` selects the command that reaches it
    /// from outside.
    pub(super) fn start(as_root: bool, step: &dyn Fn(&str)) -> Result<Self> {
        let folder = Folder::new()?;
        step("making three network namespaces");
        let mut world = World::new()?;
        let client_host = world.host("client")?;
        let switch_host = world.host("switch")?;
        let servers_host = world.host("servers")?;
        let net24 = |address: std::net::Ipv4Addr| format!("{address}/24");
        world.link(
            (&client_host, &[&net24(CLIENT)]),
            (&switch_host, &[&net24(SWITCH_FRONT)]),
        )?;
        world.link(
            (&switch_host, &[&net24(SWITCH_BACK)]),
            (&servers_host, &[&net24(SERVERS)]),
        )?;
        // The virtual address is in the clients' network, as in the sample configuration, so the
        // client needs a route to it. Servers send everything back through the switch.
        client_host.route(&format!("{VIRTUAL}/32"), &SWITCH_FRONT.to_string())?;
        servers_host.route("0.0.0.0/0", &SWITCH_BACK.to_string())?;
        switch_host.sysctl("net.ipv4.ip_forward", "1")?;

        let software = Software::find();
        step("starting the web servers");
        let trusted = origins::prepare(&software, &folder.0)?;
        let mut serving = Vec::new();
        for process in &PROCESSES {
            serving.push((
                process.name,
                origins::start(&software, &servers_host, process, &folder.0)?,
            ));
        }

        step("starting the switch");
        let config = folder.configuration()?;
        let mut command = switch_host.command("/proc/self/exe");
        command
            .arg0("fairlead")
            .args(["serve", "--log-format", "json", "--log", LOG]);
        command.arg("--config").arg(&config);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // A Ctrl-C at the terminal is for the demonstration, which then ends the switch in order.
        command.process_group(0);
        let mut switch = switch_host.start(&mut command)?;
        let log = switch.child().stderr.take().context("the switch's log")?;
        let journal = Journal::follow(log);

        let client = Client::new(client_host.clone(), &folder.0, trusted);
        let mut sleep = client_host.command("sleep");
        sleep.arg("infinity").stdin(Stdio::null()).process_group(0);
        let anchor = client_host.start(&mut sleep)?;
        let mut live = Self {
            client,
            anchor,
            switch,
            switch_host,
            servers_host,
            serving,
            software,
            journal,
            folder,
            as_root,
        };
        live.wait_until_ready()?;
        Ok(live)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let until = Instant::now() + READY_PATIENCE;
        loop {
            if self.admin("/healthz").is_ok() {
                return Ok(());
            }
            let ended = !self.switch.is_alive();
            if ended || Instant::now() > until {
                // The log's last lines may still arrive.
                self.journal.since(usize::MAX, Duration::from_millis(200));
                let what = if ended {
                    "ended"
                } else {
                    "was not ready in time"
                };
                bail!(
                    "the switch {what}:\n{}",
                    self.journal.other_lines().join("\n")
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fetches a page of the switch's admin address.
    fn admin(&self, path: &str) -> Result<String> {
        let mut stream = self
            .switch_host
            .enter(|| TcpStream::connect_timeout(&ADMIN, ADMIN_PATIENCE))??;
        stream.set_read_timeout(Some(ADMIN_PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {ADMIN}\r\n\r\n")?;
        let mut text = String::new();
        stream.take(16 << 20).read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            _ => Err(anyhow!("{path}: {}", head.lines().next().unwrap_or(""))),
        }
    }

    /// A shell command that makes `request` from any terminal on this machine.
    pub(super) fn command_for(&self, request: &Request) -> String {
        let enter = if self.as_root {
            let sudo = if program("sudo").is_some() {
                "sudo "
            } else {
                ""
            };
            format!("{sudo}nsenter --net --target {}", self.anchor.id())
        } else {
            format!(
                "nsenter --user --net --preserve-credentials --target {}",
                self.anchor.id()
            )
        };
        let quoted: Vec<String> = self
            .client
            .arguments(request)
            .into_iter()
            .map(|word| {
                if word.contains([' ', '*']) {
                    format!("'{word}'")
                } else {
                    word
                }
            })
            .collect();
        format!("{enter} curl -i {}", quoted.join(" "))
    }

    /// The switch's records from number `from` on, waiting a moment for new ones.
    pub(super) fn records_since(&self, from: usize) -> Vec<Entry> {
        self.journal.since(from, Duration::from_millis(200))
    }

    /// How many records there are.
    pub(super) fn records(&self) -> usize {
        self.journal.len()
    }

    /// Starts a server process again that was ended.
    pub(super) fn restart_process(&mut self, name: &str) -> Result<()> {
        let process = PROCESSES
            .iter()
            .find(|process| process.name == name)
            .context("its name")?;
        let serving = origins::start(&self.software, &self.servers_host, process, &self.folder.0)?;
        self.serving.push((process.name, serving));
        Ok(())
    }

    /// True while the switch runs.
    pub(super) fn is_alive(&mut self) -> bool {
        self.switch.is_alive()
    }

    /// Stops the switch (SIGTERM) and returns its exit status; `None` if it did not exit.
    pub(super) fn end(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        self.switch.signal(Signal::Terminate)?;
        Ok(self.switch.wait_for(patience)?)
    }
}

impl Stage for Live {
    fn cast(&self) -> Vec<(&'static str, String)> {
        let rights = if self.as_root {
            "as root"
        } else {
            "in a user namespace"
        };
        let servers = PROCESSES.map(|process| {
            let ports = process
                .origins
                .iter()
                .map(|origin| format!(":{}", origin.port));
            format!("{} {}", process.name, ports.collect::<Vec<_>>().join(" "))
        });
        vec![
            (
                "world",
                format!("three network namespaces, created {rights}; nothing outside them changes"),
            ),
            ("client", format!("{} at {CLIENT}", self.client.title())),
            (
                "switch",
                format!(
                    "fairlead serve, process {}, virtual address {VIRTUAL}",
                    self.switch.id()
                ),
            ),
            (
                "servers",
                format!(
                    "{}, {} at {SERVERS}",
                    self.software.title(),
                    servers.join(", ")
                ),
            ),
        ]
    }

    fn missing(&self, request: &Request) -> Option<String> {
        if !request.tls || (self.software.has_tls() && self.client.has_tls()) {
            return None;
        }
        Some(
            "TLS needs nginx, openssl and curl (Debian: apt-get install nginx openssl curl)".into(),
        )
    }

    fn ask(&mut self, request: &Request) -> Result<Vec<Answer>> {
        self.client.ask(request)
    }

    fn recorded(&mut self, client: SocketAddr) -> Result<Vec<Entry>> {
        let settled = |entries: &[Entry]| {
            entries
                .iter()
                .any(|entry| matches!(entry, Entry::Refused { .. } | Entry::Closed { .. }))
        };
        Ok(self.journal.about(client, LOG_PATIENCE, settled))
    }

    fn end_process(&mut self, name: &str) -> Result<()> {
        self.serving.retain(|(serving, _)| *serving != name);
        Ok(())
    }

    fn status(&mut self) -> Result<Value> {
        // The page shows counters that are published now and then; wait for younger ones than
        // this question.
        let asked = Instant::now();
        loop {
            let waited = asked.elapsed();
            let status: Value = serde_json::from_str(&self.admin("/status")?)?;
            let age_ms = status.get("age_ms").and_then(Value::as_u64).unwrap_or(0);
            if u128::from(age_ms) < waited.as_millis() || waited > ADMIN_PATIENCE {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
