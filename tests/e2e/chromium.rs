//! Chromium as the client of a cache and of requests that are routed one by one.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use fairlead_netns::trial::skip;

use crate::harness::{Family, Lab, Origin, Switch, request_heads, with_sockets_of_cookies};

/// Pages and scripts go through a cache, `/api/…` to another pool at every request.
pub(crate) const SERVICES: &str = r#"
[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
[[service.route]]
path_prefix = "/api/"
treatment = "per-request"
pool = "api"
[[service.route]]
pool = "pages"
cache = { size = "16MiB", first = "always" }

[[pool]]
name = "pages"
server = [{ address = "10.2.0.1:8001" }]
[[pool]]
name = "api"
server = [{ address = "10.2.0.1:8002" }]
"#;

const SCRIPTS: u64 = 12;

/// What the script of this number is about: some are long enough for a file of the cache.
pub(crate) fn text_of(number: u64) -> String {
    (0..number * number * 400)
        .map(|at| char::from(b'a' + ((at * 7 + number) % 26) as u8))
        .collect()
}

/// The same as the page's script computes it.
pub(crate) fn sum_of(text: &str) -> u64 {
    text.bytes()
        .fold(0, |sum, byte| (sum * 31 + u64::from(byte)) % 1_000_003)
}

/// Content type and content of a path.
fn content(path: &str) -> (&'static str, String) {
    let number = path.strip_prefix("/script/");
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => {
            let text = text_of(number);
            let script = format!("show('script-{number}', sum('{text}'));");
            ("text/javascript", script)
        }
        None if path.starts_with("/api/") => ("text/plain", format!("api says {path}")),
        None if path == "/" => ("text/html", page()),
        None => ("image/svg+xml", IMAGE.to_owned()),
    }
}

const IMAGE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='123' height='45'></svg>";

fn page() -> String {
    let scripts: String = (1..=SCRIPTS)
        .map(|number| format!("<script src='/script/{number}'></script>\n"))
        .collect();
    format!(
        "<!doctype html><html><body><script>
function show(name, value) {{
  const line = document.createElement('p');
  line.textContent = name + '=' + value;
  document.body.appendChild(line);
}}
function sum(text) {{
  let sum = 0;
  for (const one of text) sum = (sum * 31 + one.charCodeAt(0)) % 1000003;
  return sum;
}}
for (const number of [1, 2, 3])
  fetch('/api/' + number).then(got => got.text()).then(text => show('api-' + number, text));
</script>
<img src='/image.svg' onload=\"show('image', this.naturalWidth)\">
{scripts}</body></html>"
    )
}

/// A server of these contents, and how often each path was asked for.
pub(crate) fn server(lab: &Lab, port: u16, asked: &Arc<Mutex<BTreeMap<String, u64>>>) -> Origin {
    let asked = Arc::clone(asked);
    Origin::start(lab, Family::V4.server_at(1, port), move |mut stream| {
        for head in request_heads(&stream)? {
            let head = head?;
            let path = head.split(' ').nth(1).unwrap_or("").to_owned();
            *asked
                .lock()
                .expect("no panic")
                .entry(path.clone())
                .or_default() += 1;
            let (kind, body) = content(&path);
            let fresh = match path.starts_with("/api/") {
                true => "no-store",
                false => "max-age=600",
            };
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: {fresh}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )?;
        }
        Ok(())
    })
}

/// What the page is once it has loaded everything, in a browser that knows nothing yet.
pub(crate) fn load(lab: &Lab, round: usize) -> String {
    let profile = lab.folder().join(format!("profile-{round}"));
    let mut command = lab.client.command("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
    ]);
    command.args(["--disable-background-networking", "--no-proxy-server"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.args([
        "--virtual-time-budget=20000",
        "--dump-dom",
        "http://10.1.0.3/",
    ]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().expect("running chromium");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn is_installed() -> bool {
    let found = std::process::Command::new("chromium")
        .arg("--version")
        .output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn chromium_loads_a_page_and_the_second_one_from_the_cache() {
    let test = "chromium::chromium_loads_a_page_and_the_second_one_from_the_cache";
    if !is_installed() {
        return skip(test, "chromium is not installed");
    }
    with_sockets_of_cookies(|lab| {
        let asked = Arc::default();
        let _servers = [8001, 8002].map(|port| server(lab, port, &asked));
        let switch = Switch::start_in_kernel(lab, "", SERVICES);
        let mut wanted: Vec<_> = (1..=SCRIPTS)
            .map(|number| format!("<p>script-{number}={}</p>", sum_of(&text_of(number))))
            .collect();
        wanted.extend((1..=3).map(|number| format!("<p>api-{number}=api says /api/{number}</p>")));
        wanted.push("<p>image=123</p>".to_owned());
        for round in 1..=2 {
            let page = load(lab, round);
            for line in &wanted {
                assert!(page.contains(line), "{round}: no {line} in\n{page}");
            }
            let asked = asked.lock().expect("no panic");
            for number in 1..=3 {
                assert_eq!(asked[&format!("/api/{number}")], round as u64, "{asked:?}");
            }
            let mut kept = asked.iter().filter(|(path, _)| !path.starts_with("/api/"));
            assert!(kept.all(|(_, count)| *count == 1), "{round}: {asked:?}");
            assert!(asked.len() as u64 >= SCRIPTS + 5, "{asked:?}");
        }
        // A browser opens few connections and sends many requests over each.
        let status = switch.wait_for_status("requests", |status| {
            status["front"]["front_served"].as_u64() >= Some(2 * (SCRIPTS + 5))
        });
        let accepted = status["front"]["front_accepted"].as_u64().unwrap_or(0);
        assert!((2..=20).contains(&accepted), "{status}");
    });
}
