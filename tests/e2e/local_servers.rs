//! Servers as distributions ship them take connections that the switch gives them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use fairlead_netns::trial::skip;
use fairlead_netns::{Running, program};

use crate::harness::{
    Family, Lab, PATIENCE, Switch, wait_for_listener_on, with_sockets_of_cookies,
};

/// One port for what is not TLS, with a server behind it.
fn not_tls(listener: &str) -> String {
    format!(
        r#"
[[service]]
name = "shared"
listen = ["10.1.0.3:443", "[fd01:3::3]:443"]
protocol = "tls"
first_bytes_timeout = "200ms"
[[service.route]]
first_bytes = "SSH-"
treatment = "host"
listener = {listener}
[[service.route]]
not_tls = true
treatment = "host"
listener = {listener}
"#
    )
}

/// Starts a server on the switch's host and waits until it listens.
fn start(lab: &Lab, command: &mut Command, at: &[&str]) -> Running {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = lab.switch.start(command).expect("a server");
    for address in at {
        let address: SocketAddr = address.parse().unwrap();
        wait_for_listener_on(lab, &lab.switch, address, || running.is_alive());
    }
    running
}

fn connect(lab: &Lab, to: SocketAddr) -> TcpStream {
    let stream = lab.client.enter(|| TcpStream::connect(to)).unwrap();
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn openssh_shares_a_port_and_greets_silent_clients() {
    let name = "openssh_shares_a_port_and_greets_silent_clients";
    let (Some(sshd), Some(ssh), Some(keygen)) =
        (program("sshd"), program("ssh"), program("ssh-keygen"))
    else {
        return skip(name, "needs openssh-server and openssh-client");
    };
    with_sockets_of_cookies(|lab| {
        let folder = lab.folder();
        let at = folder.display();
        for key in ["host", "client"] {
            let mut command = Command::new(&keygen);
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            let done = command.arg(folder.join(key)).status().unwrap();
            assert!(done.success());
        }
        fs::copy(folder.join("client.pub"), folder.join("keys")).unwrap();
        // Where it runs, it has its own folder, which may be missing.
        let _ = fs::create_dir_all("/run/sshd");
        let text = format!(
            "ListenAddress 127.0.0.1:2222\nListenAddress [::1]:2222\nHostKey {at}/host\n\
             AuthorizedKeysFile {at}/keys\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nUseDNS no\n"
        );
        fs::write(folder.join("sshd.conf"), text).unwrap();
        let mut command = lab.switch.command(&sshd.to_string_lossy());
        command.args(["-D", "-f"]).arg(folder.join("sshd.conf"));
        let _sshd = start(lab, &mut command, &["127.0.0.1:2222", "[::1]:2222"]);
        let services = not_tls(r#"["127.0.0.1:2222", "[::1]:2222"]"#);
        let switch = Switch::start_in_kernel(lab, "", &services);
        for family in Family::BOTH {
            let to = family.virtual_at(443);
            let mut command = lab.client.command(&ssh.to_string_lossy());
            command.args(["-F", "none", "-o", "StrictHostKeyChecking=no"]);
            command.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]);
            command.args(["-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=20", "-i"]);
            command.arg(folder.join("client"));
            command.args(["-p", "443", &format!("root@{}", to.ip())]);
            // More than a few segments, both ways.
            command.arg("echo $SSH_CLIENT; head -c 300000 /dev/zero | tr '\\0' y");
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            let (client, rest) = said.split_once('\n').unwrap();
            let seen = format!("{} ", family.client());
            assert!(client.starts_with(&seen), "the client's address: {client}");
            assert_eq!(rest.len(), 300_000);
            let mut silent = connect(lab, to);
            let mut greeting = [0; 8];
            silent.read_exact(&mut greeting).unwrap();
            assert_eq!(&greeting, b"SSH-2.0-");
        }
        assert_eq!(switch.count("given"), 4);
    });
}

/// Reads the answer to one command of redis: `$LENGTH`, and the bytes.
fn bulk(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let text = String::from_utf8(head).unwrap();
    let length: usize = text.trim().strip_prefix('$').expect(&text).parse().unwrap();
    let mut body = vec![0; length + 2];
    stream.read_exact(&mut body).unwrap();
    body.truncate(length);
    body
}

#[test]
fn redis_answers_pipelined_commands_of_its_clients() {
    let name = "redis_answers_pipelined_commands_of_its_clients";
    let Some(redis) = program("redis-server") else {
        return skip(name, "needs redis-server");
    };
    with_sockets_of_cookies(|lab| {
        let mut command = lab.switch.command(&redis.to_string_lossy());
        command.args(["--port", "6380", "--bind", "127.0.0.1", "::1", "--save", ""]);
        // It sees clients of other hosts, which it would refuse without a password.
        command.args(["--protected-mode", "no"]);
        command.arg("--dir").arg(lab.folder());
        let _redis = start(lab, &mut command, &["127.0.0.1:6380", "[::1]:6380"]);
        let services = not_tls(r#"["127.0.0.1:6380", "[::1]:6380"]"#);
        let switch = Switch::start_in_kernel(lab, "", &services);
        for family in Family::BOTH {
            let mut stream = connect(lab, family.virtual_at(443));
            let own = stream.local_addr().unwrap();
            // Redis takes 64 KiB in a line at most.
            let value = "v".repeat(50_000);
            let mut asked = String::new();
            for number in 0..50 {
                asked += &format!("SET key{number} {value}{number}\r\n");
            }
            let writer = stream.try_clone().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || (&writer).write_all(asked.as_bytes()).unwrap());
                let mut answers = vec![0; 50 * 5];
                stream.read_exact(&mut answers).unwrap();
                assert_eq!(answers, b"+OK\r\n".repeat(50));
            });
            for number in [0, 49] {
                write!(stream, "GET key{number}\r\n").unwrap();
                let expected = format!("{value}{number}");
                assert!(bulk(&mut stream) == expected.as_bytes(), "{number}");
            }
            write!(stream, "CLIENT INFO\r\n").unwrap();
            let seen = String::from_utf8(bulk(&mut stream)).unwrap();
            assert!(seen.contains(&format!(" addr={own} ")), "{own}: {seen}");
        }
        assert_eq!(switch.count("given"), 2);
    });
}

#[test]
fn pythons_web_server_sends_files() {
    let name = "pythons_web_server_sends_files";
    let Some(python) = program("python3") else {
        return skip(name, "needs python3");
    };
    with_sockets_of_cookies(|lab| {
        let folder = lab.folder().join("pages");
        fs::create_dir_all(&folder).unwrap();
        let page: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        fs::write(folder.join("page"), &page).unwrap();
        let mut command = lab.switch.command(&python.to_string_lossy());
        command.args(["-m", "http.server", "8082", "--bind", "127.0.0.1"]);
        command.arg("--directory").arg(&folder);
        let _python = start(lab, &mut command, &["127.0.0.1:8082"]);
        let services = r#"
[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
[[service.route]]
treatment = "host"
sleep = true
listener = "127.0.0.1:8082"
"#;
        let switch = Switch::start_in_kernel(lab, "", services);
        for _ in 0..3 {
            let mut stream = connect(lab, Family::V4.virtual_at(80));
            write!(stream, "GET /page HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            // It is of HTTP/1.0: the FIN ends it, and no sleep.
            stream.read_to_end(&mut answer).unwrap();
            assert!(answer.starts_with(b"HTTP/1.0 200 "), "{}", answer.len());
            assert!(answer.ends_with(&page), "{}", answer.len());
        }
        assert_eq!(switch.count("given"), 3);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(switch.status()["kernel"]["host_slept"], 0);
    });
}
