//! Connections that outlive the sockets of their processes, as the programs of
//! `bpf/fairlead_host.bpf.c` know them: the maps that user space shares with them.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError, RingBuf};
use fairlead_base::{Address, Endpoint, FlowKey};
use fairlead_tcp::{Progress, Sleeper};

use crate::clock::monotonic_ns;
use crate::layout::{
    LIFE_ASLEEP, LIFE_AWAKE, LIFE_OVER, RESPONSE_CHUNKED, RESPONSE_ENDLESS, RESPONSE_LENGTH,
    RawFlowKey, RawGive, RawLife, RawResponse, SHOWN_BYTES,
};

/// Bytes of `struct fl_shown_head` before the head.
const SHOWN_AT: usize = 52;
/// An awake connection without a packet for so long is forgotten: longer than Linux keeps one whose
/// peer is gone.
const AWAKE_MAX: Duration = Duration::from_secs(3 * 3_600);
/// What was ended stays so long, lest its client's last segments be answered.
const OVER_FOR: Duration = Duration::from_secs(60);

/// The connections, for the engine.
#[derive(Debug)]
pub(crate) struct Lives {
    map: HashMap<MapData, RawFlowKey, RawLife>,
}

impl Lives {
    pub(crate) fn new(map: HashMap<MapData, RawFlowKey, RawLife>) -> Self {
        Self { map }
    }

    /// Begins to follow a connection that is given. Without room it is not followed.
    pub(crate) fn begin(&mut self, client: &FlowKey, give: RawGive, progress: &Progress) {
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
            fin_waits: 0,
            give,
        };
        let _ = self.map.insert(RawFlowKey::from(client), life, 0);
    }

    /// What is known of a connection.
    pub(crate) fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        let life = self.map.get(&RawFlowKey::from(client), 0).ok()?;
        Some(Sleeper {
            is_asleep: life.state == LIFE_ASLEEP,
            client_nxt: life.rcv_nxt,
            server_nxt: life.snd_nxt,
        })
        .filter(|_| life.state != LIFE_OVER)
    }

    /// How a sleeper was given, once its next request is known.
    pub(crate) fn wake(
        &mut self,
        client: &FlowKey,
        client_nxt: u32,
        method: [u8; 4],
    ) -> Option<RawGive> {
        let key = RawFlowKey::from(client);
        let life = self.map.get(&key, 0).ok()?;
        let awake = RawLife {
            since_ns: monotonic_ns(),
            rcv_nxt: client_nxt,
            method: u32::from_ne_bytes(method),
            state: LIFE_AWAKE,
            asked: 1,
            ..life
        };
        self.map.insert(key, awake, 0).ok()?;
        Some(life.give)
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

    /// Looks at all of them: forgets those that nobody needs, ends those that have slept too long
    /// and appends them to `expired`. How many are asleep.
    pub(crate) fn sweep(&mut self, expired: &mut Vec<(FlowKey, Sleeper)>) -> u64 {
        let now_ns = monotonic_ns();
        let mut asleep = 0;
        let (mut forgotten, mut late) = (Vec::new(), Vec::new());
        for (key, life) in self.map.iter().flatten() {
            let age = Duration::from_nanos(now_ns.saturating_sub(life.since_ns));
            match life.state {
                LIFE_ASLEEP if age >= Duration::from_secs(life.sleep_max_s.into()) => {
                    late.push((FlowKey::from(key), life));
                }
                LIFE_ASLEEP => asleep += 1,
                LIFE_OVER if age >= OVER_FOR => forgotten.push(key),
                _ if age >= AWAKE_MAX => forgotten.push(key),
                _ => {}
            }
        }
        for key in forgotten {
            let _ = self.map.remove(&key);
        }
        for (client, life) in late {
            self.end(&client);
            let sleeper = Sleeper {
                is_asleep: true,
                client_nxt: life.rcv_nxt,
                server_nxt: life.snd_nxt,
            };
            expired.push((client, sleeper));
        }
        asleep
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

/// What the program shows: beginnings of responses, and who sleeps now.
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
    /// It is about a connection that sleeps now, not about a response.
    pub sleeps: bool,
    /// The beginning of the response.
    pub head: &'a [u8],
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

    /// The next one, if one is there.
    pub fn next_with<T>(&mut self, use_it: impl FnOnce(ShownHead<'_>) -> T) -> Option<T> {
        loop {
            let event = self.ring.next()?;
            if let Some(shown) = shown(&event) {
                return Some(use_it(shown));
            }
        }
    }

    /// Waits until one may be there, or the time is over.
    pub fn wait(&self, patience: Duration) {
        let mut asked = libc::pollfd {
            fd: self.ring.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one structure that lives through the call.
        unsafe { libc::poll(&raw mut asked, 1, millis) };
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

    /// A connection sleeps, and needs no memory for its response.
    pub fn forget(&mut self, client: &FlowKey) {
        let _ = self.responses.remove(&RawFlowKey::from(client));
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
        sleeps: word(48)? != [0; 4],
        head: event.get(SHOWN_AT..SHOWN_AT + bytes.min(SHOWN_BYTES))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!read.sleeps);
        assert!(shown(&event[..53]).is_none() && shown(&[]).is_none());
        event[44..48].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(shown(&event).unwrap().head.len(), SHOWN_BYTES);
    }
}
