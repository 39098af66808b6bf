//! The client: curl where the machine has it, a small one of our own where not.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_netns::{Host, program};

use super::scene::{Request, VIRTUAL};

/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Marks the line that curl writes after each answer.
const MARK: &str = "=fairlead ";

/// What a client got for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The HTTP status, 0 without an answer.
    pub status: u16,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// The server by its own account: name and endpoint (`X-Server`).
    pub server: Option<(String, SocketAddr)>,
    /// The client's address as the server saw it (`X-Saw`).
    pub saw: Option<SocketAddr>,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// `Cache-Status`.
    pub cache: Option<String>,
    /// The client's own address and port.
    pub local: Option<SocketAddr>,
    /// What the client complained of.
    pub error: Option<String>,
    /// A simulated client got it, which reads no fields of the header.
    pub simulated: bool,
}

impl Answer {
    /// Parses a header line into its field.
    fn header(&mut self, line: &str) {
        let Some((name, value)) = line.split_once(':') else {
            return;
        };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "x-server" => {
                self.server = value
                    .split_once(' ')
                    .and_then(|(name, at)| Some((name.to_owned(), at.parse().ok()?)));
            }
            "x-saw" => self.saw = value.parse().ok(),
            "cache-status" => self.cache = Some(value.to_owned()),
            "retry-after" => self.retry_after = Some(value.to_owned()),
            _ => {}
        }
    }
}

/// A client on a host.
pub(super) struct Client {
    host: Host,
    curl: Option<PathBuf>,
    folder: PathBuf,
    trusted: PathBuf,
}

impl Client {
    /// A client on `host`; `trusted` holds the certificates it believes in.
    pub(super) fn new(host: Host, folder: &Path, trusted: PathBuf) -> Self {
        Self {
            host,
            curl: program("curl"),
            folder: folder.to_owned(),
            trusted,
        }
    }

    /// Where it is.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// True when it can speak TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.curl.is_some()
    }

    /// Name and version for people.
    pub(super) fn title(&self) -> String {
        let Some(curl) = &self.curl else {
            return "an embedded one (for curl: apt-get install curl)".into();
        };
        let said = Command::new(curl)
            .arg("--version")
            .output()
            .map(|output| output.stdout);
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        said.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// Makes the request on its own connection. Returns one answer per path.
    pub(super) fn ask(&self, request: &Request) -> Result<Vec<Answer>> {
        match &self.curl {
            Some(curl) => self.ask_by_curl(curl, request),
            None => self.ask_embedded(request),
        }
    }

    /// curl's arguments for `request`.
    pub(super) fn arguments(&self, request: &Request) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|&word| word.to_owned()));
        let host = request.host.unwrap_or("");
        let (scheme, port) = if request.tls {
            ("https", 443)
        } else {
            ("http", 80)
        };
        let named = host.parse::<IpAddr>().is_err();
        if request.host.is_none() {
            add(&["-H", "Host:"]);
        } else if named {
            add(&["--resolve", &format!("{host}:{port}:{VIRTUAL}")]);
        }
        match request.method {
            "GET" => {}
            "HEAD" => add(&["--head"]),
            "POST" => {}
            other => add(&["--request", other]),
        }
        if request.tls {
            add(&["--cacert", &self.trusted.to_string_lossy()]);
        }
        let authority = if named && request.host.is_some() {
            host.into()
        } else {
            VIRTUAL.to_string()
        };
        for path in [Some(request.path), request.then].into_iter().flatten() {
            add(&[&format!("{scheme}://{authority}{path}")]);
        }
        arguments
    }

    fn ask_by_curl(&self, curl: &Path, request: &Request) -> Result<Vec<Answer>> {
        let mut command = self.host.command(&curl.to_string_lossy());
        // No configuration file and no proxy of the user's may interfere.
        command.args([
            "--disable",
            "--noproxy",
            "*",
            "--silent",
            "--show-error",
            "--http1.1",
        ]);
        command.args([
            "--max-time",
            &PATIENCE.as_secs().to_string(),
            "--dump-header",
            "-",
        ]);
        let write =
            format!("\\n{MARK}%{{http_code}} %{{size_download}} %{{local_ip}} %{{local_port}}\\n");
        command.args(["--write-out", &write]);
        for _ in [Some(request.path), request.then].into_iter().flatten() {
            command.args(["--output", "/dev/null"]);
        }
        if request.body_bytes > 0 {
            let body = self.folder.join("body");
            std::fs::File::create(&body)?.set_len(request.body_bytes as u64)?;
            command
                .arg("--data-binary")
                .arg(format!("@{}", body.display()));
        }
        command.args(self.arguments(request)).stdin(Stdio::null());
        let output = command.output().context("running curl")?;
        let mut answers = read_curl(&String::from_utf8_lossy(&output.stdout));
        if answers.is_empty() {
            bail!(
                "no output from curl: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            for answer in &mut answers {
                answer.error = Some(said.clone());
            }
        }
        Ok(answers)
    }

    fn ask_embedded(&self, request: &Request) -> Result<Vec<Answer>> {
        if request.tls {
            bail!("the embedded client does not speak TLS");
        }
        let stream = self
            .host
            .enter(|| TcpStream::connect_timeout(&SocketAddr::from((VIRTUAL, 80)), PATIENCE))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut answers = Vec::new();
        let paths: Vec<&str> = [Some(request.path), request.then]
            .into_iter()
            .flatten()
            .collect();
        for (number, path) in paths.iter().enumerate() {
            let last = number + 1 == paths.len();
            answers.push(exchange(&stream, request, path, last)?);
        }
        Ok(answers)
    }
}

/// One request and its answer on a connection of the embedded client.
pub(super) fn exchange(
    mut stream: &TcpStream,
    request: &Request,
    path: &str,
    last: bool,
) -> Result<Answer> {
    let mut head = format!("{} {path} HTTP/1.1\r\n", request.method);
    if let Some(host) = request.host {
        head.push_str(&format!("Host: {host}\r\n"));
    }
    if request.body_bytes > 0 {
        head.push_str(&format!("Content-Length: {}\r\n", request.body_bytes));
    }
    head.push_str(if last {
        "Connection: close\r\n\r\n"
    } else {
        "\r\n"
    });
    stream.write_all(head.as_bytes())?;
    let mut answer = Answer {
        local: Some(stream.local_addr()?),
        ..Answer::default()
    };
    // A switch that refuses may close before it has read the whole body.
    let _ = std::io::copy(
        &mut std::io::repeat(0).take(request.body_bytes as u64),
        &mut stream,
    );
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && text.len() < 64 << 10 {
        if stream.read(&mut byte)? == 0 {
            answer.error = Some("closed without an answer".into());
            return Ok(answer);
        }
        text.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    answer.status = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    text.lines().for_each(|line| answer.header(line));
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    if request.method != "HEAD" {
        answer.body_bytes = std::io::copy(&mut stream.take(length), &mut std::io::sink())?;
    }
    Ok(answer)
}

/// Reads what curl wrote: header blocks, each closed by a marked line.
fn read_curl(text: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut answer = Answer::default();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(MARK) else {
            answer.header(line);
            continue;
        };
        let words: Vec<&str> = rest.split(' ').collect();
        if let [status, bytes, ip, port] = words[..] {
            answer.status = status.parse().unwrap_or(0);
            answer.body_bytes = bytes.parse().unwrap_or(0);
            let ip: Option<IpAddr> = ip.parse().ok();
            answer.local = ip.zip(port.parse().ok()).map(SocketAddr::from);
        }
        answers.push(std::mem::take(&mut answer));
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_answers_of_one_connection_are_separated() {
        let text = "HTTP/1.1 200 OK\r\nX-Server: images-1 10.2.0.1:8081\r\n\
                    X-Saw: 100.64.0.1:3000\r\n\r\n\n=fairlead 200 14 10.1.0.10 4000\n\
                    HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n\r\n\n\
                    =fairlead 503 0 10.1.0.10 4000\n";
        let answers = read_curl(text);
        assert_eq!(answers.len(), 2);
        let (name, at) = answers[0].server.clone().unwrap();
        assert_eq!((name.as_str(), at.port()), ("images-1", 8081));
        assert_eq!(answers[0].saw.unwrap().to_string(), "100.64.0.1:3000");
        assert_eq!((answers[0].status, answers[0].body_bytes), (200, 14));
        assert_eq!(answers[1].server, None);
        assert_eq!(answers[1].retry_after.as_deref(), Some("5"));
        assert_eq!(answers[1].local.unwrap().to_string(), "10.1.0.10:4000");
    }

    #[test]
    fn a_failed_connection_has_its_port() {
        let answers = read_curl("\n=fairlead 000 0 10.1.0.10 4711\n");
        assert_eq!(
            (answers[0].status, answers[0].local.unwrap().port()),
            (0, 4711)
        );
    }
}
