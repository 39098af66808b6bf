//! HAProxy as a server: checked by its answers, which follow its own backend, and between the
//! switch and that backend.

use std::net::SocketAddr;
use std::process::Stdio;

use fairlead_netns::Running;
use fairlead_netns::trial::skip;

use crate::harness::{
    Connection, Family, Lab, Nginx, Switch, prefix_in, wait_for_listener, web_service,
    with_and_without_the_fast_path,
};

const CHECK: &str = "check = { type = \"http\", path = \"/health\", interval = \"200ms\", \
                     fast_interval = \"100ms\", down_interval = \"200ms\", timeout = \"900ms\", \
                     rise = 2, fall = 2 }\nproxy_protocol = \"v2\"\n";

pub(crate) fn is_installed() -> bool {
    let found = std::process::Command::new("haproxy").arg("-v").output();
    found.is_ok_and(|output| output.status.success())
}

/// HAProxy in front of `backend`. It takes PROXY headers and says whom it saw.
fn haproxy(lab: &Lab, listen: SocketAddr, backend: SocketAddr) -> Running {
    let text = format!(
        "global\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 500ms\n  \
         timeout client 10s\n  timeout server 10s\n  retries 0\nlisten web\n  \
         bind {listen} accept-proxy\n  http-response set-header X-Client %[src]\n  \
         server one {backend}\n"
    );
    let file = lab.file("haproxy.cfg", text);
    let mut command = lab.servers.command("haproxy");
    command.arg("-db").arg("-f").arg(file);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = lab.servers.start(&mut command).expect("starting haproxy");
    wait_for_listener(lab, listen, || process.is_alive());
    process
}

/// The first server of the first pool: why it is left out, if it is.
fn left_out(status: &serde_json::Value) -> bool {
    status["pools"][0]["servers"][0]["check"]["state"] == "down"
}

#[test]
fn haproxy_is_used_while_its_own_backend_is_up() {
    let test = "haproxy::haproxy_is_used_while_its_own_backend_is_up";
    if !is_installed() {
        return skip(test, "haproxy is not installed");
    }
    with_and_without_the_fast_path(|lab, mode| {
        let (first, second) = (Family::V4.server_at(1, 8080), Family::V4.server_at(2, 8080));
        let backend = Family::V4.server_at(3, 9000);
        let _haproxy = haproxy(lab, first, backend);
        let spare = format!(
            "server {{ listen {second} proxy_protocol; location / {{ return 200 \"spare\\n\"; }} }}"
        );
        let _spare = Nginx::start(lab, "spare", &spare, &[second]);
        let services = web_service("snat", "", CHECK, |family| match family {
            Family::V4 => vec![first, second],
            Family::V6 => Vec::new(),
        });
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        let asked = || {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let answer = connection.ask("GET", "a.example", "/x").unwrap();
            let client = answer.header("x-client").map(str::to_owned);
            (answer.status, answer.server().to_owned(), client)
        };
        // Its backend is not there: it answers checks with 503.
        let status = switch.wait_for_status("HAProxy left out", left_out);
        let check = &status["pools"][0]["servers"][0]["check"];
        assert!(check["problem"].to_string().contains("503"), "{check}");
        for _ in 0..6 {
            assert_eq!(asked(), (200, "spare".to_owned(), None), "{mode}");
        }
        let inner = Nginx::plain(lab, "inner", backend);
        switch.wait_for_status("HAProxy back", |status| !left_out(status));
        let answers: Vec<_> = (0..8).map(|_| asked()).collect();
        let client = Some(Family::V4.client().to_string());
        let through = (200, "inner".to_owned(), client);
        assert!(answers.contains(&through), "{mode}: {answers:?}");
        assert!(
            answers.iter().all(|(status, ..)| *status == 200),
            "{answers:?}"
        );
        // A kept connection goes on through both.
        let mut kept = Connection::to(lab, Family::V4.virtual_at(80));
        for _ in 0..20 {
            assert_eq!(kept.ask("GET", "a.example", "/x").unwrap().status, 200);
        }
        inner.kill();
        switch.wait_for_status("HAProxy left out again", left_out);
        assert_eq!(asked(), (200, "spare".to_owned(), None), "{mode}");
    });
}
