//! What differs between two configurations, a line a difference, for who asked for a reload.

use fairlead_splice::config::{Config, Pool, Route, Service};

use super::keys::differences;
use super::{Settings, instance, network, pool, service};

/// More lines than that say nothing any more.
pub(crate) const CHANGES_MAX: usize = 100;

/// What is different in `new`, at most [`CHANGES_MAX`] lines and one that counts the rest; none
/// when nothing is.
pub(crate) fn changes(old: &Settings, new: &Settings) -> Vec<String> {
    let mut lines = Vec::new();
    process(old, new, &mut lines);
    if format!("{:?}", old.tcb_cache) != format!("{:?}", new.tcb_cache) {
        lines.push("[tcb_cache] is changed".to_owned());
    }
    let names = |one: &Config| one.services.iter().map(|one| one.name.clone()).collect();
    let pairs = Pairs::of(names(&old.switch), names(&new.switch));
    pairs.tell("service", &mut lines);
    for (before, now) in pairs.both {
        let sides = (&old.switch, &new.switch);
        let pair = (&sides.0.services[before], &sides.1.services[now]);
        of_service(pair, sides, &mut lines);
    }
    let names = |one: &Config| one.pools.iter().map(|one| one.name.clone()).collect();
    let pairs = Pairs::of(names(&old.switch), names(&new.switch));
    pairs.tell("pool", &mut lines);
    for (before, now) in pairs.both {
        of_pool(
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

fn process(old: &Settings, new: &Settings, lines: &mut Vec<String>) {
    let both = (&old.instance, &new.instance);
    differences(&instance::KEYS, "instance.", both, lines);
    let both = (&old.log, &new.log);
    differences(&super::log::KEYS, "log.", both, lines);
    let both = (&old.network, &new.network);
    differences(&network::NETWORK_KEYS, "network.", both, lines);
    let both = (&old.fastpath, &new.fastpath);
    differences(&network::FASTPATH_KEYS, "fastpath.", both, lines);
    let both = (&old.switch.limits, &new.switch.limits);
    differences(&instance::LIMITS_KEYS, "limits.", both, lines);
}

fn of_service(
    (old, new): (&Service, &Service),
    (before, now): (&Config, &Config),
    lines: &mut Vec<String>,
) {
    // Pools may stand in another order: routes lead to names.
    let routes = |service: &Service, switch: &Config| -> Vec<String> {
        let pool = |id: usize| switch.pools.get(id).map_or("?", |pool| pool.name.as_str());
        let routes = service.routes.iter().map(|one| {
            let to = one.pool.map_or("", |to| pool(usize::from(to.0)));
            // Regular expressions have no equality but are written as they were read.
            let of_any_pool = Route {
                pool: None,
                ..one.clone()
            };
            format!("{to} {of_any_pool:?}")
        });
        routes.collect()
    };
    let routed = |service: &Service| Service {
        routes: Vec::new(),
        ..service.clone()
    };
    let of = format!("service {}: ", new.name);
    differences(&service::KEYS, &of, (&routed(old), &routed(new)), lines);
    for list in &new.access {
        let mut before = old.access.iter();
        let before = before.find(|before| before.name() == list.name());
        if before.is_some_and(|before| before != list) {
            lines.push(format!("{of}access list {} is changed", list.name()));
        }
    }
    for (key, before, now) in [
        ("unmatched_page", &old.unmatched_page, &new.unmatched_page),
        (
            "unavailable_page",
            &old.unavailable_page,
            &new.unavailable_page,
        ),
    ] {
        if let (Some(before), Some(now)) = (before, now)
            && before != now
            && before.path == now.path
            && before.body.len() == now.body.len()
        {
            lines.push(format!("{of}{key} {} has other contents", now.path));
        }
    }
    if routes(old, before) != routes(new, now) {
        lines.push(format!("{of}routes are changed"));
    }
}

fn of_pool(old: &Pool, new: &Pool, lines: &mut Vec<String>) {
    let alone = |pool: &Pool| Pool {
        servers: Vec::new(),
        ..pool.clone()
    };
    let of = format!("pool {}: ", new.name);
    differences(&pool::KEYS, &of, (&alone(old), &alone(new)), lines);
    let names = |one: &Pool| {
        one.servers
            .iter()
            .map(|one| one.endpoint.to_string())
            .collect()
    };
    let pairs = Pairs::of(names(old), names(new));
    pairs.tell(&format!("{of}server"), lines);
    for (before, now) in pairs.both {
        let (was, is) = (old.servers[before], new.servers[now]);
        let endpoint = is.endpoint;
        if was.weight != is.weight {
            let (is, was) = (is.weight, was.weight);
            lines.push(format!("{of}weight of {endpoint} is {is}, was {was}"));
        } else if was != is {
            lines.push(format!("{of}server {endpoint} is changed"));
        }
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
                "veth_redirect = \"queue\"\nmode =",
                &["fastpath.veth_redirect is queue, was peer"],
            ),
            (
                name,
                "name = \"one\"\ndrain_timeout = \"2m\"",
                &["instance.drain_timeout is 2m, was 30s"],
            ),
            (
                name,
                "name = \"one\"\nadmin = \"127.0.0.1:9\"",
                &["instance.admin is 127.0.0.1:9, was not set"],
            ),
            (
                "10.1.0.3:80",
                "10.1.0.4:80",
                &["service web: listen is 10.1.0.4:80, was 10.1.0.3:80"],
            ),
            (
                "[fastpath]",
                "[limits]\nsetups = 9000\nhalf_read_heads = 5000\n[fastpath]",
                &[
                    "limits.setups is 9000, was 65_536",
                    "limits.half_read_heads is 5000, was 16_384",
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
