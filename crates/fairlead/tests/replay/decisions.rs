//! Where known requests and names go.

use std::collections::BTreeSet;

use fairlead::replay::report::{ConnectionReport, Outcome};

use crate::support::{Manner, kept, named, play, shared};

fn line(connection: &ConnectionReport) -> (String, String, String) {
    let port = connection
        .client
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .to_owned();
    let route = connection
        .decision
        .as_ref()
        .map_or("-", |decision| &*decision.route);
    (port, connection.subject.clone(), route.to_owned())
}

#[track_caller]
fn expect(name: &str, manner: Manner, expected: &[(&str, &str, &str)]) {
    let played = play(&kept(name), manner, false);
    let found: Vec<_> = played.connections.iter().map(line).collect();
    let found: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|(port, subject, route)| (&**port, &**subject, &**route))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn requests_go_by_their_path() {
    expect(
        "http-2011.pcap",
        Manner::Splice,
        &[
            (
                "52028",
                "GET c.thumbs.redditmedia.com/IEeSI3Q47xHE0UEz.jpg",
                "images",
            ),
            ("52035", "GET pixel.redditmedia.com/fetch-trackers", "rest"),
            ("52044", "GET www.slashdot.org/", "rest"),
            ("52059", "", "-"),
            (
                "52061",
                "GET googleads.g.doubleclick.net/pagead/ads",
                "rest",
            ),
            ("52105", "", "-"),
            (
                "52107",
                "GET www-new.bro-ids.org/frames/footer.html",
                "rest",
            ),
            ("52112", "GET search.twitter.com/search.json", "rest"),
        ],
    );
    expect(
        "http-1997-big-endian.pcap.gz",
        Manner::Splice,
        &[
            ("47483", "GET ace.cs.ohiou.edu/~osterman/", "rest"),
            (
                "47484",
                "GET ace.cs.ohiou.edu/~osterman/images/shawn.gif",
                "images",
            ),
            (
                "33679",
                "GET gateway.speedera.net/www.gateway.com/images/ub/y-ffcc33_lft.gif",
                "images",
            ),
            (
                "33692",
                "GET irg.cs.ohiou.edu/images/tri-bluet.png",
                "images",
            ),
        ],
    );
}

#[test]
fn names_go_by_their_suffix_and_family() {
    expect(
        "tls-sites.pcapng.zst",
        Manner::Splice,
        &[
            ("41878", "vcs-va.tiktokv.com", "rest"),
            ("35054", "www.badoo.com", "rest"),
            ("45936", "", "-"),
            ("56458", "drive.google.com", "google"),
            ("55280", "msg.qy.net", "rest"),
            ("33212", "enoki.us-east.host.bsky.network", "rest"),
            ("35968", "mastodon.social", "six"),
        ],
    );
    expect(
        "tls-ipv6-2020.pcap",
        Manner::Splice,
        &[
            ("56568", "www.redditstatic.com", "six"),
            ("51102", "ad.doubleclick.net", "six"),
        ],
    );
}

#[test]
fn a_refused_request_is_answered_and_its_server_left_alone() {
    let played = play(&kept("http-2011.pcap"), Manner::Refuse, false);
    let refused: Vec<&ConnectionReport> = played
        .connections
        .iter()
        .filter(|connection| matches!(connection.outcome, Outcome::Refused { .. }))
        .collect();
    assert_eq!(refused.len(), 5);
    for connection in refused {
        let wanted = Outcome::Refused {
            reason: "no_route",
            status: Some(404),
        };
        assert_eq!(connection.outcome, wanted);
        assert!(connection.decision.is_none() && connection.subject.starts_with("GET "));
    }
    // Each answer was taken in its client's stead: none is sent again, none ends in a reset.
    assert_eq!(played.tally.closed_for_clients, 5);
    let only: Vec<&str> = played
        .summary
        .drops
        .iter()
        .map(|count| &*count.name)
        .collect();
    assert_eq!(only, ["no_route"]);
}

/// Distinct names, from connections whose handshake was captured, against the count that was made
/// of the captures by other means.
#[test]
fn every_name_of_the_further_captures_is_read() {
    let captures = shared("decisions::every_name_of_the_further_captures_is_read");
    if captures.is_empty() {
        return;
    }
    for (beginning, names) in [
        ("tls-reddit-2020", 36),
        ("tls-pinterest-2020", 15),
        ("tls-sites-sni", 55),
        ("tls-netflix-2017", 4),
        ("tls-iphone-ecn-2020", 11),
        ("tls-firefox-2020", 1),
        ("tls-weibo-2016", 1),
        ("tls-alexa-app-2017", 14),
        // Two more hellos name addresses, which are no names (RFC 6066, section 3).
        ("tls-teams-2020", 20 - 2),
    ] {
        let path = named(&captures, beginning);
        let played = play(path, Manner::Splice, false);
        let found: BTreeSet<&str> = played
            .connections
            .iter()
            .filter(|connection| connection.service == "tls" && !connection.subject.is_empty())
            .map(|connection| &*connection.subject)
            .collect();
        assert_eq!(found.len(), names, "{beginning}: {found:?}");
    }
}
