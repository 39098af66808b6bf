//! Connections become sockets of processes on the switch's own machine (`treatment = "host"`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_netns::Signal;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, PATIENCE, SetAtEnd, Switch, kernel_mode,
    makes_sockets_of_cookies, on_the_fast_path, web, with_sockets_of_cookies,
};
use crate::reload::reload;
use crate::restart::in_kernel;

fn listeners(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::from(([127, 0, 0, 1], port)),
        format!("[::1]:{port}").parse().unwrap(),
    ]
}

/// Web servers on the switch's own machine, reached by loopback alone.
fn local(lab: &Lab, name: &'static str, port: u16) -> [Origin; 2] {
    let start = |address| Origin::start_on(&lab.switch, address, web(name, false, Arc::default()));
    listeners(port).map(start)
}

/// `/a…` goes to 8081 and all else to 8082, both on this machine.
fn services(extra: &str) -> String {
    format!(
        r#"
[[service]]
name = "web"
listen = ["10.1.0.3:80", "[fd01:3::3]:80"]
protocol = "http"
[[service.route]]
path_prefix = "/a"
treatment = "host"
listener = ["127.0.0.1:8081", "[::1]:8081"]
{extra}
[[service.route]]
treatment = "host"
listener = ["127.0.0.1:8082", "[::1]:8082"]
{extra}
"#
    )
}

fn counted(switch: &Switch, name: &str) -> u64 {
    switch.status()["kernel"][name].as_u64().unwrap_or(0)
}

#[test]
fn requests_reach_processes_that_listen_on_loopback_alone() {
    with_sockets_of_cookies(|lab| {
        let _one = local(lab, "one", 8081);
        let _two = local(lab, "two", 8082);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for family in Family::BOTH {
            let to = family.virtual_at(80);
            for (path, server) in [("/a", "one"), ("/b", "two")] {
                let mut connection = Connection::to(lab, to);
                let long = format!(
                    "GET {path} HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
                    "y".repeat(12_000)
                );
                connection.send(long).unwrap();
                let answer = connection.response(false).unwrap();
                assert_eq!((answer.status, answer.server()), (200, server));
                let saw = answer.header("x-saw").unwrap();
                assert_eq!(
                    saw,
                    connection.local().to_string(),
                    "the client's own address"
                );
                // All that follows is between the client and the process.
                let answer = connection.ask("GET", "x", "/bytes/1000000").unwrap();
                assert_eq!((answer.server(), answer.body.len()), (server, 1_000_000));
                assert_eq!(answer.header("x-asked"), Some("2"));
            }
        }
        assert_eq!(switch.count("given"), 4);
        assert_eq!(counted(&switch, "host_assigned"), 4);
        switch.wait_for_count("records", 0);
    });
}

#[test]
fn a_clients_port_comes_again_at_once() {
    with_sockets_of_cookies(|lab| {
        lab.switch.sysctl("net.ipv4.tcp_rfc1337", "0").unwrap();
        a_port_again(lab);
    });
}

#[test]
fn a_clients_port_comes_again_at_once_where_resets_end_no_time_wait() {
    with_sockets_of_cookies(|lab| {
        lab.switch.sysctl("net.ipv4.tcp_rfc1337", "1").unwrap();
        a_port_again(lab);
    });
}

fn a_port_again(lab: &Lab) {
    {
        let _two = local(lab, "two", 8082);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for family in Family::BOTH {
            let began = Instant::now();
            for round in 0..50 {
                let mut connection = from_port(lab, family, 33_000);
                // The server closes, and so has the connection in TIME_WAIT.
                let request = "GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                connection.send(request).unwrap();
                let answer = connection.response(false).unwrap();
                assert_eq!(answer.server(), "two", "round {round}");
                assert!(connection.rest().unwrap().is_empty(), "round {round}");
            }
            // Each would take a second if it waited for its SYN to come again.
            assert!(
                began.elapsed() < Duration::from_secs(25),
                "{:?}",
                began.elapsed()
            );
        }
        let status = switch.status();
        let ended = status["kernel"]["host_rests_ended"].as_u64().unwrap();
        assert!(ended >= 2 * 49, "{status}");
    }
}

/// A connection of the client's host from this port, as soon as its last one there is over.
fn from_port(lab: &Lab, family: Family, port: u16) -> Connection {
    let to = family.virtual_at(80);
    let from = SocketAddr::new(family.client(), port);
    let connect = || -> io::Result<TcpStream> {
        let domain = socket2::Domain::for_address(to);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    };
    let until = Instant::now() + PATIENCE;
    loop {
        match lab.client.enter(connect).unwrap() {
            // Its FIN has yet to be acknowledged.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            stream => return Connection::over(stream.unwrap()).unwrap(),
        }
    }
}

#[test]
fn many_short_connections_at_once_lose_nothing() {
    with_sockets_of_cookies(|lab| {
        let address = SocketAddr::from(([127, 0, 0, 1], 8082));
        let _two = Nginx::plain_on(lab, &lab.switch, "two", address);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        lab.client.sysctl("net.ipv4.tcp_tw_reuse", "1").unwrap();
        lab.client
            .sysctl("net.ipv4.ip_local_port_range", "20000 21023")
            .unwrap();
        let mut wrk = lab.client.command("wrk");
        wrk.args([
            "-t1",
            "-c32",
            "-d2s",
            "--timeout",
            "10s",
            "-H",
            "Connection: close",
        ]);
        let output = wrk.arg("http://10.1.0.3/x").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let failed = text.contains("Socket errors") || text.contains("Non-2xx");
        assert!(
            output.status.success() && !failed,
            "{text}\n{}",
            switch.status()
        );
        let done = text
            .lines()
            .find_map(|line| line.trim().split_once(" requests in"));
        let done: u64 = done.unwrap().0.parse().unwrap();
        // 1,024 ports: without an end of TIME_WAIT it would be a hundred a second.
        assert!(done > 2_000, "{text}\n{}", switch.status());
    });
}

#[test]
fn without_a_listener_the_client_is_reset_at_once() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for family in Family::BOTH {
            let began = Instant::now();
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let error = connection.ask("GET", "x", "/b").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{:?}",
                began.elapsed()
            );
        }
        assert_eq!(counted(&switch, "host_no_listener"), 2);
        let _two = local(lab, "two", 8082);
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "x", "/b").unwrap().server(), "two");
    });
}

#[test]
fn where_it_cannot_work_serve_says_why_and_the_pool_takes_all() {
    on_the_fast_path(|lab| {
        let why = match (kernel_mode().as_str(), makes_sockets_of_cookies()) {
            ("xdp-generic", _) => "xdp-generic",
            (_, false) => "6.9",
            (_, true) => {
                lab.switch.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
                "tcp_syncookies"
            }
        };
        let servers = Family::BOTH.map(|family| family.server_at(1, 8080));
        let _pool = servers.map(|at| Origin::start(lab, at, web("pool", false, Arc::default())));
        let _two = local(lab, "two", 8082);
        let [four, six] = servers;
        let pool = format!(
            "{}[[pool]]\nname = \"both\"\n\
             server = [{{ address = \"{four}\" }}, {{ address = \"{six}\" }}]\n",
            services("fallback_pool = \"both\"")
        );
        let switch = Switch::start_in_kernel(lab, "", &pool);
        switch.wait_for_log("cannot be served");
        let log = switch.log();
        let said = log.lines().find(|line| line.contains("cannot be served"));
        assert!(said.unwrap().contains(why), "{why}: {log}");
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            assert_eq!(connection.ask("GET", "x", "/b").unwrap().server(), "pool");
        }
        assert_eq!(switch.count("host_fallbacks"), 2);
    });
}

/// Such a service has packet sockets for ICMP errors, which must not come between.
#[test]
fn a_transparent_service_beside_it_changes_nothing() {
    with_sockets_of_cookies(|lab| {
        let _two = local(lab, "two", 8082);
        let servers = Family::BOTH.map(|family| family.server_at(1, 8080));
        let _pool = servers.map(|at| Origin::start(lab, at, web("pool", false, Arc::default())));
        let [four, six] = servers;
        let both = format!(
            "{}[[service]]\nname = \"plain\"\nlisten = [\"10.1.0.3:81\", \"[fd01:3::3]:81\"]\n\
             protocol = \"http\"\nsource = \"transparent\"\n[[service.route]]\npool = \"both\"\n\
             [[pool]]\nname = \"both\"\n\
             server = [{{ address = \"{four}\" }}, {{ address = \"{six}\" }}]\n",
            services("")
        );
        let _switch = Switch::start_in_kernel(lab, "", &both);
        for family in Family::BOTH {
            for (port, server) in [(80, "two"), (81, "pool")] {
                let mut connection = Connection::to(lab, family.virtual_at(port));
                assert_eq!(connection.ask("GET", "x", "/b").unwrap().server(), server);
            }
        }
    });
}

#[test]
fn the_fallback_pool_takes_newcomers_while_nobody_listens() {
    with_sockets_of_cookies(|lab| {
        let servers = Family::BOTH.map(|family| family.server_at(1, 8080));
        let _pool = servers.map(|at| Origin::start(lab, at, web("pool", false, Arc::default())));
        let [four, six] = servers;
        let pool = format!(
            "{}[[pool]]\nname = \"both\"\n\
             server = [{{ address = \"{four}\" }}, {{ address = \"{six}\" }}]\n",
            services("fallback_pool = \"both\"")
        );
        let switch = Switch::start_in_kernel(lab, "", &pool);
        let ask = |family: Family| {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            connection
                .ask("GET", "x", "/b")
                .unwrap()
                .server()
                .to_owned()
        };
        let up = || {
            let status = switch.status();
            let all = status["listeners"].as_array().unwrap();
            all.iter().filter(|one| one["up"] == true).count()
        };
        for family in Family::BOTH {
            assert_eq!(ask(family), "pool");
        }
        assert_eq!((switch.count("host_unattended"), up()), (2, 0));
        let two = local(lab, "two", 8082);
        std::thread::sleep(Duration::from_millis(20));
        for family in Family::BOTH {
            assert_eq!(ask(family), "two");
        }
        switch.wait_for_status("listeners", |_| up() == 2);
        let said = switch.page("/metrics").unwrap();
        let line = "fairlead_host_listener_up{listener=\"127.0.0.1:8082\"} 1";
        assert!(said.contains(line), "{said}");
        // At once after its end, too: what the kernel drops the client sends again.
        drop(two);
        for family in Family::BOTH {
            assert_eq!(ask(family), "pool");
        }
        assert_eq!(counted(&switch, "host_no_listener"), 0, "and no reset");
    });
}

#[test]
fn established_connections_outlive_reload_and_crash_of_the_switch() {
    with_sockets_of_cookies(|lab| {
        let _two = local(lab, "two", 8082);
        let configuration = in_kernel(&services(""));
        let mut switch = Switch::start_with(lab, &configuration);
        let mut connections: Vec<Connection> = Family::BOTH
            .iter()
            .map(|family| Connection::to(lab, family.virtual_at(80)))
            .collect();
        let mut asked = 0;
        let mut ask_all = |connections: &mut Vec<Connection>| {
            asked += 1;
            for connection in connections.iter_mut() {
                let answer = connection.ask("GET", "x", "/bytes/100000").unwrap();
                assert_eq!(answer.body.len(), 100_000);
                assert_eq!(answer.header("x-asked"), Some(asked.to_string().as_str()));
            }
        };
        ask_all(&mut connections);
        let changed = format!("{configuration}\n[limits]\nsetups = 1000\n");
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _set = SetAtEnd(&end);
            let all = &mut connections;
            let (ask_all, ended) = (&mut ask_all, &end);
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    ask_all(all);
                }
            });
            reload(lab, &mut switch, &changed, 2);
        });
        switch.signal(Signal::Kill);
        assert_eq!(switch.wait_for_end(), None, "by a signal");
        ask_all(&mut connections);
        drop(switch);
        let switch = Switch::start_with(lab, &configuration);
        ask_all(&mut connections);
        let mut fresh = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(fresh.ask("GET", "x", "/b").unwrap().server(), "two");
        assert_eq!(switch.count("given"), 1);
    });
}

#[test]
fn one_port_serves_tls_ssh_and_servers_that_speak_first() {
    with_sockets_of_cookies(|lab| {
        let say = |greeting: &'static str| {
            move |mut stream: TcpStream| {
                stream.write_all(greeting.as_bytes())?;
                let mut buffer = [0; 64];
                let got = stream.read(&mut buffer)?;
                stream.write_all(&buffer[..got])
            }
        };
        let _ssh =
            listeners(2222).map(|at| Origin::start_on(&lab.switch, at, say("SSH-2.0-here\r\n")));
        let _mail =
            listeners(2525).map(|at| Origin::start_on(&lab.switch, at, say("220 mail\r\n")));
        let services = r#"
[[service]]
name = "shared"
listen = ["10.1.0.3:443", "[fd01:3::3]:443"]
protocol = "tls"
first_bytes_timeout = "200ms"
[[service.route]]
first_bytes = "SSH-"
treatment = "host"
listener = ["127.0.0.1:2222", "[::1]:2222"]
[[service.route]]
not_tls = true
treatment = "host"
listener = ["127.0.0.1:2525", "[::1]:2525"]
"#;
        let switch = Switch::start_in_kernel(lab, "", services);
        for family in Family::BOTH {
            let mut ssh = Connection::to(lab, family.virtual_at(443));
            ssh.send("SSH-2.0-client\r\n").unwrap();
            ssh.finish_sending().unwrap();
            assert_eq!(ssh.rest().unwrap(), b"SSH-2.0-here\r\nSSH-2.0-client\r\n");
            let mut silent = Connection::to(lab, family.virtual_at(443));
            let mut greeting = [0; 10];
            let mut got = 0;
            while got < greeting.len() {
                got += silent.read(&mut greeting[got..]).unwrap();
            }
            assert_eq!(&greeting, b"220 mail\r\n");
            silent.send("EHLO x\r\n").unwrap();
            assert_eq!(silent.rest().unwrap(), b"EHLO x\r\n");
        }
        assert_eq!(switch.count("given"), 4);
    });
}

#[test]
fn a_head_that_had_to_be_acknowledged_goes_to_the_fallback_pool() {
    with_sockets_of_cookies(|lab| {
        let _two = local(lab, "two", 8082);
        let servers = Family::BOTH.map(|family| family.server_at(1, 8080));
        let _pool = servers.map(|at| Origin::start(lab, at, web("pool", false, Arc::default())));
        let [four, six] = servers;
        let pool = format!(
            "{}[[pool]]\nname = \"both\"\n\
             server = [{{ address = \"{four}\" }}, {{ address = \"{six}\" }}]\n",
            services("fallback_pool = \"both\"")
        );
        let switch = Switch::start_in_kernel(lab, "", &pool);
        for family in Family::BOTH {
            let mut slow = Connection::to(lab, family.virtual_at(80));
            slow.send("GET /b HTTP/1.1\r\n").unwrap();
            std::thread::sleep(Duration::from_millis(200));
            slow.send("Host: x\r\n\r\n").unwrap();
            assert_eq!(slow.response(false).unwrap().server(), "pool");
            let mut quick = Connection::to(lab, family.virtual_at(80));
            assert_eq!(quick.ask("GET", "x", "/b").unwrap().server(), "two");
        }
        assert_eq!(switch.count("host_fallbacks"), 2);
    });
}
