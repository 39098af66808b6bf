//! `http_cache`: a script of requests, responses, pieces of bodies, purges and time.

use fairlead_base::{Instant, Seed};
use fairlead_http_cache::{
    Answer, Cache, Decision, Event, Fetch, FetchId, Field, Next, Now, Purge, Read, ReaderId,
    Reason, RequestHead, ResponseHead, Settings, WaiterId,
};

use super::Target;
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "http_cache",
    about: "a script for a cache: bytes of the right URL only, memory within its limit, all ends",
    run,
    bytes_max: 600,
    tokens: &[
        // A request, its response, its body, its end.
        &[0, 1, 0, 3, 0, 1, 0, 4, 0, 0x20, 0, 5, 0],
        // Two requests of one URL.
        &[0, 1, 0, 0, 1, 0],
        // A purge, and a long time.
        &[7, 0, 8, 200],
    ],
};

const BYTES: u64 = 160_000;
const URLS: u8 = 6;

const REQUESTS: [&[Field<'static>]; 8] = [
    &[],
    &[("accept-language", b"de")],
    &[("accept-language", b"en"), ("cookie", b"a=b")],
    &[("cache-control", b"no-cache")],
    &[("cache-control", b"max-stale, min-fresh=3")],
    &[("range", b"bytes=100-5000")],
    &[("if-none-match", b"\"1\"")],
    &[("authorization", b"x"), ("cache-control", b"no-store")],
];

const RESPONSES: [(u16, &[Field<'static>]); 10] = [
    (200, &[("cache-control", b"max-age=60"), ("etag", b"\"1\"")]),
    (
        200,
        &[
            ("cache-control", b"max-age=60"),
            ("vary", b"accept-language"),
        ],
    ),
    (200, &[("cache-control", b"private")]),
    (
        200,
        &[
            ("cache-control", b"no-cache"),
            ("etag", b"\"2\""),
            ("xkey", b"a b c"),
        ],
    ),
    (
        200,
        &[(
            "cache-control",
            b"max-age=1, stale-while-revalidate=60, stale-if-error=60",
        )],
    ),
    (304, &[("etag", b"\"1\""), ("cache-control", b"max-age=9")]),
    (304, &[("etag", b"\"7\"")]),
    (503, &[]),
    (
        404,
        &[("cache-control", b"max-age=5"), ("set-cookie", b"a")],
    ),
    (206, &[("content-range", b"bytes 0-1/2")]),
];

struct World {
    cache: Cache,
    ms: u64,
    out: Vec<u8>,
    /// With the URL's number.
    fetches: Vec<(FetchId, u8)>,
    readers: Vec<(ReaderId, u8)>,
    waiters: Vec<(WaiterId, u8)>,
}

fn run(bytes: &[u8]) {
    let mut settings = Settings::new(BYTES);
    settings.max_object = 30_000;
    (
        settings.fetches_max,
        settings.waiters_max,
        settings.readers_max,
    ) = (5, 4, 6);
    let mut world = World {
        cache: Cache::new(settings, Seed::from(1)),
        ms: 1_000,
        out: Vec::new(),
        fetches: Vec::new(),
        readers: Vec::new(),
        waiters: Vec::new(),
    };
    let mut script = Script::new(bytes);
    while !script.is_empty() {
        world.step(&mut script);
        world.cache.check_invariants();
        assert!(world.cache.stats().bytes_used <= BYTES);
    }
    world.end();
}

impl World {
    fn now(&self) -> Now {
        Now {
            wall_ms: 1_790_000_000_000 + self.ms,
            at: Instant::from_millis(self.ms),
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let (step, now) = (script.u8() % 10, self.now());
        note("cache.step", step.into());
        match step {
            0 => self.ask(script),
            1 | 2 => self.read(script.u8(), usize::from(script.u8()) * 64),
            3 => self.respond(script),
            4 => {
                let number = usize::from(script.u8());
                let count = usize::from(script.u16());
                if let Some((fetch, url)) = pick(&self.fetches, number) {
                    let taken = self.cache.body(fetch, &vec![url; count], now);
                    note("cache.body", taken.is_ok().into());
                }
            }
            5 => {
                if let Some((fetch, _)) = pick(&self.fetches, script.u8().into()) {
                    let ended = self.cache.finish(fetch, now);
                    note("cache.finish", ended.is_ok().into());
                }
            }
            6 => self.abort(script.u8().into()),
            7 => self.purge(script.u8()),
            8 => {
                self.ms += u64::from(script.u8()) * 400;
                self.cache.handle_timeout(self.now().at);
            }
            _ => {
                if let Some((reader, _)) = pick(&self.readers, script.u8().into()) {
                    self.cache.end(reader);
                    self.readers.retain(|(other, _)| *other != reader);
                }
            }
        }
        self.handle_events();
    }

    fn ask(&mut self, script: &mut Script<'_>) {
        let url = script.u8() % URLS;
        let fields = REQUESTS[usize::from(script.u8()) % REQUESTS.len()];
        let target = [b"/x/", &[b'a' + url][..]].concat();
        let head = RequestHead {
            method: "GET",
            host: "a",
            target: &target,
            fields,
        };
        let now = self.now();
        self.out.clear();
        let decision = self.cache.request(&head, now, &mut self.out);
        self.decided(url, decision);
    }

    fn decided(&mut self, url: u8, decision: Decision) {
        match decision {
            Decision::Hit { answer, revalidate } => {
                note("cache.hit", answer.status.into());
                self.answered(url, answer);
                if let Some(Fetch { fetch, .. }) = revalidate {
                    self.fetches.push((fetch, url));
                }
            }
            Decision::Fetch(Fetch { fetch, .. }) => self.fetches.push((fetch, url)),
            Decision::Wait(waiter) => self.waiters.push((waiter, url)),
            Decision::Pass(reason) => note("cache.pass", reason as u64),
        }
    }

    fn answered(&mut self, url: u8, answer: Answer) {
        assert!(self.out.ends_with(b"\r\n") && self.out.starts_with(b"HTTP/1.1 "));
        if let Some(body) = answer.body {
            self.readers.push((body.reader, url));
        }
    }

    fn respond(&mut self, script: &mut Script<'_>) {
        let Some((fetch, url)) = pick(&self.fetches, script.u8().into()) else {
            return;
        };
        let (status, fields) = RESPONSES[usize::from(script.u8()) % RESPONSES.len()];
        let length = script.u8();
        let head = ResponseHead {
            status,
            phrase: b"",
            fields,
            length: (length < 128).then(|| u64::from(length) * 256),
        };
        let now = self.now();
        self.out.clear();
        match self.cache.response(fetch, &head, now, &mut self.out) {
            Next::Fill(Some(answer)) | Next::Stored(Some(answer)) => self.answered(url, answer),
            Next::Fill(None) | Next::Stored(None) | Next::Again => {}
            Next::Relay(reason) => note("cache.relay", reason as u64),
        }
    }

    fn abort(&mut self, number: usize) {
        let Some((fetch, url)) = pick(&self.fetches, number) else {
            return;
        };
        let now = self.now();
        self.out.clear();
        if let Some(answer) = self.cache.abort(fetch, Reason::Cut, now, &mut self.out) {
            self.answered(url, answer);
        }
        self.fetches.retain(|(other, _)| *other != fetch);
    }

    fn purge(&mut self, choice: u8) {
        let target = [b"/x/", &[b'a' + choice % URLS][..]].concat();
        let purge = match choice >> 5 {
            0 | 1 => Purge::Url {
                host: "a",
                target: &target,
            },
            2 => Purge::Prefix {
                host: "a",
                path: b"/x",
            },
            3 => Purge::Tag(b"b"),
            4 => Purge::Host("a"),
            _ => Purge::All,
        };
        self.cache.purge(purge, choice & 16 != 0).expect("valid");
    }

    fn read(&mut self, number: u8, most: usize) {
        let Some((reader, url)) = pick(&self.readers, number.into()) else {
            return;
        };
        let mut count = 0;
        let is_over = match self.cache.read(reader) {
            Read::Bytes(bytes) => {
                count = bytes.len().min(most);
                assert!(
                    bytes.iter().all(|byte| *byte == url),
                    "bytes of another URL"
                );
                false
            }
            Read::Wait => false,
            Read::End | Read::Cut => true,
        };
        self.cache.advance(reader, count as u64);
        if is_over {
            self.cache.end(reader);
            self.readers.retain(|(other, _)| *other != reader);
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.cache.poll_event() {
            match event {
                Event::Resume(waiter) => {
                    let place = self.waiters.iter().position(|(other, _)| *other == waiter);
                    let (_, url) = self.waiters.swap_remove(place.expect("it waits"));
                    let now = self.now();
                    self.out.clear();
                    let decision = self.cache.resume(waiter, now, &mut self.out);
                    self.decided(url, decision);
                }
                Event::Abandoned(fetch) => {
                    let place = self.fetches.iter().position(|(other, _)| *other == fetch);
                    self.abort(place.expect("it is under way"));
                }
                Event::Readable(_) | Event::Continue(_) => {}
            }
        }
    }

    /// Everybody leaves: nothing but stored objects may be left.
    fn end(&mut self) {
        while !self.fetches.is_empty() {
            self.abort(0);
            self.handle_events();
        }
        while let Some((reader, _)) = self.readers.pop() {
            self.cache.end(reader);
        }
        while let Some((waiter, _)) = self.waiters.pop() {
            self.cache.cancel(waiter);
        }
        self.handle_events();
        self.cache.check_invariants();
        let stats = self.cache.stats();
        note_size("cache.objects", stats.objects as usize);
        assert_eq!((stats.fetches, stats.readers, stats.waiters), (0, 0, 0));
    }
}

fn pick<T: Copy>(things: &[(T, u8)], number: usize) -> Option<(T, u8)> {
    (!things.is_empty()).then(|| things[number % things.len()])
}
