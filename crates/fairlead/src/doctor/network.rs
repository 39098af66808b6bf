//! Network checks: everything that `serve` checks before it starts, and the routes to servers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fairlead_driver_tun::net::{self, Obstacle};
use fairlead_survey::{Link, Neighbour, Route, route_to};
use hyper::Method;

use super::{Check, Facts, read};
use crate::api::{Announcement, client};
use crate::config::{Announce, Settings};
use crate::serve::plan::network_plan;
use crate::serve::restore;

const ABOUT: &str = "network";
/// Maximum number of servers checked.
const SERVERS_MAX: usize = 256;

/// Runs all checks of this file.
pub(super) fn look(facts: &Facts, checks: &mut Vec<Check>) {
    let Some(settings) = &facts.settings else {
        checks.extend(forwarding(read));
        return;
    };
    if facts.is_running {
        let what = format!(
            "instance \"{}\" is running with device {}; its own routes are not reported as \
             conflicts",
            settings.instance.name, settings.network.device
        );
        checks.push(Check::ok(ABOUT, "running", what));
    }
    obstacles(settings, facts.is_running, checks);
    listening(settings, checks);
    checks.push(announced(settings, facts));
    servers(settings, facts, checks);
}

/// Whether listening addresses are announced, by the running instance if there is one.
fn announced(settings: &Settings, facts: &Facts) -> Check {
    const NAME: &str = "announce";
    if facts.is_running {
        let name = &settings.instance.name;
        let asked = client::ask::<Announcement>(name, Method::GET, "/v1/announce", None);
        return match asked {
            Ok(answer) => announced_now(&answer),
            Err(why) => Check::unseen(ABOUT, NAME, format!("announcements: {why}")),
        };
    }
    match settings.instance.announce {
        Announce::Off => Check::ok(ABOUT, NAME, "listening addresses are not announced"),
        Announce::Auto if facts.capabilities.has("CAP_NET_RAW") => {
            let what = "listening addresses in subnets of this machine are announced (ARP, NDP)";
            Check::ok(ABOUT, NAME, what)
        }
        Announce::Auto => {
            let what = "listening addresses cannot be announced (ARP, NDP) without CAP_NET_RAW";
            let advice =
                "add CAP_NET_RAW, or set `announce = \"off\"` and route the addresses here";
            Check::warning(ABOUT, NAME, what).advise(advice)
        }
    }
}

fn announced_now(answer: &Announcement) -> Check {
    const NAME: &str = "announce";
    let by = if answer.ordered { " by order" } else { "" };
    if !answer.on {
        let what = format!("listening addresses are not announced{by}");
        return match answer.ordered {
            true => Check::warning(ABOUT, NAME, what).advise("`fairlead announce on` ends that"),
            false => Check::ok(ABOUT, NAME, what),
        };
    }
    let of = |state: &str| {
        answer
            .addresses
            .iter()
            .filter(|one| one.state == state)
            .count()
    };
    let (all, conflicts) = (answer.addresses.len(), of("conflict"));
    let what = format!(
        "{} of {all} addresses in own subnets are announced{by}",
        of("announced")
    );
    match conflicts {
        0 => Check::ok(ABOUT, NAME, what),
        _ => Check::warning(
            ABOUT,
            NAME,
            format!("{what}; another machine has {conflicts}"),
        )
        .advise("`fairlead announce status` shows which"),
    }
}

/// True if a process is running this instance here, even if it serves no admin pages (yet).
pub(super) fn is_running(settings: &Settings) -> bool {
    restore::is_running(&network_plan(settings)).unwrap_or(false)
}

/// Whether forwarding is on, for each address family. One family suffices for some configurations.
fn forwarding<E>(read: impl Fn(&str) -> Result<String, E>) -> [Check; 2] {
    const NAME: &str = "forwarding";
    let both = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"].map(|sysctl| {
        (
            sysctl,
            read(&format!("/proc/sys/{}", sysctl.replace('.', "/"))),
        )
    });
    let is_on = |value: &Result<String, E>| value.as_ref().is_ok_and(|value| value != "0");
    let any = both.iter().any(|(_, value)| is_on(value));
    both.map(|(sysctl, value)| match value {
        Ok(value) if value == "0" => {
            let text = Obstacle::ForwardingOff { sysctl }.to_string();
            let (what, advice) = text.split_once("; ").unwrap_or((&text, ""));
            let check = match any {
                true => Check::warning(ABOUT, NAME, what),
                false => Check::problem(ABOUT, NAME, what),
            };
            check.advise(advice)
        }
        Ok(_) => Check::ok(ABOUT, NAME, format!("{sysctl} is on")),
        Err(_) => Check::unseen(ABOUT, NAME, format!("{sysctl} does not exist")),
    })
}

/// Obstacles for which `serve` would refuse to start, found by the same check.
fn obstacles(settings: &Settings, is_running: bool, checks: &mut Vec<Check>) {
    const NAME: &str = "obstacles";
    let device = &settings.network.device;
    let mut plan = network_plan(settings);
    let earlier = net::owned_by(&plan.owner).unwrap_or_default();
    plan.resumed = earlier
        .iter()
        .any(|left| !left.in_use && left.device == plan.device);
    if plan.resumed {
        let what = format!("{device} was left by an earlier run; `serve` reuses it");
        checks.push(Check::ok(ABOUT, "earlier-run", what));
    }
    let found = match net::check(&plan) {
        Ok(found) => found,
        Err(error) => {
            checks.push(Check::unseen(ABOUT, NAME, error.to_string()));
            return;
        }
    };
    let ours = |obstacle: &Obstacle| match obstacle {
        Obstacle::NameTaken(_) | Obstacle::ServerTaken(_) => is_running,
        Obstacle::Served { device: one, .. } => is_running && one == device,
        _ => false,
    };
    let foreign: Vec<_> = found.iter().filter(|one| !ours(one)).collect();
    if foreign.is_empty() {
        let what = "forwarding is on; no conflicts with names, addresses or routes";
        checks.push(Check::ok(ABOUT, NAME, what));
    }
    for obstacle in foreign {
        let text = obstacle.to_string();
        let (what, advice) = text
            .split_once("; ")
            .unwrap_or((&text, "change one of them"));
        checks.push(Check::problem(ABOUT, NAME, what).advise(advice));
    }
}

fn listening(settings: &Settings, checks: &mut Vec<Check>) {
    for service in &settings.switch.services {
        let at: Vec<String> = service.listen.iter().map(ToString::to_string).collect();
        let what = format!(
            "service {} at {}: clients need a route to it through this machine",
            service.name,
            at.join(", ")
        );
        checks.push(Check::ok(ABOUT, "listening", what));
    }
}

/// Checks the route to each server address.
fn servers(settings: &Settings, facts: &Facts, checks: &mut Vec<Check>) {
    let mut names: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for pool in &settings.switch.pools {
        for server in &pool.servers {
            let pools = names.entry(server.endpoint.addr.to_ip()).or_default();
            if !pools.contains(&pool.name.as_str()) {
                pools.push(&pool.name);
            }
        }
    }
    let links: &[Link] = facts.links.as_deref().unwrap_or_default();
    let count = names.len();
    for (address, pools) in names.into_iter().take(SERVERS_MAX) {
        let server = format!("server {address} ({})", pools.join(", "));
        checks.push(match route_to(address) {
            Ok(route) => server_check(&server, address, route, links),
            Err(error) => Check::unseen(ABOUT, "server", format!("{server}: {error}")),
        });
    }
    if count > SERVERS_MAX {
        let what = format!("{} more servers were not checked", count - SERVERS_MAX);
        checks.push(Check::unseen(ABOUT, "server", what));
    }
}

fn server_check(server: &str, address: IpAddr, route: Option<Route>, links: &[Link]) -> Check {
    const NAME: &str = "server";
    let Some(route) = route else {
        return Check::warning(ABOUT, NAME, format!("{server}: no route"))
            .advise(format!("`ip route add {address} via ROUTER`"));
    };
    let link = links.iter().find(|link| link.index == route.interface);
    let name = link.map_or("?", |link| link.name.as_str());
    if route.is_local {
        return Check::warning(
            ABOUT,
            NAME,
            format!("{server} is an address of this machine"),
        )
        .advise(
            "the switch forwards packets between machines: move the server to another machine or \
             into a network namespace",
        );
    }
    let next = route.gateway.unwrap_or(address);
    let by = match route.gateway {
        Some(router) => format!("{server} via {router} on {name}"),
        None => format!("{server} on {name}"),
    };
    match route.neighbour {
        Neighbour::Known => Check::ok(ABOUT, NAME, format!("{by}, link-layer address known")),
        Neighbour::NotAsked => {
            let what = format!("{by}; the first packet will resolve its link-layer address");
            Check::ok(ABOUT, NAME, what)
        }
        Neighbour::Asking | Neighbour::Silent => {
            let what = format!("{by}: no link-layer address for {next}");
            Check::warning(ABOUT, NAME, what).advise(format!(
                "is it up? `ping -c1 {next}`, `ip neigh show {next}`"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn announcements_that_do_not_happen_are_pointed_out() {
        use crate::admin::AnnouncedStatus;
        let of = |on, ordered, states: &[&str]| {
            let addresses = states.iter().map(|state| AnnouncedStatus {
                state: (*state).to_owned(),
                ..AnnouncedStatus::default()
            });
            announced_now(&Announcement {
                on,
                ordered,
                addresses: addresses.collect(),
            })
        };
        assert_eq!(of(true, false, &["announced"]).state, State::Ok);
        assert_eq!(of(false, false, &[]).state, State::Ok);
        assert_eq!(of(false, true, &[]).state, State::Warning);
        let conflict = of(true, false, &["announced", "conflict"]);
        assert_eq!(conflict.state, State::Warning);
        assert!(conflict.what.contains("1 of 2"), "{}", conflict.what);
    }

    #[test]
    fn without_any_forwarding_nothing_can_be_served() {
        use State::{Ok as Fine, Problem, Unseen, Warning};
        let judged = |v4: &'static str, v6: Option<&'static str>| {
            let read = |path: &str| match path.contains("ipv4") {
                true => Ok(v4.to_owned()),
                false => v6.map(str::to_owned).ok_or(()),
            };
            forwarding(read).map(|check| check.state)
        };
        assert_eq!(judged("1", Some("1")), [Fine, Fine]);
        assert_eq!(judged("1", Some("0")), [Fine, Warning]);
        assert_eq!(judged("0", Some("1")), [Warning, Fine]);
        assert_eq!(judged("1", None), [Fine, Unseen]);
        assert_eq!(judged("0", Some("0")), [Problem, Problem]);
        assert_eq!(judged("0", None), [Problem, Unseen]);
    }

    #[test]
    fn routes_to_servers_are_checked() {
        let address: IpAddr = "10.2.0.1".parse().unwrap();
        let link = Link {
            index: 4,
            name: "eth1".into(),
            ..Link::default()
        };
        let links = [link];
        let route = |is_local, neighbour| Route {
            interface: 4,
            is_local,
            gateway: Some("10.9.0.1".parse().unwrap()),
            neighbour,
        };
        let judged = |route| server_check("server 10.2.0.1 (pages)", address, route, &links);
        assert_eq!(judged(None).state, State::Warning);
        assert_eq!(
            judged(Some(route(true, Neighbour::Known))).state,
            State::Warning
        );
        let known = judged(Some(route(false, Neighbour::Known)));
        assert_eq!(known.state, State::Ok);
        assert!(
            known.what.contains("via 10.9.0.1 on eth1"),
            "{}",
            known.what
        );
        let silent = judged(Some(route(false, Neighbour::Silent)));
        assert_eq!(silent.state, State::Warning);
        assert!(silent.advice.unwrap().contains("ping -c1 10.9.0.1"));
    }
}
