//! Requests of one connection reach two pools, and the second answer comes from a cache
//! (docs/per-request.md, docs/content-cache.md).

use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::super::client::{Answer, exchange};
use super::super::report::Screen;
use super::super::scene::{Expect, KEPT_PATH, Request, VIRTUAL};
use super::super::verdict::{Row, show_servers};
use super::Live;

/// The part of the configuration that leads to it.
pub(super) const CONFIG: &str = r#"
[[service]]
name = "mixed"
listen = "10.1.0.3:8001"
protocol = "http"

[[service.route]]
path_prefix = "/photos/"
treatment = "per-request"
pool = "images"

[[service.route]]
treatment = "per-request"
pool = "pages"
cache = { size = "16MiB", max_object = "1MiB", kernel = true }
"#;

const PORT: u16 = 8_001;
const SPLICED_PORT: u16 = 80;
/// Requests that are timed.
const TIMED: usize = 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked, and who must answer: the beginning of a server's name, and what the cache says.
const STEPS: [(&str, &str, &str, Option<&str>); 5] = [
    ("GET /photos/cat", "/photos/cat", "images-", None),
    (
        "GET /index.html",
        "/index.html",
        "pages-",
        Some("fwd=uri-miss"),
    ),
    ("GET /kept/logo", KEPT_PATH, "pages-", Some("fwd=uri-miss")),
    ("the same again", KEPT_PATH, "pages-", Some("hit")),
    (
        "fairlead cache purge --all; again",
        KEPT_PATH,
        "pages-",
        Some("fwd=uri-miss"),
    ),
];

impl Live {
    /// Shows it, if that is possible here. Returns the number of requests that went wrong.
    pub(in super::super) fn show_front(&mut self, screen: &Screen) -> Result<usize> {
        screen
            .table("Each request of one connection is routed by itself, or answered from a cache");
        if let Some(why) = self.no_sockets() {
            screen.not_shown("GET, five times", &why);
            return Ok(0);
        }
        let host = self.client.host().clone();
        let connect = || TcpStream::connect_timeout(&(VIRTUAL, PORT).into(), PATIENCE);
        let stream = host.enter(connect)??;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut faults = 0;
        for (number, (title, path, server, cache)) in STEPS.into_iter().enumerate() {
            if number + 1 == STEPS.len() {
                self.purge()?;
            }
            let request = request_for(path);
            let row = judge(&exchange(&stream, &request, path, false)?, server, cache);
            faults += usize::from(!row.faults.is_empty());
            screen.row(title, &row);
        }
        faults += self.show_kernel_hit(screen)?;
        Ok(faults)
    }

    /// Shows how long a response takes that the kernel sends, beside one that is spliced.
    fn show_kernel_hit(&self, screen: &Screen) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        let mut hit = self.timed(PORT)?;
        while !is_from_kernel(&hit.0) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            hit = self.timed(PORT)?;
        }
        let (mut hits, mut spliced) = (Vec::new(), Vec::new());
        for _ in 0..TIMED {
            hits.push(self.timed(PORT)?.1);
            spliced.push(self.timed(SPLICED_PORT)?.1);
        }
        let faults = match is_from_kernel(&hit.0) {
            true => Vec::new(),
            false => vec![format!("the cache said {:?}", hit.0.cache)],
        };
        let row = Row {
            answer: format!("{}, {} B", hit.0.status, hit.0.body_bytes),
            by: "the kernel".to_owned(),
            why: format!(
                "{} µs; spliced {} µs (medians of {TIMED}, connection included)",
                median(&mut hits).as_micros(),
                median(&mut spliced).as_micros()
            ),
            faults,
        };
        let failed = usize::from(!row.faults.is_empty());
        screen.row("GET /kept/logo, often asked for", &row);
        Ok(failed)
    }

    /// A request on a connection of its own, and how long it took.
    fn timed(&self, port: u16) -> Result<(Answer, Duration)> {
        let host = self.client.host().clone();
        let begun = Instant::now();
        let connect = || TcpStream::connect_timeout(&(VIRTUAL, port).into(), PATIENCE);
        let stream = host.enter(connect)??;
        stream.set_read_timeout(Some(PATIENCE))?;
        let answer = exchange(&stream, &request_for(KEPT_PATH), KEPT_PATH, false)?;
        Ok((answer, begun.elapsed()))
    }

    fn purge(&self) -> Result<()> {
        let mut command = self.switch_host.command("/proc/self/exe");
        let command = command.args(["cache", "purge", "--all", "--instance", "edge"]);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

fn request_for(path: &'static str) -> Request {
    Request {
        method: "GET",
        tls: false,
        host: Some("www.example.com"),
        path,
        then: None,
        body_bytes: 0,
        expect: Expect::Status(200),
    }
}

fn is_from_kernel(answer: &Answer) -> bool {
    let said = answer.cache.as_deref();
    said.is_some_and(|said| said.contains("detail=kernel"))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Compares with what must have happened.
fn judge(answer: &Answer, server: &str, cache: Option<&str>) -> Row {
    let mut faults = Vec::new();
    faults.extend(answer.error.clone());
    if answer.status != 200 {
        faults.push(format!("status {} instead of 200", answer.status));
    }
    let by = answer.server.as_ref().map_or("", |(name, _)| name);
    if !by.starts_with(server) {
        faults.push(format!("answered by {by:?}, not by {server}…"));
    }
    let said = answer.cache.as_deref();
    if !said.unwrap_or_default().contains(cache.unwrap_or_default())
        || said.is_some() != cache.is_some()
    {
        faults.push(format!("the cache said {said:?}"));
    }
    let why = match cache {
        None => "its pool; no cache".to_owned(),
        Some("hit") => "from the cache".to_owned(),
        Some(_) => "its pool; not in the cache".to_owned(),
    };
    Row {
        answer: format!("{}, {} B", answer.status, answer.body_bytes),
        by: show_servers(std::slice::from_ref(answer)),
        why,
        faults,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_and_cache_must_be_the_expected_ones() {
        let answer = |server: &str, cache: Option<&str>| Answer {
            status: 200,
            server: Some((server.to_owned(), "10.2.0.1:80".parse().unwrap())),
            cache: cache.map(str::to_owned),
            ..Answer::default()
        };
        let faults =
            |answer: Answer, server: &str, cache| judge(&answer, server, cache).faults.len();
        assert_eq!(faults(answer("images-1", None), "images-", None), 0);
        assert_eq!(faults(answer("pages-1", None), "images-", None), 1);
        let hit = || answer("pages-1", Some("fairlead; hit; ttl=60"));
        assert_eq!(faults(hit(), "pages-", Some("hit")), 0);
        assert_eq!(faults(hit(), "pages-", Some("fwd=uri-miss")), 1);
        assert_eq!(faults(hit(), "pages-", None), 1);
    }

    #[test]
    fn the_configuration_is_valid_beside_the_scenes() {
        let text = format!("{}{CONFIG}", super::super::super::scene::CONFIG);
        assert!(crate::config::parse(&text, "the demonstration").is_ok());
    }
}
