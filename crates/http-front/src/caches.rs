//! The caches of routes, and what one says about a request.

use std::collections::BTreeMap;

use fairlead_base::{Endpoint, Instant, Seed};
use fairlead_http_cache::{
    Answer, AnyStore, Cache, Decision, Fetch, FetchId, Field, KeyPart, Memory, Now, Policy,
    ReaderId, Reason, RequestHead, Settings, WaiterId,
};
use fairlead_splice::access::AccessList;
use fairlead_splice::config::{CacheKey, CacheRule, Config, Forwarded};
use fairlead_wire::http::{HeadScanner, RequestHead as Head, Scan};

use crate::conns::ConnId;
use crate::fields::{Options, Rewrite, request_head};
use crate::hits::Hits;
use crate::kept::FILE_BYTES_MIN;
use crate::purge;
use crate::response::{ResponseHead, add_fields};

/// The caches of all routes that have one.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    pub(crate) slots: Vec<RouteCache>,
    /// By service and route: the place of its cache.
    of_route: Vec<Vec<Option<usize>>>,
    /// Something was purged by a request, which is to be written down before it is answered.
    pub(crate) purged: bool,
    /// Milliseconds since 1970 at the origin of time.
    origin_ms: u64,
    /// No further request has to do with a cache.
    pub(crate) is_off: bool,
    /// What the kernel answers.
    pub(crate) hits: Hits,
}

/// A cache, and who waits for what it has to say.
#[derive(Debug)]
pub(crate) struct RouteCache {
    pub(crate) cache: Cache<AnyStore>,
    pub(crate) seed: Seed,
    /// Who may purge by requests.
    purge_from: Option<AccessList>,
    /// The driver can send parts of its store.
    pub(crate) is_in_file: bool,
    /// Readers that wait for more of a body.
    pub(crate) readers: BTreeMap<ReaderId, ConnId>,
    pub(crate) waiters: BTreeMap<WaiterId, ConnId>,
    pub(crate) jobs: BTreeMap<FetchId, ConnId>,
}

/// What the cache has said about a request, with the heads that a fetch would need.
#[derive(Debug)]
pub(crate) enum Step {
    Answer(Answer, Vec<u8>, Option<Heads>),
    Fetch(Heads),
    Wait(WaiterId),
    Pass(Reason),
}

#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) fetch: FetchId,
    /// With conditions.
    pub(crate) head: Vec<u8>,
    pub(crate) plain: Vec<u8>,
}

impl RouteCache {
    /// A body of this length is sent from the file.
    pub(crate) fn sends(&self, length: Option<u64>) -> bool {
        self.is_in_file && length.is_some_and(|length| length >= FILE_BYTES_MIN)
    }

    /// A response is passed on that the cache has no part in: it may change what is stored. Adds
    /// the fields that say why.
    pub(crate) fn note_passed(
        &mut self,
        now: Now,
        (reason, request): (Reason, &[u8]),
        response: &ResponseHead,
        input: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut added = Vec::new();
        self.cache.note_pass(reason, response.status, &mut added);
        add_fields(out, &added);
        let mut scanner = HeadScanner::default();
        let Scan::Complete(head) = scanner.scan(request) else {
            return;
        };
        let fields: Vec<Field<'_>> = head.headers().collect();
        let request = RequestHead {
            method: head.method,
            host: head.host.as_deref().unwrap_or_default(),
            target: head.target,
            fields: &fields,
        };
        response.with(input, |response| self.cache.passed(&request, response, now));
    }
}

impl Caches {
    pub(crate) fn new(config: &Config, seed: Seed) -> Self {
        let mut this = Self::default();
        for service in &config.services {
            let mut places = Vec::new();
            for route in &service.routes {
                places.push(route.cache.as_ref().map(|rule| {
                    let seed = Seed::new([seed.word("cache", this.slots.len() as u64), 1]);
                    this.slots.push(RouteCache {
                        cache: in_memory(settings(rule), seed),
                        seed,
                        purge_from: rule.purge_from.clone(),
                        is_in_file: false,
                        readers: BTreeMap::new(),
                        waiters: BTreeMap::new(),
                        jobs: BTreeMap::new(),
                    });
                    this.slots.len() - 1
                }));
            }
            this.of_route.push(places);
        }
        this
    }

    /// The place of a route's cache.
    pub(crate) fn of(&self, service: u16, route: u16) -> Option<usize> {
        if self.is_off {
            return None;
        }
        *self
            .of_route
            .get(usize::from(service))?
            .get(usize::from(route))?
    }

    pub(crate) fn route_cache(&mut self, at: usize) -> &mut RouteCache {
        &mut self.slots[at]
    }

    /// Service and route of each cache, in the order of their numbers.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u16, u16)> {
        let services = (0..).zip(&self.of_route);
        services.flat_map(|(service, routes)| {
            let routes = (0..).zip(routes).filter(|(_, cache)| cache.is_some());
            routes.map(move |(route, _)| (service, route))
        })
    }

    /// All caches, with service and route of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = ((u16, u16), &Cache<AnyStore>)> {
        let services = (0..).zip(&self.of_route);
        services.flat_map(move |(service, routes)| {
            let routes = (0..).zip(routes);
            routes.filter_map(move |(route, slot)| {
                Some(((service, route), &self.slots[(*slot)?].cache))
            })
        })
    }

    /// Does something with each cache, until one fails.
    pub(crate) fn each<E>(
        &mut self,
        mut act: impl FnMut(&mut Cache<AnyStore>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut slots = self.slots.iter_mut();
        slots.try_for_each(|slot| act(&mut slot.cache))
    }

    pub(crate) fn handle_time(&mut self, now: Instant) {
        for slot in &mut self.slots {
            slot.cache.handle_timeout(now);
        }
    }

    pub(crate) fn set_wall(&mut self, now: Instant, wall_ms: u64) {
        let since = now.since(Instant::ZERO).as_millis();
        self.origin_ms = wall_ms.saturating_sub(u64::try_from(since).unwrap_or(u64::MAX));
    }

    pub(crate) fn now(&self, at: Instant) -> Now {
        let since = at.since(Instant::ZERO).as_millis();
        Now {
            wall_ms: self.origin_ms + u64::try_from(since).unwrap_or(u64::MAX / 2),
            at,
        }
    }

    /// Asks a cache about a request.
    pub(crate) fn ask(
        &mut self,
        at: usize,
        head: &Head<'_>,
        options: &Options<'_>,
        client: Endpoint,
        forwarded: Forwarded,
        now: Instant,
    ) -> Step {
        let now = self.now(now);
        let fields: Vec<Field<'_>> = head.headers().collect();
        let request = RequestHead {
            method: head.method,
            host: head.host.as_deref().unwrap_or_default(),
            target: head.target,
            fields: &fields,
        };
        let mut answer = Vec::new();
        let RouteCache {
            cache, purge_from, ..
        } = &mut self.slots[at];
        if let Some(allowed) = purge_from.as_ref().filter(|_| head.method == purge::METHOD) {
            let done = purge::purge(cache, allowed, client.addr, head, &mut answer);
            self.purged |= done.status == 200;
            return Step::Answer(done, answer, None);
        }
        let decision = cache.request(&request, now, &mut answer);
        let settings = cache.settings();
        step(decision, answer, head, options, client, forwarded, settings)
    }
}

pub(crate) fn step(
    decision: Decision,
    answer: Vec<u8>,
    head: &Head<'_>,
    options: &Options<'_>,
    client: Endpoint,
    forwarded: Forwarded,
    settings: &Settings,
) -> Step {
    let heads = |fetch: Fetch| {
        let keeps = |name: &str| settings.fetches_with(name);
        let rewrite = |conditions| Rewrite {
            method: "GET",
            keeps: &keeps,
            added: conditions,
        };
        let conditions: Vec<_> = fetch.conditions.iter().map(|(n, v)| (*n, &v[..])).collect();
        Heads {
            fetch: fetch.fetch,
            head: request_head(head, options, client, forwarded, Some(rewrite(&conditions))),
            plain: request_head(head, options, client, forwarded, Some(rewrite(&[]))),
        }
    };
    match decision {
        Decision::Hit {
            answer: of,
            revalidate,
        } => Step::Answer(of, answer, revalidate.map(heads)),
        Decision::Fetch(fetch) => Step::Fetch(heads(fetch)),
        Decision::Wait(waiter) => Step::Wait(waiter),
        Decision::Pass(reason) => Step::Pass(reason),
    }
}

fn in_memory(settings: Settings, seed: Seed) -> Cache<AnyStore> {
    let store = AnyStore::new(Memory::new(settings.block));
    Cache::with_store(settings, store, seed)
}

fn settings(rule: &CacheRule) -> Settings {
    let mut settings = Settings::new(rule.bytes);
    settings.max_object = rule.max_object;
    let key = rule.key.iter().map(|part| match part {
        CacheKey::Host => KeyPart::Host,
        CacheKey::Path => KeyPart::Path,
        CacheKey::Query => KeyPart::Query,
        CacheKey::Header(name) => KeyPart::Header(name.as_str().into()),
    });
    settings.key = key.collect();
    let mut policies = Policy::ALL.into_iter();
    if let Some(policy) = policies.find(|policy| policy.name() == rule.policy) {
        settings.policy = policy;
    }
    settings
}
