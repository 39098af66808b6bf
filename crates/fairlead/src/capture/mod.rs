//! `fairlead capture`: writes packets of a running switch, on both legs, before and after
//! translation, to a capture file.

mod hub;
mod order;
mod page;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fairlead_base::Address;
use fairlead_driver_tun::{EndSignals, PIPE_BYTES, open_named_pipe, wait_for_room};

use crate::admin::StatusError;
use crate::number::one_or_more;
use crate::screen::{bytes, grouped, plural, print_error};
use crate::status::{StatusArgs, address, at, plain};

use order::Ordered;

pub use hub::CaptureHub;
pub(crate) use page::{Long, capture_page};

/// Maximum snap length, bytes.
const SNAP_BYTES_MAX: u32 = 65_535;
/// Maximum file size, MiB, so that its bytes fit 64 bits.
const MIB_MAX: u64 = u64::MAX >> 20;
/// Maximum plausible block size.
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Maximum blocks read ahead of writing.
const BLOCKS_AHEAD: usize = 16;
/// First bytes of every capture.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const ENHANCED_PACKET: u32 = 6;
const INTERFACE_STATISTICS: u32 = 5;
/// Offset of the number of lost packets in the switch's statistics blocks.
const LOST_AT: usize = 36;

/// How long to wait for the final loss statistics; the switch sends them every second.
const SETTLE: Duration = Duration::from_secs(2);
/// Statistics this shortly before the end, with no packet after them, count as final.
const FRESH_NS: u64 = 100_000_000;
/// Time limit for the answer and its first block.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum delay before the end of the capture is noticed while the reader or the switch stalls.
const TURN: Duration = Duration::from_millis(100);

/// Arguments of `fairlead capture`.
#[derive(Clone, Debug, clap::Args)]
pub struct CaptureArgs {
    /// Capture only connections of this service
    #[arg(long, value_name = "NAME", value_parser = checked_name)]
    pub service: Option<String>,
    /// Capture only connections of clients in this prefix
    #[arg(long, value_name = "IP[/LEN]", value_parser = checked_prefix)]
    pub client: Option<String>,
    /// Capture only packets before translation, as they arrived
    #[arg(long, conflicts_with = "after")]
    pub before: bool,
    /// Capture only packets after translation, as they were sent
    #[arg(long)]
    pub after: bool,
    /// Stop after this many packets
    #[arg(short = 'n', long, value_name = "N", value_parser = one_or_more)]
    pub count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "S", value_parser = one_or_more)]
    pub seconds: Option<u64>,
    /// Stop before the file exceeds this size, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1_024,
          value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    pub max_mib: u64,
    /// Maximum bytes captured per packet
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_BYTES_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAP_BYTES_MAX)))]
    pub snaplen: u32,
    /// Output file (pcapng); - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
    /// Address and port of the admin pages [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", conflicts_with = "config", value_parser = at)]
    pub admin: Option<SocketAddr>,
    /// Read the address from this configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Checks a service name, which becomes part of a URL.
fn checked_name(text: &str) -> Result<String, String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if text.is_empty() || !text.chars().all(fits) {
        return Err(
            "a service name consists of letters, digits, \"-\", \"_\" and \".\"".to_owned(),
        );
    }
    Ok(text.to_owned())
}

fn checked_prefix(text: &str) -> Result<String, String> {
    prefix(text).map(|_| text.to_owned())
}

/// Parses an address or prefix. The length counts in the 128 bits of [`Address`].
fn prefix(text: &str) -> Result<(Address, u8), String> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (text, None),
    };
    let wrong = || {
        format!(
            "{} is not an address or a prefix such as 10.1.0.0/16",
            plain(text)
        )
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let (most, before) = if address.is_ipv4() {
        (32, 96)
    } else {
        (128, 0)
    };
    let len: u8 = len.map_or(Ok(most), |len| len.parse().map_err(|_| wrong()))?;
    if len > most {
        return Err(wrong());
    }
    Ok((address.into(), len + before))
}

/// Captures until it is stopped. Exit code 0, or 1 if there is no capture.
pub fn run(args: &CaptureArgs) -> ExitCode {
    match captured(args) {
        Ok(told) => {
            print_error(&told);
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&format!("fairlead capture: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Counts of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    packets: u64,
    bytes: u64,
    /// As last reported by the switch.
    lost: u64,
    /// True if the switch has reported losses since the last packet.
    is_told: bool,
    /// Packets within the capture's time that arrived too late for a stalled reader.
    late: u64,
    /// True if the capture ended while the reader stalled.
    is_stalled: bool,
}

/// Whether a capture has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    No,
    /// Stop writing.
    Enough,
    /// Write what has arrived, then stop.
    Ended,
}

/// The switch's clock.
#[derive(Clone, Copy, Debug, Default)]
struct SwitchClock {
    /// Its first reading, and when that arrived.
    first: Option<(u64, Instant)>,
    /// Its last reading.
    last_ns: u64,
}

impl SwitchClock {
    fn see(&mut self, stamp_ns: u64) {
        self.first.get_or_insert_with(|| (stamp_ns, Instant::now()));
        self.last_ns = stamp_ns;
    }

    fn now_ns(self) -> Option<u64> {
        let (stamp_ns, at) = self.first?;
        Some(stamp_ns.saturating_add(u64::try_from(at.elapsed().as_nanos()).ok()?))
    }
}

fn captured(args: &CaptureArgs) -> Result<String, StatusError> {
    let failed = |what: &str, error: io::Error| StatusError(format!("{what}: {error}"));
    let signals = EndSignals::take_over().map_err(|error| failed("signals", error))?;
    let is_pipe = args.write.as_os_str() == "-";
    if is_pipe && io::stdout().is_terminal() {
        let why = "captures are binary: use -w FILE, or pipe the output of -w -";
        return Err(StatusError(why.to_owned()));
    }
    let admin = address(&StatusArgs {
        admin: args.admin,
        config: args.config.clone(),
        json: false,
    })?;
    let blocks = Blocks::of(open(admin, args)?);
    // Ask first: the output file may have contents, which must survive a failed request.
    let first = blocks.next(PATIENCE).unwrap_or_else(|| {
        let waited = format!("no data for {} s", PATIENCE.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, waited))
    });
    let first = first.and_then(checked_first);
    let first = first.map_err(|error| failed(&admin.to_string(), error))?;
    let name = args.write.display().to_string();
    // Bypasses the library's buffer of standard output, which would block at exit on a stalled
    // reader.
    let is_told = || !matches!(signals.poll_signal(), Ok(None));
    let file = match is_pipe {
        true => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        false => create(&args.write, is_told),
    };
    let mut sink = file
        .and_then(Sink::new)
        .map_err(|error| failed(&name, error))?;
    let begun = Instant::now();
    // A signal is delivered once but checked several times.
    let has_ended = Cell::new(false);
    let over = |tally: &Tally| {
        let is_late = args
            .seconds
            .is_some_and(|most| begun.elapsed() >= Duration::from_secs(most));
        if args.count.is_some_and(|count| tally.packets >= count) {
            Over::Enough
        } else if is_late || has_ended.get() || is_told() {
            has_ended.set(true);
            Over::Ended
        } else {
            Over::No
        }
    };
    let put = |block: &[u8], tally: &Tally| sink.put(block, || over(tally) != Over::No);
    let mut ordered = Ordered::of(&blocks);
    let (mut tally, end) = copy(&mut ordered, first, put, args.max_mib << 20, over);
    if tally.is_stalled {
        tally.late += ordered.packets();
    }
    let tally = match &end {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => tally,
        _ => settled(&blocks, tally, ordered.clock),
    };
    let why = match end {
        Ok(()) => String::new(),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => String::new(),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "; the switch has stopped".to_owned()
        }
        Err(error) => return Err(failed(&name, error)),
    };
    Ok(told(&tally, &name, &why))
}

/// Opens the output. For a named pipe, waits until it has a reader or the capture ends.
fn create(path: &Path, is_over: impl Fn() -> bool) -> io::Result<File> {
    if !path.metadata().is_ok_and(|it| it.file_type().is_fifo()) {
        return File::create(path);
    }
    while !is_over() {
        if let Some(file) = open_named_pipe(path)? {
            return Ok(file);
        }
        std::thread::sleep(TURN);
    }
    Err(io::Error::other("the pipe has no reader"))
}

/// The output: a file, or a pipe with a reader that may stall.
struct Sink {
    file: File,
    may_stall: bool,
}

impl Sink {
    fn new(file: File) -> io::Result<Self> {
        let may_stall = !file.metadata()?.is_file();
        Ok(Self { file, may_stall })
    }

    /// Writes a block. Returns false if the capture ended before the reader made room; the block
    /// may then be incomplete.
    fn put(&mut self, block: &[u8], is_over: impl Fn() -> bool) -> io::Result<bool> {
        if !self.may_stall {
            return self.put_whole(block).map(|()| true);
        }
        let mut rest = block;
        while !rest.is_empty() {
            let mut written = 0;
            if wait_for_room(&self.file, TURN)? {
                let piece = &rest[..rest.len().min(PIPE_BYTES)];
                written = match self.file.write(piece) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    // Another writer of the named pipe may have used the room.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                    told => told?,
                };
            }
            if written == 0 && is_over() {
                return Ok(false);
            }
            rest = &rest[written..];
        }
        Ok(true)
    }

    /// Writes a block to a file completely or not at all. A partial block, as on a full disk, would
    /// make the file look damaged.
    fn put_whole(&mut self, block: &[u8]) -> io::Result<()> {
        let mut rest = block;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => {
                    return self.cut(block.len() - rest.len(), io::ErrorKind::WriteZero.into());
                }
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.cut(block.len() - rest.len(), error),
            }
        }
        Ok(())
    }

    /// Removes the last partial write.
    fn cut(&mut self, bytes: usize, error: io::Error) -> io::Result<()> {
        let end = self.file.stream_position()?;
        // Another process may have appended to the file.
        if bytes > 0 && self.file.metadata()?.len() == end {
            self.file.set_len(end.saturating_sub(bytes as u64))?;
        }
        Err(error)
    }
}

fn told(tally: &Tally, name: &str, why: &str) -> String {
    let packets = match tally.packets {
        1 => plural(1, "packet"),
        many => format!("{} packets", grouped(many)),
    };
    let lost = match (tally.lost + tally.late, tally.is_told) {
        (0, true) => "none lost".to_owned(),
        (0, false) => {
            "losses unknown: the capture ended before the switch reported them".to_owned()
        }
        (lost, is_told) => format!(
            "{}{} lost because the reader was too slow",
            if is_told { "" } else { "at least " },
            grouped(lost)
        ),
    };
    format!("{packets}, {} to {name}, {lost}{why}\n", bytes(tally.bytes))
}

/// Requests a capture from the switch. The response body is the file.
fn open(admin: SocketAddr, args: &CaptureArgs) -> Result<impl Read + Send + use<>, StatusError> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build()
        .into();
    let mut query = format!("snaplen={}", args.snaplen);
    for (key, value) in [("service", &args.service), ("client", &args.client)] {
        if let Some(value) = value {
            query += &format!("&{key}={value}");
        }
    }
    for (asked, word) in [(args.before, "before"), (args.after, "after")] {
        if asked {
            query += &format!("&when={word}");
        }
    }
    let answer = agent.get(format!("http://{admin}/capture?{query}")).call();
    let mut answer = answer.map_err(|error| {
        StatusError(format!(
            "no answer from {admin}: {error}; is the switch running? --admin ADDR or --config FILE \
             selects the address"
        ))
    })?;
    let status = answer.status();
    if !status.is_success() {
        let body = answer
            .body_mut()
            .with_config()
            .limit(4_096)
            .read_to_string();
        let told = plain(body.unwrap_or_default().lines().next().unwrap_or_default());
        return Err(StatusError(format!("{admin} answered {status}: {told}")));
    }
    Ok(answer.into_body().into_reader())
}

/// Whole blocks of a capture, read by a thread, so that waiting for one can time out.
struct Blocks(mpsc::Receiver<io::Result<Vec<u8>>>);

impl Blocks {
    fn of(mut source: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::sync_channel(BLOCKS_AHEAD);
        // A read has no time limit; a blocked one ends with the process.
        std::thread::spawn(move || {
            loop {
                let block = read_block(&mut source);
                let is_last = block.is_err();
                if sender.send(block).is_err() || is_last {
                    break;
                }
            }
        });
        Self(receiver)
    }

    /// The next block, or `None` if none arrives within `most`.
    fn next(&self, most: Duration) -> Option<io::Result<Vec<u8>>> {
        match self.0.recv_timeout(most) {
            Ok(block) => Some(block),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Some(Err(io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }
}

fn no_capture() -> io::Error {
    io::Error::other("the answer is not a Fairlead capture")
}

fn checked_first(block: Vec<u8>) -> io::Result<Vec<u8>> {
    match word(&block, 0) {
        SECTION_HEADER => Ok(block),
        _ => Err(no_capture()),
    }
}

/// Copies whole blocks, starting with `first`, until `over`, the end, or before the file exceeds
/// `bytes_max`. `put` writes a block and returns false if the capture ended first.
fn copy(
    blocks: &mut Ordered<'_>,
    first: Vec<u8>,
    mut put: impl FnMut(&[u8], &Tally) -> io::Result<bool>,
    bytes_max: u64,
    over: impl Fn(&Tally) -> Over,
) -> (Tally, io::Result<()>) {
    let mut tally = Tally::default();
    let mut first = Some(Ok(first));
    let end = loop {
        match over(&tally) {
            Over::No => {}
            Over::Enough => break Ok(()),
            Over::Ended => blocks.finish(),
        }
        let block = match first.take().or_else(|| blocks.next(TURN)) {
            None if blocks.is_empty() => break Ok(()),
            None => continue,
            Some(Err(error)) => break Err(error),
            Some(Ok(block)) => block,
        };
        let kind = word(&block, 0);
        tally.is_told = kind == INTERFACE_STATISTICS;
        if tally.is_told {
            tally.lost = wide(&block, LOST_AT);
        }
        if tally.bytes + block.len() as u64 > bytes_max {
            break Ok(());
        }
        match put(&block, &tally) {
            Ok(true) => {}
            Ok(false) => {
                tally.is_stalled = true;
                tally.late = u64::from(kind == ENHANCED_PACKET);
                break Ok(());
            }
            Err(error) => break Err(error),
        }
        tally.bytes += block.len() as u64;
        tally.packets += u64::from(kind == ENHANCED_PACKET);
    };
    (tally, end)
}

/// Waits up to [`SETTLE`] for the switch's report of losses up to now.
fn settled(blocks: &Blocks, tally: Tally, clock: SwitchClock) -> Tally {
    let Some(end_ns) = clock.now_ns() else {
        return tally;
    };
    // The last report is recent, and no packet has arrived since.
    if tally.is_told && !tally.is_stalled && clock.last_ns.saturating_add(FRESH_NS) >= end_ns {
        return tally;
    }
    last_word(blocks, tally, end_ns)
}

/// Reads without writing until statistics of `end_ns` or later arrive.
fn last_word(blocks: &Blocks, mut tally: Tally, end_ns: u64) -> Tally {
    let until = Instant::now() + SETTLE;
    tally.is_told = false;
    while !tally.is_told {
        let left = until.saturating_duration_since(Instant::now());
        let Some(Ok(block)) = blocks.next(left) else {
            break;
        };
        let is_before = stamp_ns(&block) < end_ns;
        match word(&block, 0) {
            INTERFACE_STATISTICS => {
                tally.lost = wide(&block, LOST_AT);
                tally.is_told = !is_before;
            }
            ENHANCED_PACKET if tally.is_stalled => tally.late += u64::from(is_before),
            _ => {}
        }
    }
    tally
}

/// Four bytes of a block as a number; 0 past its end.
fn word(block: &[u8], at: usize) -> u32 {
    let four = block.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map_or(0, |four| u32::from_le_bytes(*four))
}

fn wide(block: &[u8], at: usize) -> u64 {
    u64::from(word(block, at)) | u64::from(word(block, at + 4)) << 32
}

/// Time stamp of a packet or of statistics.
fn stamp_ns(block: &[u8]) -> u64 {
    u64::from(word(block, 12)) << 32 | u64::from(word(block, 16))
}

fn read_block(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 8];
    source.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if !(12..=BLOCK_BYTES_MAX).contains(&length) || !length.is_multiple_of(4) {
        return Err(no_capture());
    }
    let mut block = head.to_vec();
    block.resize(length as usize, 0);
    source.read_exact(&mut block[8..])?;
    Ok(block)
}

#[cfg(test)]
mod tests {
    use fairlead_driver_pcap::{CaptureWriter, Passage};

    use super::*;

    fn file() -> Vec<u8> {
        let mut writer = CaptureWriter::new(Vec::new(), "test", &["fl0"]).unwrap();
        for number in 0..5 {
            let packet = [0x45, number, 3];
            writer.write(0, Passage::In, 7, &packet, 0, "x").unwrap();
        }
        writer.write_statistics(0, 9, 17, 12).unwrap();
        writer.into_inner().unwrap()
    }

    fn into(out: &mut Vec<u8>) -> impl FnMut(&[u8], &Tally) -> io::Result<bool> {
        |block, _| out.write_all(block).map(|()| true)
    }

    #[test]
    fn blocks_are_copied_and_counted_until_the_end() {
        let whole = file();
        let begun = |whole: &[u8]| {
            let blocks = Blocks::of(io::Cursor::new(whole.to_vec()));
            let first = blocks.next(PATIENCE).unwrap().and_then(checked_first);
            (blocks, first.unwrap())
        };
        let mut out = Vec::new();
        let (blocks, first) = begun(&whole);
        let mut blocks = Ordered::of(&blocks);
        let (tally, end) = copy(&mut blocks, first, into(&mut out), u64::MAX, |_| Over::No);
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!((tally.packets, tally.lost), (5, 12));
        assert_eq!(out, whole);

        let mut out = Vec::new();
        let (blocks, first) = begun(&whole);
        let enough = |tally: &Tally| match tally.packets {
            0 | 1 => Over::No,
            _ => Over::Enough,
        };
        let mut blocks = Ordered::of(&blocks);
        let (tally, end) = copy(&mut blocks, first, into(&mut out), u64::MAX, enough);
        assert!(end.is_ok());
        assert_eq!(tally.packets, 2);

        // Blocks received before the stop are written.
        let mut out = Vec::new();
        let (sender, receiver) = mpsc::sync_channel(BLOCKS_AHEAD);
        let mut source = &whole[..];
        while let Ok(block) = read_block(&mut source) {
            sender.send(Ok(block)).unwrap();
        }
        let blocks = Blocks(receiver);
        let first = blocks.next(PATIENCE).unwrap().unwrap();
        let mut blocks = Ordered::of(&blocks);
        while blocks.packets() < 5 {
            assert!(!matches!(
                blocks.next(Duration::from_millis(1)),
                Some(Err(_))
            ));
        }
        let (tally, end) = copy(&mut blocks, first, into(&mut out), u64::MAX, |_| {
            Over::Ended
        });
        assert!(end.is_ok());
        assert_eq!(tally.packets, 5);

        let mut out = Vec::new();
        let most = whole.len() as u64 / 2;
        let (blocks, first) = begun(&whole);
        let mut blocks = Ordered::of(&blocks);
        let (tally, end) = copy(&mut blocks, first, into(&mut out), most, |_| Over::No);
        assert!(end.is_ok() && out.len() as u64 <= most);
        assert_eq!(tally.bytes, out.len() as u64);
    }

    #[test]
    fn losses_are_unknown_until_the_switch_reports_them() {
        let tally = |lost, is_told| Tally {
            lost,
            is_told,
            ..Tally::default()
        };
        for (tally, words) in [
            (tally(0, true), ", none lost\n"),
            (tally(0, false), ", losses unknown: the capture ended"),
            (tally(1_200, true), ", 1,200 lost because"),
            (tally(1_200, false), ", at least 1,200 lost because"),
        ] {
            let told = told(&tally, "x", "");
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn other_answers_are_refused() {
        let mut other = file();
        other[0] = 6;
        for wrong in [&[1u8, 2, 3][..], &[0; 64], &[0xff; 64], &other] {
            let blocks = Blocks::of(io::Cursor::new(wrong.to_vec()));
            assert!(
                blocks
                    .next(PATIENCE)
                    .unwrap()
                    .and_then(checked_first)
                    .is_err()
            );
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: CaptureArgs,
        }
        let read = |option: &str, value: &str| {
            <Line as clap::Parser>::try_parse_from(["capture", "-w", "x", option, value])
        };
        assert_eq!(
            read("--max-mib", "17592186044415").unwrap().args.max_mib,
            MIB_MAX
        );
        assert!(read("--service", "web-1.a_b").is_ok());
        for (option, value) in [
            ("--count", "0"),
            ("-n", "0"),
            ("--seconds", "0"),
            ("--max-mib", "17592186044416"),
            ("--max-mib", "0"),
            ("--service", "a b"),
            ("--service", "web&when=after"),
            ("--service", ""),
        ] {
            assert!(read(option, value).is_err(), "{option} {value}");
        }
    }

    #[test]
    fn prefixes_of_both_families() {
        assert_eq!(prefix("10.1.0.10").unwrap().1, 128);
        assert_eq!(prefix("10.1.0.0/16").unwrap().1, 112);
        assert_eq!(prefix("fd00::/8").unwrap().1, 8);
        for wrong in ["", "10.1.0.0/33", "x", "::/129", "1.2.3.4/x"] {
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
    }
}
