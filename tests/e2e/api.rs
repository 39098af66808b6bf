//! Orders by the API: at the admin address with a token, and about announcements.

use fairlead_netns::trial::skip;

use crate::harness::{Family, Lab, Nginx, PREFIX, Switch, in_a_lab, web_service};
use crate::orders::fairlead;

const SERVER: &str = "/v1/pools/four/servers/10.2.0.1:8080";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn services() -> String {
    web_service("snat", "", "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    })
}

/// The status that curl gets on the switch.
fn status(lab: &Lab, arguments: &[&str], path: &str) -> String {
    let mut command = lab.switch.command("curl");
    command.args([
        "-s",
        "--max-time",
        "5",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
    ]);
    command
        .args(arguments)
        .arg(format!("http://127.0.0.1:9090{path}"));
    String::from_utf8(command.output().expect("running curl").stdout).expect("text")
}

#[test]
fn the_admin_address_takes_orders_with_the_token_alone() {
    in_a_lab(|lab| {
        let _server = Nginx::plain(lab, "s1", Family::V4.server_at(1, 8080));
        let token = lab.file("token", format!("{TOKEN}\n"));
        let admin = "admin = \"127.0.0.1:9090\"\n";
        let keys = format!(
            "{admin}admin_hosts = \"edge.example\"\nadmin_token_file = \"{}\"\n",
            token.display()
        );
        let bearer = format!("Authorization: Bearer {TOKEN}");
        let wrong = format!("Authorization: Bearer {TOKEN}0");
        let drain = ["-X", "PATCH", "-H", "Content-Type: application/json", "-d"];
        let drain = [&drain[..], &["{\"admin\":\"drain\"}"]].concat();
        let with = |more: &[&'static str], header: &str| -> Vec<String> {
            let words = [&drain[..], more].concat();
            let mut words: Vec<_> = words.into_iter().map(str::to_owned).collect();
            words.extend(["-H".to_owned(), header.to_owned()]);
            words
        };
        let ask = |words: &[String]| {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            status(lab, &words, SERVER)
        };
        assert!(PREFIX.contains(admin));
        {
            let prefix = PREFIX.replace(admin, &keys);
            let switch = Switch::start_with(lab, &format!("{prefix}{}", services()));
            assert_eq!(status(lab, &[], "/v1/servers"), "200");
            assert_eq!(
                status(lab, &["-H", "Host: edge.example"], "/v1/servers"),
                "200"
            );
            assert_eq!(
                status(lab, &["-H", "Host: evil.example"], "/v1/servers"),
                "403"
            );
            assert_eq!(ask(&with(&[], "X: y")), "401");
            assert_eq!(ask(&with(&[], &wrong)), "401");
            let state =
                |switch: &Switch| switch.status()["pools"][0]["servers"][0]["admin"].clone();
            assert_eq!(state(&switch), "ready");
            assert_eq!(ask(&with(&["-H", "Host: evil.example"], &bearer)), "403");
            assert_eq!(ask(&with(&[], &bearer)), "200");
            assert_eq!(state(&switch), "drain");
            let log = switch.log();
            assert!(!log.contains(TOKEN), "{log}");
            // The order would outlive this instance.
            drop(fairlead(
                lab,
                &["server", "reset", "four/10.2.0.1:8080", "--instance", "e2e"],
            ));
        }
        let _switch = Switch::start_with(lab, &format!("{PREFIX}{}", services()));
        assert_eq!(ask(&with(&[], &bearer)), "403", "without a token file");
    });
}

/// Whether the client gets an answer, once it has to ask for the address's neighbour anew.
fn is_served(lab: &Lab) -> bool {
    let flush = format!("neigh flush dev {}\n", lab.front.a);
    lab.client.ip(&flush).expect("flushing neighbours");
    let mut command = lab.client.command("curl");
    let url = format!("http://{}/", Family::V4.virtual_at(80));
    command.args(["-s", "-o", "/dev/null", "--max-time", "4", &url]);
    command.output().expect("running curl").status.success()
}

#[test]
fn announcements_end_and_begin_by_order_and_the_order_outlives_a_restart() {
    let test = "api::announcements_end_and_begin_by_order_and_the_order_outlives_a_restart";
    in_a_lab(|lab| {
        let _server = Nginx::plain(lab, "s1", Family::V4.server_at(1, 8080));
        // The address is in the client's own subnet: it must be announced.
        lab.client
            .ip("route del 10.1.0.3/32\n")
            .expect("a route less");
        let file = format!("{PREFIX}{}", services());
        let announced = |status: &serde_json::Value| status["announced"][0]["state"] == "announced";
        let order = |word: &str| {
            let (code, out, errors) = fairlead(lab, &["announce", word, "--instance", "e2e"]);
            assert_eq!(code, Some(0), "{errors}");
            out
        };
        {
            let switch = Switch::start_with(lab, &file);
            if switch.log().contains("no control socket") {
                skip(test, "the folder of sockets cannot be made by this user");
                return;
            }
            switch.wait_for_status("an announced address", announced);
            assert!(is_served(lab));
            let said = order("status");
            assert!(
                said.contains("on, as configured") && said.contains("10.1.0.3"),
                "{said}"
            );
            assert!(order("off").contains("off, by order"));
            switch.wait_for_status("silence", |status| !announced(status));
            assert!(!is_served(lab), "answered for all the same");
        }
        let switch = Switch::start_with(lab, &file);
        assert!(order("status").contains("off, by order"), "after a restart");
        assert!(!is_served(lab));
        assert!(order("on").contains("on, as configured"));
        switch.wait_for_status("an announced address", announced);
        assert!(is_served(lab));
    });
}
