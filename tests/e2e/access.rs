//! Access lists: who is denied gets nothing, or a RST; everybody else is served.

use fairlead_netns::trial::skip;

use crate::harness::{
    Family, Lab, Origin, Switch, links_take_xdp, prefix_in, web, web_service,
    with_and_without_the_fast_path,
};
use crate::orders::fairlead;

const DENIED_V4: &str = "10.1.0.66";
const DENIED_V6: &str = "fd01::66";

/// The exit status of curl from an address of the client: 0 served, 7 refused, 28 silence.
fn curl_from(lab: &Lab, family: Family, source: &str) -> Option<i32> {
    let mut command = lab.client.command("curl");
    let url = format!("http://{}/", family.virtual_at(80));
    command.args([
        "-gs",
        "-o",
        "/dev/null",
        "--max-time",
        "2",
        "--interface",
        source,
        &url,
    ]);
    command.output().expect("running curl").status.code()
}

fn denied(switch: &Switch, list: &str) -> u64 {
    let status = switch.status();
    status["services"][0]["denied"][list].as_u64().unwrap_or(0)
}

fn lists_hold(lab: &Lab, mode: &str) {
    let list = lab.file(
        "blocked.list",
        format!("# two\n{DENIED_V4}\n{DENIED_V6}/128\n"),
    );
    let access = format!(
        "[[access]]\nname = \"near\"\nallow = [\"10.1.0.0/24\", \"fd01::/64\"]\n\
         [[access]]\nname = \"blocked\"\nfile = \"{}\"\ndefault = \"allow\"\n",
        list.display()
    );
    for (on_denied, code) in [("drop", 28), ("reset", 7)] {
        let extra = format!("access = [\"near\", \"blocked\"]\non_denied = \"{on_denied}\"");
        let services = web_service("snat", &extra, "", |family| vec![family.server_at(1, 8080)]);
        let file = format!("{}{access}{services}", prefix_in(mode, ""));
        let switch = Switch::start_with(lab, &file);
        let before = switch.drops("access_denied");
        for (family, source) in [(Family::V4, DENIED_V4), (Family::V6, DENIED_V6)] {
            let client = family.client().to_string();
            assert_eq!(curl_from(lab, family, &client), Some(0), "{mode} {client}");
            assert_eq!(
                curl_from(lab, family, source),
                Some(code),
                "{mode} {source}"
            );
            assert_eq!(curl_from(lab, family, &client), Some(0), "{mode} {client}");
        }
        switch.wait_for_status("denied SYNs", |_| {
            denied(&switch, "blocked") >= 2 && switch.drops("access_denied") > before
        });
        assert_eq!(denied(&switch, "near"), 0);
        let metrics = switch.page("/metrics").unwrap();
        let line = "fairlead_access_denied_total{service=\"web\",list=\"blocked\"}";
        assert!(metrics.contains(line), "{metrics}");
    }
}

/// Orders hold at once and outlive a restart in place; where the configuration of a prefix has
/// changed, that wins.
#[test]
fn orders_change_a_list_at_once_and_outlive_a_reload() {
    let test = "access::orders_change_a_list_at_once_and_outlive_a_reload";
    with_and_without_the_fast_path(|lab, mode| {
        let _server = Origin::start(
            lab,
            Family::V4.server_at(1, 8080),
            web("pages", false, std::sync::Arc::default()),
        );
        let more = format!("addr replace {DENIED_V4}/24 dev {}\n", lab.front.a);
        lab.client.ip(&more).expect("addresses of the client");
        let services = web_service(
            "snat",
            "access = [\"blocked\"]",
            "",
            |family| match family {
                Family::V4 => vec![family.server_at(1, 8080)],
                Family::V6 => Vec::new(),
            },
        );
        let file = |denied: &str| {
            let list = format!("[[access]]\nname = \"blocked\"\ndeny = [{denied}]\n");
            format!("{}{list}{services}", prefix_in(mode, ""))
        };
        let switch = Switch::start_with(lab, &file("\"192.0.2.0/24\""));
        if switch.log().contains("no control socket") {
            skip(test, "the folder of sockets cannot be made by this user");
            return;
        }
        let other = Family::V4.client().to_string();
        let is_denied = |source: &str| curl_from(lab, Family::V4, source) == Some(28);
        let order = |words: &[&str]| {
            let words = [&["access"], words, &["--instance", "e2e"]].concat();
            fairlead(lab, &words)
        };
        assert!(!is_denied(DENIED_V4));
        let begun = std::time::Instant::now();
        let (code, out, errors) = order(&["add", "blocked", DENIED_V4]);
        println!("{mode}: an order took {:?}", begun.elapsed());
        let said = format!("blocked {DENIED_V4}/32: deny\n");
        assert_eq!((code, out.as_str()), (Some(0), said.as_str()), "{errors}");
        assert!(is_denied(DENIED_V4) && !is_denied(&other));
        let (_, out, _) = order(&["list", "blocked"]);
        assert!(
            out.contains("ordered") && out.contains("192.0.2.0/24"),
            "{out}"
        );
        // The kernel and the engine have it again after a restart in place.
        if mode != "engine" {
            let (code, out, errors) = fairlead(lab, &["reload", "--instance", "e2e"]);
            assert_eq!(code, Some(0), "{out}{errors}");
            assert!(is_denied(DENIED_V4) && !is_denied(&other));
        }
        let (code, ..) = order(&["remove", "blocked", DENIED_V4]);
        assert_eq!(code, Some(0));
        assert!(!is_denied(DENIED_V4));
        // The whole network, but not one of its addresses.
        assert_eq!(order(&["add", "blocked", "10.1.0.0/24"]).0, Some(0));
        assert_eq!(order(&["add", "blocked", &other, "--allow"]).0, Some(0));
        assert!(is_denied(DENIED_V4) && !is_denied(&other));
        for (words, why) in [
            (&["add", "blocked", "10.1.0.1/24"][..], "write 10.1.0.0/24"),
            (&["add", "blocked", "office"], "is not an address or prefix"),
            (&["add", "other", "10.0.0.0/8"], "used: blocked"),
            (
                &["remove", "blocked", "10.9.0.0/16"],
                "is not in access list",
            ),
        ] {
            let (code, _, errors) = order(words);
            assert!(
                code == Some(1) && errors.contains(why),
                "{words:?}: {errors}"
            );
        }
        if mode != "engine" {
            // Now the file has the network, too, so that the order about it is over.
            lab.file("fairlead.toml", file("\"10.1.0.0/24\""));
            let (code, out, errors) = fairlead(lab, &["reload", "--instance", "e2e"]);
            assert_eq!(code, Some(0), "{out}{errors}");
            switch.wait_for_log("blocked 10.1.0.0/24: the configuration has changed");
            assert!(is_denied(DENIED_V4) && !is_denied(&other));
        }
        // The state would outlive this instance, too.
        assert_eq!(order(&["remove", "blocked", "10.1.0.0/24"]).0, Some(0));
        assert_eq!(order(&["remove", "blocked", &other]).0, Some(0));
        assert!(!is_denied(DENIED_V4) && !is_denied(&other));
    });
}

#[test]
fn denied_clients_get_nothing_or_a_reset_and_others_are_served() {
    let name = "access::denied_clients_get_nothing_or_a_reset_and_others_are_served";
    with_and_without_the_fast_path(|lab, mode| {
        let _servers: Vec<Origin> = Family::BOTH
            .map(|family| {
                let serve = web("pages", false, std::sync::Arc::default());
                Origin::start(lab, family.server_at(1, 8080), serve)
            })
            .into();
        let more = format!(
            "addr replace {DENIED_V4}/24 dev {front}\n\
             addr replace {DENIED_V6}/64 dev {front} nodad\n",
            front = lab.front.a
        );
        lab.client.ip(&more).expect("addresses of the client");
        if mode == "engine" {
            return lists_hold(lab, mode);
        }
        for mode in ["tc", "xdp-generic", "xdp"] {
            if mode == "xdp" && !links_take_xdp() {
                skip(name, "before Linux 6.3 XDP sends into no veth");
                continue;
            }
            lists_hold(lab, mode);
        }
    });
}
