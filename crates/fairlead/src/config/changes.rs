//! What differs between two configurations, a line a difference, for who asked for a reload.

use std::fmt::Debug;

use fairlead_splice::config::{Config, Limits, Pool, Service};

use super::{Prefix, Settings, show_duration};

/// More lines than that say nothing any more.
pub(crate) const CHANGES_MAX: usize = 100;

/// What is different in `new`, at most [`CHANGES_MAX`] lines and one that counts the rest; none
/// when nothing is.
pub(crate) fn changes(old: &Settings, new: &Settings) -> Vec<String> {
    let mut lines = Vec::new();
    process(old, new, &mut lines);
    limits(&old.switch.limits, &new.switch.limits, &mut lines);
    if format!("{:?}", old.tcb_cache) != format!("{:?}", new.tcb_cache) {
        lines.push("[tcb_cache] is changed".to_owned());
    }
    let names = |one: &Config| one.services.iter().map(|one| one.name.clone()).collect();
    let pairs = Pairs::of(names(&old.switch), names(&new.switch));
    pairs.tell("service", &mut lines);
    for (before, now) in pairs.both {
        let sides = (&old.switch, &new.switch);
        let pair = (&sides.0.services[before], &sides.1.services[now]);
        service(pair, sides, &mut lines);
    }
    let names = |one: &Config| one.pools.iter().map(|one| one.name.clone()).collect();
    let pairs = Pairs::of(names(&old.switch), names(&new.switch));
    pairs.tell("pool", &mut lines);
    for (before, now) in pairs.both {
        pool(
            &old.switch.pools[before],
            &new.switch.pools[now],
            &mut lines,
        );
    }
    let more = lines.len().saturating_sub(CHANGES_MAX);
    lines.truncate(CHANGES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// What is in one list, in the other, and in both (by their places).
struct Pairs {
    gone: Vec<String>,
    fresh: Vec<String>,
    both: Vec<(usize, usize)>,
}

impl Pairs {
    fn of(old: Vec<String>, new: Vec<String>) -> Self {
        let places = |names: &[String]| -> std::collections::BTreeMap<String, usize> {
            let places = names.iter().enumerate();
            places.map(|(place, name)| (name.clone(), place)).collect()
        };
        let (before, now) = (places(&old), places(&new));
        let without = |these: Vec<String>, those: &std::collections::BTreeMap<String, usize>| {
            let mut these = these;
            these.retain(|one| !those.contains_key(one));
            these
        };
        let both = new.iter().enumerate();
        let both = both.filter_map(|(now, name)| Some((*before.get(name)?, now)));
        Self {
            both: both.collect(),
            gone: without(old, &now),
            fresh: without(new, &before),
        }
    }

    fn tell(&self, what: &str, lines: &mut Vec<String>) {
        let line = |name: &String, is: &str| format!("{what} {name} is {is}");
        lines.extend(self.fresh.iter().map(|name| line(name, "new")));
        lines.extend(self.gone.iter().map(|name| line(name, "gone")));
    }
}

/// One value of which both are known.
fn value<T: PartialEq>(
    key: &str,
    (old, new): (&T, &T),
    show: impl Fn(&T) -> String,
    lines: &mut Vec<String>,
) {
    if old != new {
        lines.push(format!("{key} is {}, was {}", show(new), show(old)));
    }
}

fn process(old: &Settings, new: &Settings, lines: &mut Vec<String>) {
    let (before, now) = (&old.instance, &new.instance);
    let show = |admin: &Option<core::net::SocketAddr>| {
        admin.map_or_else(|| "not there".to_owned(), |one| one.to_string())
    };
    value("instance.admin", (&before.admin, &now.admin), show, lines);
    let both = (&before.log_connections, &now.log_connections);
    value("instance.log_connections", both, bool::to_string, lines);
    let both = (&before.on_stop, &now.on_stop);
    value("instance.on_stop", both, |one| one.name().to_owned(), lines);
    let both = (&before.drain_timeout, &now.drain_timeout);
    let show = |one: &core::time::Duration| show_duration(*one);
    value("instance.drain_timeout", both, show, lines);
    let show = |all: &Vec<Prefix>| match all.is_empty() {
        true => "empty".to_owned(),
        false => all
            .iter()
            .map(Prefix::to_string)
            .collect::<Vec<_>>()
            .join(" "),
    };
    value(
        "fastpath.snat",
        (&old.fastpath.snat, &new.fastpath.snat),
        show,
        lines,
    );
    value(
        "fastpath.veth",
        (&old.fastpath.veth, &new.fastpath.veth),
        |one| one.name().to_owned(),
        lines,
    );
    value(
        "fastpath.mtu",
        (&old.fastpath.mtu, &new.fastpath.mtu),
        u16::to_string,
        lines,
    );
}

fn limits(old: &Limits, new: &Limits, lines: &mut Vec<String>) {
    let mut one = |key: &str, old: u64, new: u64| {
        value(
            &format!("limits.{key}"),
            (&old, &new),
            u64::to_string,
            lines,
        );
    };
    one(
        "connections",
        old.connections.into(),
        new.connections.into(),
    );
    one("setups", old.setups.into(), new.setups.into());
    one(
        "half_read_heads",
        old.half_read.into(),
        new.half_read.into(),
    );
    let clients = (old.half_read_per_client, new.half_read_per_client);
    one(
        "half_read_heads_per_client",
        clients.0.into(),
        clients.1.into(),
    );
    one("buffered_bytes", old.buffered_bytes, new.buffered_bytes);
}

/// Regular expressions have no equality but are written as they were read, so that what is written
/// of two things tells whether they are the same.
fn differs(old: &impl Debug, new: &impl Debug) -> bool {
    format!("{old:?}") != format!("{new:?}")
}

fn service(
    (old, new): (&Service, &Service),
    (before, now): (&Config, &Config),
    lines: &mut Vec<String>,
) {
    // Pools may stand in another order: routes lead to names.
    let routes = |service: &Service, switch: &Config| -> Vec<String> {
        let pool = |id: usize| switch.pools.get(id).map_or("?", |pool| &pool.name);
        let routes = service.routes.iter().map(|one| {
            let to = pool(usize::from(one.pool.0));
            let rest = (&one.matchers, one.treatment, one.retries);
            format!("{} {to} {rest:?}", one.name)
        });
        routes.collect()
    };
    let changed = [
        ("listen", differs(&old.listen, &new.listen)),
        ("protocol", old.protocol != new.protocol),
        ("source", old.source != new.source),
        ("routes", routes(old, before) != routes(new, now)),
        ("unmatched", old.unmatched != new.unmatched),
        ("timeouts", old.timeouts != new.timeouts),
        ("head_limit", old.head_bytes_max != new.head_bytes_max),
    ];
    tell_changed("service", &new.name, &changed, lines);
}

fn tell_changed(what: &str, name: &str, keys: &[(&str, bool)], lines: &mut Vec<String>) {
    let changed: Vec<&str> = keys.iter().filter(|one| one.1).map(|one| one.0).collect();
    if !changed.is_empty() {
        lines.push(format!("{what} {name}: changed in {}", changed.join(", ")));
    }
}

fn pool(old: &Pool, new: &Pool, lines: &mut Vec<String>) {
    let changed = [
        ("balance", old.balance != new.balance),
        ("proxy_protocol", old.proxy_protocol != new.proxy_protocol),
        (
            "connect_timeout",
            old.connect_timeout != new.connect_timeout,
        ),
        ("probe_interval", old.probe_interval != new.probe_interval),
    ];
    tell_changed("pool", &new.name, &changed, lines);
    let names = |one: &Pool| {
        one.servers
            .iter()
            .map(|one| one.endpoint.to_string())
            .collect()
    };
    let pairs = Pairs::of(names(old), names(new));
    pairs.tell(&format!("pool {}: server", new.name), lines);
    for (before, now) in pairs.both {
        let (before, now) = (&old.servers[before], &new.servers[now]);
        let key = format!("pool {}: weight of {}", new.name, now.endpoint);
        value(&key, (&before.weight, &now.weight), u16::to_string, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SMALL, parse};

    fn settings(file: &str) -> Settings {
        parse(file, "a.toml").expect("a configuration").settings
    }

    fn told(from: &str, to: &str) -> Vec<String> {
        let changed = SMALL.replace(from, to);
        assert_ne!(changed, SMALL);
        changes(&settings(SMALL), &settings(&changed))
    }

    #[test]
    fn the_same_differs_in_nothing() {
        assert_eq!(changes(&settings(SMALL), &settings(SMALL)), [""; 0]);
    }

    #[test]
    fn every_difference_has_its_words() {
        let name = "name = \"one\"";
        for (from, to, lines) in [
            (
                "10.2.0.1:8081",
                "10.2.0.9:8081",
                &[
                    "pool pages: server 10.2.0.9:8081 is new",
                    "pool pages: server 10.2.0.1:8081 is gone",
                ][..],
            ),
            (
                "mode =",
                "veth = \"queue\"\nmode =",
                &["fastpath.veth is queue, was auto"],
            ),
            (
                name,
                "name = \"one\"\ndrain_timeout = \"2m\"",
                &["instance.drain_timeout is 2m, was 30s"],
            ),
            (
                name,
                "name = \"one\"\nadmin = \"127.0.0.1:9\"",
                &["instance.admin is 127.0.0.1:9, was not there"],
            ),
            (
                "10.1.0.3:80",
                "10.1.0.4:80",
                &["service web: changed in listen"],
            ),
            (
                "[fastpath]",
                "[limits]\nsetups = 9000\nhalf_read_heads = 5000\n[fastpath]",
                &[
                    "limits.setups is 9000, was 65536",
                    "limits.half_read_heads is 5000, was 16384",
                ],
            ),
            (
                "[fastpath]",
                "[tcb_cache]\nenabled = true\n[fastpath]",
                &["[tcb_cache] is changed"],
            ),
        ] {
            assert_eq!(told(from, to), lines, "{from} -> {to}");
        }
    }

    #[test]
    fn many_differences_are_counted() {
        let servers = |number: u8| -> String {
            let one = |last| format!("{{ address = \"10.{number}.0.{last}:80\" }}");
            (1..=80).map(one).collect::<Vec<_>>().join(", ")
        };
        let with = |number| SMALL.replace("{ address = \"10.2.0.1:8081\" }", &servers(number));
        let lines = changes(&settings(&with(3)), &settings(&with(4)));
        assert_eq!(lines.len(), CHANGES_MAX + 1, "{lines:?}");
        assert_eq!(lines[CHANGES_MAX], "and 60 more");
    }
}
