//! A web server on the switch's own machine is ended and started again under a client that keeps
//! its connection (docs/handoff.md).

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fairlead_netns::{Running, Signal, program};
use serde_json::Value;

use super::super::client::{Answer, exchange};
use super::super::report::Screen;
use super::super::scene::{Expect, Request, VIRTUAL};
use super::super::stage::Stage;
use super::super::verdict::{Row, show_servers};
use super::Live;

/// The part of the configuration that leads to it.
pub(super) const CONFIG: &str = r#"
[[service]]
name = "local"
listen = "10.1.0.3:8000"
protocol = "http"

[[service.route]]
treatment = "host"
sleep = true
listener = "127.0.0.1:8090"
"#;

/// Where it listens, and where clients connect to.
const LISTENER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8_090);
const PORT: u16 = 8_000;
/// Time limit for its start, and for its connection to fall asleep.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

const REQUEST: Request = Request {
    method: "GET",
    tls: false,
    host: Some("www.example.com"),
    path: "/",
    then: None,
    body_bytes: 0,
    expect: Expect::Status(200),
};

/// The server's software; none of it knows of the switch.
struct Software {
    name: &'static str,
    program: PathBuf,
}

/// A server for a machine without nginx. Its answers say what nginx's do.
const PYTHON: &str = r#"
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"answered by Python\n"
        self.send_response(200)
        self.send_header("X-Server", "python-%d 127.0.0.1:8090" % os.getpid())
        self.send_header("X-Saw", "%s:%d" % self.client_address)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8090), Answer).serve_forever()
"#;

fn software() -> Option<Software> {
    let nginx = program("nginx").map(|program| ("nginx", program));
    let found = nginx.or_else(|| program("python3").map(|program| ("python", program)));
    found.map(|(name, program)| Software { name, program })
}

impl Live {
    /// Shows it, if that is possible here. Returns the number of requests that went wrong.
    pub(in super::super) fn show_local(&mut self, screen: &Screen) -> Result<usize> {
        screen.table(
            "A server on the switch's own machine restarts; the client's connection stays open",
        );
        let title = "GET www.example.com/, three times";
        let needs = "needs nginx or python3 (Debian: apt-get install nginx)";
        let Some(software) = software() else {
            screen.not_shown(title, needs);
            return Ok(0);
        };
        if let Some(why) = self.no_sockets() {
            screen.not_shown(title, &why);
            return Ok(0);
        }
        let mut server = self.start_local(&software)?;
        let host = self.client.host().clone();
        let connect = || TcpStream::connect_timeout(&(VIRTUAL, PORT).into(), PATIENCE);
        let stream = host.enter(connect)??;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut faults = 0;
        let mut last = None;
        for (round, (end, title)) in [
            (None, "GET www.example.com/"),
            (Some(Signal::Terminate), "stopped, started; the next GET"),
            (Some(Signal::Kill), "killed, started; the next GET"),
        ]
        .into_iter()
        .enumerate()
        {
            if let Some(signal) = end {
                server.signal(signal)?;
                server.wait_for(PATIENCE)?;
                self.wait_for_sleepers(round as u64)?;
                server = self.start_local(&software)?;
            }
            let answer = match exchange(&stream, &REQUEST, "/", false) {
                Ok(answer) => answer,
                Err(error) => {
                    let said = self.journal.other_lines().join("\n");
                    bail!("{error}; the switch said:\n{said}");
                }
            };
            let row = judge(&answer, stream.local_addr()?, last.as_ref());
            faults += usize::from(!row.faults.is_empty());
            screen.row(title, &row);
            last = answer.server;
        }
        let status = self.status()?;
        let count = |name: &str| status.get(name).and_then(Value::as_u64).unwrap_or(0);
        screen.line(&format!(
            "      {}, unmodified, listens on {LISTENER} alone; {} given to it, woken {} times",
            software.name,
            count("given"),
            count("woken"),
        ));
        Ok(faults)
    }

    /// Why connections cannot become sockets here, by the switch's log.
    pub(super) fn no_sockets(&self) -> Option<String> {
        let lines = self.journal.other_lines();
        let said = lines.iter().find_map(|line| {
            let (_, why) = line.split_once("cannot be served: ")?;
            why.split('"').next()
        });
        said.map(|why| format!("skipped: {}", why.trim_end_matches('\\')))
    }

    fn start_local(&self, software: &Software) -> Result<Running> {
        let mut command = self
            .switch_host
            .command(&software.program.to_string_lossy());
        if software.name == "nginx" {
            let folder = self.folder.0.display().to_string();
            let path = self.folder.0.join("local.conf");
            fs::write(&path, nginx_configuration(&folder))?;
            let log = self.folder.0.join("local-error.log");
            command.arg("-p").arg(&self.folder.0).arg("-e").arg(log);
            command.arg("-c").arg(path);
        } else {
            command.args(["-c", PYTHON]);
        }
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut running = self.switch_host.start(quiet.stderr(Stdio::null()))?;
        let until = Instant::now() + PATIENCE;
        let connect = || TcpStream::connect(LISTENER);
        while self.switch_host.enter(connect)?.is_err() {
            if !running.is_alive() || Instant::now() > until {
                bail!("{} does not listen on {LISTENER}", software.name);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(running)
    }

    /// Waits until this number of connections has fallen asleep.
    fn wait_for_sleepers(&mut self, wanted: u64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status()?;
            let slept = status["kernel"]["host_slept"].as_u64().unwrap_or(0);
            if slept >= wanted {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the connection did not outlive its socket");
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Compares with what the client knows: its own address, and who answered before.
fn judge(answer: &Answer, local: SocketAddr, last: Option<&(String, SocketAddr)>) -> Row {
    let mut faults = Vec::new();
    faults.extend(answer.error.clone());
    if answer.status != 200 {
        faults.push(format!("status {} instead of 200", answer.status));
    }
    if answer.saw != Some(local) {
        faults.push(format!("the server saw {:?}, not {local}", answer.saw));
    }
    if answer.server.is_none() || answer.server.as_ref() == last {
        faults.push("not answered by another process".to_owned());
    }
    let why = match last {
        None => format!("became its socket; it saw {local}"),
        Some(_) => format!("slept and was woken; it saw {local}"),
    };
    Row {
        answer: format!("{}, {} B", answer.status, answer.body_bytes),
        by: show_servers(std::slice::from_ref(answer)),
        why,
        faults,
    }
}

/// Paths are quoted, because the temporary directory may have spaces in its name.
fn nginx_configuration(folder: &str) -> String {
    let mut text = format!(
        "user root root;\ndaemon off;\nmaster_process off;\npid \"{folder}/local.pid\";\n\
         error_log \"{folder}/local-error.log\";\nevents {{ worker_connections 256; }}\n\
         http {{\naccess_log off;\ndefault_type text/plain;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text.push_str(&format!("{kind}_temp_path \"{folder}/local-{kind}\";\n"));
    }
    text + &format!(
        "server {{\nlisten {LISTENER};\nkeepalive_timeout 600;\n\
         add_header X-Server \"nginx-$pid {LISTENER}\";\n\
         add_header X-Saw \"$remote_addr:$remote_port\";\n\
         location / {{ return 200 \"answered by nginx\\n\"; }}\n}}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_must_answer_the_same_client() {
        let local: SocketAddr = "10.1.0.10:4000".parse().unwrap();
        let answer = |name: &str, saw: SocketAddr| Answer {
            status: 200,
            server: Some((name.to_owned(), LISTENER)),
            saw: Some(saw),
            ..Answer::default()
        };
        let first = answer("nginx-1", local);
        assert!(judge(&first, local, None).faults.is_empty());
        let last = first.server.as_ref();
        assert_eq!(
            judge(&first, local, last).faults.len(),
            1,
            "the same process"
        );
        let second = answer("nginx-2", local);
        assert!(judge(&second, local, last).faults.is_empty());
        let other = "10.1.0.2:4000".parse().unwrap();
        assert_eq!(judge(&second, other, last).faults.len(), 1);
        let none = Answer {
            error: Some("closed without an answer".into()),
            ..Answer::default()
        };
        assert_eq!(judge(&none, local, last).faults.len(), 4);
    }

    #[test]
    fn the_configuration_is_valid_beside_the_scenes() {
        let text = format!("{}{CONFIG}", super::super::super::scene::CONFIG);
        assert!(crate::config::parse(&text, "the demonstration").is_ok());
    }
}
