//! `http_front`: what clients and servers send to a front, cut anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::{Address, Endpoint, Instant, Seed};
use fairlead_http_front::{Action, ConnId, Front, Limits};
use fairlead_splice::config::{
    CacheRule, Config, Matcher, Pool, PoolId, Protocol, Route, Server, Service, Treatment,
};
use fairlead_wire::proxy_protocol::emit_v2;

use super::Target;
use crate::novelty::note;
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "http_front",
    about: "what clients and servers send: heads for servers are whole and unambiguous, all ends",
    run,
    bytes_max: 900,
    tokens: &[
        // A client, a request, a response.
        &[0, 0, 1, 0, 0, 3, 0, 0],
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: 0\r\n",
        b"\r\n\r\n",
        b"5;x=y\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
};

const LISTEN: Endpoint = at(1, 80);

const REQUESTS: [&[u8]; 6] = [
    b"GET /a/1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /c/1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /c/1 HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
    b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
      2\r\nab\r\n0\r\nT: x\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody",
    b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
];

const RESPONSES: [&[u8]; 6] = [
    b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n\
      2\r\nab\r\n0\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\nCache-Control: no-cache\r\n\r\nuntil the end",
    b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 500 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
];

/// 10.0.0.`last`.
const fn at(last: u8, port: u16) -> Endpoint {
    let mut octets = [0; 16];
    (octets[10], octets[11]) = (0xff, 0xff);
    (octets[12], octets[15]) = (10, last);
    Endpoint {
        addr: Address(octets),
        port,
    }
}

fn config() -> Config {
    let mut service = Service::new("web", vec![LISTEN], Protocol::Http);
    let prefix = Matcher::PathPrefix(vec!["/c".into()]);
    let mut cached = Route::new("cached", vec![prefix], PoolId(0));
    cached.cache = Some(CacheRule::new(1 << 20));
    let mut rest = Route::new("rest", Vec::new(), PoolId(1));
    rest.treatment = Treatment::PerRequest;
    service.routes = vec![cached, rest];
    let pool = |name: &str, last| Pool::new(name, vec![Server::new(at(last, 8_000))]);
    Config::new(vec![service], vec![pool("one", 10), pool("two", 20)])
}

/// A connection, as the driver sees it.
#[derive(Debug, Default)]
struct Far {
    coming: Vec<u8>,
    got: Vec<u8>,
    is_server: bool,
    ends: bool,
}

struct World {
    front: Front,
    now: Instant,
    far: BTreeMap<(u32, u32), Far>,
    /// The longest piece that is received or sent at once.
    piece: usize,
}

fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let limits = Limits {
        clients: 8,
        buffer_bytes: 1 << 20,
        ..Limits::default()
    };
    let front = Front::new(Arc::new(config()), Seed::from(1), limits).expect("few servers");
    let mut world = World {
        front,
        now: Instant::ZERO,
        far: BTreeMap::new(),
        piece: script.pick(&[usize::MAX, 1, 7, 100]),
    };
    world.front.set_wall_clock(world.now, 1_790_000_000_000);
    while !script.is_empty() {
        world.step(&mut script);
    }
    world.front.abort(world.now);
    world.settle();
    assert!(world.front.is_idle(), "clients are left");
    let counts = world.front.counts().numbers;
    assert_eq!((counts.front_servers, counts.front_buffer_bytes), (0, 0));
}

impl World {
    fn step(&mut self, script: &mut Script<'_>) {
        let step = script.u8();
        match step % 9 {
            0 => self.accept(script),
            1 => self.say(false, script, |script| script.pick(&REQUESTS).to_vec()),
            2 => self.say(false, script, taken),
            3 => self.say(true, script, |script| script.pick(&RESPONSES).to_vec()),
            4 => self.say(true, script, taken),
            5 | 6 => {
                if let Some(id) = self.choose(step % 9 == 6, script) {
                    self.far(id).ends = true;
                }
            }
            7 => {
                if let Some(id) = self.choose(script.flip(), script) {
                    self.front.failed(self.now, id);
                }
            }
            _ => match script.u8() {
                // As before another program is executed.
                255 => {
                    self.front.release(self.now);
                    self.front.part_from_caches(self.now);
                }
                halves => {
                    self.now = self.now + Duration::from_millis(u64::from(halves) * 500);
                    self.front.handle_time(self.now);
                }
            },
        }
        self.settle();
    }

    fn accept(&mut self, script: &mut Script<'_>) {
        let number = script.u8();
        let client = at(99, 1_000 + u16::from(number));
        let mut far = Far::default();
        let id = match number {
            // The switch connects, and says who it is, or nothing of the kind.
            224.. => self.front.connected_for(self.now),
            _ => self.front.accepted(self.now, client, LISTEN),
        };
        if (224..255).contains(&number) {
            emit_v2(client, LISTEN, &mut far.coming);
        }
        if let Some(id) = id {
            self.far.insert((id.index, id.generation), far);
        }
    }

    fn choose(&self, is_server: bool, script: &mut Script<'_>) -> Option<ConnId> {
        let of = |far: &&Far| far.is_server == is_server;
        let all: Vec<_> = self.far.iter().filter(|(_, far)| of(far)).collect();
        let &(&(index, generation), _) = all.get(script.below(all.len()))?;
        Some(ConnId { index, generation })
    }

    fn say<'a>(
        &mut self,
        is_server: bool,
        script: &mut Script<'a>,
        what: impl FnOnce(&mut Script<'a>) -> Vec<u8>,
    ) {
        if let Some(id) = self.choose(is_server, script) {
            let bytes = what(script);
            self.far(id).coming.extend(bytes);
        }
    }

    fn far(&mut self, id: ConnId) -> &mut Far {
        self.far.entry((id.index, id.generation)).or_default()
    }

    /// Moves bytes until nothing moves.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            while let Some(action) = self.front.poll_action() {
                self.act(action);
                moved = true;
            }
            let ids: Vec<_> = self.far.keys().copied().collect();
            for (index, generation) in ids {
                moved |= self.receive(ConnId { index, generation });
            }
            self.front.check_invariants();
            if !moved {
                return;
            }
        }
    }

    fn receive(&mut self, id: ConnId) -> bool {
        let piece = self.piece;
        let Some(far) = self.far.get_mut(&(id.index, id.generation)) else {
            return false;
        };
        if far.coming.is_empty() {
            let ends = core::mem::take(&mut far.ends);
            if ends {
                self.front.ended(self.now, id);
            }
            return ends;
        }
        let Some(space) = self.front.space(id) else {
            return false;
        };
        let bytes = piece.min(space.len()).min(far.coming.len());
        space[..bytes].copy_from_slice(&far.coming[..bytes]);
        far.coming.drain(..bytes);
        self.front.received(self.now, id, bytes);
        true
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(id, _) => {
                self.far(id).is_server = true;
                self.front.connected(self.now, id);
            }
            Action::Send(id) => loop {
                let output = self.front.output(id).concat();
                let bytes = self.piece.min(output.len());
                if bytes == 0 {
                    return;
                }
                let far = self.far(id);
                far.got.extend_from_slice(&output[..bytes]);
                if far.is_server {
                    check_head(&far.got);
                }
                self.front.sent(self.now, id, bytes);
            },
            Action::Receive(_) | Action::Shut(_) => {}
            Action::Close(id) | Action::Reset(id) | Action::Release(id) => {
                self.far.remove(&(id.index, id.generation));
            }
        }
    }
}

/// The next bytes of the script.
fn taken(script: &mut Script<'_>) -> Vec<u8> {
    let count = usize::from(script.u8());
    script.take(count).to_vec()
}

/// The first head that a server gets is one for another reader, too, and leaves no doubt where its
/// body ends.
fn check_head(got: &[u8]) {
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut fields);
    let read = match head.parse(got) {
        Ok(read) => read,
        // Targets and values may have bytes that this reader takes for none of theirs.
        Err(_) if !got.is_ascii() => return,
        Err(error) => panic!("a head that a rule is against: {error}"),
    };
    if read.is_partial() {
        return;
    }
    let count = |name: &str| {
        let mut fields = head.headers.iter();
        fields
            .by_ref()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .count()
    };
    let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
    assert!(lengths + codings <= 1, "two framings");
    assert_eq!(count("host"), 1, "one host");
    assert_eq!(count("keep-alive") + count("proxy-connection"), 0);
    note("http_front.framing", (lengths + 2 * codings) as u64);
}
