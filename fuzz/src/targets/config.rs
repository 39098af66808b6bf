//! `fairlead::config`: arbitrary configuration files.

use std::collections::BTreeSet;

use fairlead::config::{FINDINGS_MAX, Report, Settings, parse};
use fairlead_base::Instant;
use fairlead_datapath::Datapath;
use fairlead_splice::config::{Listeners, Source};

use super::Target;
use crate::corpus::fingerprint;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "config",
    about: "a configuration file: findings lie inside it, and what is accepted makes a switch",
    run,
    bytes_max: 4_096,
    tokens: &[
        b"[instance]\n",
        b"[fastpath]\n",
        b"[network]\n",
        b"[limits]\n",
        b"[[service]]\n",
        b"[[service.route]]\n",
        b"[[pool]]\n",
        b"name = \"web\"\n",
        b"admin = \"127.0.0.1:9090\"\n",
        b"snat = \"100.64.0.0/24\"\n",
        b"snat = [\"2001:db8::/112\", \"100.64.0.0/16\"]\n",
        b"mtu = 576\n",
        b"listen = \"10.1.0.3:80\"\n",
        b"listen = [\"[2001:db8::3]:443\", \"10.1.0.3:80\"]\n",
        b"protocol = \"tls\"\n",
        b"protocol = \"tcp\"\n",
        b"source = \"transparent\"\n",
        b"server = [{ address = \"10.2.0.1:8081\", weight = 2 }]\n",
        b"balance = \"maglev\"\n",
        b"hash = \"cookie:sid\"\n",
        b"host = \"*.example.com\"\n",
        b"path_regex = \"^/a+$\"\n",
        b"sni = \"a.example\"\n",
        b"alpn = \"h2\"\n",
        b"header = { a = \"b\" }\n",
        b"treatment = \"one-shot\"\n",
        b"proxy_protocol = \"v2\"\n",
        b"idle_timeout = \"1h\"\n",
        b"connections = 4294967295\n",
        b"buffered_bytes = \"1GiB\"\n",
        b"18446744073709551616",
        b"-1",
        b"1e400",
        b"\"\"\"",
        b"'''",
        b"\\u0000",
        b"\xe2\x82\xac",
        b" = { ",
        b"[[",
        b"]]",
        b"\"",
        b"#",
    ],
};

fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match parse(&text, "fuzz.toml") {
        Err(report) => {
            assert!(report.errors() > 0, "refused without a reason");
            check_report(&text, &report);
        }
        Ok(loaded) => {
            assert_eq!(loaded.warnings.errors(), 0, "accepted in spite of errors");
            check_report(&text, &loaded.warnings);
            check_settings(loaded.settings);
        }
    }
}

fn check_report(text: &str, report: &Report) {
    let lines = text.split('\n').count();
    assert!(report.diagnostics().len() <= FINDINGS_MAX);
    for one in report.diagnostics() {
        let (line, column) = report.position(one);
        assert!((1..=lines).contains(&line), "line {line} of {lines}");
        assert!((1..=text.chars().count() + 1).contains(&column));
        assert!(!one.message().is_empty());
        // Messages quote the file; their shape does not.
        let shape: String = one
            .message()
            .chars()
            .filter(|letter| letter.is_ascii_lowercase() || *letter == ' ')
            .take(32)
            .collect();
        note("config.finding", fingerprint(shape.as_bytes()) % 4_096);
    }
    let plain = report.render(false);
    assert_eq!(plain.is_empty(), report.is_empty());
    assert!(report.render(true).len() >= plain.len());
    assert_eq!(report.findings().len(), report.diagnostics().len());
}

/// What the loader promises to whoever builds a switch from it.
fn check_settings(settings: Settings) {
    let mut config = settings.switch;
    note_size("config.services", config.services.len());
    note_size("config.pools", config.pools.len());
    assert!(!config.services.is_empty());
    let mut listens = BTreeSet::new();
    for service in &config.services {
        note(
            "config.protocol",
            service.protocol as u64 * 2 + service.source as u64,
        );
        note_size("config.routes", service.routes.len());
        assert!(!service.listen.is_empty() && service.head_bytes_max > 0);
        assert!(u64::from(service.head_bytes_max) <= config.limits.buffered_bytes);
        assert!(service.listen.iter().all(|listen| listens.insert(*listen)));
        for route in &service.routes {
            let pool = route.pool.map(|pool| &config.pools[usize::from(pool.0)]);
            let has_servers = pool.is_some_and(|pool| !pool.servers.is_empty());
            assert!(has_servers || pool.is_none(), "a pool without servers");
            assert_eq!(route.is_to_host(), route.listeners != Listeners::default());
            assert!(
                route.is_to_host() || pool.is_some(),
                "a route that leads nowhere"
            );
            for matcher in &route.matchers {
                note(
                    "config.matcher",
                    fingerprint(format!("{matcher:?}").as_bytes()) % 512,
                );
            }
        }
        let to_pools = service.routes.iter().any(|route| route.pool.is_some());
        let wants_snat = service.source == Source::Snat && to_pools;
        assert!(
            !wants_snat || !config.snat.is_empty(),
            "no source addresses"
        );
    }
    // Room for a table as large as this may be asked for is not what is tried here.
    config.limits.connections = config.limits.connections.min(64);
    if let Err(error) = Datapath::new(config, 1.into(), Instant::ZERO) {
        panic!("accepted, but no switch can be built from it: {error}");
    }
}
