//! Memory as the allocator sees it: nothing is allocated for a hit, and a cache takes no more than
//! its limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fairlead_base::{Instant, Rng, Seed};
use fairlead_http_cache::{
    Cache, Decision, Event, FetchId, Field, Next, Now, Policy, Purge, Read, ReaderId, RequestHead,
    ResponseHead, Settings, WaiterId,
};

struct Counting;

thread_local! {
    /// Of this thread: the test harness has another one, which may allocate at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only
// numbers of the calling thread, which need no memory from here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + layout.size() as i64));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let _ = LIVE_BYTES.try_with(|live| live.set(live.get() - layout.size() as i64));
        // SAFETY: `memory` came from `alloc` above, which is the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn live() -> i64 {
    LIVE_BYTES.get()
}

fn now(ms: u64) -> Now {
    Now {
        wall_ms: 1_790_000_000_000 + ms,
        at: Instant::from_millis(ms),
    }
}

const ASKED: [Field<'static>; 3] = [
    ("Accept-Language", b"en, de"),
    ("Cache-Control", b"max-age=50"),
    ("If-None-Match", b"\"other\""),
];

fn head<'a>(target: &'a str, fields: &'a [Field<'a>]) -> RequestHead<'a> {
    RequestHead {
        method: "GET",
        host: "a.example",
        target: target.as_bytes(),
        fields,
    }
}

const STORED: [Field<'static>; 3] = [
    ("Cache-Control", b"max-age=100"),
    ("ETag", b"\"one\""),
    ("Vary", b"Accept-Language"),
];

fn response(length: Option<u64>) -> ResponseHead<'static> {
    ResponseHead {
        status: 200,
        phrase: b"OK",
        fields: &STORED,
        length,
    }
}

fn store(cache: &mut Cache, target: &str, body: &[u8], out: &mut Vec<u8>) {
    let Decision::Fetch(fetch) = cache.request(&head(target, &ASKED), now(1), out) else {
        panic!("a miss");
    };
    let response = response(Some(body.len() as u64));
    let next = cache.response(fetch.fetch, &response, now(1), out);
    let Next::Fill(Some(answer)) = next else {
        panic!("{next:?}");
    };
    cache.body(fetch.fetch, body, now(1)).expect("it fits");
    cache.finish(fetch.fetch, now(1)).expect("it is whole");
    cache.end(answer.body.expect("a body").reader);
}

#[test]
fn a_hit_allocates_nothing() {
    for policy in Policy::ALL {
        let mut settings = Settings::new(4 << 20);
        settings.policy = policy;
        let mut cache = Cache::new(settings, Seed::from(1));
        let mut out = Vec::with_capacity(4_096);
        for target in ["/a", "/b"] {
            store(&mut cache, target, &[7; 10_000], &mut out);
        }
        let mut before = 0;
        for at in 0..1_000 {
            // The first hits make the lists that later ones use.
            if at == 2 {
                before = allocations();
            }
            let target = if at % 3 == 0 { "/a" } else { "/b" };
            out.clear();
            let decision = cache.request(&head(target, &ASKED), now(1 + at), &mut out);
            let Decision::Hit { answer, .. } = decision else {
                panic!("{decision:?}");
            };
            let reader = answer.body.expect("a body").reader;
            while let Read::Bytes(bytes) = cache.read(reader) {
                let count = bytes.len() as u64;
                cache.advance(reader, count);
            }
            cache.end(reader);
            assert_eq!(cache.poll_event(), None);
        }
        assert_eq!(allocations() - before, 0, "{policy}");
    }
}

/// What a driver keeps, in memory that is not counted because it is there from the start.
struct Driver {
    fetches: Vec<(FetchId, bool)>,
    readers: Vec<ReaderId>,
    waiters: Vec<WaiterId>,
    out: Vec<u8>,
    body: Vec<u8>,
}

impl Driver {
    fn decided(&mut self, decision: Decision) {
        match decision {
            Decision::Hit { answer, revalidate } => {
                self.readers.extend(answer.body.map(|body| body.reader));
                self.fetches
                    .extend(revalidate.map(|one| (one.fetch, false)));
            }
            Decision::Fetch(one) => self.fetches.push((one.fetch, false)),
            Decision::Wait(waiter) => self.waiters.push(waiter),
            Decision::Pass(_) => {}
        }
        assert!(self.fetches.len() < 1_000 && self.readers.len() < 2_000);
    }

    fn ask(&mut self, cache: &mut Cache, rng: &mut Rng, ms: u64) {
        let target = format!("/{}", rng.below(400));
        let language = format!("l{}", rng.below(3));
        let fields: [Field<'_>; 1] = [("accept-language", language.as_bytes())];
        self.out.clear();
        let decision = cache.request(&head(&target, &fields), now(ms), &mut self.out);
        self.decided(decision);
    }

    fn serve(&mut self, cache: &mut Cache, rng: &mut Rng, ms: u64) {
        if self.fetches.is_empty() {
            return;
        }
        let number = rng.below(self.fetches.len() as u32) as usize;
        let (fetch, is_filling) = self.fetches[number];
        if is_filling {
            let length = rng.below(30_000) as usize;
            let ended = match cache.body(fetch, &self.body[..length], now(ms)) {
                Ok(_) => cache.finish(fetch, now(ms)).is_ok() || rng.chance(500_000),
                Err(_) => true,
            };
            if ended {
                self.fetches.swap_remove(number);
            }
            return;
        }
        self.out.clear();
        let length = rng.chance(300_000).then(|| rng.below(30_000).into());
        match cache.response(fetch, &response(length), now(ms), &mut self.out) {
            Next::Fill(answer) => {
                self.readers
                    .extend(answer.and_then(|one| one.body).map(|body| body.reader));
                self.fetches[number].1 = true;
            }
            _ => {
                self.fetches.swap_remove(number);
            }
        }
    }

    fn read(&mut self, cache: &mut Cache, rng: &mut Rng) {
        if self.readers.is_empty() {
            return;
        }
        let number = rng.below(self.readers.len() as u32) as usize;
        let reader = self.readers[number];
        let count = match cache.read(reader) {
            Read::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        cache.advance(reader, count as u64);
        if count == 0 || rng.chance(200_000) {
            cache.end(reader);
            self.readers.swap_remove(number);
        }
    }

    fn handle_events(&mut self, cache: &mut Cache, ms: u64) {
        cache.handle_timeout(now(ms).at);
        while let Some(event) = cache.poll_event() {
            match event {
                Event::Resume(waiter) => {
                    self.waiters.retain(|other| *other != waiter);
                    self.out.clear();
                    let decision = cache.resume(waiter, now(ms), &mut self.out);
                    self.decided(decision);
                }
                Event::Abandoned(fetch) => {
                    let reason = fairlead_http_cache::Reason::Cut;
                    cache.abort(fetch, reason, now(ms), &mut self.out);
                    self.fetches.retain(|(other, _)| *other != fetch);
                }
                Event::Readable(_) | Event::Continue(_) => {}
            }
        }
    }
}

#[test]
fn a_cache_takes_no_more_than_its_limit() {
    for (seed, policy) in (0..).zip(Policy::ALL) {
        let mut rng = Rng::new(seed);
        let mut driver = Driver {
            fetches: Vec::with_capacity(1_000),
            readers: Vec::with_capacity(2_000),
            waiters: Vec::with_capacity(2_000),
            out: Vec::with_capacity(4_096),
            body: vec![1; 30_000],
        };
        let limit = 2 << 20;
        let mut settings = Settings::new(limit);
        settings.policy = policy;
        (settings.fetches_max, settings.readers_max) = (100, 200);
        let before = live();
        let mut cache = Cache::new(settings, Seed::from(seed));
        let (mut most, mut most_used) = (0, 0);
        for step in 0..30_000 {
            let ms = 1_000 + step * 5;
            driver.ask(&mut cache, &mut rng, ms);
            driver.serve(&mut cache, &mut rng, ms);
            for _ in 0..3 {
                driver.read(&mut cache, &mut rng);
            }
            driver.handle_events(&mut cache, ms);
            if rng.below(100) == 0 {
                let tag = rng.next_u64().to_le_bytes();
                cache.purge(Purge::Tag(&tag), false).expect("valid");
            }
            let used = cache.stats().bytes_used;
            assert!(used <= limit);
            most = most.max(live() - before);
            most_used = most_used.max(used);
        }
        let stats = cache.stats();
        assert!(stats.evicted > 500 && stats.stored > 1_000, "{stats:?}");
        assert!(
            most <= limit as i64,
            "{policy}: {most} bytes of {limit}, {most_used} by its count"
        );
        assert!(most_used * 10 > limit * 9, "{policy}: the limit is used");
    }
}
