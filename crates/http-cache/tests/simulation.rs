//! Clients, servers and operators around a cache, by seed. An origin keeps revisions of a few
//! URLs, and every answer is compared with what it ever said: bytes of one revision, one variant
//! and one URL, not older than the last purge, and never what was for one client only.

use std::collections::BTreeMap;

use fairlead_base::{Instant, Rng, Seed};
use fairlead_http_cache::*;

const WALL_MS: u64 = 1_790_000_000_000;
const HOST: &str = "a.example";
const LIFETIME: u64 = 20;
const WINDOW: u64 = 10;

/// What a URL's responses are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Fresh for a while, with a validator.
    Plain,
    /// With Vary.
    Varies,
    /// For one client.
    Private,
    /// To be validated each time.
    NoCache,
    /// May be stale while it is validated, and instead of errors.
    Stale,
}

const KINDS: [Kind; 5] = [
    Kind::Plain,
    Kind::Varies,
    Kind::Private,
    Kind::NoCache,
    Kind::Stale,
];

/// The bytes of one revision of one variant of one URL.
fn body_of(url: u32, revision: u32, variant: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(url) << 40 | u64::from(revision) << 8 | u64::from(variant));
    let length = match rng.below(4) {
        0 => rng.below(100),
        1 => rng.below(9_000),
        _ => rng.below(40_000),
    };
    (0..length).map(|_| rng.next_u64() as u8).collect()
}

/// A request under way, on the client's side.
struct Client {
    url: u32,
    variant: u32,
    asked_ms: u64,
    /// Purges of its URL before it asked: responses that the origin made before must not be used.
    purged_ms: u64,
    state: State,
}

enum State {
    Waits(WaiterId),
    Fetches,
    Reads(Reading),
    Gone,
}

struct Reading {
    reader: Option<ReaderId>,
    /// What must be read, and how much was.
    wanted: Vec<u8>,
    at: usize,
    length: Option<u64>,
    waits: bool,
    speed: usize,
}

/// A request under way, on the server's side.
struct Upstream {
    fetch: FetchId,
    client: Option<usize>,
    url: u32,
    variant: u32,
    conditional: Option<String>,
    state: Sends,
}

enum Sends {
    /// The head comes at this time.
    Head(u64),
    Body {
        bytes: Vec<u8>,
        at: usize,
        lies: bool,
    },
}

struct World {
    rng: Rng,
    cache: Cache,
    ms: u64,
    /// How far time went in this step.
    stepped_ms: u64,
    revisions: BTreeMap<u32, u32>,
    purged_ms: BTreeMap<u32, u64>,
    clients: Vec<Client>,
    upstreams: Vec<Upstream>,
    out: Vec<u8>,
    answers: u64,
    cuts: u64,
    journal: Vec<u8>,
    kills: u64,
    /// Responses that outlived a kill.
    kept: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut settings = Settings::new(150_000 + u64::from(rng.below(400_000)));
        settings.max_object = 20_000 + u64::from(rng.below(30_000));
        settings.policy = Policy::ALL[rng.below(6) as usize];
        settings.journals = seed.is_multiple_of(2);
        settings.waiters_max = 1 + rng.below(30);
        settings.readers_max = 2 + rng.below(60);
        settings.fetches_max = 2 + rng.below(40);
        Self {
            cache: Cache::new(settings, Seed::from(seed)),
            rng,
            ms: 1_000,
            stepped_ms: 0,
            revisions: BTreeMap::new(),
            purged_ms: BTreeMap::new(),
            clients: Vec::new(),
            upstreams: Vec::new(),
            out: Vec::new(),
            answers: 0,
            cuts: 0,
            journal: Vec::new(),
            kills: 0,
            kept: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            wall_ms: WALL_MS + self.ms,
            at: Instant::from_millis(self.ms),
        }
    }

    fn kind(url: u32) -> Kind {
        KINDS[url as usize % KINDS.len()]
    }

    fn ask(&mut self) {
        let url = self.rng.below(12).min(self.rng.below(12));
        let variant = self.rng.below(3);
        let language = format!("v{variant}");
        let mut fields: Vec<Field<'_>> = vec![("Accept-Language", language.as_bytes())];
        match self.rng.below(12) {
            0 => fields.push(("Cache-Control", b"no-cache")),
            1 => fields.push(("Cache-Control", b"max-age=3")),
            2 => fields.push(("If-None-Match", b"\"none\"")),
            3 => fields.push(("Authorization", b"x")),
            _ => {}
        }
        let target = format!("/d{}/{url}", url % 3);
        let head = RequestHead {
            method: "GET",
            host: HOST,
            target: target.as_bytes(),
            fields: &fields,
        };
        let (now, client) = (self.now(), self.clients.len());
        self.out.clear();
        let decision = self.cache.request(&head, now, &mut self.out);
        self.clients.push(Client {
            url,
            variant,
            asked_ms: self.ms,
            purged_ms: self.purged_ms.get(&url).copied().unwrap_or_default(),
            state: State::Gone,
        });
        self.decided(client, decision);
    }

    fn decided(&mut self, client: usize, decision: Decision) {
        let state = match decision {
            Decision::Hit { answer, revalidate } => {
                if let Some(fetch) = revalidate {
                    self.send(
                        fetch,
                        None,
                        self.clients[client].url,
                        self.clients[client].variant,
                    );
                }
                self.answered(client, answer, true)
            }
            Decision::Fetch(fetch) => {
                let (url, variant) = (self.clients[client].url, self.clients[client].variant);
                self.send(fetch, Some(client), url, variant);
                State::Fetches
            }
            Decision::Wait(waiter) => State::Waits(waiter),
            Decision::Pass(_) => State::Gone,
        };
        self.clients[client].state = state;
    }

    fn send(&mut self, fetch: Fetch, client: Option<usize>, url: u32, variant: u32) {
        let etag = fetch
            .conditions
            .iter()
            .find(|(name, _)| *name == "if-none-match");
        let conditional = etag.map(|(_, tag)| String::from_utf8_lossy(tag).into_owned());
        let delay = match self.rng.below(8) {
            0 => u64::from(self.rng.below(2_000)),
            _ => u64::from(self.rng.below(60)),
        };
        self.upstreams.push(Upstream {
            fetch: fetch.fetch,
            client,
            url,
            variant,
            conditional,
            state: Sends::Head(self.ms + delay),
        });
    }

    fn field(&self, name: &str) -> Option<String> {
        let head = String::from_utf8_lossy(&self.out).into_owned();
        let mut lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    }

    /// Compares the head of an answer with the origin, and says what its body must be.
    fn answered(&mut self, client: usize, answer: Answer, from_cache: bool) -> State {
        self.answers += 1;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&self.out));
        let (url, variant) = (self.clients[client].url, self.clients[client].variant);
        let id = self.field("x-id").expect("the origin's field");
        let numbers: Vec<u32> = id
            .split('.')
            .map(|part| part.parse().expect("a number"))
            .collect();
        let [of_url, revision, of_variant] = numbers[..] else {
            panic!("{id}");
        };
        assert_eq!(of_url, url, "bytes of another URL");
        if Self::kind(url) == Kind::Varies {
            assert_eq!(of_variant, variant, "bytes of another variant");
        }
        assert_ne!(
            Self::kind(url),
            Kind::Private,
            "a private response was stored"
        );
        let made: u64 = self
            .field("x-made")
            .expect("a time")
            .parse()
            .expect("a number");
        let purged = self.clients[client].purged_ms;
        assert!(
            made >= purged,
            "made at {made}, purged at {purged}, asked later"
        );
        let asked = self.clients[client].asked_ms;
        if from_cache && made < asked {
            let age = (self.ms - made) / 1_000;
            let most = match Self::kind(url) {
                Kind::Stale => LIFETIME + WINDOW,
                _ => LIFETIME,
            };
            assert_ne!(Self::kind(url), Kind::NoCache, "it was not validated");
            assert!(age <= most, "{age} s old");
        }
        let wanted = body_of(url, revision, of_variant);
        State::Reads(Reading {
            reader: answer.body.map(|body| body.reader),
            length: answer.body.and_then(|body| body.length),
            wanted,
            at: 0,
            waits: false,
            speed: 1 + self.rng.below(20_000) as usize,
        })
    }

    fn respond(&mut self, number: usize) {
        let one = &self.upstreams[number];
        let (fetch, client, url, variant) = (one.fetch, one.client, one.url, one.variant);
        let now = self.now();
        self.out.clear();
        if self.rng.below(20) == 0 {
            let answer = self.cache.abort(fetch, Reason::Cut, now, &mut self.out);
            self.upstreams.swap_remove(number);
            self.settle(client, answer, true);
            return;
        }
        let kind = Self::kind(url);
        let of_variant = if kind == Kind::Varies { variant } else { 0 };
        let revision = self.revisions.get(&url).copied().unwrap_or_default();
        let etag = format!("\"{revision}.{of_variant}\"");
        let id = format!("{url}.{revision}.{of_variant}");
        let made = self.ms.to_string();
        let control = match kind {
            Kind::Private => "private, max-age=100".to_owned(),
            Kind::NoCache => "no-cache".to_owned(),
            Kind::Stale => format!(
                "max-age={LIFETIME}, stale-while-revalidate={WINDOW}, stale-if-error={WINDOW}"
            ),
            Kind::Plain | Kind::Varies => format!("public, max-age={LIFETIME}"),
        };
        let mut fields: Vec<Field<'_>> = vec![
            ("ETag", etag.as_bytes()),
            ("X-Id", id.as_bytes()),
            ("X-Made", made.as_bytes()),
            ("Cache-Control", control.as_bytes()),
        ];
        if kind == Kind::Varies {
            fields.push(("Vary", b"Accept-Language"));
        }
        let bytes = body_of(url, revision, of_variant);
        let is_same = one.conditional.as_deref() == Some(&etag);
        let status = match () {
            () if self.rng.below(15) == 0 => 503,
            () if is_same => 304,
            () => 200,
        };
        let fields = if status == 503 {
            &fields[..0]
        } else {
            &fields[..]
        };
        let knows = self.rng.below(3) > 0;
        let head = ResponseHead {
            status,
            phrase: b"",
            fields,
            length: (status == 200 && knows).then_some(bytes.len() as u64),
        };
        match self.cache.response(fetch, &head, now, &mut self.out) {
            Next::Fill(answer) => {
                let lies = self.rng.below(12) == 0;
                self.upstreams[number].state = Sends::Body { bytes, at: 0, lies };
                self.settle(client, answer, false);
            }
            Next::Stored(answer) => {
                self.upstreams.swap_remove(number);
                self.settle(client, answer, status != 304);
            }
            Next::Relay(_) => {
                self.upstreams.swap_remove(number);
                self.settle(client, None, false);
            }
            Next::Again => {
                self.upstreams[number].conditional = None;
            }
        }
    }

    fn settle(&mut self, client: Option<usize>, answer: Option<Answer>, from_cache: bool) {
        let Some(client) = client else {
            assert_eq!(answer, None, "an answer without a client");
            return;
        };
        self.clients[client].state = match answer {
            Some(answer) => self.answered(client, answer, from_cache),
            None => State::Gone,
        };
    }

    fn send_body(&mut self, number: usize) {
        let now = self.now();
        let one = &mut self.upstreams[number];
        let fetch = one.fetch;
        let Sends::Body { bytes, at, lies } = &mut one.state else {
            return;
        };
        if *lies && self.rng.below(4) == 0 {
            // Cut, by a lost connection or a wrong chunk.
            self.cache.abort(fetch, Reason::Cut, now, &mut Vec::new());
            self.upstreams.swap_remove(number);
            return;
        }
        if *at == bytes.len() {
            if *lies {
                *lies = false;
                return;
            }
            let ended = self.cache.finish(fetch, now);
            assert!(
                matches!(ended, Ok(()) | Err(Reason::FetchFailed)),
                "{ended:?}"
            );
            self.upstreams.swap_remove(number);
            return;
        }
        let count = (1 + self.rng.below(12_000) as usize).min(bytes.len() - *at);
        match self.cache.body(fetch, &bytes[*at..*at + count], now) {
            Ok(taken) => *at += taken,
            Err(_) => {
                self.upstreams.swap_remove(number);
            }
        }
    }

    fn read(&mut self, client: usize) {
        let leaves = self.rng.below(60) == 0;
        let State::Reads(reading) = &mut self.clients[client].state else {
            return;
        };
        let Some(reader) = reading.reader else {
            assert!(reading.wanted.is_empty(), "a body is missing");
            self.clients[client].state = State::Gone;
            return;
        };
        let mut is_over = leaves;
        let mut left = reading.speed;
        while !is_over && left > 0 && !reading.waits {
            let count = match self.cache.read(reader) {
                Read::Bytes(bytes) => {
                    let count = bytes.len().min(left);
                    let wanted = reading.wanted.get(reading.at..reading.at + count);
                    assert!(
                        wanted == Some(&bytes[..count]),
                        "other bytes at {}",
                        reading.at
                    );
                    count
                }
                Read::Wait => {
                    reading.waits = true;
                    break;
                }
                Read::End => {
                    assert_eq!(reading.at, reading.wanted.len(), "the end came early");
                    assert!(
                        reading
                            .length
                            .is_none_or(|length| length == reading.at as u64)
                    );
                    is_over = true;
                    break;
                }
                Read::Cut => {
                    self.cuts += 1;
                    is_over = true;
                    break;
                }
            };
            self.cache.advance(reader, count as u64);
            reading.at += count;
            left -= count;
        }
        if is_over {
            self.cache.end(reader);
            self.clients[client].state = State::Gone;
        }
    }

    fn purge(&mut self) {
        let url = self.rng.below(12);
        let directory = format!("/d{}", url % 3);
        let target = format!("{directory}/{url}");
        let (purge, hits): (Purge<'_>, Vec<u32>) = match self.rng.below(3) {
            0 => {
                let target = target.as_bytes();
                (Purge::Url { host: HOST, target }, vec![url])
            }
            1 => {
                let path = directory.as_bytes();
                let hits = (0..12).filter(|other| other % 3 == url % 3).collect();
                (Purge::Prefix { host: HOST, path }, hits)
            }
            _ => (Purge::All, (0..12).collect()),
        };
        let soft = self.rng.below(3) == 0;
        self.cache.purge(purge, soft).expect("valid");
        for url in hits {
            self.revisions
                .entry(url)
                .and_modify(|one| *one += 1)
                .or_insert(1);
            if !soft {
                self.purged_ms.insert(url, self.ms);
            }
        }
        // Nothing else happens in the same millisecond.
        self.ms += 1;
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.cache.poll_event() {
            match event {
                Event::Resume(waiter) => {
                    let waits = |client: &Client| match client.state {
                        State::Waits(one) => one == waiter,
                        _ => false,
                    };
                    let client = self.clients.iter().position(waits).expect("it waits");
                    let waited = self.ms - self.clients[client].asked_ms;
                    assert!(waited <= 500 + self.stepped_ms, "it waited {waited} ms");
                    let now = self.now();
                    self.out.clear();
                    let decision = self.cache.resume(waiter, now, &mut self.out);
                    self.decided(client, decision);
                }
                Event::Readable(reader) => {
                    for client in &mut self.clients {
                        if let State::Reads(reading) = &mut client.state
                            && reading.reader == Some(reader)
                        {
                            reading.waits = false;
                        }
                    }
                }
                Event::Continue(_) => {}
                Event::Abandoned(fetch) => {
                    let now = self.now();
                    self.cache.abort(fetch, Reason::Cut, now, &mut Vec::new());
                    self.upstreams.retain(|one| one.fetch != fetch);
                }
            }
        }
    }

    /// What the driver writes after a turn.
    fn write_journal(&mut self) {
        match self.cache.poll_journal() {
            Journal::Nothing => {}
            Journal::Append(bytes) => self.journal.extend(bytes),
            Journal::Replace(bytes) => self.journal = bytes,
        }
    }

    /// The process is killed, and another one starts with the store and the journal.
    fn kill(&mut self) {
        let settings = self.cache.settings().clone();
        let seed = Seed::from(self.rng.next_u64());
        let empty = Cache::new(Settings::new(100_000), seed);
        let store = std::mem::replace(&mut self.cache, empty).into_store();
        self.cache = Cache::restore(settings, store, seed, &self.journal, self.now());
        self.clients.clear();
        self.upstreams.clear();
        self.kills += 1;
        self.kept += self.cache.stats().objects;
        self.cache.check_invariants();
    }

    fn step(&mut self, asks: bool) {
        let before = self.ms;
        self.ms += u64::from(self.rng.below(if asks { 40 } else { 200 }));
        if asks && self.rng.below(400) == 0 {
            self.ms += 1_000 * u64::from(self.rng.below(2 * LIFETIME as u32));
        }
        // Purges take a millisecond each.
        self.stepped_ms = self.ms - before + 2;
        self.cache.handle_timeout(self.now().at);
        self.handle_events();
        if asks {
            for _ in 0..self.rng.below(4) {
                self.ask();
            }
            if self.rng.below(40) == 0 {
                self.purge();
            }
            if self.rng.below(30) == 0 {
                let url = self.rng.below(12);
                *self.revisions.entry(url).or_default() += 1;
            }
        }
        self.write_journal();
        if asks && self.cache.settings().journals && self.rng.below(250) == 0 {
            self.kill();
        }
        for number in (0..self.upstreams.len()).rev() {
            match self.upstreams.get(number).map(|one| &one.state) {
                Some(Sends::Head(at)) if *at <= self.ms => self.respond(number),
                Some(Sends::Body { .. }) => self.send_body(number),
                _ => {}
            }
            self.handle_events();
        }
        for client in 0..self.clients.len() {
            self.read(client);
            self.handle_events();
        }
        assert!(self.cache.stats().bytes_used <= self.cache.settings().bytes);
        self.cache.check_invariants();
    }
}

fn run(seed: u64) -> (World, Stats) {
    let mut world = World::new(seed);
    for _ in 0..700 {
        world.step(true);
    }
    for _ in 0..20_000 {
        let stats = world.cache.stats();
        if (stats.fetches, stats.readers, stats.waiters) == (0, 0, 0) {
            break;
        }
        world.step(false);
    }
    let stats = world.cache.stats();
    let left = (stats.fetches, stats.readers, stats.waiters);
    assert_eq!(left, (0, 0, 0), "seed {seed}: all ends");
    (world, stats)
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FAIRLEAD_SIM_SEEDS").ok();
    0..count
        .and_then(|count| count.parse().ok())
        .unwrap_or(48)
        .min(5_000)
}

#[test]
fn no_client_gets_bytes_of_another_object_revision_or_variant() {
    let (mut answers, mut cuts, mut kills, mut kept) = (0, 0, 0, 0);
    let mut total = Stats::default();
    let mut reasons: BTreeMap<Reason, u64> = BTreeMap::new();
    for seed in seeds() {
        let (world, stats) = run(seed);
        answers += world.answers;
        cuts += world.cuts;
        kills += world.kills;
        kept += world.kept;
        total.hits += stats.hits;
        total.collapsed += stats.collapsed;
        total.validated += stats.validated;
        total.purged += stats.purged;
        total.evicted += stats.evicted;
        total.stale_hits += stats.stale_hits;
        total.errors_replaced += stats.errors_replaced;
        for (reason, count) in stats.reasons.iter() {
            *reasons.entry(reason).or_default() += count;
        }
    }
    // Everything that can happen did.
    assert!(
        answers > 5_000 && cuts > 10,
        "{answers} answers, {cuts} cuts"
    );
    let happened = [
        kills,
        kept,
        total.hits,
        total.collapsed,
        total.validated,
        total.purged,
        total.evicted,
        total.stale_hits,
        total.errors_replaced,
        reasons[&Reason::Stalled],
        reasons[&Reason::TooLarge],
        reasons[&Reason::Purged],
    ];
    assert!(happened.iter().all(|count| *count > 0), "{happened:?}");
}
