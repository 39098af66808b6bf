//! HTTP as clients speak it: routes, keep-alive, pipelining, HEAD, one-shot; curl, nginx, Python.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use fairlead_testkit::stream;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, Switch, in_a_lab, prefix_in, wait_for_listener, web,
    web_service, with_and_without_the_fast_path,
};

/// Runs curl on the client's host and returns what it wrote; it must succeed.
pub(crate) fn curl(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.client.command("curl");
    command.args([
        "--disable",
        "--noproxy",
        "*",
        "--silent",
        "--show-error",
        "--max-time",
        "60",
    ]);
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("running curl");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "curl {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text from curl")
}

/// The routes of the next test: what must match, and the port of the server that then answers.
const ROUTES: [(&str, u16); 13] = [
    (r#"host = "api.example.com""#, 8001),
    (r#"host = "*.shop.example.com""#, 8002),
    (r#"path = "/exact""#, 8003),
    (r#"path_prefix = "/prefix/""#, 8004),
    (r#"path_suffix = [".jpg", ".png"]"#, 8005),
    (r#"path_regex = "^/user/[0-9]+$""#, 8006),
    (r#"method = ["PUT", "DELETE"]"#, 8007),
    (r#"header = { x-colour = "red" }"#, 8008),
    (r#"header = { accept-language = { regex = "^de" } }"#, 8009),
    (r#"query = { version = "2" }"#, 8010),
    (r#"cookie = { group = "beta" }"#, 8011),
    (r#"header = { x-debug = { present = true } }"#, 8012),
    ("", 8013),
];

/// Arguments of curl, and the port that must answer.
const REQUESTS: [(&[&str], &str, u16); 24] = [
    (&["-H", "Host: api.example.com"], "/", 8001),
    (&["-H", "Host: API.Example.COM:80"], "/a.jpg", 8001),
    (&["-H", "Host: a.shop.example.com"], "/", 8002),
    (&["-H", "Host: a.b.shop.example.com"], "/", 8002),
    (&["-H", "Host: shop.example.com"], "/", 8013),
    (&["-H", "Host: xshop.example.com"], "/", 8013),
    (&[], "/exact", 8003),
    (&[], "/exact?a=b", 8003),
    (&[], "/exact/", 8013),
    (&[], "/prefix/anything.jpg", 8004),
    (&[], "/prefix", 8013),
    (&[], "/x/y/cat.png", 8005),
    (&[], "/cat.jpg?size=1", 8005),
    (&[], "/cat.jpg/x", 8013),
    (&[], "/user/17", 8006),
    (&[], "/user/17a", 8013),
    (&["-X", "DELETE"], "/", 8007),
    (&["-H", "X-Colour: red"], "/", 8008),
    (&["-H", "X-Colour: blue"], "/", 8013),
    (&["-H", "Accept-Language: de-AT,de"], "/", 8009),
    (&[], "/?a=1&version=2", 8010),
    (&["-H", "Cookie: a=1; group=beta"], "/", 8011),
    (&["-H", "X-Debug: "], "/", 8013),
    (&["-H", "X-Debug: 1"], "/", 8012),
];

#[test]
fn every_matcher_leads_to_its_server() {
    in_a_lab(|lab| {
        let mut blocks = String::new();
        let mut routes = String::new();
        let mut pools = String::new();
        let mut addresses = Vec::new();
        for (condition, port) in ROUTES {
            blocks.push_str(&format!(
                "server {{ listen 10.2.0.1:{port}; location / {{ return 200 \"{port}\"; }} }}\n"
            ));
            routes.push_str(&format!(
                "[[service.route]]\n{condition}\npool = \"p{port}\"\n"
            ));
            pools.push_str(&format!(
                "[[pool]]\nname = \"p{port}\"\nserver = [{{ address = \"10.2.0.1:{port}\" }}]\n"
            ));
            addresses.push(Family::V4.server_at(1, port));
        }
        let _nginx = Nginx::start(lab, "all", &blocks, &addresses);
        let switch = Switch::start(
            lab,
            &format!(
                "[[service]]\nname = \"web\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"http\"\n\
             source = \"snat\"\n{routes}{pools}"
            ),
        );
        for (arguments, path, port) in REQUESTS {
            let url = format!("http://10.1.0.3{path}");
            let mut all = vec!["--write-out", " %{local_ip}:%{local_port}", &url];
            all.extend(arguments);
            let said = curl(lab, &all);
            let (answer, local) = said.split_once(' ').unwrap();
            assert_eq!(answer, port.to_string(), "{arguments:?} {path}");
            let record = switch.record(local.parse().unwrap(), "decided");
            assert_eq!(record.text("server"), format!("10.2.0.1:{port}"));
            assert_eq!(record.text("pool"), format!("p{port}"));
        }
        assert_eq!(switch.count("spliced"), REQUESTS.len() as u64);
        assert_eq!(switch.count("accepted"), REQUESTS.len() as u64);
        let decisions: u64 = switch.status()["services"][0]["routes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|route| route["decisions"].as_u64().unwrap())
            .sum();
        assert_eq!(decisions, REQUESTS.len() as u64);
    });
}

#[test]
fn requests_of_a_kept_connection_stay_with_their_server() {
    in_a_lab(|lab| {
        let _servers = two_servers(lab);
        let switch = Switch::start(lab, &two_pools(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        for number in 1..=50 {
            // The later paths would be decided otherwise, if they were decided at all.
            let path = if number == 1 { "/images/1" } else { "/other" };
            let response = connection.ask("GET", "www.example.com", path).unwrap();
            assert_eq!((response.status, response.server()), (200, "images"));
            assert_eq!(
                response.header("x-asked"),
                Some(number.to_string().as_str())
            );
        }
        drop(connection);
        assert_eq!(switch.count("accepted"), 1);
        assert_eq!(switch.count("spliced"), 1);
    });
}

/// curl, as browsers do, repeats a request that a reused connection was reset by.
#[test]
fn a_later_request_of_another_pool_closes_its_connection_and_is_asked_again() {
    with_and_without_the_fast_path(|lab, mode| {
        let pages = |name| web(name, false, Arc::default());
        let _images = Origin::start(lab, Family::V4.server_at(1, 8081), pages("images"));
        let _other = Origin::start(lab, Family::V4.server_at(1, 8082), pages("other"));
        let services = two_pools("").replace("\nsource", "\nlater_requests = \"close\"\nsource");
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        let to = |path: &str| format!("http://10.1.0.3{path}");
        for round in 1..=3 {
            let urls = ["/other", "/again", "/images/1", "/images/2", "/other"].map(to);
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            let answers = curl(lab, &urls);
            assert_eq!(answers, "otherotherimagesimagesother");
            let status = switch.wait_for_status("two connections closed a round", |status| {
                status["ended"]["later_request"] == 2 * round
            });
            assert_eq!(status["drops"]["later_request"], 2 * round);
            let routes = &status["services"][0]["routes"];
            assert_eq!(routes[0]["later_requests"]["#2"], round, "{status}");
            assert_eq!(routes[1]["later_requests"]["#1"], round, "{status}");
        }
        // A body that is all request lines follows its head.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let first = connection.ask("GET", "a", "/images/1").unwrap();
        assert_eq!((first.status, first.server()), (200, "images"));
        let line = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
        let body = line.repeat(1_000);
        let length = body.len();
        let head = "POST /images/x HTTP/1.1\r\nHost: a\r\nContent-Length:";
        connection.send(format!("{head} {length}\r\n\r\n")).unwrap();
        for part in body.as_bytes().chunks(line.len() * 10) {
            connection.send(part).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        assert_eq!(connection.response(false).unwrap().server(), "images");
        switch.wait_for_log("a later request belongs to another pool");
    });
}

/// Of one connection in 64 such requests are counted, and none is held up.
#[test]
fn later_requests_of_another_pool_are_counted() {
    with_and_without_the_fast_path(|lab, mode| {
        let _servers = two_servers(lab);
        // The default where routes can disagree.
        let services = two_pools("");
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        let counted =
            || switch.status()["services"][0]["routes"][1]["later_requests"]["#1"].as_u64();
        let mut asked = 0;
        while counted().is_none() {
            assert!(asked < 2_000, "none of {asked} connections is watched");
            for _ in 0..100 {
                let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
                for path in ["/other", "/images/1"] {
                    let response = connection.ask("GET", "www.example.com", path).unwrap();
                    assert_eq!((response.status, response.server()), (200, "other"));
                }
                asked += 1;
            }
        }
        let count = counted();
        assert!(count < Some(asked / 8), "{count:?} of {asked}");
        assert_eq!(switch.drops("later_request"), 0);
        let metrics = switch.page("/metrics").unwrap();
        let series = "fairlead_later_requests_total{service=\"web\",route=\"#2\",would_be=\"#1\"}";
        assert!(metrics.contains(series), "{metrics}");
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    in_a_lab(|lab| {
        let _servers = two_servers(lab);
        let _switch = Switch::start(lab, &two_pools(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let one = |number: usize| {
            format!("GET /images/{number} HTTP/1.1\r\nHost: www.example.com\r\n\r\n")
        };
        connection
            .send((1..=30).map(one).collect::<String>())
            .unwrap();
        for number in 1..=30 {
            let response = connection.response(false).unwrap();
            assert_eq!((response.status, response.server()), (200, "images"));
            assert_eq!(
                response.header("x-asked"),
                Some(number.to_string().as_str())
            );
        }
    });
}

#[test]
fn an_answer_to_head_has_no_body_and_the_connection_goes_on() {
    in_a_lab(|lab| {
        let _servers = two_servers(lab);
        let _switch = Switch::start(lab, &two_pools(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        for _ in 0..3 {
            let response = connection
                .ask("HEAD", "www.example.com", "/images/x")
                .unwrap();
            assert_eq!((response.status, response.body.len()), (200, 0));
            assert_eq!(response.header("content-length"), Some("7"));
            let response = connection
                .ask("GET", "www.example.com", "/images/x")
                .unwrap();
            assert_eq!((response.status, response.text()), (200, "images\n"));
        }
    });
}

#[test]
fn one_shot_gives_every_request_its_own_decision() {
    in_a_lab(|lab| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let serve = |name| web(name, false, Arc::clone(&seen));
        let _images = Origin::start(lab, Family::V4.server_at(1, 8081), serve("images"));
        let _other = Origin::start(lab, Family::V4.server_at(1, 8082), serve("other"));
        let switch = Switch::start(lab, &two_pools("treatment = \"one-shot\""));
        // A body behind the head, and a client that would like to keep the connection.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let head = "PUT /images/1 HTTP/1.1\r\nHost: www.example.com\r\nX-First: 1\r\n\
                    Connection: keep-alive\r\nContent-Length: 100000\r\nX-Last: 2\r\n\r\n";
        connection.send(head).unwrap();
        connection.send_stream(1, 0, 100_000).unwrap();
        let response = connection.response(false).unwrap();
        assert_eq!((response.status, response.server()), (200, "images"));
        let digest = stream::Digest::of_stream(1, 100_000);
        assert_eq!(response.text(), crate::harness::show(&digest));
        assert_eq!(response.header("connection"), Some("close"));
        assert_eq!(connection.rest().unwrap(), b"");
        let record = seen.lock().unwrap()[0].clone();
        let got: Vec<&str> = record
            .head
            .lines()
            .filter(|line| !line.is_empty())
            .collect();
        let mut kept: Vec<&str> = head.lines().filter(|line| !line.is_empty()).collect();
        kept.retain(|line| !line.starts_with("Connection"));
        let without: Vec<&str> = got
            .iter()
            .copied()
            .filter(|line| *line != "Connection: close")
            .collect();
        assert_eq!(without, kept, "everything else is as it was");
        assert_eq!(got.len(), kept.len() + 1, "{got:?}");

        // curl opens a new connection for the second request, and that one is decided anew.
        let said = curl(
            lab,
            &[
                "--write-out",
                "%{num_connects} ",
                "http://10.1.0.3/images/2",
                "http://10.1.0.3/other",
            ],
        );
        assert_eq!(said, "images1 other1 ");
        assert_eq!(switch.count("spliced"), 3);
    });
}

#[test]
fn files_of_all_sizes_go_both_ways_by_curl_and_nginx() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "files", Family::V4.server_at(1, 8080));
        let _switch = Switch::start(
            lab,
            &web_service("transparent", "", "", |family| {
                vec![family.server_at(1, 8080)]
            }),
        );
        let stored = lab.folder().join("files").join("files");
        for (number, len) in [1usize, 1_448, 1_449, 65_535, 1 << 20, 64 << 20]
            .into_iter()
            .enumerate()
        {
            let sent = lab.file("sent", stream::bytes(number as u64, 0, len));
            let got = lab.folder().join("got");
            let url = format!("http://10.1.0.3/files/{number}");
            let by = if number % 2 == 0 {
                "--http1.1"
            } else {
                "--http1.0"
            };
            // From a file curl knows the length; from a pipe it sends chunks.
            curl(
                lab,
                &[by, "--fail", "--upload-file", &sent.to_string_lossy(), &url],
            );
            assert_same(&sent, &stored.join(number.to_string()));
            curl(
                lab,
                &[by, "--fail", "--output", &got.to_string_lossy(), &url],
            );
            assert_same(&sent, &got);
        }
    });
}

#[test]
fn chunked_uploads_by_curl_arrive_whole() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "files", Family::V4.server_at(1, 8080));
        let _switch = Switch::start(
            lab,
            &web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]),
        );
        for len in [1usize, 70_000, 8 << 20] {
            let sent = lab.file("sent", stream::bytes(len as u64, 0, len));
            let url = format!("http://10.1.0.3/files/chunked-{len}");
            let chunked = "Transfer-Encoding: chunked";
            curl(
                lab,
                &["--fail", "-H", chunked, "-T", &sent.to_string_lossy(), &url],
            );
            let stored = lab
                .folder()
                .join("files/files")
                .join(format!("chunked-{len}"));
            assert_same(&sent, &stored);
        }
    });
}

#[test]
fn pythons_http_server_is_served_too() {
    in_a_lab(|lab| {
        let address = Family::V4.server_at(2, 8000);
        for len in [1usize, 100_000, 8 << 20] {
            lab.file(&format!("f{len}"), stream::bytes(3, 0, len));
        }
        let mut command = lab.servers.command("python3");
        command.args([
            "-m",
            "http.server",
            "--bind",
            "10.2.0.2",
            "8000",
            "--directory",
        ]);
        command
            .arg(lab.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut python = lab.servers.start(&mut command).expect("starting python3");
        wait_for_listener(lab, address, || python.is_alive());
        for source in ["snat", "transparent"] {
            let _switch = Switch::start(
                lab,
                &web_service(source, "", "", |family| vec![family.server_at(2, 8000)]),
            );
            let got = lab.folder().join("got");
            for len in [1usize, 100_000, 8 << 20] {
                let url = format!("http://10.1.0.3/f{len}");
                curl(lab, &["--fail", "--output", &got.to_string_lossy(), &url]);
                assert_same(&lab.folder().join(format!("f{len}")), &got);
            }
            let listing = curl(lab, &["http://10.1.0.3/"]);
            assert!(listing.contains("f100000"), "{listing}");
            let missing = curl(
                lab,
                &[
                    "-o",
                    "/dev/null",
                    "-w",
                    "%{http_code}",
                    "http://10.1.0.3/none",
                ],
            );
            assert_eq!(missing, "404");
        }
    });
}

fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    assert_eq!(
        left.len(),
        right.len(),
        "{} and {}",
        a.display(),
        b.display()
    );
    let differs = left.iter().zip(&right).position(|(x, y)| x != y);
    assert_eq!(
        differs,
        None,
        "first difference between {} and {}",
        a.display(),
        b.display()
    );
}

/// nginx twice: `images` at port 8081, `other` at port 8082.
fn two_servers(lab: &Lab) -> [Nginx; 2] {
    [
        Nginx::plain(lab, "images", Family::V4.server_at(1, 8081)),
        Nginx::plain(lab, "other", Family::V4.server_at(1, 8082)),
    ]
}

/// `/images/` leads to port 8081, everything else to 8082.
fn two_pools(route: &str) -> String {
    format!(
        r#"
[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
source = "snat"
[[service.route]]
path_prefix = "/images/"
pool = "images"
{route}
[[service.route]]
pool = "other"
{route}
[[pool]]
name = "images"
server = [{{ address = "10.2.0.1:8081" }}]
[[pool]]
name = "other"
server = [{{ address = "10.2.0.1:8082" }}]
"#
    )
}
