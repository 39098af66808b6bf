//! `fairlead serve` as a process, in a world of namespaces of the test's own: what it says, how it
//! ends, and what it leaves behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fairlead::log::LogArgs;
use fairlead::serve::{ServeArgs, run_watched};
use fairlead_netns::trial::{Needs, copy_program, in_namespaces, name_of, skip};
use fairlead_netns::{Host, Running, Signal, World};

const PATIENCE: Duration = Duration::from_secs(60);

/// Names the configuration for [`serves_until_it_panics`].
const FAULTY: &str = "FAIRLEAD_TEST_FAULTY";

/// A transparent service for both families and one with source addresses of its own.
const CONFIG: &str = r#"
[instance]
name = "trial"
admin = "127.0.0.1:9090"
drain_timeout = "30s"
[network]
device = "fl0"
snat = ["100.64.0.0/24"]
[fastpath]
mode = "engine"
[[service]]
name = "open"
listen = ["10.1.0.3:80", "[fd01::3]:80"]
protocol = "http"
source = "transparent"
[[service.route]]
listen = "10.1.0.3:80"
pool = "four"
[[service.route]]
pool = "six"
[[service]]
name = "hidden"
listen = "10.1.0.4:80"
protocol = "tcp"
source = "snat"
[[service.route]]
pool = "plain"
[[pool]]
name = "four"
server = [{ address = "10.2.0.1:8081" }]
[[pool]]
name = "six"
server = [{ address = "[fd02::1]:8081" }]
[[pool]]
name = "plain"
server = [{ address = "10.2.0.1:8082" }]
"#;

/// Runs `test` with a client, a switch and a server in a row, or reports why it is skipped.
fn in_a_trial<F: FnOnce(&Trial)>(test: F) {
    let needs = Needs {
        tun: true,
        ..Needs::default()
    };
    in_namespaces(name_of::<F>(), needs, |_| {}, || test(&Trial::new()));
}

struct Trial {
    client: Host,
    switch: Host,
    server: Host,
    folder: PathBuf,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Trial {
    fn new() -> Self {
        let mut world = World::new().unwrap();
        let [client, switch, server] =
            ["client", "switch", "server"].map(|name| world.host(name).unwrap());
        for (side, net) in [(&client, 1), (&server, 2)] {
            let own = [format!("10.{net}.0.1/24"), format!("fd0{net}::1/64")];
            let middle = [format!("10.{net}.0.254/24"), format!("fd0{net}::fe/64")];
            let own = own.each_ref().map(String::as_str);
            let middle = middle.each_ref().map(String::as_str);
            world.link((side, &own), (&switch, &middle)).unwrap();
            side.route("0.0.0.0/0", &format!("10.{net}.0.254")).unwrap();
            side.route("::/0", &format!("fd0{net}::fe")).unwrap();
        }
        // The virtual addresses are in the clients' network; clients have routes to them.
        client
            .ip("route add 10.1.0.3 via 10.1.0.254\nroute add 10.1.0.4 via 10.1.0.254\n")
            .unwrap();
        client.ip("route add fd01::3 via fd01::fe\n").unwrap();
        switch.sysctl("net.ipv4.ip_forward", "1").unwrap();
        switch.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        let unique = format!(
            "fairlead-serve-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let folder = std::env::temp_dir().join(unique.replace(['(', ')'], ""));
        std::fs::create_dir_all(&folder).unwrap();
        let trial = Self {
            client,
            switch,
            server,
            folder,
        };
        for listen in ["10.2.0.1:8081", "[fd02::1]:8081", "10.2.0.1:8082"] {
            trial.answer_at(listen);
        }
        trial
    }

    /// An HTTP server that answers every head with the address it sees, and keeps the connection.
    fn answer_at(&self, listen: &str) {
        let listener = self
            .server
            .enter(|| TcpListener::bind(listen))
            .unwrap()
            .unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || answer(stream));
            }
        });
    }

    /// Writes the configuration; where it is.
    fn write(&self, config: &str) -> PathBuf {
        let path = self.folder.join("trial.toml");
        std::fs::write(&path, config).unwrap();
        path
    }

    /// A `fairlead serve` with this configuration, not yet started.
    fn command(&self, config: &str) -> Command {
        let mut command = self.switch.command(env!("CARGO_BIN_EXE_fairlead"));
        command.arg("serve").arg("--config").arg(self.write(config));
        piped(command)
    }

    /// The same with an error in the loop: it panics once it has been in service for a moment.
    fn faulty_command(&self, config: &str) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = self.switch.command(own.to_str().unwrap());
        command.args(["--exact", "serves_until_it_panics"]);
        command.args(["--ignored", "--nocapture"]);
        command.env(FAULTY, self.write(config));
        piped(command)
    }

    /// Runs it to its end.
    fn refused(&self, config: &str) -> (Option<i32>, String) {
        let Output {
            status,
            stderr,
            stdout,
        } = self.command(config).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&stdout), "", "it was ready");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// A counter or gauge of the metrics.
    fn metric(&self, series: &str) -> u64 {
        let page = self.page("metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series}: {page}"))
            .trim()
            .parse()
            .unwrap()
    }

    /// Starts it and waits for the line that says that it is ready.
    fn start(&self, config: &str) -> Serving {
        self.start_as(&mut self.command(config))
    }

    fn start_as(&self, command: &mut Command) -> Serving {
        let mut process = self.switch.start(command).unwrap();
        let stdout = process.child().stdout.take().unwrap();
        let stdout = BufReader::new(stdout);
        let mut stdout = stdout.lines().map_while(Result::ok);
        // The test harness, if that is what runs, has something to say before.
        let ready = stdout.find_map(|line| Some(line[line.find("ready: ")?..].to_owned()));
        let mut serving = Serving { process };
        let Some(ready) = ready else {
            panic!("it was never ready: {}", serving.end_of_log());
        };
        assert_eq!(
            ready,
            "ready: trial on 10.1.0.3:80 [fd01::3]:80 10.1.0.4:80, device fl0"
        );
        serving
    }

    fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&to, PATIENCE))
            .unwrap()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Asks once on a new connection; the client's address as the server saw it.
    fn ask(&self, to: &str) -> String {
        ask(&mut self.connect(to).unwrap()).unwrap()
    }

    fn health(&self) -> String {
        self.page("healthz")
    }

    /// A whole answer of the admin pages.
    fn page(&self, name: &str) -> String {
        let mut stream = self
            .switch
            .enter(|| TcpStream::connect("127.0.0.1:9090"))
            .unwrap()
            .unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(format!("GET /{name} HTTP/1.0\r\n\r\n").as_bytes())
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Devices, routes and rules of the switch's host.
    fn network(&self) -> String {
        let show = |arguments: &str| {
            let mut command = self.switch.command("ip");
            let output = command.args(arguments.split(' ')).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        [
            "-br link",
            "-4 rule",
            "-6 rule",
            "-4 route show table all",
            "-6 route show table all",
        ]
        .map(show)
        .join("\n")
    }
}

fn piped(mut command: Command) -> Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

struct Serving {
    process: Running,
}

impl Serving {
    fn end(&mut self) -> Option<i32> {
        self.process
            .wait_for(PATIENCE)
            .unwrap()
            .expect("it did not end")
            .code()
    }

    fn end_of_log(&mut self) -> String {
        let mut log = String::new();
        if let Some(mut stderr) = self.process.child().stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        log
    }
}

fn answer(mut stream: TcpStream) {
    let seen = stream.peer_addr().unwrap().ip().to_string();
    let mut bytes = [0; 4096];
    while let Ok(1..) = stream.read(&mut bytes) {
        let text = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{seen}",
            seen.len()
        );
        if stream.write_all(text.as_bytes()).is_err() {
            break;
        }
    }
}

fn ask(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")?;
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.contains("\r\n\r\n") || text.ends_with("\r\n\r\n") {
        match stream.read(&mut bytes)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => text.push_str(&String::from_utf8_lossy(&bytes[..read])),
        }
    }
    Ok(text.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned())
}

#[test]
fn serves_both_families_and_sources_and_leaves_nothing_behind() {
    in_a_trial(|trial| {
        let before = trial.network();
        let mut serving = trial.start(CONFIG);
        assert!(
            trial.health().starts_with("HTTP/1.0 200"),
            "{}",
            trial.health()
        );
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        assert_eq!(trial.ask("[fd01::3]:80"), "fd01::1");
        // Until both connections are over and all of it is published.
        let seen = || {
            ["rx", "tx"].map(|direction| {
                let name = "fairlead_device_packets_total";
                trial.metric(&format!("{name}{{direction=\"{direction}\"}}"))
            })
        };
        let (until, mut before_that) = (Instant::now() + PATIENCE, [0; 2]);
        while Instant::now() < until {
            let now = seen();
            if now == before_that && now.iter().all(|&count| count >= 12) {
                break;
            }
            before_that = now;
            std::thread::sleep(Duration::from_millis(500));
        }
        for direction in ["rx", "tx"] {
            let of = |name| trial.metric(&format!("{name}{{direction=\"{direction}\"}}"));
            let seen = of("fairlead_device_packets_total");
            assert!(
                seen >= 12,
                "two connections have more {direction} than {seen}"
            );
            assert_eq!(seen, of("fairlead_packets_total"));
        }
        assert!(trial.ask("10.1.0.4:80").starts_with("100.64.0."));
        serving.process.signal(Signal::Terminate).unwrap();
        assert_eq!(serving.end(), Some(0));
        assert_eq!(trial.network(), before);
        let log = serving.end_of_log();
        for words in [
            "created device fl0, MTU 1500",
            "created route 10.1.0.3/32 dev fl0",
            "created route 100.64.0.0/24 dev fl0",
            "created rule from fd02::1 ipproto tcp sport 8081 lookup 7600",
            "service hidden listens on 10.1.0.4:80 (tcp)",
            "admin pages at http://127.0.0.1:9090/",
            "SIGTERM",
            "stopped",
            "rx_bytes_per_read=",
        ] {
            assert!(log.contains(words), "no word of {words:?}:\n{log}");
        }
    });
}

#[test]
fn a_killed_process_leaves_rules_that_the_next_one_removes() {
    in_a_trial(|trial| {
        let before = trial.network();
        let mut killed = trial.start(CONFIG);
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        killed.process.signal(Signal::Kill).unwrap();
        assert_eq!(killed.end(), None);
        assert!(
            trial.network().contains("lookup 7600"),
            "a crash left nothing: test something else"
        );

        let mut serving = trial.start(CONFIG);
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        assert_eq!(
            trial.network().matches("sport 8081 lookup").count(),
            2,
            "one rule a family"
        );
        serving.process.signal(Signal::Interrupt).unwrap();
        assert_eq!(serving.end(), Some(0));
        assert_eq!(trial.network(), before);
        let log = serving.end_of_log();
        let said = "removed a leftover of an earlier run: rule from 10.2.0.1 tcp port 8081";
        assert!(log.contains(said), "{log}");
    });
}

#[test]
fn the_first_signal_drains_and_the_second_resets() {
    in_a_trial(|trial| {
        let mut serving = trial.start(CONFIG);
        let mut live = trial.connect("10.1.0.3:80").unwrap();
        assert_eq!(ask(&mut live).unwrap(), "10.1.0.1");
        serving.process.signal(Signal::Terminate).unwrap();
        let until = Instant::now() + PATIENCE;
        while !trial.health().starts_with("HTTP/1.0 503") {
            assert!(Instant::now() < until, "still {}", trial.health());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            ask(&mut live).unwrap(),
            "10.1.0.1",
            "a live connection goes on"
        );
        serving.process.signal(Signal::Terminate).unwrap();
        let cut = live.read(&mut [0; 1]).unwrap_err();
        assert_eq!(cut.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(serving.end(), Some(0));
        assert!(serving.end_of_log().contains("1 live connection reset"));
    });
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    in_a_trial(|trial| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut filler = writer.try_clone().unwrap();
        // Ends when the reader does; until then the pipe is full.
        let filling =
            std::thread::spawn(move || while filler.write_all(&[b'\n'; 4_096]).is_ok() {});
        let chatty = CONFIG.replace("[network]", "[log]\naccess = \"all\"\n[network]");
        let mut command = trial.command(&chatty);
        command.args(["--log", "info,fairlead::connection=debug"]);
        let mut serving = trial.start_as(command.stderr(writer));
        drop(command); // and this process's end of the pipe
        let lost = || trial.metric("fairlead_log_lines_lost_total");
        let until = Instant::now() + PATIENCE;
        while lost() == 0 {
            assert!(Instant::now() < until, "no line was lost yet");
            (0..100).for_each(|_| assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1"));
        }
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        serving.process.signal(Signal::Terminate).unwrap();
        assert_eq!(serving.end(), Some(0), "nor does it hold up the end");
        drop(reader);
        filling.join().unwrap();
    });
}

#[test]
fn the_doctor_knows_a_running_instance_without_pages() {
    in_a_trial(|trial| {
        let silent = CONFIG.replace("admin = \"127.0.0.1:9090\"", "");
        let mut serving = trial.start(&silent);
        let problems = |config: &str| {
            let mut doctor = trial.switch.command(env!("CARGO_BIN_EXE_fairlead"));
            doctor.args(["doctor", "--json", "--config"]);
            let output = doctor.arg(trial.write(config)).output().unwrap();
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let checks = told["checks"].as_array().unwrap().clone();
            let bad = checks.into_iter().filter(|one| one["state"] == "problem");
            bad.map(|one| one["what"].to_string()).collect::<Vec<_>>()
        };
        assert_eq!(problems(&silent), [""; 0]);
        // Another instance that wants its device is not the running one.
        let other = problems(&CONFIG.replace("\"trial\"", "\"other\""));
        assert!(
            other.iter().any(|one| one.contains("fl0 already exists")),
            "{other:?}"
        );
        serving.process.signal(Signal::Terminate).unwrap();
        assert_eq!(serving.end(), Some(0));
    });
}

#[test]
fn a_fast_path_that_is_missed_is_a_warning() {
    in_a_trial(|trial| {
        let mistyped = "mode = \"auto\"\ninterfaces = [\"nope0\"]";
        let mut serving = trial.start(&CONFIG.replace("mode = \"engine\"", mistyped));
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        serving.process.signal(Signal::Terminate).unwrap();
        assert_eq!(serving.end(), Some(0));
        let log = serving.end_of_log();
        let said = log
            .lines()
            .find(|line| line.contains("no kernel fast path"));
        let said = said.unwrap_or_else(|| panic!("not a word of it:\n{log}"));
        assert!(said.contains("WARN") && said.contains("engine ("), "{said}");
    });
}

#[test]
fn a_device_that_vanishes_ends_it_with_a_code_of_its_own() {
    in_a_trial(|trial| {
        let mut serving = trial.start(CONFIG);
        trial.switch.ip("link delete fl0\n").unwrap();
        assert_eq!(serving.end(), Some(1));
        assert!(serving.end_of_log().contains("device fl0 failed"));
        assert!(
            !trial.network().contains("lookup 7600"),
            "its rules are still there"
        );
    });
}

#[test]
#[ignore = "a process of the next test's own"]
fn serves_until_it_panics() {
    let config = std::env::var_os(FAULTY).expect("run by another test");
    let args = ServeArgs {
        keep: false,
        config: Some(config.into()),
        log: LogArgs::default(),
    };
    let mut published = 0;
    let ending = run_watched(&args, &mut || {
        published += 1;
        assert!(published < 8, "an error made on purpose");
    });
    std::process::exit(i32::from(ending.code()));
}

#[test]
fn an_error_in_the_loop_is_told_and_ends_it_with_a_code_of_its_own() {
    in_a_trial(|trial| {
        let before = trial.network();
        let mut serving = trial.start_as(&mut trial.faulty_command(CONFIG));
        assert_eq!(trial.ask("10.1.0.3:80"), "10.1.0.1");
        assert_eq!(serving.end(), Some(70));
        assert_eq!(trial.network(), before, "device, routes and rules are gone");
        let log = serving.end_of_log();
        for words in [
            "panic: an error made on purpose",
            "tests/serve.rs:",
            "rx_bytes_per_read=",
            "please report the lines above",
        ] {
            assert!(log.contains(words), "no word of {words:?}:\n{log}");
        }

        // Nor does it hang when nobody reads what it says.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut command = trial.faulty_command(CONFIG);
        let mut serving = trial.start_as(command.stderr(writer.try_clone().unwrap()));
        drop(command);
        let filling =
            std::thread::spawn(move || while writer.write_all(&[b'\n'; 4_096]).is_ok() {});
        assert_eq!(serving.end(), Some(70));
        assert_eq!(trial.network(), before);
        drop(reader);
        filling.join().unwrap();
    });
}

#[test]
fn every_obstacle_is_named_at_once_and_nothing_is_changed() {
    in_a_trial(|trial| {
        trial.switch.sysctl("net.ipv4.ip_forward", "0").unwrap();
        trial
            .switch
            .ip("addr add 10.1.0.4/32 dev lo\nroute add fd01::3 dev client0\n")
            .unwrap();
        let before = trial.network();
        let (code, said) = trial.refused(CONFIG);
        assert_eq!(code, Some(3), "{said}");
        for words in [
            "sysctl -w net.ipv4.ip_forward=1",
            "10.1.0.4 is assigned to lo",
            "`ip route delete fd01::3/128 dev client0`",
        ] {
            assert!(said.contains(words), "no word of {words:?}:\n{said}");
        }
        assert_eq!(trial.network(), before);
        // Where the log is off, standard error has it all the same.
        let silent = trial.command(CONFIG).args(["--log", "off"]).output();
        let said = String::from_utf8(silent.unwrap().stderr).unwrap();
        assert!(
            said.contains("fairlead: 10.1.0.4 is assigned to lo"),
            "{said}"
        );
    });
}

#[test]
fn a_taken_device_or_admin_address_is_named() {
    in_a_trial(|trial| {
        trial
            .switch
            .ip("link add fl0 type veth peer name fl0-peer\n")
            .unwrap();
        let (code, said) = trial.refused(CONFIG);
        assert_eq!(
            (code, said.matches("fl0 already exists").count()),
            (Some(3), 1),
            "{said}"
        );
        trial.switch.ip("link delete fl0\n").unwrap();
        let before = trial.network();
        let taken = trial
            .switch
            .enter(|| TcpListener::bind("127.0.0.1:9090"))
            .unwrap()
            .unwrap();
        let (code, said) = trial.refused(CONFIG);
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("127.0.0.1:9090"), "{said}");
        assert_eq!(trial.network(), before);
        drop(taken);
    });
}

#[test]
fn the_same_instance_a_second_time_is_told_that_it_runs() {
    in_a_trial(|trial| {
        let serving = trial.start(CONFIG);
        let (code, said) = trial.refused(CONFIG);
        assert_eq!(code, Some(3), "{said}");
        assert!(
            said.contains("already running: a process has its device fl0"),
            "{said}"
        );
        assert!(!said.contains("ip link delete"), "{said}");
        drop(serving);
    });
}

#[test]
fn without_rights_it_says_which() {
    in_a_trial(|trial| {
        // In a user namespace only one user exists, who is root there.
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        let users: u64 = map
            .split_whitespace()
            .nth(2)
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        if users <= 65_534 {
            skip(
                "without_rights_it_says_which",
                "there is no other user here",
            );
            return;
        }
        trial.command(CONFIG); // writes the configuration
        // A copy that anybody may read and run, wherever this was built.
        let program = trial.folder.join("fairlead");
        copy_program(Path::new(env!("CARGO_BIN_EXE_fairlead")), &program);
        let mut command = trial.switch.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .arg(program)
            .args(["serve", "--config"])
            .arg(trial.folder.join("trial.toml"));
        let output = command
            .stdin(Stdio::null())
            .output()
            .expect("setpriv of util-linux");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains("CAP_NET_ADMIN") && said.contains("/dev/net/tun"),
            "{said}"
        );
    });
}

#[test]
fn a_wrong_configuration_or_filter_has_a_code_of_its_own() {
    in_a_trial(|trial| {
        let (code, said) = trial.refused(&CONFIG.replace("\"tcp\"", "\"udp\""));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("trial.toml:"), "{said}");
        let output = trial
            .command(CONFIG)
            .args(["--log", "loud=very=much"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
    });
}
