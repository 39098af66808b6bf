//! Connections that outlive the sockets of their processes, as the programs of
//! `bpf/fairlead_host.bpf.c` know them: the maps that user space shares with them.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use aya::maps::{HashMap, IterableMap as _, Map, MapData, MapError, RingBuf};
use fairlead_base::{Address, Endpoint, FlowKey};
use fairlead_tcp::{Progress, Sleeper};

use crate::clock::monotonic_ns;
use crate::layout::{
    LIFE_ASLEEP, LIFE_AWAKE, LIFE_OVER, RESPONSE_CHUNKED, RESPONSE_ENDLESS, RESPONSE_LENGTH,
    RawFlowKey, RawGive, RawLife, RawResponse, SHOWN_ALONE, SHOWN_ASLEEP, SHOWN_BYTES,
    SHOWN_IN_DOUBT, SHOWN_RESPONSE,
};

/// An entry is made, and none is changed.
const BPF_NOEXIST: u64 = 1;
/// Bytes of `struct fl_shown_head` before the head.
const SHOWN_AT: usize = 52;
/// An awake connection without a packet for so long is forgotten: longer than Linux keeps one whose
/// peer is gone.
const AWAKE_MAX: Duration = Duration::from_secs(3 * 3_600);
/// What was ended stays so long, lest its client's last segments be answered.
const OVER_FOR: Duration = Duration::from_secs(60);

/// The connections: those that sleep, and those that may.
#[derive(Debug)]
pub struct Lives {
    map: HashMap<MapData, RawFlowKey, RawLife>,
}

/// A connection that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The client's key.
    pub client: FlowKey,
    /// The listener that had it.
    pub listener: Endpoint,
    /// How long it has slept.
    pub slept: Duration,
    /// How long it may.
    pub sleep_max: Duration,
}

/// What became of the connections that an earlier run left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// They sleep on.
    pub asleep: u64,
    /// They have a socket, and may sleep later.
    pub awake: u64,
    /// Discarded: their map had another layout, or what it held is impossible.
    pub other_layout: u64,
    /// Discarded: no route with `sleep` leads to their listener any more.
    pub no_route: u64,
    /// Discarded: `sleepers` in the configuration is smaller now.
    pub no_room: u64,
}

impl Lives {
    pub(crate) fn new(map: HashMap<MapData, RawFlowKey, RawLife>) -> Self {
        Self { map }
    }

    /// Those in a map of this build's layout.
    pub(crate) fn of_map(map: MapData) -> Result<Self, MapError> {
        Ok(Self::new(Map::from_map_data(map)?.try_into()?))
    }

    /// The same once more, for another thread.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn another(&self) -> Result<Self, MapError> {
        let fd = self.map.map().fd().as_fd().try_clone_to_owned();
        let fd = fd.map_err(MapError::IoError)?;
        Self::of_map(MapData::from_fd(fd)?)
    }

    /// All entries. What the kernel removes meanwhile may make the walk begin again, so it has an
    /// end of its own.
    fn entries(&self) -> impl Iterator<Item = (RawFlowKey, RawLife)> {
        let entries = self.map.map().info().map_or(0, |info| info.max_entries());
        self.map.iter().take(2 * entries as usize).flatten()
    }

    /// Those that sleep.
    pub fn asleep(&self) -> impl Iterator<Item = Life> {
        let now_ns = monotonic_ns();
        let asleep = self.entries();
        let asleep = asleep.filter(|(_, life)| life.state == LIFE_ASLEEP);
        asleep.map(move |(key, life)| Life {
            client: FlowKey::from(key),
            listener: Endpoint::from(life.give.listener),
            slept: age(&life, now_ns),
            sleep_max: Duration::from_secs(life.sleep_max_s.into()),
        })
    }

    /// Forgets those that nobody needs, and appends to `late` those that have slept too long. How
    /// many sleep, the latter included.
    pub fn sweep(&mut self, late: &mut Vec<FlowKey>) -> u64 {
        let now_ns = monotonic_ns();
        let (mut asleep, mut forgotten) = (0, Vec::new());
        for (key, life) in self.entries() {
            let age = age(&life, now_ns);
            match life.state {
                LIFE_ASLEEP => {
                    asleep += 1;
                    if age >= Duration::from_secs(life.sleep_max_s.into()) {
                        late.push(FlowKey::from(key));
                    }
                }
                LIFE_OVER if age >= OVER_FOR => forgotten.push(key),
                _ if age >= AWAKE_MAX => forgotten.push(key),
                _ => {}
            }
        }
        for key in forgotten {
            let _ = self.map.remove(&key);
        }
        asleep
    }

    /// Adds one of an earlier run. The program at work may have begun one of this key meanwhile,
    /// which is newer. False without room.
    fn is_added(&mut self, key: &RawFlowKey, life: RawLife) -> bool {
        match self.map.insert(key, life, BPF_NOEXIST) {
            Ok(()) => true,
            Err(MapError::SyscallError(error)) => {
                error.io_error.raw_os_error() == Some(libc::EEXIST)
            }
            Err(_) => false,
        }
    }

    /// Goes on with what an earlier run left, here or in a map of another size. `serves` says
    /// whether the listening endpoint still has a route with `sleep` to the listener; connections
    /// without one or without room are ended, and sleepers among them appended to `ended`.
    pub(crate) fn take_over(
        &mut self,
        former: Option<Self>,
        serves: impl Fn(Endpoint, Endpoint) -> bool,
        ended: &mut Vec<(FlowKey, Sleeper)>,
    ) -> TakenOver {
        let mut taken = TakenOver::default();
        for (key, life) in former.iter().flat_map(Self::entries) {
            let client = FlowKey::from(key);
            let is_served = serves(client.dst, Endpoint::from(life.give.listener));
            let asleep = life.state == LIFE_ASLEEP;
            if is_served && self.is_added(&key, life) || life.state >= LIFE_OVER {
                continue;
            }
            if asleep {
                match is_served {
                    true => taken.no_room += 1,
                    false => taken.no_route += 1,
                }
                ended.push((client, sleeper_of(&life)));
            }
        }
        let mut removed = Vec::new();
        for (key, life) in self.entries() {
            let client = FlowKey::from(key);
            match life.state {
                LIFE_OVER => {}
                state if state > LIFE_OVER => {
                    taken.other_layout += 1;
                    removed.push((client, None));
                }
                state if !serves(client.dst, Endpoint::from(life.give.listener)) => {
                    let sleeper = (state == LIFE_ASLEEP).then(|| sleeper_of(&life));
                    taken.no_route += u64::from(sleeper.is_some());
                    removed.push((client, sleeper));
                }
                LIFE_ASLEEP => taken.asleep += 1,
                _ => taken.awake += 1,
            }
        }
        for (client, sleeper) in removed {
            match sleeper {
                Some(sleeper) => {
                    self.end(&client);
                    ended.push((client, sleeper));
                }
                None => drop(self.map.remove(&RawFlowKey::from(&client))),
            }
        }
        taken
    }

    /// Begins to follow a connection that is given. False without room: it is not followed.
    pub(crate) fn begin(&mut self, client: &FlowKey, give: RawGive, progress: &Progress) -> bool {
        let life = RawLife {
            since_ns: monotonic_ns(),
            rcv_nxt: progress.client_nxt,
            snd_nxt: progress.server_nxt,
            acked: progress.server_nxt,
            begins_at: progress.server_nxt,
            chunks_end: progress.server_nxt,
            method: u32::from_ne_bytes(progress.method),
            state: LIFE_AWAKE,
            asked: 1,
            sleep_max_s: progress.sleep_max_s,
            asked_at: give.first,
            give,
        };
        self.map.insert(RawFlowKey::from(client), life, 0).is_ok()
    }

    /// What is known of a connection.
    pub(crate) fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        let life = self.map.get(&RawFlowKey::from(client), 0).ok()?;
        Some(sleeper_of(&life)).filter(|_| life.state != LIFE_OVER)
    }

    /// How a sleeper was given, and its client's next number.
    pub(crate) fn given(&self, client: &FlowKey) -> Option<(RawGive, u32)> {
        let life = self.map.get(&RawFlowKey::from(client), 0).ok()?;
        Some((life.give, life.rcv_nxt))
    }

    /// A sleeper has a socket again, or soon will: its next request is known. False when it is
    /// gone.
    pub(crate) fn wake(&mut self, client: &FlowKey, client_nxt: u32, method: [u8; 4]) -> bool {
        let key = RawFlowKey::from(client);
        let Ok(life) = self.map.get(&key, 0) else {
            return false;
        };
        let awake = RawLife {
            since_ns: monotonic_ns(),
            asked_at: life.rcv_nxt,
            begins_at: life.snd_nxt,
            rcv_nxt: client_nxt,
            method: u32::from_ne_bytes(method),
            state: LIFE_AWAKE,
            asked: 1,
            ..life
        };
        self.map.insert(key, awake, 0).is_ok()
    }

    /// Nothing of it is heard any more.
    pub(crate) fn end(&mut self, client: &FlowKey) {
        let key = RawFlowKey::from(client);
        if let Ok(life) = self.map.get(&key, 0) {
            let over = RawLife {
                since_ns: monotonic_ns(),
                state: LIFE_OVER,
                ..life
            };
            let _ = self.map.insert(key, over, 0);
        }
    }
}

fn age(life: &RawLife, now_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(life.since_ns))
}

fn sleeper_of(life: &RawLife) -> Sleeper {
    Sleeper {
        is_asleep: life.state == LIFE_ASLEEP,
        client_nxt: life.rcv_nxt,
        server_nxt: life.snd_nxt,
        listener: Endpoint::from(life.give.listener),
    }
}

impl From<RawFlowKey> for FlowKey {
    fn from(raw: RawFlowKey) -> Self {
        let endpoint = |addr, port| Endpoint {
            addr: Address::from(addr),
            port: u16::from_be_bytes(port),
        };
        Self {
            src: endpoint(raw.src, raw.src_port),
            dst: endpoint(raw.dst, raw.dst_port),
        }
    }
}

/// Where a response ends, for the program that judges its server's FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseSpan {
    /// After this number of bytes.
    Bytes(u32),
    /// By its last chunk.
    Chunks,
    /// It is not known.
    Endless,
}

/// What the program shows: beginnings of responses, and what has become of connections.
pub struct Shown {
    ring: RingBuf<MapData>,
    responses: HashMap<MapData, RawFlowKey, RawResponse>,
}

/// One of these.
#[derive(Clone, Copy, Debug)]
pub struct ShownHead<'a> {
    /// The client's key.
    pub client: FlowKey,
    /// The number of the first byte; of a sleeper, of the FIN.
    pub number: u32,
    /// The first bytes of the request.
    pub method: [u8; 4],
    /// What happened.
    pub what: What,
    /// The beginning of the response.
    pub head: &'a [u8],
}

/// What the program shows something for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A response begins.
    Response,
    /// A connection sleeps.
    Asleep,
    /// A FIN was withheld, because it was not known where the response before it ends.
    InDoubt,
    /// A request found nobody who listens, and its connection sleeps.
    Alone,
}

impl core::fmt::Debug for Shown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

impl Shown {
    pub(crate) fn new(
        ring: RingBuf<MapData>,
        responses: HashMap<MapData, RawFlowKey, RawResponse>,
    ) -> Self {
        Self { ring, responses }
    }

    /// Goes on with what an earlier run knew, in a map of another size. What does not fit is read
    /// again from the next response.
    pub(crate) fn take_over(&mut self, former: MapData) -> Result<(), MapError> {
        let entries = former.info()?.max_entries() as usize;
        let former: HashMap<MapData, RawFlowKey, RawResponse> =
            Map::from_map_data(former)?.try_into()?;
        for (key, response) in former.iter().take(2 * entries).flatten() {
            let _ = self.responses.insert(key, response, BPF_NOEXIST);
        }
        Ok(())
    }

    /// The next one, if one is there.
    pub fn next_with<T>(&mut self, use_it: impl FnOnce(ShownHead<'_>) -> T) -> Option<T> {
        loop {
            let event = self.ring.next()?;
            if let Some(shown) = shown(&event) {
                return Some(use_it(shown));
            }
        }
    }

    /// Waits until one may be there, another file can be read, or the time is over.
    pub fn wait(&self, other: BorrowedFd<'_>, patience: Duration) {
        let mut asked = [self.ring.as_raw_fd(), other.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let millis = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: two structures that live through the call.
        unsafe { libc::poll(asked.as_mut_ptr(), 2, millis) };
    }

    /// Says where the response ends that begins at `number`.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn set(
        &mut self,
        client: &FlowKey,
        number: u32,
        span: ResponseSpan,
    ) -> Result<(), MapError> {
        let (kind, bytes) = match span {
            ResponseSpan::Bytes(bytes) => (RESPONSE_LENGTH, bytes),
            ResponseSpan::Chunks => (RESPONSE_CHUNKED, 0),
            ResponseSpan::Endless => (RESPONSE_ENDLESS, 0),
        };
        let response = RawResponse {
            begins_at: number,
            ends_at: number.wrapping_add(bytes),
            kind,
        };
        self.responses.insert(RawFlowKey::from(client), response, 0)
    }

    /// Whether the last response of a connection is whole, by what was said of it, and its client
    /// has acknowledged it. The program judges by the same rule (`fl_is_whole`).
    pub fn is_whole(&self, client: &FlowKey, lives: &Lives) -> bool {
        let key = RawFlowKey::from(client);
        let life = lives.map.get(&key, 0);
        let response = self.responses.get(&key, 0);
        matches!((life, response), (Ok(life), Ok(response)) if is_whole(&life, &response))
    }

    /// A connection sleeps, and needs no memory for its response.
    pub fn forget(&mut self, client: &FlowKey) {
        let _ = self.responses.remove(&RawFlowKey::from(client));
    }
}

fn is_whole(life: &RawLife, response: &RawResponse) -> bool {
    response.begins_at == life.begins_at
        && life.acked == life.snd_nxt
        && match response.kind {
            RESPONSE_LENGTH => response.ends_at == life.snd_nxt,
            RESPONSE_CHUNKED => life.chunks_end == life.snd_nxt,
            _ => false,
        }
}

/// `None` for what is no `struct fl_shown_head`.
fn shown(event: &[u8]) -> Option<ShownHead<'_>> {
    let word = |at: usize| -> Option<[u8; 4]> { event.get(at..at + 4)?.try_into().ok() };
    let address = |at: usize| -> Option<Address> {
        let bytes: [u8; 16] = event.get(at..at + 16)?.try_into().ok()?;
        Some(Address(bytes))
    };
    let port = |at: usize| -> Option<u16> {
        let bytes: [u8; 2] = event.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    let src = Endpoint {
        addr: address(0)?,
        port: port(32)?,
    };
    let dst = Endpoint {
        addr: address(16)?,
        port: port(34)?,
    };
    let bytes = u32::from_ne_bytes(word(44)?) as usize;
    Some(ShownHead {
        client: FlowKey { src, dst },
        number: u32::from_ne_bytes(word(36)?),
        method: word(40)?,
        what: match u32::from_ne_bytes(word(48)?) {
            SHOWN_RESPONSE => What::Response,
            SHOWN_ASLEEP => What::Asleep,
            SHOWN_IN_DOUBT => What::InDoubt,
            SHOWN_ALONE => What::Alone,
            _ => return None,
        },
        head: event.get(SHOWN_AT..SHOWN_AT + bytes.min(SHOWN_BYTES))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_whole_where_it_ends() {
        let life = RawLife {
            begins_at: 0xffff_fff0,
            snd_nxt: 20,
            acked: 20,
            chunks_end: 20,
            ..RawLife::default()
        };
        let response = |begins_at, ends_at, kind| RawResponse {
            begins_at,
            ends_at,
            kind,
        };
        for (one, whole) in [
            (response(0xffff_fff0, 20, RESPONSE_LENGTH), true),
            (response(0xffff_fff0, 21, RESPONSE_LENGTH), false),
            (response(0xffff_fff1, 20, RESPONSE_LENGTH), false),
            (response(0xffff_fff0, 0, RESPONSE_CHUNKED), true),
            (response(0xffff_fff0, 20, RESPONSE_ENDLESS), false),
        ] {
            assert_eq!(is_whole(&life, &one), whole, "{one:?}");
        }
        let cut = RawLife {
            chunks_end: 19,
            ..life
        };
        assert!(!is_whole(&cut, &response(0xffff_fff0, 0, RESPONSE_CHUNKED)));
        let acked = RawLife { acked: 19, ..life };
        assert!(!is_whole(
            &acked,
            &response(0xffff_fff0, 20, RESPONSE_LENGTH)
        ));
    }

    #[test]
    fn what_is_shown_is_read_and_what_is_cut_is_not() {
        let mut event = vec![0; SHOWN_AT + SHOWN_BYTES];
        event[15] = 9;
        event[32..36].copy_from_slice(&[0x10, 1, 0, 80]);
        event[36..40].copy_from_slice(&77u32.to_ne_bytes());
        event[40..44].copy_from_slice(b"HEAD");
        event[44..48].copy_from_slice(&3u32.to_ne_bytes());
        event[52..55].copy_from_slice(b"abc");
        let read = shown(&event).unwrap();
        assert_eq!((read.client.src.port, read.client.dst.port), (0x1001, 80));
        assert_eq!(
            (read.number, &read.method, read.head),
            (77, b"HEAD", &b"abc"[..])
        );
        assert_eq!(read.what, What::Response);
        assert!(shown(&event[..53]).is_none() && shown(&[]).is_none());
        for (number, what) in [(1, Some(What::Asleep)), (2, Some(What::InDoubt)), (4, None)] {
            event[48] = number;
            assert_eq!(shown(&event).map(|one| one.what), what);
        }
        event[48] = 0;
        event[44..48].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(shown(&event).unwrap().head.len(), SHOWN_BYTES);
    }
}
