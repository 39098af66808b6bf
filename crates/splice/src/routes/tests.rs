//! Every condition against heads that were really scanned, and the order of routes.

use fairlead_base::Address;
use fairlead_wire::http::{HeadScanner, Scan};
use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::access::{AccessEntry, AccessList};
use crate::config::{NamePattern, PoolId, Protocol, ValuePattern};

const LISTEN: Endpoint = Endpoint {
    addr: Address([1; 16]),
    port: 80,
};
const CLIENT: Address = Address::v4([10, 1, 0, 9]);
const OTHER: Endpoint = Endpoint {
    addr: Address([1; 16]),
    port: 81,
};

const REQUEST: &str = "GET /pics/Cat%20one.JPG?size=big+one&size=small&q= HTTP/1.1\r\n\
    Host: WWW.Example.com:8080\r\n\
    Accept: text/html\r\nX-Tag: first\r\nx-tag: second\r\nX-Raw: \u{e9}\r\n\
    Cookie: theme=dark; session=s-17\r\n\r\n";

fn hello(sni: Option<&str>, alpn: &[&str]) -> ClientHello {
    ClientHello {
        sni: sni.map(Into::into),
        alpn: alpn.iter().map(|name| name.as_bytes().to_vec()).collect(),
        len: 200,
        legacy_version: 0x0303,
        has_ech: false,
    }
}

fn on_request<T>(request: &[u8], then: impl FnOnce(&Subject<'_>) -> T) -> T {
    match HeadScanner::default().scan(request) {
        Scan::Complete(head) => then(&Subject::Http(&head)),
        other => panic!("{other:?}"),
    }
}

fn http(matcher: &Matcher) -> bool {
    on_request(REQUEST.as_bytes(), |subject| {
        matcher.matches(LISTEN, CLIENT, subject)
    })
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).into()).collect()
}

fn exact(values: &[&str]) -> ValuePattern {
    ValuePattern::Exact(texts(values))
}

fn regex(expression: &str) -> ValuePattern {
    ValuePattern::Regex(Regex::new(expression).unwrap())
}

fn names(patterns: &[&str]) -> Vec<NamePattern> {
    patterns
        .iter()
        .map(|pattern| match pattern.strip_prefix('*') {
            Some(suffix) => NamePattern::Suffix(suffix.into()),
            None => NamePattern::Exact((*pattern).into()),
        })
        .collect()
}

fn every_http_matcher() -> Vec<Matcher> {
    let any = || vec![Regex::new("").unwrap()];
    vec![
        Matcher::Host(names(&["www.example.com", "*.example.com"])),
        Matcher::Path(texts(&["/pics/Cat%20one.JPG"])),
        Matcher::PathPrefix(texts(&[""])),
        Matcher::PathSuffix(texts(&[""])),
        Matcher::PathRegex(any()),
        Matcher::Method(texts(&["GET"])),
        Matcher::Header("host".into(), ValuePattern::Present),
        Matcher::Query("q".into(), ValuePattern::Present),
        Matcher::Cookie("theme".into(), ValuePattern::Present),
    ]
}

#[test]
fn host_without_port_in_any_case() {
    assert!(http(&Matcher::Host(names(&["www.example.com"]))));
    assert!(http(&Matcher::Host(names(&["other.net", "*.example.com"]))));
    assert!(!http(&Matcher::Host(names(&[
        "example.com",
        "*.www.example.com"
    ]))));
    assert!(!http(&Matcher::Host(Vec::new())));
}

#[test]
fn no_host_matches_no_name() {
    let matched = on_request(b"GET / HTTP/1.0\r\n\r\n", |subject| {
        Matcher::Host(names(&["", "*"])).matches(LISTEN, CLIENT, subject)
    });
    assert!(!matched);
}

#[test]
fn path_equal_start_end_and_expression() {
    assert!(http(&Matcher::Path(texts(&["/", "/pics/Cat%20one.JPG"]))));
    assert!(
        !http(&Matcher::Path(texts(&["/pics/Cat one.JPG", "/pics/"]))),
        "as written"
    );
    assert!(http(&Matcher::PathPrefix(texts(&["/video/", "/pics/"]))));
    assert!(http(&Matcher::PathPrefix(texts(&["/pi"]))));
    assert!(!http(&Matcher::PathPrefix(texts(&["pics"]))));
    assert!(http(&Matcher::PathSuffix(texts(&[".png", ".JPG"]))));
    assert!(
        !http(&Matcher::PathSuffix(texts(&[".jpg"]))),
        "paths have a case"
    );
    assert!(
        !http(&Matcher::PathSuffix(texts(&["small", "q="]))),
        "the query is no part of it"
    );
    let expressions = |text: &str| Matcher::PathRegex(vec![Regex::new(text).unwrap()]);
    assert!(http(&expressions(r"(?i)^/pics/.*\.jpe?g$")));
    assert!(!http(&expressions("^pics")));
}

#[test]
fn method_in_its_case() {
    assert!(http(&Matcher::Method(texts(&["HEAD", "GET"]))));
    assert!(!http(&Matcher::Method(texts(&["get", "POST"]))));
}

#[test]
fn header_by_name_in_any_case_and_value() {
    let header = |name: &str, value| http(&Matcher::Header(name.into(), value));
    assert!(header("accept", ValuePattern::Present));
    assert!(header("ACCEPT", exact(&["*/*", "text/html"])));
    assert!(
        !header("Accept", exact(&["text/HTML"])),
        "values have a case"
    );
    assert!(header("X-Tag", exact(&["second"])), "any of several lines");
    assert!(header("X-Tag", exact(&["first, second"])), "and their list");
    assert!(header("Accept", regex("^text/")));
    assert!(!header("Absent", ValuePattern::Present));
    assert!(!header("Absent", regex("")));
}

#[test]
fn header_lines_and_the_list_that_they_form_are_the_same() {
    for (lines, list) in [
        (&["no", "yes"][..], "no, yes"),
        (&["no", "maybe, yes"], "no, maybe, yes"),
        (&["\"a, yes\"", "no"], "\"a, yes\", no"),
        (&["", "no"], ", no"),
    ] {
        let lines: String = lines
            .iter()
            .map(|line| format!("X-Beta: {line}\r\n"))
            .collect();
        let list = format!("x-beta: {list}\r\n");
        let patterns = [
            exact(&["yes"]),
            exact(&["no"]),
            exact(&["no, yes"]),
            regex("^yes$"),
            regex("no.*yes"),
        ];
        for pattern in patterns {
            let matcher = Matcher::Header("x-beta".into(), pattern);
            let [on_lines, on_list] = [&lines, &list].map(|fields| {
                let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
                on_request(request.as_bytes(), |subject| {
                    matcher.matches(LISTEN, CLIENT, subject)
                })
            });
            assert_eq!(on_lines, on_list, "{matcher:?} on {list}");
        }
    }
    let beta = |fields: &str, wanted: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let matcher = Matcher::Header("x-beta".into(), exact(&[wanted]));
        on_request(request.as_bytes(), |subject| {
            matcher.matches(LISTEN, CLIENT, subject)
        })
    };
    assert!(beta("X-Beta: no,yes", "yes"));
    assert!(
        !beta("X-Beta: \"no, yes\"", "yes"),
        "quoted commas separate nothing"
    );
    assert!(!beta("X-Beta: yes please", "yes"));
}

#[test]
fn a_value_that_is_not_utf8_is_there_but_matches_no_expression() {
    let matched = |pattern: ValuePattern| {
        on_request(
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Raw: \xe9\r\n\r\n",
            |subject| Matcher::Header("x-raw".into(), pattern).matches(LISTEN, CLIENT, subject),
        )
    };
    assert!(matched(ValuePattern::Present));
    assert!(!matched(regex("")));
    assert!(!matched(exact(&["\u{e9}"])));
}

#[test]
fn query_parameter_decoded_the_first_of_its_name() {
    let query = |name: &str, value| http(&Matcher::Query(name.into(), value));
    assert!(query("size", exact(&["big one"])));
    assert!(!query("size", exact(&["small"])));
    assert!(query("q", exact(&[""])));
    assert!(query("size", regex("^big")));
    assert!(!query("Size", ValuePattern::Present));
}

#[test]
fn cookie_by_name_and_value() {
    let cookie = |name: &str, value| http(&Matcher::Cookie(name.into(), value));
    assert!(cookie("theme", exact(&["dark"])));
    assert!(
        cookie("session", regex(r"^s-\d+$")),
        "separated by a semicolon"
    );
    assert!(!cookie("session", exact(&["s-1"])));
    assert!(!cookie("Theme", ValuePattern::Present));
}

#[test]
fn server_name_and_protocols_of_tls() {
    let hello_one = hello(Some("www.example.com"), &["h2", "http/1.1"]);
    let subject = Subject::Tls(&hello_one);
    let holds = |matcher: &Matcher| matcher.matches(LISTEN, CLIENT, &subject);
    assert!(holds(&Matcher::Sni(names(&["*.example.com"]))));
    assert!(holds(&Matcher::Sni(names(&["x.net", "www.example.com"]))));
    assert!(!holds(&Matcher::Sni(names(&["example.com"]))));
    assert!(holds(&Matcher::Alpn(texts(&["acme-tls/1", "http/1.1"]))));
    assert!(!holds(&Matcher::Alpn(texts(&["h3", "H2"]))));

    let nameless = hello(None, &[]);
    let subject = Subject::Tls(&nameless);
    assert!(!Matcher::Sni(names(&["", "*"])).matches(LISTEN, CLIENT, &subject));
    assert!(!Matcher::Alpn(texts(&["", "h2"])).matches(LISTEN, CLIENT, &subject));
}

#[test]
fn conditions_of_one_protocol_never_hold_for_another() {
    let hello = hello(Some("www.example.com"), &["h2"]);
    for matcher in every_http_matcher() {
        assert!(
            http(&matcher),
            "{matcher:?} is meant to hold for the request"
        );
        assert!(
            !matcher.matches(LISTEN, CLIENT, &Subject::Tls(&hello)),
            "{matcher:?}"
        );
        assert!(
            !matcher.matches(LISTEN, CLIENT, &Subject::Tcp),
            "{matcher:?}"
        );
    }
    for matcher in [
        Matcher::Sni(names(&["www.example.com"])),
        Matcher::Alpn(texts(&["h2"])),
    ] {
        assert!(matcher.matches(LISTEN, CLIENT, &Subject::Tls(&hello)));
        assert!(!http(&matcher), "{matcher:?}");
        assert!(
            !matcher.matches(LISTEN, CLIENT, &Subject::Tcp),
            "{matcher:?}"
        );
    }
}

#[test]
fn the_listening_endpoint_can_be_asked_about_in_every_protocol() {
    let here = Matcher::Listen(vec![OTHER, LISTEN]);
    let hello = hello(None, &[]);
    for subject in [Subject::Tls(&hello), Subject::Tcp] {
        assert!(here.matches(LISTEN, CLIENT, &subject));
        assert!(!Matcher::Listen(vec![OTHER]).matches(LISTEN, CLIENT, &subject));
    }
    assert!(http(&here));
}

#[test]
fn the_client_can_be_asked_about_in_every_protocol() {
    let list = |first: [u8; 4]| {
        let first = Address::v4(first);
        let entry = AccessEntry {
            first,
            bits: 24,
            allow: true,
        };
        Matcher::Clients(AccessList::new("", false, vec![entry]))
    };
    let hello = hello(None, &[]);
    for subject in [Subject::Tls(&hello), Subject::Tcp] {
        assert!(list([10, 1, 0, 0]).matches(LISTEN, CLIENT, &subject));
        assert!(!list([10, 1, 1, 0]).matches(LISTEN, CLIENT, &subject));
    }
    assert!(http(&list([10, 1, 0, 0])));
    assert!(!http(&list([10, 0, 0, 0])));
}

#[test]
fn the_line_for_logs_names_what_was_asked_for() {
    let line = on_request(REQUEST.as_bytes(), |subject| subject.line());
    assert_eq!(line, "GET www.example.com/pics/Cat%20one.JPG");
    assert_eq!(
        Subject::Tls(&hello(Some("a.example"), &[])).line(),
        "a.example"
    );
    assert_eq!(Subject::Tls(&hello(None, &[])).line(), "");
    assert_eq!(Subject::Tcp.line(), "");
}

fn service(routes: Vec<Vec<Matcher>>) -> Service {
    let routes = routes
        .into_iter()
        .enumerate()
        .map(|(index, matchers)| Route::new(format!("#{}", index + 1), matchers, PoolId(0)));
    Service {
        routes: routes.collect(),
        ..Service::new("web", vec![LISTEN, OTHER], Protocol::Http)
    }
}

fn chosen(routes: Vec<Vec<Matcher>>) -> Option<usize> {
    let service = service(routes);
    on_request(REQUEST.as_bytes(), |subject| {
        choose(&service, LISTEN, CLIENT, subject)
    })
}

#[test]
fn the_first_route_whose_conditions_all_hold_is_chosen() {
    let yes = || Matcher::Method(texts(&["GET"]));
    let no = || Matcher::Method(texts(&["PUT"]));
    assert_eq!(
        chosen(vec![
            vec![no()],
            vec![yes(), no()],
            vec![yes(), yes()],
            vec![]
        ]),
        Some(2)
    );
    assert_eq!(
        chosen(vec![vec![], vec![yes()]]),
        Some(0),
        "no condition is no obstacle"
    );
    assert_eq!(chosen(vec![vec![no()], vec![no(), yes()]]), None);
    assert_eq!(chosen(vec![]), None);
}

proptest! {
    /// Against a plain reading of the rule, for any table of what holds.
    #[test]
    fn choice_is_the_first_row_of_only_true(
        table in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 0..4), 0..8)
    ) {
        let mut wanted = None;
        for (index, row) in table.iter().enumerate().rev() {
            if !row.contains(&false) {
                wanted = Some(index);
            }
        }
        let matcher = |&holds: &bool| Matcher::Listen(vec![if holds { LISTEN } else { OTHER }]);
        let service = service(table.iter().map(|row| row.iter().map(matcher).collect()).collect());
        prop_assert_eq!(choose(&service, LISTEN, CLIENT, &Subject::Tcp), wanted);
    }
}
