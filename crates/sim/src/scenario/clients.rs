//! Drawing clients: who comes when, asks for what, how, and how each leaves.

use core::time::Duration;

use fairlead_base::Instant;
use fairlead_splice::config::Source;

use super::draw::{draw_abort, draw_pace, draw_socket};
use super::is_refusal;
use super::services::{Door, Ground, Party, ServiceGround};
use crate::app::{
    ClientPlan, Dialect, Expect, Finish, Pace, RequestPlan, Turn, client_hello, http_request,
};
use crate::dice::{Dice, stream_bytes};

/// Clients of one world, at most.
const CLIENTS_MAX: u32 = 10;

pub(super) fn draw_clients(dice: &mut Dice, ground: &Ground) -> Vec<(usize, ClientPlan)> {
    let count = dice.between(2, CLIENTS_MAX);
    let mut clients: Vec<(usize, ClientPlan)> = Vec::new();
    for number in 0..count {
        let service = dice.pick(&ground.services);
        let mut host = dice.between(0, ground.clients as u32 - 1) as usize;
        let mut client = draw_client(dice, ground, &service, u64::from(number) + 1);
        let again = (0..clients.len()).rev().find(|&other| {
            let (_, earlier) = &clients[other];
            earlier.target == client.target
                && earlier.after.is_none()
                && clients.iter().all(|(_, one)| one.after != Some(other))
        });
        if let Some(other) =
            again.filter(|_| (service.source == Source::Snat || !ground.lossy) && dice.percent(10))
        {
            host = clients[other].0;
            client.after = Some(other);
        }
        clients.push((host, client));
    }
    clients
}

fn draw_client(
    dice: &mut Dice,
    ground: &Ground,
    service: &ServiceGround,
    token: u64,
) -> ClientPlan {
    let (door, party) = dice.pick(&service.doors);
    let mut plan = ClientPlan {
        start: Instant::from_millis(u64::from(dice.between(1_000, 6_000))),
        after: None,
        target: service.listen,
        port: None,
        token,
        dialect: service.dialect,
        turns: Vec::new(),
        first_bytes: 0,
        first_pace: None,
        pace: None,
        read_pace: None,
        finish: Finish::Close,
        patience: Duration::from_secs(600),
        expect: expectation(&party, service.dialect),
        socket: draw_socket(dice),
    };
    match service.dialect {
        Dialect::Http if dice.percent(8) => malformed_http(dice, service, &mut plan),
        Dialect::Http => draw_http(dice, ground, door, &party, &mut plan),
        Dialect::Tls if dice.percent(6) => malformed_tls(dice, service, &mut plan),
        Dialect::Tls => draw_tls(dice, ground, door, &mut plan),
        Dialect::Raw { greeting } => draw_raw(dice, ground, greeting, &mut plan),
    }
    draw_temper(dice, &mut plan);
    // A lost last acknowledgement of a handshake leaves client and cookie each waiting for the
    // other, when it is the server's turn to speak: a known price of stateless handshakes.
    if plan.dialect == (Dialect::Raw { greeting: true }) && ground.lossy {
        plan.expect = Expect::Anything;
        plan.patience = ground.calm_at.since(plan.start) + Duration::from_secs(120);
    }
    plan
}

fn expectation(party: &Party, dialect: Dialect) -> Expect {
    match (party.names.is_empty(), dialect) {
        (false, _) => Expect::Server(party.names.clone()),
        (true, Dialect::Http) => Expect::Status(vec![party.unmatched.unwrap_or(503)]),
        (true, Dialect::Tls) => Expect::Alert,
        (true, Dialect::Raw { .. }) => Expect::Refused,
    }
}

/// How it behaves, whatever it says.
fn draw_temper(dice: &mut Dice, plan: &mut ClientPlan) {
    if dice.percent(15) {
        let total: usize = plan.turns.first().map_or(0, |turn| turn.bytes.len());
        plan.first_bytes = dice.between(1, total.clamp(1, 400) as u32) as usize;
        // Never longer than the head's time-out allows.
        let bytes = dice.pick(&[1usize, 1, 3, 50]);
        let steps = plan.first_bytes.div_ceil(bytes) as u32;
        let pause = dice.millis(0, (4_000 / steps).min(300));
        plan.first_pace = Some(Pace { bytes, pause });
    }
    if dice.percent(8) {
        plan.pace = Some(draw_pace(dice));
    }
    if dice.percent(8) {
        plan.read_pace = Some(draw_pace(dice));
    }
    if dice.percent(12) && !is_refusal(&plan.expect) {
        let sent = plan.turns.iter().map(|turn| turn.bytes.len()).sum();
        let received: usize = plan
            .turns
            .iter()
            .flat_map(|turn| &turn.requests)
            .map(|request| request.reply_bytes + 80)
            .sum();
        plan.finish = draw_abort(dice, sent, received.max(sent));
    }
}

fn draw_len(dice: &mut Dice, ground: &Ground) -> usize {
    // Slow links make long bodies long to simulate.
    let long = if ground.lossy { 60_000 } else { 250_000 };
    let (low, high) = dice.weighted(&[
        (10, (0, 0)),
        (25, (1, 200)),
        (30, (200, 3_000)),
        (28, (3_000, 30_000)),
        (6, (30_000, long)),
        (1, (long, 4 * long + 50_000)),
    ]);
    dice.between(low, high) as usize
}

fn draw_http(dice: &mut Dice, ground: &Ground, door: Door, party: &Party, plan: &mut ClientPlan) {
    let count = if party.one_shot || party.names.is_empty() {
        1
    } else {
        dice.pick(&[1, 1, 1, 2, 3, 5])
    };
    let pipelined = dice.percent(35);
    let last_closes = dice.percent(35);
    for number in 0..count {
        let method = match door {
            Door::Method if number == 0 => "PUT",
            _ => dice.weighted(&[(6, "GET"), (3, "POST"), (1, "HEAD")]),
        };
        let request = RequestPlan {
            number,
            reply_bytes: draw_len(dice, ground),
            head_only: method == "HEAD",
        };
        // Only the first request decides; the others may look like anything.
        let shape = if number == 0 {
            door
        } else {
            dice.pick(&[door, Door::Rest, Door::Suffix])
        };
        let (target, mut fields) = shape_request(dice, shape);
        if last_closes && number + 1 == count {
            fields.push(("Connection".to_owned(), "close".to_owned()));
        } else if dice.percent(20) {
            fields.push(("Connection".to_owned(), "keep-alive".to_owned()));
            fields.push(("Keep-Alive".to_owned(), "timeout=5".to_owned()));
        }
        if dice.percent(10) {
            let padding = dice.between(100, 9_000) as usize;
            fields.push(("X-Padding".to_owned(), "p".repeat(padding)));
        }
        let body = matches!(method, "POST" | "PUT").then(|| draw_len(dice, ground));
        let chunked = dice.percent(25);
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let bytes = http_request(
            method, &target, &fields, plan.token, body, chunked, &request,
        );
        if pipelined && number > 0 {
            let turn = &mut plan.turns[0];
            turn.bytes.extend_from_slice(&bytes);
            turn.requests.push(request);
        } else {
            plan.turns.push(Turn {
                bytes,
                replies_before: number,
                requests: vec![request],
            });
        }
    }
    plan.finish = if last_closes && dice.percent(60) {
        Finish::WaitForServer
    } else if dice.percent(25) {
        Finish::HalfClose
    } else {
        Finish::Close
    };
}

/// A target and fields that take this door and no earlier one.
fn shape_request(dice: &mut Dice, door: Door) -> (String, Vec<(String, String)>) {
    let mut host = "www.example.com";
    let mut target = format!("/page/{}", dice.between(0, 999));
    let mut fields = Vec::new();
    match door {
        Door::Suffix => target += dice.pick(&[".jpg", ".png", ".jpg?size=2"]),
        Door::Host => host = dice.pick(&["api.example.com", "API.Example.COM:80"]),
        Door::HostBelow => host = dice.pick(&["a.shop.example", "b.a.shop.example."]),
        Door::Field => fields.push(("X-Beta".to_owned(), dice.between(0, 9).to_string())),
        Door::Query => {
            target += dice.pick(&["?v=two+words", "?a=1&v=two%20words", "?v=two%20words#"])
        }
        Door::Cookie => fields.push(("Cookie".to_owned(), "theme=dark; group=b".to_owned())),
        _ => {}
    }
    if target.ends_with('#') {
        target.pop();
    }
    fields.insert(
        dice.between(0, fields.len() as u32) as usize,
        ("Host".into(), host.into()),
    );
    (target, fields)
}

/// Heads that RFC 9112 and RFC 9110 want refused, with the status that is due.
fn malformed_http(dice: &mut Dice, service: &ServiceGround, plan: &mut ClientPlan) {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(1 << 15));
    let long = &long[..service.head_bytes_max as usize + 1_000];
    let (status, text) = dice.pick(&[
        (400, "GET / HTTP/1.1\nHost: a\n\n"),
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: one\r\n two\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nX: nul\0nul\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
        (
            400,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        ),
        (
            400,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (400, "\u{16}\u{3}\u{1}\0garbage that is no request\r\n\r\n"),
        (505, "GET / HTTP/3.7\r\nHost: a\r\n\r\n"),
        (505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (431, long),
    ]);
    let request = RequestPlan {
        number: 0,
        reply_bytes: 0,
        head_only: false,
    };
    let bytes = text.as_bytes().to_vec();
    plan.turns = vec![Turn {
        bytes,
        replies_before: 0,
        requests: vec![request],
    }];
    plan.expect = Expect::Status(vec![status]);
}

fn draw_tls(dice: &mut Dice, ground: &Ground, door: Door, plan: &mut ClientPlan) {
    let (sni, alpn): (Option<&str>, &[&str]) = match door {
        Door::Sni => (
            Some(dice.pick(&["one.example", "ONE.example"])),
            &["http/1.1"],
        ),
        Door::SniBelow => (Some("deep.in.two.example"), &["http/1.1"]),
        Door::Alpn => (Some("three.example"), &["h2", "http/1.1"]),
        _ => (
            dice.pick(&[None, Some("other.example"), Some("two.example")]),
            &[],
        ),
    };
    let share = dice.pick(&[32, 1_216, 1_216]);
    let record = dice.weighted(&[(8, 16_384), (1, 700), (1, 64), (1, 40)]);
    let mut bytes = client_hello(plan.token, sni, alpn, share, record);
    if dice.percent(20) {
        let mut early = vec![0; dice.between(1, 4_000) as usize];
        stream_bytes(plan.token ^ 77, 0, &mut early);
        bytes.extend_from_slice(&early);
    }
    plan.turns.push(Turn {
        bytes,
        ..Turn::default()
    });
    draw_talk(dice, ground, plan);
}

/// What is not a ClientHello: another protocol, or a broken one.
fn malformed_tls(dice: &mut Dice, service: &ServiceGround, plan: &mut ClientPlan) {
    let mut hello = client_hello(plan.token, Some("one.example"), &[], 32, 16_384);
    let bytes = match dice.between(0, 2) {
        0 => return other_than_tls(service, plan),
        1 => {
            // A ServerHello.
            hello[5] = 2;
            hello
        }
        _ => {
            // Extensions longer than the message that holds them.
            let at = 5 + 4 + 2 + 32 + 1 + 24 + 2 + 6 + 2;
            hello[at] = 0xff;
            hello
        }
    };
    plan.turns = vec![Turn {
        bytes,
        ..Turn::default()
    }];
    plan.expect = Expect::Alert;
}

/// A client of a TLS service that speaks another protocol. The route without conditions takes it;
/// without such a route, or without a server behind it, HTTP is answered with a status.
fn other_than_tls(service: &ServiceGround, plan: &mut ClientPlan) {
    let rest = service.doors.iter().find(|(door, _)| *door == Door::Rest);
    let Some((_, party)) = rest else { return };
    if party.names.is_empty() {
        plan.dialect = Dialect::Http;
        let request = RequestPlan {
            number: 0,
            reply_bytes: 0,
            head_only: false,
        };
        plan.turns = vec![Turn {
            bytes: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            replies_before: 0,
            requests: vec![request],
        }];
        let status = if party.unmatched.is_some() { 400 } else { 503 };
        plan.expect = Expect::Status(vec![status]);
        return;
    }
    plan.turns = vec![Turn {
        bytes: plan.token.to_be_bytes().to_vec(),
        ..Turn::default()
    }];
    plan.expect = Expect::Server(party.names.clone());
}

fn draw_raw(dice: &mut Dice, ground: &Ground, greeting: bool, plan: &mut ClientPlan) {
    let bytes = plan.token.to_be_bytes().to_vec();
    let replies_before = usize::from(greeting);
    plan.turns.push(Turn {
        bytes,
        replies_before,
        requests: Vec::new(),
    });
    draw_talk(dice, ground, plan);
}

/// More of the client's stream, to be echoed.
fn draw_talk(dice: &mut Dice, ground: &Ground, plan: &mut ClientPlan) {
    for number in 0..dice.between(0, 3) {
        let mut bytes = vec![0; draw_len(dice, ground)];
        stream_bytes(plan.token ^ u64::from(number) << 8, 1, &mut bytes);
        let replies_before = usize::from(number == 0);
        plan.turns.push(Turn {
            bytes,
            replies_before,
            requests: Vec::new(),
        });
    }
    if dice.percent(25) {
        plan.finish = Finish::HalfClose;
    }
}
