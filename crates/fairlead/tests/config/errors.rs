//! Wrong configurations: where the finding points and what it says.
//!
//! Most cases are in `cases.txt`; those that leave something out or have several findings
//! are here.

use fairlead::config::{Report, Severity, parse};

const EDGE: &str = include_str!("../../../../examples/edge.toml");
const CASES: &str = include_str!("cases.txt");

/// The report on a text, whether it could be used or not.
fn report(text: &str) -> Report {
    match parse(text, "edge.toml") {
        Ok(loaded) => loaded.warnings,
        Err(report) => report,
    }
}

/// Takes the marks out of a text and says where they stood, line and column from 1.
fn unmark(marked: &str) -> (String, Vec<(usize, usize)>) {
    let mut places = Vec::new();
    for (line, text) in marked.lines().enumerate() {
        let mut marks = 0;
        for (column, letter) in text.chars().enumerate() {
            if letter == '¦' {
                places.push((line + 1, column + 1 - marks));
                marks += 1;
            }
        }
    }
    (marked.replace('¦', ""), places)
}

/// One case of `cases.txt`.
#[derive(Debug, Default)]
struct Case {
    line: usize,
    old: String,
    new: String,
    /// Severity, a part of the message, a part of the advice.
    expect: Vec<(Severity, String, String)>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (index, text) in CASES.lines().enumerate() {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (word, rest) = text
            .split_once(' ')
            .unwrap_or_else(|| panic!("line {}", index + 1));
        let rest = rest.trim_start().replace("\\n", "\n");
        if word == "replace" {
            cases.push(Case {
                line: index + 1,
                old: rest,
                ..Case::default()
            });
            continue;
        }
        let case = cases.last_mut().expect("a case begins with `replace`");
        match word {
            "with" => case.new = rest,
            "error" => case.expect.push((Severity::Error, rest, String::new())),
            "warning" => case.expect.push((Severity::Warning, rest, String::new())),
            "help" => case.expect.last_mut().expect("help follows a finding").2 = rest,
            other => panic!("line {}: {other}?", index + 1),
        }
    }
    cases
}

#[test]
fn every_case_is_found_where_it_is_and_says_what_to_write() {
    let mut wrong = String::new();
    let cases = cases();
    assert!(cases.len() > 90, "only {} cases were read", cases.len());
    for case in cases {
        assert!(
            EDGE.contains(&case.old),
            "line {}: the sample has no {:?}",
            case.line,
            case.old
        );
        let (text, places) = unmark(&EDGE.replacen(&case.old, &case.new, 1));
        let report = report(&text);
        let all = report.diagnostics();
        let found: Vec<_> = all.iter().map(|one| report.position(one)).collect();
        let said = all
            .iter()
            .zip(&case.expect)
            .all(|(one, (severity, message, advice))| {
                one.severity() == *severity
                    && one.message().contains(message)
                    && one.advice().is_some_and(|said| said.contains(advice))
            });
        if found != places || all.len() != case.expect.len() || places.is_empty() || !said {
            wrong += &format!("{case:?}\n  expected at {places:?}, found\n{report}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn keys_that_are_missing() {
    for (gone, place, message, advice) in [
        (
            "listen = \"10.1.0.3:80\"\n",
            (17, 1),
            "[[service]] lacks `listen`",
            "write listen =",
        ),
        (
            "protocol = \"http\"                 # http | tls | tcp\n",
            (17, 1),
            "[[service]] lacks `protocol`",
            "\"http\", \"tls\" or \"tcp\"",
        ),
        (
            "pool = \"api\"\n",
            (27, 1),
            "[[service.route]] lacks `pool`",
            "the name of a [[pool]]",
        ),
        (
            "name = \"images\"\n",
            (34, 1),
            "[[pool]] lacks `name`",
            "write name =",
        ),
        (
            "server = [{ address = \"10.2.0.1:8083\" }]\n",
            (39, 1),
            "[[pool]] lacks `server`",
            "write server = [{ address",
        ),
        (
            "snat = \"100.64.0.0/24\"\n",
            (20, 1),
            "needs IPv4 source addresses",
            "in [network]",
        ),
    ] {
        let text = EDGE.replacen(gone, "", 1);
        assert_ne!(text, EDGE, "{gone:?}");
        let report = report(&text);
        let all = format!("{report}");
        let first = report
            .diagnostics()
            .iter()
            .find(|one| one.message().contains(message))
            .unwrap_or_else(|| panic!("{all}"));
        assert_eq!(report.position(first), place, "{all}");
        assert!(first.advice().unwrap().contains(advice), "{all}");
    }
    let nothing = report("");
    let messages: Vec<_> = nothing
        .diagnostics()
        .iter()
        .map(|one| one.message())
        .collect();
    assert_eq!(
        messages,
        ["there is no [[service]]", "there is no [[pool]]"]
    );
}

#[test]
fn an_mtu_too_small_for_ipv6_is_found_wherever_that_comes_from() {
    let small = EDGE.replace("[network]", "[network]\nmtu = 1279");
    let change = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let sources = "\"100.64.0.0/24\"";
    let to_v6 = change(&small, "10.2.0.1:8084", "[fd02::1]:8084");
    for (text, is_found) in [
        (small.clone(), false),
        (
            change(
                &small,
                "\"10.1.0.3:80\"",
                "[\"10.1.0.3:80\", \"[fd01::3]:80\"]",
            ),
            true,
        ),
        (
            change(&small, sources, "[\"100.64.0.0/24\", \"fd64::/112\"]"),
            true,
        ),
        // Its answers come to a source address, of which there is none.
        (to_v6.clone(), false),
        (
            change(&to_v6, "source = \"snat\"", "source = \"transparent\""),
            true,
        ),
    ] {
        let report = report(&text);
        let all = report.diagnostics().iter();
        let mut found = all.filter(|one| one.message().contains("IPv6 needs an MTU of 1280"));
        assert_eq!(found.next().is_some(), is_found, "{text}\n{report}");
    }
}

#[test]
fn the_pages_cannot_be_at_an_address_of_a_service() {
    let report = report(&EDGE.replace("127.0.0.1:9090", "10.1.0.3:9090"));
    let [taken, open] = report.diagnostics() else {
        panic!("{report}")
    };
    assert_eq!(taken.severity(), Severity::Error);
    assert_eq!(open.severity(), Severity::Warning);
    assert!(
        taken.message().contains("a service listens at 10.1.0.3"),
        "{report}"
    );
    assert_eq!(report.position(taken), (8, 9));
}

#[test]
fn a_pool_that_took_anothers_name_is_missed_under_its_own() {
    let twice = report(&EDGE.replacen("name = \"pages\"", "name = \"api\"", 1));
    let [missing, second] = twice.diagnostics() else {
        panic!("{twice}")
    };
    assert_eq!(missing.message(), "there is no pool \"pages\"");
    assert_eq!(second.message(), "two pools are called \"api\"");
    assert_eq!(twice.position(second), (45, 8));
}

#[test]
fn a_tls_service_reads_no_request() {
    let tls = EDGE.replace("protocol = \"http\"", "protocol = \"tls\"");
    let found = report(&tls);
    let messages: Vec<_> = found
        .diagnostics()
        .iter()
        .map(|one| (found.position(one), one.message()))
        .collect();
    assert_eq!(
        messages,
        [
            (
                (22, 18),
                "a tls service reads no requests: `later_requests` is for HTTP"
            ),
            (
                (24, 1),
                "`path_suffix` in a service of protocol tls, which reads only the ClientHello"
            ),
            (
                (28, 1),
                "`host` in a service of protocol tls, which reads only the ClientHello"
            ),
        ]
    );
    let hashed = tls
        .replace("later_requests = \"count\"", "")
        .replace(
            "path_suffix = [\".jpg\", \".png\"]",
            "sni = \"*.example.com\"",
        )
        .replace("host = \"api.example.com\"", "sni = \"10.1.0.3\"")
        .replace("hash = \"client-address\"", "hash = \"cookie:id\"")
        .replace("pool = \"api\"", "pool = \"api\"\ntreatment = \"one-shot\"");
    let found = report(&hashed);
    let messages: Vec<_> = found
        .diagnostics()
        .iter()
        .map(|one| (found.position(one), one.message()))
        .collect();
    assert_eq!(
        messages,
        [
            (
                (28, 7),
                "TLS server names are never addresses (RFC 6066, section 3)"
            ),
            (
                (30, 13),
                "one-shot is for HTTP: it rewrites the request head"
            ),
            (
                (33, 8),
                "pool \"pages\" hashes a cookie, which a tls service never sees"
            ),
        ]
    );
}

#[test]
fn address_families_do_not_mix() {
    let six = report(&EDGE.replace("listen = \"10.1.0.3:80\"", "listen = \"[2001:db8::3]:80\""));
    let messages: Vec<_> = six
        .diagnostics()
        .iter()
        .map(|one| (six.position(one), one.message()))
        .collect();
    let led = "has no IPv6 server for the clients of [2001:db8::3]:80";
    assert_eq!(messages.len(), 4, "{six}");
    assert_eq!(messages[0].0, (21, 1));
    assert!(
        messages[0].1.contains("needs IPv6 source addresses"),
        "{six}"
    );
    for (message, place) in messages[1..].iter().zip([(25, 8), (29, 8), (32, 8)]) {
        assert_eq!(message.0, place);
        assert!(message.1.contains(led), "{six}");
    }
    let split = "snat = [\"100.64.0.0/24\", \"2001:db8:64::/120\"]\n[[service]]\nname = \"w\"\n\
        listen = [\"10.1.0.3:80\", \"[2001:db8::3]:80\"]\nprotocol = \"http\"\n\
        [[service.route]]\nlisten = \"[2001:db8::3]:80\"\npool = \"six\"\n\
        [[service.route]]\nlisten = \"10.1.0.3:80\"\npool = \"four\"\n\
        [[pool]]\nname = \"six\"\nserver = [{ address = \"[2001:db8:2::1]:80\" }]\n\
        [[pool]]\nname = \"four\"\nserver = [{ address = \"10.2.0.1:80\" }]\n";
    let split = format!("[network]\n{split}");
    let loaded = parse(&split, "split.toml").unwrap_or_else(|report| panic!("{report}"));
    // 254 hosts of the IPv4 prefix, 255 of the IPv6 one.
    assert_eq!(loaded.settings.switch.snat.len(), 254 + 255);
    // The first route takes all that comes to the IPv6 endpoint, so the second need not say more.
    assert!(
        parse(
            &split.replace("listen = \"10.1.0.3:80\"\n", ""),
            "rest.toml"
        )
        .is_ok()
    );
    // And a pool with servers of both families serves both.
    let both = split
        .replace("listen = \"10.1.0.3:80\"\n", "")
        .replace("listen = \"[2001:db8::3]:80\"\n", "")
        .replace("pool = \"six\"\n[[service.route]]\n", "")
        .replace(
            "name = \"six\"\nserver = [",
            "name = \"four\"\nserver = [{ address = \"10.2.0.1:80\" }, ",
        )
        .replace(
            "[[pool]]\nname = \"four\"\nserver = [{ address = \"10.2.0.1:80\" }]\n",
            "",
        );
    let both = parse(&both, "both.toml").unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(both.settings.switch.pools[0].servers.len(), 2);
    let unsplit = report(&split.replace("listen = \"[2001:db8::3]:80\"\npool", "pool"));
    assert!(
        unsplit.diagnostics()[0]
            .advice()
            .unwrap()
            .contains("one route for each family")
    );
}

#[test]
fn toml_that_is_none() {
    for (text, place, message) in [
        ("[instance\nname = 1\n", (1, 10), "unclosed table"),
        (
            "[instance]\nname = \"a\nb\"\n",
            (2, 10),
            "invalid basic string",
        ),
        (
            "[instance]\nname = \"a\"\nname = \"b\"\n",
            (3, 1),
            "duplicate key",
        ),
        ("[instance]\nname edge\n", (2, 6), "expected `=`"),
        ("a = 00\n", (1, 5), ""),
    ] {
        let report = report(text);
        let first = &report.diagnostics()[0];
        assert_eq!(report.position(first), place, "{report}");
        assert!(first.message().contains(message), "{report}");
    }
    let single = report("[service]\nname = \"a\"\n");
    assert!(
        single.diagnostics()[0]
            .advice()
            .unwrap()
            .contains("two brackets"),
        "{single}"
    );
}

#[test]
fn all_findings_come_together_in_the_order_of_the_file() {
    let text = EDGE
        .replace("mode = \"auto\"", "mode = \"tcp\"")
        .replace("protocol = \"http\"", "protocol = \"htp\"")
        .replace("pool = \"api\"", "pool = \"apis\"")
        .replace("balance = \"maglev\"", "balance = \"magle\"");
    let report = report(&text);
    let places: Vec<_> = report
        .diagnostics()
        .iter()
        .map(|one| report.position(one))
        .collect();
    assert_eq!(places, [(15, 8), (20, 12), (29, 8), (46, 11)], "{report}");
    assert_eq!(report.errors(), 4);
}
