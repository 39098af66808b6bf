//! The driver of tests: connections are byte strings, and what goes over them is cut as a seed has
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlead_base::{Address, Endpoint, Instant, Rng, Seed};
use fairlead_http_cache::{BlockSize, CacheOffset, Extent, Memory, Store};
use fairlead_splice::config::{
    Config, Matcher, Pool, PoolId, Protocol, Route, Server, Service, Treatment,
};

use crate::{Action, Backing, ConnId, Event, FilePart, Front, Limits, TunnelEnds};

/// One connection, as its other end sees it.
#[derive(Debug, Default)]
pub(super) struct Far {
    /// What the front has sent.
    pub(super) got: Vec<u8>,
    /// What is on its way to the front.
    coming: Vec<u8>,
    /// Its end is on its way, too.
    ends: bool,
    pub(super) shut: bool,
    pub(super) closed: bool,
    pub(super) reset: bool,
    /// Whom the front wanted to reach.
    pub(super) to: Option<Endpoint>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) front: Front,
    pub(super) now: Instant,
    pub(super) far: BTreeMap<(u32, u32), Far>,
    /// Connections to servers, in the order in which they were begun.
    pub(super) connects: Vec<ConnId>,
    /// Clients that were given away.
    pub(super) released: Vec<ConnId>,
    /// Nobody listens there.
    pub(super) refusing: Vec<Endpoint>,
    /// No answer comes from there.
    pub(super) silent: Vec<Endpoint>,
    /// The longest piece that goes over a connection at once.
    pub(super) piece: usize,
    /// Files of caches, and how often parts of them were sent.
    pub(super) files: Vec<Shared>,
    pub(super) parts: u64,
    rng: Rng,
    ports: u16,
}

pub(super) const LISTEN: Endpoint = at(1, 80);

/// 10.0.0.`last`.
pub(super) const fn at(last: u8, port: u16) -> Endpoint {
    let mut octets = [0; 16];
    (octets[10], octets[11]) = (0xff, 0xff);
    (octets[12], octets[15]) = (10, last);
    Endpoint {
        addr: Address(octets),
        port,
    }
}

/// A service with a pool for `/a`, one of two servers, and a pool for all else.
pub(super) fn config() -> Config {
    let mut service = Service::new("web", vec![LISTEN], Protocol::Http);
    let prefix = Matcher::PathPrefix(vec!["/a".into()]);
    service.routes = vec![
        Route::new("a", vec![prefix], PoolId(0)),
        Route::new("rest", Vec::new(), PoolId(1)),
    ];
    for route in &mut service.routes {
        route.treatment = Treatment::PerRequest;
    }
    let pool = |name: &str, servers: &[u8]| {
        let servers = servers.iter().map(|&last| Server::new(at(last, 8_000)));
        Pool::new(name, servers.collect())
    };
    let pools = vec![pool("a", &[10, 11]), pool("rest", &[20])];
    Config::new(vec![service], pools)
}

/// A file of blocks that the world can read, too.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    block: BlockSize,
    /// What the cache reads.
    own: Memory,
    file: Arc<Mutex<Memory>>,
}

impl Shared {
    fn new(block: BlockSize) -> Self {
        let (own, file) = (Memory::new(block), Memory::new(block));
        let file = Arc::new(Mutex::new(file));
        Self { block, own, file }
    }

    fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let file = self.file.lock().expect("no panic");
        let mut read = Vec::new();
        while read.len() < bytes {
            let at = at + read.len() as u64;
            let room = self.block.bytes() - self.block.within(at);
            let len = room.min((bytes - read.len()) as u32);
            let at = CacheOffset(at);
            let part = file.slice(Extent { at, len });
            read.extend_from_slice(part.expect("what is sent was written"));
        }
        read
    }

    /// As the next process finds it.
    pub(super) fn again(&self) -> Self {
        let own = self.file.lock().expect("no panic").clone();
        let file = Arc::new(Mutex::new(own.clone()));
        let block = self.block;
        Self { block, own, file }
    }
}

impl Store for Shared {
    fn write(&mut self, at: Extent, bytes: &[u8]) -> bool {
        self.own.write(at, bytes) && self.file.lock().expect("no panic").write(at, bytes)
    }

    fn slice(&self, at: Extent) -> Option<&[u8]> {
        self.own.slice(at)
    }

    fn release(&mut self, lines: &[u32]) {
        self.own.release(lines);
        self.file.lock().expect("no panic").release(lines);
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(config(), Limits::default(), 1)
    }

    pub(super) fn of(config: Config, limits: Limits, seed: u64) -> Self {
        let front = Front::new(Arc::new(config), Seed::new([seed, 7]), limits);
        Self {
            front: front.expect("few servers"),
            now: Instant::ZERO,
            far: BTreeMap::new(),
            connects: Vec::new(),
            released: Vec::new(),
            refusing: Vec::new(),
            silent: Vec::new(),
            piece: usize::MAX,
            files: Vec::new(),
            parts: 0,
            rng: Rng::new(seed),
            ports: 1_000,
        }
    }

    /// A new client.
    pub(super) fn client(&mut self) -> ConnId {
        self.ports += 1;
        let of = at(99, self.ports);
        let id = self.front.accepted(self.now, of, LISTEN).expect("room");
        self.far.insert(key(id), Far::default());
        id
    }

    /// The switch connects, for a client that it is to announce.
    pub(super) fn announced(&mut self) -> Option<ConnId> {
        let id = self.front.connected_for(self.now)?;
        self.far.insert(key(id), Far::default());
        Some(id)
    }

    /// A client that another front has given away; `None` where it is turned away.
    pub(super) fn inherit(&mut self, listen: Endpoint) -> Option<ConnId> {
        let id = self.front.inherited(self.now, at(99, 7), listen)?;
        self.far.insert(key(id), Far::default());
        Some(id)
    }

    /// A tunnel that was handed off before; `None` where it is of no service.
    pub(super) fn back(&mut self, ends: &TunnelEnds) -> Option<[ConnId; 2]> {
        let ids = self.front.handed_back(self.now, ends)?;
        for id in ids {
            self.far.insert(key(id), Far::default());
        }
        Some(ids)
    }

    /// The other end of a connection sends something.
    pub(super) fn say(&mut self, id: ConnId, bytes: impl AsRef<[u8]>) {
        self.far(id).coming.extend_from_slice(bytes.as_ref());
        self.run();
    }

    /// The same, but nothing else happens yet.
    pub(super) fn say_only(&mut self, id: ConnId, bytes: &[u8]) {
        let space = self.front.space(id).expect("room");
        space[..bytes.len()].copy_from_slice(bytes);
        self.front.received(self.now, id, bytes.len());
    }

    /// The other end of a connection sends nothing more.
    pub(super) fn end(&mut self, id: ConnId) {
        self.far(id).ends = true;
        self.run();
    }

    /// A new client with these requests.
    pub(super) fn ask(&mut self, bytes: impl AsRef<[u8]>) -> ConnId {
        let id = self.client();
        self.say(id, bytes);
        id
    }

    pub(super) fn far(&mut self, id: ConnId) -> &mut Far {
        self.far.get_mut(&key(id)).expect("a connection")
    }

    /// What the front has sent, taken.
    pub(super) fn got(&mut self, id: ConnId) -> String {
        let got = core::mem::take(&mut self.far(id).got);
        String::from_utf8(got).expect("text")
    }

    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(100).min(end.since(self.now));
            self.front.handle_time(self.now);
            self.run();
        }
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.front.poll_event()).collect()
    }

    /// Moves bytes until nothing moves.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            while let Some(action) = self.front.poll_action() {
                moved = true;
                self.act(action);
            }
            let ids: Vec<_> = self.far.keys().copied().collect();
            for (index, generation) in ids {
                moved |= self.deliver(ConnId { index, generation });
            }
            if !moved {
                return self.front.check_invariants();
            }
        }
    }

    fn deliver(&mut self, id: ConnId) -> bool {
        let far = self.far(id);
        if far.closed || far.coming.is_empty() && !far.ends {
            return false;
        }
        if far.coming.is_empty() {
            far.ends = false;
            self.front.ended(self.now, id);
            return true;
        }
        let piece = 1 + self.rng.below(self.piece.min(100_000) as u32) as usize;
        let far = self.far.get_mut(&key(id)).expect("a connection");
        let Some(space) = self.front.space(id) else {
            return false;
        };
        let bytes = piece.min(space.len()).min(far.coming.len());
        space[..bytes].copy_from_slice(&far.coming[..bytes]);
        far.coming.drain(..bytes);
        self.front.received(self.now, id, bytes);
        true
    }

    /// What `sendfile` does.
    fn send_part(&mut self, id: ConnId, part: FilePart) {
        let most = self.piece.min(100_000).min(part.part.len as usize);
        let bytes = 1 + self.rng.below(most as u32) as usize;
        let sent = self.files[part.cache].read(part.part.at.0, bytes);
        self.far(id).got.extend_from_slice(&sent);
        self.parts += 1;
        self.front.sent_part(self.now, id, bytes);
    }

    /// Puts the caches into files, with what an earlier process left.
    pub(super) fn put_into_files(&mut self, wall_ms: u64, files: Vec<(Shared, Vec<u8>)>) {
        self.front.set_wall_clock(self.now, wall_ms);
        let mut files = files.into_iter();
        let all = &mut self.files;
        self.front.back_caches(self.now, |_, settings| {
            let new = || (Shared::new(settings.block), Vec::new());
            let (store, journal) = files.next().unwrap_or_else(new);
            all.push(store.clone());
            Some(Backing::new(store, Some(journal)))
        });
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(id, to) => {
                let far = Far {
                    to: Some(to),
                    ..Far::default()
                };
                self.far.insert(key(id), far);
                self.connects.push(id);
                if self.refusing.contains(&to) {
                    self.front.failed(self.now, id);
                } else if !self.silent.contains(&to) {
                    self.front.connected(self.now, id);
                }
            }
            Action::Send(id) => loop {
                let part = self.front.file_part(id);
                let output = self.front.output(id).concat();
                if let Some(part) = part.filter(|_| output.is_empty()) {
                    self.send_part(id, part);
                    continue;
                }
                if output.is_empty() {
                    return;
                }
                let piece = 1 + self.rng.below(self.piece.min(100_000) as u32) as usize;
                let bytes = piece.min(output.len());
                self.far(id).got.extend_from_slice(&output[..bytes]);
                self.front.sent(self.now, id, bytes);
            },
            Action::Receive(_) => {}
            Action::Shut(id) => self.far(id).shut = true,
            Action::Close(id) => self.far(id).closed = true,
            Action::Release(id) => self.released.push(id),
            Action::Reset(id) => {
                let far = self.far(id);
                (far.closed, far.reset) = (true, true);
            }
        }
    }
}

fn key(id: ConnId) -> (u32, u32) {
    (id.index, id.generation)
}
