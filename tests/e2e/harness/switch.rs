//! The switch as a process of its own, and what it says.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use fairlead_netns::{Running, Signal};
use serde_json::Value;

use super::PATIENCE;
use super::lab::{Family, Lab};

const ADMIN: &str = "127.0.0.1:9090";

/// What every configuration begins with.
pub(crate) const PREFIX: &str = r#"
[instance]
name = "e2e"
admin = "127.0.0.1:9090"
drain_timeout = "1s"

[log]
access = "all"

[network]
device = "fairlead0"
snat = ["100.64.0.0/24", "fd64::/120"]
[fastpath]
mode = "engine"
"#;

/// [`PREFIX`] with another `mode`, and these lines besides in its section `[fastpath]`.
pub(crate) fn prefix_in(mode: &str, lines: &str) -> String {
    PREFIX.replace("mode = \"engine\"", &format!("mode = \"{mode}\"\n{lines}"))
}

/// The mode of tests that are about the kernel's program: the one that `FAIRLEAD_E2E_MODE` asks for
/// if that has one, and tc otherwise.
pub(crate) fn kernel_mode() -> String {
    match std::env::var("FAIRLEAD_E2E_MODE") {
        Ok(mode) if mode != "engine" && mode != "auto" => mode,
        _ => "tc".to_owned(),
    }
}

/// The configuration with the mode of the fast path that `FAIRLEAD_E2E_MODE` asks for, and the kind
/// of flow table that `FAIRLEAD_E2E_FLOW_TABLE` asks for: with the smallest cache there is.
fn in_mode(configuration: &str) -> String {
    let configuration = match std::env::var("FAIRLEAD_E2E_MODE") {
        Ok(mode) => configuration.replace("mode = \"engine\"", &format!("mode = \"{mode}\"")),
        Err(_) => configuration.to_owned(),
    };
    let Ok(kind) = std::env::var("FAIRLEAD_E2E_FLOW_TABLE") else {
        return configuration;
    };
    if configuration.contains("flow_table") {
        return configuration;
    }
    let lines = match kind.as_str() {
        "tcb-cache" => "tcb_cache_lines = 8\n",
        _ => "",
    };
    let section = format!("[fastpath]\nflow_table = \"{kind}\"\n{lines}");
    configuration.replacen("[fastpath]\n", &section, 1)
}

/// A service called `web` at port 80 of the virtual addresses, with a pool of these servers for
/// each family that has any. `extra` goes into the service, `pool` into the pools.
pub(crate) fn web_service(
    source: &str,
    extra: &str,
    pool: &str,
    servers: impl Fn(Family) -> Vec<SocketAddr>,
) -> String {
    let mut listen = Vec::new();
    let (mut routes, mut pools) = (String::new(), String::new());
    for (family, name) in [(Family::V4, "four"), (Family::V6, "six")] {
        let all = servers(family);
        if all.is_empty() {
            continue;
        }
        let at = format!("\"{}\"", family.virtual_at(80));
        routes.push_str(&format!(
            "[[service.route]]\nlisten = {at}\npool = \"{name}\"\n"
        ));
        listen.push(at);
        let tables: Vec<String> = all
            .iter()
            .map(|server| format!("{{ address = \"{server}\" }}"))
            .collect();
        let tables = tables.join(", ");
        pools.push_str(&format!(
            "[[pool]]\nname = \"{name}\"\n{pool}\nserver = [{tables}]\n"
        ));
    }
    format!(
        "\n[[service]]\nname = \"web\"\nlisten = [{}]\nprotocol = \"http\"\n\
         source = \"{source}\"\n{extra}\n{routes}{pools}",
        listen.join(", ")
    )
}

/// A service called `raw` at port 7 of both virtual addresses that reads nothing (`tcp`).
pub(crate) fn raw_service(source: &str, server: impl Fn(Family) -> SocketAddr) -> String {
    web_service(source, "", "", |family| vec![server(family)])
        .replace("\"web\"", "\"raw\"")
        .replace("\"http\"", "\"tcp\"")
        .replace("3:80\"", "3:7\"")
        .replace("]:80\"", "]:7\"")
        .replace("\"four\"", "\"raw-four\"")
        .replace("\"six\"", "\"raw-six\"")
}

/// One line of the switch's log about a connection.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// `decided`, `refused` or `closed`.
    pub(crate) kind: String,
    fields: Value,
}

impl Record {
    fn parse(line: &str) -> Option<Self> {
        let mut line: Value = serde_json::from_str(line).ok()?;
        let fields = match line.get_mut("fields") {
            Some(fields) => fields.take(),
            None => line,
        };
        let kind = fields.get("message")?.as_str()?.to_owned();
        matches!(kind.as_str(), "decided" | "refused" | "closed").then_some(Self { kind, fields })
    }

    /// A field as text, also where it is a number.
    pub(crate) fn text(&self, name: &str) -> String {
        match self.fields.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        }
    }

    /// A field as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let text = self.text(name);
        text.parse()
            .unwrap_or_else(|_| panic!("{name} = {text:?} in {self:?}"))
    }
}

/// A running switch. Dropping it ends it in order and checks that it does end, without complaint.
#[derive(Debug)]
pub(crate) struct Switch {
    process: Running,
    lab_switch: fairlead_netns::Host,
    lines: Arc<Mutex<Vec<String>>>,
    /// Which of them [`Switch::record`] has told.
    told: Mutex<BTreeSet<usize>>,
}

impl Switch {
    /// Starts it with [`PREFIX`] and these services and pools, and waits until it is ready.
    pub(crate) fn start(lab: &Lab, services: &str) -> Self {
        Self::start_with(lab, &format!("{PREFIX}{services}"))
    }

    /// Starts it as [`Switch::start`] does, in [`kernel_mode`], with these lines in `[fastpath]`.
    pub(crate) fn start_in_kernel(lab: &Lab, lines: &str, services: &str) -> Self {
        Self::start_with(
            lab,
            &format!("{}{services}", prefix_in(&kernel_mode(), lines)),
        )
    }

    /// Starts it with this whole configuration, and waits until it is ready.
    pub(crate) fn start_with(lab: &Lab, configuration: &str) -> Self {
        Self::launch(lab, configuration).ready()
    }

    /// Waits until it is ready.
    pub(crate) fn ready(self) -> Self {
        let mut switch = self;
        let until = Instant::now() + PATIENCE;
        while switch.page("/healthz").is_err() {
            if !switch.process.is_alive() || Instant::now() > until {
                std::thread::sleep(Duration::from_millis(100));
                panic!("the switch is not ready:\n{}", switch.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        switch
    }

    /// Starts it and does not wait.
    pub(crate) fn launch(lab: &Lab, configuration: &str) -> Self {
        Self::launch_as(lab, configuration, binary(), &[])
    }

    /// Starts this binary with these options and does not wait.
    pub(crate) fn launch_as(
        lab: &Lab,
        configuration: &str,
        binary: &Path,
        options: &[&str],
    ) -> Self {
        let command = lab.switch.command(&binary.to_string_lossy());
        Self::run(lab, configuration, command, options)
    }

    /// Starts it by this command, to which what follows the binary's name is added.
    pub(crate) fn run(
        lab: &Lab,
        configuration: &str,
        mut command: Command,
        options: &[&str],
    ) -> Self {
        let path = lab.file("fairlead.toml", in_mode(configuration));
        let log = "info,fairlead::connection=debug";
        command.arg("serve").args(options);
        command
            .args(["--log-format", "json", "--log", log, "--config"])
            .arg(path);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.env("RUST_BACKTRACE", "1");
        let mut process = lab.switch.start(&mut command).expect("starting the switch");
        let log = process.child().stderr.take().expect("its log");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                writer.lock().expect("the log").push(line);
            }
        });
        Self {
            process,
            lab_switch: lab.switch.clone(),
            lines,
            told: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.process
            .signal(signal)
            .expect("sending a signal to the switch");
    }

    /// Its exit code once it has ended by itself; `None` when it goes on, or after a signal.
    pub(crate) fn wait_for_end(&mut self) -> Option<i32> {
        self.process
            .wait_for(PATIENCE)
            .expect("waiting for the switch")
            .and_then(|end| end.code())
    }

    /// True while it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// Everything it has written.
    pub(crate) fn log(&self) -> String {
        self.lines.lock().expect("the log").join("\n")
    }

    /// Fetches an admin page: status and body.
    pub(crate) fn page(&self, path: &str) -> Result<String, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut stream = self
            .lab_switch
            .enter(|| TcpStream::connect(ADMIN))
            .map_err(|error| error.to_string())?
            .map_err(text)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {ADMIN}\r\n\r\n").map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            _ => Err(head.lines().next().unwrap_or("").to_owned()),
        }
    }

    /// The status page, with counters that are younger than this question: they are published a
    /// few times a second.
    pub(crate) fn status(&self) -> Value {
        let asked = Instant::now();
        loop {
            let waited_ms = asked.elapsed().as_millis();
            let page = self.page("/status").expect("the status page");
            let status: Value = serde_json::from_str(&page).expect("JSON on the status page");
            let age_ms = status["age_ms"].as_u64().expect("the counters' age");
            if u128::from(age_ms) < waited_ms {
                return status;
            }
            assert!(
                asked.elapsed() < PATIENCE,
                "the counters stand still: {status}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A number at the top of the status page.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let status = self.status();
        let found = status.get(name).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no number {name} in {status}"))
    }

    /// How often something was dropped or refused for `reason`.
    pub(crate) fn drops(&self, reason: &str) -> u64 {
        self.status()["drops"]
            .get(reason)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    }

    /// The next record of `kind` about a connection from `client`, once there is one that was not
    /// asked for before: a later connection may have the same port.
    pub(crate) fn record(&self, client: SocketAddr, kind: &str) -> Record {
        let client = client.to_string();
        let until = Instant::now() + PATIENCE;
        loop {
            let found = {
                let lines = self.lines.lock().expect("the log");
                let mut told = self.told.lock().expect("what was told");
                let about = (lines.iter().enumerate()).filter(|(_, line)| line.contains(&client));
                let mut records =
                    about.filter_map(|(number, line)| Some((number, Record::parse(line)?)));
                records.find(|(number, record)| {
                    let is_it = record.text("client") == client && record.kind == kind;
                    is_it && told.insert(*number)
                })
            };
            if let Some((_, record)) = found {
                return record;
            }
            assert!(
                Instant::now() < until,
                "no line {kind:?} about {client}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the number `name` at the top of the status page is `wanted`.
    pub(crate) fn wait_for_count(&self, name: &str, wanted: u64) {
        let what = format!("{name} to be {wanted}");
        self.wait_for_status(&what, |status| status[name] == wanted);
    }

    /// The status page, once it is as `wanted`, which `what` tells in words.
    pub(crate) fn wait_for_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < until, "still waiting for {what}: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until its packets' counters stand still, whoever handles the packets.
    pub(crate) fn wait_for_quiet(&self) {
        let counts = |status: &Value| {
            ["rx_packets", "tx_packets", "engine_packets"].map(|name| status[name].as_u64())
        };
        let until = Instant::now() + PATIENCE;
        let mut before = counts(&self.status());
        loop {
            std::thread::sleep(Duration::from_millis(600));
            let status = self.status();
            let now = counts(&status);
            if now == before {
                return;
            }
            assert!(Instant::now() < until, "packets keep coming: {status}");
            before = now;
        }
    }

    /// Waits for this text in its log, which comes through a pipe: what it has written need not be
    /// here yet, also when it has ended.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            let log = self.log();
            assert!(Instant::now() < until, "not a word of {text:?}:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the switch's log:\n{}", self.log());
            return;
        }
        let log = self.log();
        assert!(!log.contains("panicked"), "the switch panicked:\n{log}");
        // Tests that ended or killed it have asked for its exit code themselves.
        if self.process.is_alive() {
            self.signal(Signal::Terminate);
            let code = self.wait_for_end();
            let stack = std::fs::read_to_string(format!("/proc/{}/stack", self.id()));
            assert_eq!(
                code,
                Some(0),
                "the switch's end after SIGTERM:\n{}\nin the kernel: {stack:?}",
                self.log()
            );
        }
    }
}

/// The `fairlead` binary: the one that `FAIRLEAD_BINARY` names, or this workspace's, built now if
/// it is not up to date.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("FAIRLEAD_BINARY") {
            return path.into();
        }
        // This test is TARGET/PROFILE/deps/e2e-…; the binary belongs to TARGET/PROFILE.
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test
            .parent()
            .and_then(Path::parent)
            .expect("a folder of the profile");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // As part of the workspace: with the features that its other builds have, so that nothing
        // is compiled again.
        build.args(["build", "--quiet", "--workspace", "--bin", "fairlead"]);
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status = build.status().expect("running cargo");
        assert!(status.success(), "the fairlead binary does not build");
        profile.join("fairlead")
    })
}
