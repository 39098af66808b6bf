//! A driver for tests: requests and responses as text.

use fairlead_base::{Instant, Seed};

use crate::*;

pub(super) const WALL: u64 = 1_790_000_000;

pub(super) struct Rig {
    pub(super) cache: Cache,
    pub(super) ms: u64,
    pub(super) out: Vec<u8>,
}

/// A request's outcome in tests.
#[derive(Debug, PartialEq)]
pub(super) enum Got {
    Hit {
        status: u16,
        body: Vec<u8>,
        revalidate: Option<FetchId>,
    },
    Fetch(FetchId, Vec<String>),
    Wait(WaiterId),
    Pass(Reason),
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Settings::new(4 << 20))
    }

    pub(super) fn with(settings: Settings) -> Self {
        Self {
            cache: Cache::new(settings, Seed::from(7)),
            ms: 1_000,
            out: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            wall_ms: WALL * 1_000 + self.ms,
            at: Instant::from_millis(self.ms),
        }
    }

    pub(super) fn pass_seconds(&mut self, seconds: u64) {
        self.ms += seconds * 1_000;
        self.cache.handle_timeout(self.now().at);
    }

    pub(super) fn get(&mut self, target: &str) -> Got {
        self.ask("GET", target, &[])
    }

    pub(super) fn ask(&mut self, method: &str, target: &str, lines: &[&str]) -> Got {
        let fields = fields(lines);
        let head = RequestHead {
            method,
            host: "a.example",
            target: target.as_bytes(),
            fields: &fields,
        };
        self.out.clear();
        let now = self.now();
        let decision = self.cache.request(&head, now, &mut self.out);
        self.got(decision)
    }

    pub(super) fn resume(&mut self, waiter: WaiterId) -> Got {
        self.out.clear();
        let now = self.now();
        let decision = self.cache.resume(waiter, now, &mut self.out);
        self.got(decision)
    }

    fn got(&mut self, decision: Decision) -> Got {
        self.cache.check_invariants();
        match decision {
            Decision::Hit { answer, revalidate } => {
                let (body, _) = self.read(answer);
                Got::Hit {
                    status: answer.status,
                    body,
                    revalidate: revalidate.map(|fetch| fetch.fetch),
                }
            }
            Decision::Fetch(Fetch { fetch, conditions }) => {
                let line = |(name, value): &(&str, Box<[u8]>)| {
                    format!("{name}: {}", String::from_utf8_lossy(value))
                };
                Got::Fetch(fetch, conditions.iter().map(line).collect())
            }
            Decision::Wait(waiter) => Got::Wait(waiter),
            Decision::Pass(reason) => Got::Pass(reason),
        }
    }

    /// Reads an answer to its end, and says whether it was whole.
    pub(super) fn read(&mut self, answer: Answer) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        let Some(Body { reader, length }) = answer.body else {
            return (body, true);
        };
        let whole = self.read_some(reader, &mut body);
        if whole {
            assert!(length.is_none_or(|length| length == body.len() as u64));
        }
        self.cache.end(reader);
        self.cache.check_invariants();
        (body, whole)
    }

    /// Reads what is there; true at the end.
    pub(super) fn read_some(&mut self, reader: ReaderId, body: &mut Vec<u8>) -> bool {
        loop {
            let count = match self.cache.read(reader) {
                Read::Bytes(bytes) => {
                    body.extend_from_slice(bytes);
                    bytes.len()
                }
                Read::Wait | Read::Cut => return false,
                Read::End => return true,
            };
            self.cache.advance(reader, count as u64);
        }
    }

    pub(super) fn fetch(&mut self, target: &str) -> FetchId {
        match self.get(target) {
            Got::Fetch(fetch, _) => fetch,
            other => panic!("{target}: {other:?}"),
        }
    }

    /// The head of a response; the head of the answer is then in `out`.
    pub(super) fn respond(&mut self, fetch: FetchId, status: u16, lines: &[&str]) -> Next {
        self.respond_with(fetch, status, lines, None)
    }

    pub(super) fn respond_with(
        &mut self,
        fetch: FetchId,
        status: u16,
        lines: &[&str],
        length: Option<u64>,
    ) -> Next {
        let fields = fields(lines);
        let head = ResponseHead {
            status,
            phrase: b"OK",
            fields: &fields,
            length,
        };
        self.out.clear();
        let now = self.now();
        let next = self.cache.response(fetch, &head, now, &mut self.out);
        self.cache.check_invariants();
        next
    }

    /// A whole response with a length; what the client reads of it.
    pub(super) fn serve(&mut self, fetch: FetchId, lines: &[&str], body: &[u8]) -> Vec<u8> {
        let next = self.respond_with(fetch, 200, lines, Some(body.len() as u64));
        let Next::Fill(Some(answer)) = next else {
            panic!("{next:?}");
        };
        let now = self.now();
        assert_eq!(self.cache.body(fetch, body, now), Ok(body.len()));
        assert_eq!(self.cache.finish(fetch, now), Ok(()));
        self.cache.check_invariants();
        self.read(answer).0
    }

    /// Stores a response.
    pub(super) fn store(&mut self, target: &str, lines: &[&str], body: &[u8]) {
        let fetch = self.fetch(target);
        assert_eq!(self.serve(fetch, lines, body), body);
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.cache.poll_event()).collect()
    }

    /// The first value of a field in the head that was written last.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        let head = String::from_utf8_lossy(&self.out).into_owned();
        let mut lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    }
}

pub(super) fn fields<'a>(lines: &[&'a str]) -> Vec<Field<'a>> {
    lines
        .iter()
        .map(|line| {
            let (name, value) = line.split_once(": ").expect("a field");
            (name, value.as_bytes())
        })
        .collect()
}

pub(super) fn hit(body: &[u8]) -> Got {
    Got::Hit {
        status: 200,
        body: body.to_vec(),
        revalidate: None,
    }
}
