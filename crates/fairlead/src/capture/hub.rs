//! The switch's side of a capture: merges packets of the engine and of the kernel program for one
//! reader. Nothing here blocks: packets that the reader does not take in time are dropped and
//! counted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairlead_base::{Endpoint, FlowKey, Instant, Packet};
use fairlead_bpf_loader::{CaptureFilter, CaptureTap, Captured, monotonic_ns};
use fairlead_datapath::{Datapath, Whose};
use fairlead_driver_pcap::{CaptureWriter, Passage};
use fairlead_netio::Direction;
use fairlead_wire::{Classified, classify};
use tokio::sync::mpsc;

use crate::config::Settings;

/// Maximum packets queued for the reader.
const QUEUE_PACKETS: usize = 16_384;
/// Maximum bytes queued.
const QUEUE_BYTES: usize = 8 << 20;
/// How long the thread that reads the kernel's ring looks away from the end of the capture.
const TURN: Duration = Duration::from_millis(100);
/// Packets read from the ring between checks of its loss counter; a busy ring never runs empty.
const TURN_PACKETS: usize = 1_024;
/// Interval of loss statistics.
const STATISTICS_EVERY: Duration = Duration::from_secs(1);

/// Starts captures and passes packets to them. While off, it costs the packet loop one test per
/// batch.
#[derive(Debug, Default)]
pub struct CaptureHub {
    on: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    host: Option<Host>,
    kernel: Option<CaptureTap>,
    /// The window is with a thread that reads it.
    is_kernel_read: bool,
    session: Option<Arc<Session>>,
}

/// What the hub needs to know about the switch.
#[derive(Clone, Debug)]
struct Host {
    device: String,
    /// Listening endpoints in the order of their indexes, with their services' names.
    listens: Vec<(Endpoint, String)>,
    /// The core's origin on the monotonic clock.
    origin_ns: u64,
}

/// Filter requested by the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) service: Option<String>,
    pub(crate) client: Option<(fairlead_base::Address, u8)>,
    pub(crate) before: bool,
    pub(crate) after: bool,
    pub(crate) snap_bytes: u32,
}

/// Why a capture is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The switch has not started yet.
    Starting,
    /// Another reader has one.
    Taken,
    /// Unknown service; lists the configured ones.
    NoService(Vec<String>),
    /// The kernel or the system does not do it.
    Failed(String),
}

/// One capture.
#[derive(Debug)]
pub(crate) struct Session {
    filter: CaptureFilter,
    sender: mpsc::Sender<Vec<u8>>,
    queued_bytes: AtomicUsize,
    seen: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
    writer: Mutex<CaptureWriter<Vec<u8>>>,
    host: Host,
    /// Offset from the monotonic clock to Unix time, taken at the start and kept for all packets
    /// even if the wall clock is set meanwhile.
    wall_offset_ns: u64,
    /// Indexes and names of interfaces.
    interfaces: Vec<(u32, String)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

impl CaptureHub {
    /// Sets what the packets' comments need, and the kernel's capture ring if there is one.
    /// `origin_ns` is the engine's origin on the monotonic clock.
    pub(crate) fn open(
        &self,
        settings: &Settings,
        datapath: &Datapath,
        origin_ns: u64,
        kernel: Option<CaptureTap>,
    ) {
        let name = |endpoint: &Endpoint| {
            let services = settings.switch.services.iter();
            let mut found = services.filter(|service| service.listen.contains(endpoint));
            found
                .next()
                .map_or(String::new(), |service| service.name.clone())
        };
        let listens = datapath.endpoints().listens.iter();
        let mut inner = locked(&self.inner);
        inner.host = Some(Host {
            device: settings.network.device.clone(),
            listens: listens.map(|one| (*one, name(one))).collect(),
            origin_ns,
        });
        inner.kernel = kernel;
    }

    /// True while a capture is running.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Passes a packet of the engine's device to the capture, if it matches.
    pub(crate) fn show(
        &self,
        now: Instant,
        direction: Direction,
        packet: &Packet,
        datapath: &Datapath,
    ) {
        let Some(session) = locked(&self.inner).session.clone() else {
            return;
        };
        session.show(now, direction, packet, datapath);
    }

    /// Starts a capture, which lasts until [`Reading`] is dropped.
    pub(crate) fn begin(self: &Arc<Self>, wanted: &Wanted) -> Result<Reading, Refusal> {
        let mut inner = locked(&self.inner);
        let host = inner.host.clone().ok_or(Refusal::Starting)?;
        if inner.session.is_some() || inner.is_kernel_read {
            return Err(Refusal::Taken);
        }
        let filter = filter(wanted, &host)?;
        let failed = |error: &dyn std::fmt::Display| Refusal::Failed(error.to_string());
        let links = match &inner.kernel {
            Some(_) => fairlead_survey::links().unwrap_or_default(),
            None => Vec::new(),
        };
        // One interface in the file, and names in comments: libpcap refuses files of raw IP with
        // several.
        let names = [host.device.as_str()];
        let about = format!("fairlead {}", env!("CARGO_PKG_VERSION"));
        let mut writer =
            CaptureWriter::new(Vec::new(), &about, &names).map_err(|error| failed(&error))?;
        let head = std::mem::take(writer.out_mut());
        let (sender, receiver) = mpsc::channel(QUEUE_PACKETS);
        let session = Arc::new(Session {
            filter,
            sender,
            queued_bytes: AtomicUsize::new(0),
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            over: AtomicBool::new(false),
            writer: Mutex::new(writer),
            host,
            wall_offset_ns: wall_ns().saturating_sub(monotonic_ns()),
            interfaces: links
                .into_iter()
                .map(|link| (link.index, link.name))
                .collect(),
        });
        if inner.kernel.is_some() {
            // Start the thread first: if that fails, the ring must not be lost with it.
            let (give, given) = std::sync::mpsc::channel();
            let (hub, shared) = (Arc::clone(self), Arc::clone(&session));
            let thread = std::thread::Builder::new().name("fairlead-capture".into());
            let follow = move || given.recv().map(|tap| hub.follow_kernel(tap, &shared));
            thread.spawn(follow).map_err(|error| failed(&error))?;
            if let Some(mut tap) = inner.kernel.take() {
                if let Err(error) = tap.start(&session.filter) {
                    inner.kernel = Some(tap);
                    return Err(failed(&error));
                }
                inner.is_kernel_read = true;
                let _ = give.send(tap); // which it waits for
            }
        }
        inner.session = Some(Arc::clone(&session));
        self.on.store(true, Ordering::Relaxed);
        Ok(Reading {
            hub: Arc::clone(self),
            session,
            receiver,
            head: Some(head),
            told_at: tokio::time::Instant::now(),
        })
    }

    /// Reads the kernel's ring until the capture ends, and returns the ring.
    fn follow_kernel(&self, mut tap: CaptureTap, session: &Session) {
        let mut lost = 0;
        while !session.over.load(Ordering::Relaxed) {
            tap.wait(TURN);
            for _ in 0..TURN_PACKETS {
                let read = tap.next_with(|captured| session.show_kernel(&captured));
                if read.is_none() || session.over.load(Ordering::Relaxed) {
                    break;
                }
            }
            let now = tap.lost();
            session.note_lost(now.saturating_sub(lost));
            lost = now;
        }
        if let Err(error) = tap.stop() {
            tracing::error!(%error, "the kernel does not end its capture");
        }
        let mut inner = locked(&self.inner);
        inner.kernel = Some(tap);
        inner.is_kernel_read = false;
    }

    fn end(&self, session: &Session) {
        session.over.store(true, Ordering::Relaxed);
        self.on.store(false, Ordering::Relaxed);
        locked(&self.inner).session = None;
    }
}

fn filter(wanted: &Wanted, host: &Host) -> Result<CaptureFilter, Refusal> {
    let listens = match &wanted.service {
        None => None,
        Some(name) => {
            let of_it = (0u16..)
                .zip(&host.listens)
                .filter(|(_, (_, one))| one == name);
            let found: Vec<u16> = of_it.map(|(index, _)| index).collect();
            if found.is_empty() {
                let mut names: Vec<String> =
                    host.listens.iter().map(|(_, name)| name.clone()).collect();
                names.dedup();
                return Err(Refusal::NoService(names));
            }
            Some(found)
        }
    };
    Ok(CaptureFilter {
        before: wanted.before,
        after: wanted.after,
        snap_bytes: wanted.snap_bytes,
        client: wanted.client,
        listens,
    })
}

impl Session {
    fn show(&self, now: Instant, direction: Direction, packet: &Packet, datapath: &Datapath) {
        let is_after = direction == Direction::Tx;
        if !(if is_after {
            self.filter.after
        } else {
            self.filter.before
        }) {
            return;
        }
        let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
            return;
        };
        let key = if is_after {
            header.key.reversed()
        } else {
            header.key
        };
        let Some(whose) = datapath.whose(&key).or_else(|| self.newcomer(&key)) else {
            return;
        };
        if !self.filter.wants(whose.client.addr, whose.listen) {
            return;
        }
        let line = (whose.line != u32::MAX).then_some(whose.line);
        let comment = self.comment(whose.listen, whose.is_server_leg, line, is_after);
        let since = now.since(Instant::ZERO).as_nanos();
        let at_ns = self.host.origin_ns + u64::try_from(since).unwrap_or(0);
        let comment = format!("{comment} client={}", whose.client);
        self.put(is_after, at_ns, &packet.bytes, 0, &comment);
    }

    /// A client without a record.
    fn newcomer(&self, key: &FlowKey) -> Option<Whose> {
        let at = self
            .host
            .listens
            .iter()
            .position(|(one, _)| *one == key.dst)?;
        Some(Whose {
            line: u32::MAX,
            is_server_leg: false,
            client: key.src,
            listen: u16::try_from(at).ok()?,
        })
    }

    fn show_kernel(&self, captured: &Captured<'_>) {
        let comment = self.comment(
            captured.listen,
            captured.is_server_leg,
            captured.line,
            captured.is_after,
        );
        let on = self
            .interfaces
            .iter()
            .find(|(index, _)| *index == captured.interface)
            .map_or("?", |(_, name)| name.as_str());
        let missing = (captured.whole_bytes as usize).saturating_sub(captured.bytes.len());
        self.put(
            captured.is_after,
            captured.at_ns,
            captured.bytes,
            missing,
            &format!("{comment} kernel on={on}"),
        );
    }

    fn comment(&self, listen: u16, is_server_leg: bool, line: Option<u32>, after: bool) -> String {
        let service = self.host.listens.get(usize::from(listen));
        let service = service.map_or("?", |(_, name)| name.as_str());
        let side = if is_server_leg { "server" } else { "client" };
        let when = if after { "after" } else { "before" };
        let line = line.map_or("-".to_owned(), |line| line.to_string());
        format!("service={service} side={side} line={line} {when}")
    }

    /// `at_ns` is on the monotonic clock.
    fn put(&self, is_after: bool, at_ns: u64, bytes: &[u8], missing: usize, comment: &str) {
        let at_ns = self.wall_offset_ns.saturating_add(at_ns);
        self.seen.fetch_add(1, Ordering::Relaxed);
        let shown = &bytes[..bytes.len().min(self.filter.snap_bytes as usize)];
        let missing = missing + bytes.len() - shown.len();
        if self.queued_bytes.load(Ordering::Relaxed) + shown.len() > QUEUE_BYTES {
            return self.note_lost(1);
        }
        let block = {
            let mut writer = locked(&self.writer);
            let passage = if is_after { Passage::Out } else { Passage::In };
            // Written to memory, which does not fail.
            let _ = writer.write(0, passage, at_ns, shown, missing, comment);
            std::mem::take(writer.out_mut())
        };
        let length = block.len();
        self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        if self.sender.try_send(block).is_err() {
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
            self.note_lost(1);
        }
    }

    fn note_lost(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// How many packets there were and how many of them were lost, as a block of the file.
    fn statistics(&self) -> Vec<u8> {
        let (seen, lost) = (
            self.seen.load(Ordering::Relaxed),
            self.lost.load(Ordering::Relaxed),
        );
        let mut writer = locked(&self.writer);
        let now_ns = self.wall_offset_ns.saturating_add(monotonic_ns());
        let _ = writer.write_statistics(0, now_ns, seen, lost);
        std::mem::take(writer.out_mut())
    }
}

/// The reader's handle of a capture. Dropping it ends the capture.
#[derive(Debug)]
pub(crate) struct Reading {
    hub: Arc<CaptureHub>,
    session: Arc<Session>,
    receiver: mpsc::Receiver<Vec<u8>>,
    head: Option<Vec<u8>>,
    /// Time of the last statistics.
    told_at: tokio::time::Instant,
}

impl Reading {
    /// The next bytes of the file: its header, packets, and statistics every second, which also
    /// serve as keep-alives.
    pub(crate) async fn next(&mut self) -> Vec<u8> {
        if let Some(mut head) = self.head.take() {
            head.extend(self.statistics());
            return head;
        }
        let due = self.told_at + STATISTICS_EVERY;
        let Ok(Some(mut blocks)) = tokio::time::timeout_at(due, self.receiver.recv()).await else {
            return self.statistics();
        };
        let mut taken = blocks.len();
        // Under load, few large writes.
        while blocks.len() < 64 << 10 {
            let Ok(more) = self.receiver.try_recv() else {
                break;
            };
            taken += more.len();
            blocks.extend(more);
        }
        let queued = &self.session.queued_bytes;
        queued.fetch_sub(taken, Ordering::Relaxed);
        // Where packets never pause, too.
        if blocks.len() >= 64 << 10 || due <= tokio::time::Instant::now() {
            blocks.extend(self.statistics());
        }
        blocks
    }

    fn statistics(&mut self) -> Vec<u8> {
        self.told_at = tokio::time::Instant::now();
        self.session.statistics()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.hub.end(&self.session);
    }
}

#[cfg(test)]
mod tests {
    use fairlead_testkit::{endpoint, segment};
    use fairlead_wire::TcpFlags;

    use super::*;
    use crate::config;

    fn hub() -> (Arc<CaptureHub>, Datapath) {
        let settings = config::parse(config::SMALL, "test.toml").unwrap().settings;
        let datapath = Datapath::new(settings.switch.clone(), 1.into(), Instant::ZERO).unwrap();
        let hub = Arc::new(CaptureHub::default());
        hub.open(&settings, &datapath, monotonic_ns(), None);
        (hub, datapath)
    }

    fn all() -> Wanted {
        Wanted {
            service: None,
            client: None,
            before: true,
            after: true,
            snap_bytes: 65_535,
        }
    }

    fn syn(from: &str, to: &str) -> Packet {
        let segment = segment(endpoint(from), endpoint(to));
        segment.flags(TcpFlags::SYN).packet()
    }

    #[test]
    fn one_reader_at_a_time_and_only_known_services() {
        let (hub, _) = hub();
        let unknown = Wanted {
            service: Some("wev".into()),
            ..all()
        };
        assert_eq!(
            hub.begin(&unknown).unwrap_err(),
            Refusal::NoService(vec!["web".into()])
        );
        let reading = hub.begin(&all()).unwrap();
        assert!(hub.is_on());
        assert_eq!(hub.begin(&all()).unwrap_err(), Refusal::Taken);
        drop(reading);
        assert!(!hub.is_on());
        assert!(hub.begin(&all()).is_ok());
        let starting = Arc::new(CaptureHub::default());
        assert_eq!(starting.begin(&all()).unwrap_err(), Refusal::Starting);
    }

    #[test]
    fn packets_are_filtered_and_dropped_for_a_stalled_reader() {
        let (hub, datapath) = hub();
        let wanted = Wanted {
            client: Some((endpoint("10.1.0.0:1").addr, 96 + 24)),
            ..all()
        };
        let mut reading = hub.begin(&wanted).unwrap();
        let now = Instant::from_millis(5);
        let show = |from: &str, to: &str| {
            hub.show(now, Direction::Rx, &syn(from, to), &datapath);
        };
        show("10.1.0.10:4000", "10.1.0.3:80");
        show("10.9.0.10:4000", "10.1.0.3:80"); // another client
        show("10.1.0.10:4000", "10.1.0.99:80"); // nobody's
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let head = runtime.block_on(reading.next());
        let block = runtime.block_on(reading.next());
        let file = [head, block].concat();
        let mut reader = fairlead_driver_pcap::CaptureReader::from_source(
            "test",
            std::io::Cursor::new(file.clone()),
        )
        .unwrap();
        let packet = reader.next_packet().unwrap().unwrap();
        assert_eq!(packet.bytes[12..16], [10, 1, 0, 10]);
        assert!(reader.next_packet().unwrap().is_none());
        let text = String::from_utf8_lossy(&file).into_owned();
        assert!(text.contains("service=web side=client line=- before client=10.1.0.10:4000"));

        // Statistics come after a second though packets never pause for one.
        let until = std::time::Instant::now() + 3 * STATISTICS_EVERY;
        loop {
            show("10.1.0.10:4000", "10.1.0.3:80");
            let blocks = runtime.block_on(reading.next());
            // More than the one packet.
            let length = u32::from_le_bytes(*blocks[4..].first_chunk().unwrap());
            let is_told = blocks.len() > length as usize;
            if is_told {
                break;
            }
            assert!(std::time::Instant::now() < until, "no statistics");
            std::thread::sleep(Duration::from_millis(50));
        }

        for _ in 0..QUEUE_PACKETS + 100 {
            show("10.1.0.10:4000", "10.1.0.3:80");
        }
        let session = hub.inner.lock().unwrap().session.clone().unwrap();
        assert_eq!(session.lost.load(Ordering::Relaxed), 100);
        assert!(session.queued_bytes.load(Ordering::Relaxed) <= QUEUE_BYTES);
    }
}
