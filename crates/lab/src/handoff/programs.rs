//! The programs of a measurement: what serves on the host, and its clients.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::bench::{
    Bench, CARD_PROCESSOR, Carried, FILE, HOST_PROCESSOR, Load, addresses, inside, machine,
};
use super::totals;
use super::web::site::Site;
use crate::error::LabError;

/// Longest wait for a web server to listen.
const START: Duration = Duration::from_secs(10);

/// A process that ends with this.
pub(super) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    pub(super) fn start(command: &mut Command) -> Result<Self, LabError> {
        Ok(Self(command.spawn().map_err(gone)?))
    }

    /// Starts it, and waits until it says that it is ready, which is the first that it says.
    pub(super) fn ready(command: &mut Command, name: &str) -> Result<Self, LabError> {
        let mut process = Self::start(command.stdout(Stdio::piped()))?;
        process.output(name).map(|_| process)
    }

    /// The output of one that has said that it is ready.
    fn output(&mut self, name: &str) -> Result<BufReader<ChildStdout>, LabError> {
        let output = self.0.stdout.take();
        let mut output = BufReader::new(output.ok_or_else(|| machine(name, "no output"))?);
        let mut line = String::new();
        match output.read_line(&mut line) {
            Ok(_) if line.trim() == "ready" => Ok(output),
            _ => Err(machine(name, "it ended, or said something else; see above")),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for a good end.
    pub(super) fn end(&mut self, name: &str) -> Result<(), LabError> {
        let status = self.0.wait().map_err(gone)?;
        match status.success() {
            true => Ok(()),
            false => Err(machine(name, status)),
        }
    }
}

/// Clients, in one process: each byte of its input is answered by what has been read so far.
pub(super) struct Client {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(command: &mut Command) -> Result<Self, LabError> {
        let name = "the client";
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = process.output(name)?;
        let input = process.0.stdin.take();
        Ok(Self {
            process,
            input: input.ok_or_else(|| machine(name, "no input"))?,
            output,
        })
    }

    /// Answers and bytes so far.
    pub(super) fn totals(&mut self) -> Result<[u64; 2], LabError> {
        self.input.write_all(&[1]).map_err(gone)?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(gone)?;
        totals::parse(&line).ok_or_else(|| machine("the client", "it ended; see above"))
    }
}

/// What runs while there is load.
pub(super) struct Running {
    pub(super) client: Client,
    /// The first has the connections.
    servers: Vec<Process>,
}

impl Running {
    /// Ends all, first the client, whose end may be a failure. Returns the servers' processes.
    pub(super) fn end(self) -> Result<Vec<u32>, LabError> {
        let Client {
            mut process, input, ..
        } = self.client;
        drop(input);
        process.end("the client")?;
        Ok(self.servers.iter().map(Process::id).collect())
    }
}

impl Bench {
    /// A program whose connections those carry that should.
    fn server(&self, carried: Carried, program: &Path) -> Command {
        let Carried::ByCards { cards, after } = carried else {
            return inside(self.host(), HOST_PROCESSOR, program);
        };
        let mut server = inside(self.host(), HOST_PROCESSOR, &self.program);
        server.args(["run", "--after", &after.to_string()]);
        for at in 0..cards {
            server.arg("--socket").arg(self.socket(at as usize));
        }
        server.arg("--").arg(program);
        server
    }

    /// A hidden part of this program, as clients.
    fn clients(&self, what: &str, connections: u32, wires: u32) -> Command {
        let mut clients = inside(self.client(), CARD_PROCESSOR, &self.program);
        clients.args(["lab", "handoff", what, "--connections"]);
        clients.arg(connections.to_string());
        for at in 0..wires as usize {
            clients.args(["--connect", &format!("{}:80", addresses(at)[1])]);
        }
        clients
    }

    /// A program that sends messages, and its readers.
    pub(super) fn messages(
        &self,
        connections: u32,
        carried: Carried,
        load: Load,
    ) -> Result<Running, LabError> {
        let mut sender = self.server(carried, &self.program);
        sender.args(["lab", "handoff", "load", "--listen", "0.0.0.0:80"]);
        sender.args(["--connections", &connections.to_string()]);
        if load == Load::Named {
            sender.arg("--file").arg(self.folder.join(FILE));
        }
        let sender = Process::ready(&mut sender, "the sender")?;
        let wires = match carried {
            Carried::ByHost => 1,
            Carried::ByCards { cards, .. } => cards,
        };
        let client = Client::start(&mut self.clients("load", connections, wires))?;
        Ok(Running {
            client,
            servers: vec![sender],
        })
    }

    /// A reader of a sender that ends by itself.
    pub(super) fn reader(&self, connections: u32) -> Result<Process, LabError> {
        let mut reader = self.clients("load", connections, 1);
        // It fails at the end, when the sender has sent its messages.
        reader.stdin(Stdio::piped()).stdout(Stdio::null());
        Process::start(reader.stderr(Stdio::null()))
    }

    /// nginx with a backend for dynamic answers, and clients.
    pub(super) fn web(
        &self,
        connections: u32,
        carried: Carried,
        load: Load,
    ) -> Result<Running, LabError> {
        let site = self.site()?;
        let _ = fs::remove_file(site.pid());
        let _ = fs::remove_file(site.backend());
        let mut backend = inside(self.host(), HOST_PROCESSOR, &self.program);
        backend.args(["lab", "handoff", "web", "--serve"]);
        let backend = Process::ready(backend.arg(site.backend()), "the backend")?;
        let mut server = self.server(carried, Path::new("nginx"));
        server.arg("-c").arg(site.configuration());
        let mut server = Process::start(server.arg("-e").arg(site.log()))?;
        wait_for_nginx(&mut server, site)?;
        let mut clients = self.clients("web", connections, 1);
        if load == Load::StaticWeb {
            clients.arg("--static");
        }
        let client = Client::start(&mut clients)?;
        Ok(Running {
            client,
            servers: vec![server, backend],
        })
    }
}

/// It writes its number when it listens.
fn wait_for_nginx(server: &mut Process, site: &Site) -> Result<(), LabError> {
    let begin = Instant::now();
    while fs::metadata(site.pid()).map_or(0, |file| file.len()) == 0 {
        let ended = server.0.try_wait().map_err(gone)?;
        if ended.is_some() || begin.elapsed() > START {
            let log = fs::read_to_string(site.log()).unwrap_or_default();
            return Err(machine("nginx does not serve", log.trim()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

pub(super) fn gone(error: std::io::Error) -> LabError {
    machine("a program of the measurement", error)
}
