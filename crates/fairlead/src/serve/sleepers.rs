//! Connections that outlive the sockets of their processes (`sleep = true`): the port through which
//! the engine gives and wakes them, and the thread that reads where responses end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairlead_base::FlowKey;
use fairlead_bpf_loader::{Gives, ResponseSpan, Shown, ShownHead};
use fairlead_datapath::{HostHandoff, HostTerms, Progress, Sleeper};
use fairlead_os_tcp::Destroyer;
use fairlead_wire::http::{ResponseEnd, response_end};

/// How often it is looked who has slept too long.
const SWEEP: Duration = Duration::from_secs(1);
/// How long the thread waits for something to read before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// A response of more bytes has no end that could be named by a sequence number.
const SPAN_MAX: u64 = 1 << 30;

/// The engine's port to sockets of this machine.
#[derive(Debug)]
pub(super) struct Sockets {
    gives: Gives,
    /// Where something may sleep.
    destroyer: Option<Destroyer>,
    expired: Vec<(FlowKey, Sleeper)>,
    swept: Instant,
}

impl Sockets {
    pub(super) fn new(gives: Gives, sleep: bool) -> io::Result<Self> {
        Ok(Self {
            gives,
            destroyer: sleep.then(Destroyer::open).transpose()?,
            expired: Vec::new(),
            swept: Instant::now(),
        })
    }
}

impl HostHandoff for Sockets {
    fn give(&mut self, client: &FlowKey, terms: &HostTerms, progress: Option<&Progress>) -> bool {
        let progress = progress.filter(|_| self.destroyer.is_some());
        self.gives.give(client, terms, progress)
    }

    fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        self.destroyer.as_ref()?;
        self.gives.sleeper(client)
    }

    fn wake(&mut self, client: &FlowKey, client_nxt: u32, method: [u8; 4], wait: Duration) -> bool {
        // The kernel makes no second socket beside one of the same addresses.
        let ended = self
            .destroyer
            .as_mut()
            .map(|one| one.destroy(client.dst, client.src));
        matches!(ended, Some(Ok(_))) && self.gives.wake(client, client_nxt, method, wait)
    }

    fn end(&mut self, client: &FlowKey) {
        self.gives.end(client);
        if let Some(destroyer) = &mut self.destroyer {
            // It may be gone already.
            let _ = destroyer.destroy(client.dst, client.src);
        }
    }

    fn next_expired(&mut self) -> Option<(FlowKey, Sleeper)> {
        self.destroyer.as_ref()?;
        if self.expired.is_empty() && self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            self.gives.sweep(&mut self.expired);
        }
        self.expired.pop()
    }
}

/// The thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Tracker {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tracker {
    /// Starts reading what the kernel program shows.
    pub(super) fn start(mut shown: Shown) -> io::Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&end);
        let mut destroyer = Destroyer::open()?;
        let work = move || {
            while !ending.load(Ordering::Relaxed) {
                shown.wait(PATIENCE);
                while let Some((client, number, seen)) = shown.next_with(read) {
                    match seen {
                        Seen::Response(span) => {
                            // Without it the server's FIN goes out, as without this thread.
                            let _ = shown.set(&client, number, span);
                        }
                        Seen::Asleep => {
                            shown.forget(&client);
                            let _ = destroyer.destroy(client.dst, client.src);
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("responses".to_owned());
        Ok(Self {
            end,
            thread: Some(thread.spawn(work)?),
        })
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // after a panic of its own there is nothing to be kept
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Response(ResponseSpan),
    Asleep,
}

fn read(shown: ShownHead<'_>) -> (FlowKey, u32, Seen) {
    let seen = match shown.sleeps {
        true => Seen::Asleep,
        false => Seen::Response(span(response_end(shown.head, shown.method))),
    };
    (shown.client, shown.number, seen)
}

fn span(end: ResponseEnd) -> ResponseSpan {
    match end {
        ResponseEnd::Length(bytes) if bytes <= SPAN_MAX => ResponseSpan::Bytes(bytes as u32),
        ResponseEnd::Chunked => ResponseSpan::Chunks,
        ResponseEnd::Length(_) | ResponseEnd::Endless | ResponseEnd::Incomplete => {
            ResponseSpan::Endless
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_with_an_end_has_a_span() {
        assert_eq!(span(ResponseEnd::Length(120)), ResponseSpan::Bytes(120));
        assert_eq!(span(ResponseEnd::Chunked), ResponseSpan::Chunks);
        for end in [
            ResponseEnd::Length(SPAN_MAX + 1),
            ResponseEnd::Endless,
            ResponseEnd::Incomplete,
        ] {
            assert_eq!(span(end), ResponseSpan::Endless, "{end:?}");
        }
    }
}
