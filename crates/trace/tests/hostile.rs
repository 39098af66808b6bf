//! What strangers' files get: typed errors, never a panic, and bounded memory.

use std::io::{Cursor, ErrorKind};
use std::ops::ControlFlow;
use std::path::Path;

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_trace::format::{lab, oracle_general};
use fairlead_trace::{
    Accesses, Fault, Format, Limits, Place, ReadOptions, Reason, TIME_MAX_US, TraceError, open,
    read_accesses, read_requests,
};
use proptest::prelude::*;

fn formats() -> Vec<Format> {
    let names = "clf epa sdsc worldcup worldcup-csv elb zeek edgar youtube vscsi pcap \
                 oracleGeneral lab accesses csv:time=1,client=2,port=3,bytes=4 \
                 csv:time=t,client=c,unit=iso,separator=tab";
    names
        .split_whitespace()
        .map(|name| name.parse().expect(name))
        .collect()
}

fn options(format: Option<Format>) -> ReadOptions<'static> {
    ReadOptions {
        format,
        max_bad: 1.0,
        ..ReadOptions::default()
    }
}

/// Reads bytes in every way; the result is consistent columns or an error with a message.
fn try_all(bytes: &[u8]) {
    let mut ways = vec![None];
    ways.extend(formats().into_iter().map(Some));
    for format in ways {
        let source = || open("x", Cursor::new(bytes.to_vec()));
        let Ok(opened) = source() else { continue };
        match read_requests(opened, options(format.clone())) {
            Ok((columns, report)) => {
                assert_eq!(columns.len() as u64, report.rows);
                assert_eq!(columns.status.len(), columns.len());
                let clients = columns.clients.len();
                assert!(
                    columns
                        .client
                        .iter()
                        .all(|client| (*client as usize) < clients)
                );
            }
            Err(error) => assert!(error.to_string().starts_with("x: ")),
        }
        match read_accesses(source().unwrap(), options(format)) {
            Ok((accesses, report)) => {
                assert_eq!(accesses.len() as u64, report.rows);
                assert!(accesses.time_us.is_sorted());
                let keys = accesses.keys.len();
                assert!(accesses.id.iter().all(|id| (*id as usize) < keys));
                assert!(accesses.hint.is_empty() || accesses.hint.len() == accesses.len());
            }
            Err(error) => assert!(error.to_string().starts_with("x: ")),
        }
    }
}

fn excerpts() -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["tests/traces", "tests/captures"] {
        let mut paths: Vec<_> = std::fs::read_dir(root.join(folder)).unwrap().collect();
        paths.sort_by_key(|entry| entry.as_ref().unwrap().path());
        for entry in paths {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            found.push(bytes[..bytes.len().min(3_000)].to_vec());
        }
    }
    let accesses = made_up(60, 9, true);
    let mut bytes = Vec::new();
    lab::write(&accesses, &mut bytes).unwrap();
    found.push(std::mem::take(&mut bytes));
    oracle_general::write(&accesses, 5, &mut bytes).unwrap();
    found.push(bytes);
    found.push(b"time_us,ip,port\n0,10.0.0.1,1\n5,\"10.0.0.2\",2\n".to_vec());
    found
}

fn made_up(rows: usize, keys: u32, hints: bool) -> Accesses {
    let mut rng = Rng::new(u64::from(keys) + rows as u64);
    let mut accesses = Accesses::default();
    for key in 0..keys {
        let addr = match key % 5 {
            4 => Address::v6([key as u8; 16]),
            _ => Address::v4(key.to_be_bytes()),
        };
        accesses.keys.push(Endpoint {
            addr,
            port: key as u16,
        });
    }
    let mut time = 0;
    for _ in 0..rows {
        accesses.time_us.push(time);
        time += u64::from(rng.below(3)) << rng.below(40);
        accesses.id.push(rng.below(keys));
        if hints {
            accesses.hint.push(rng.below(3) as u8);
        }
    }
    accesses
}

/// A row of the World Cup's binary log: seconds since 1970, method and type.
fn world_cup(time: u32, method: u8, kind: u8) -> Vec<u8> {
    let mut row = vec![0u8; 20];
    row[..4].copy_from_slice(&time.to_be_bytes());
    (row[16], row[17], row[18]) = (method, 2, kind);
    row
}

#[test]
fn what_is_said_to_be_of_the_world_cup_has_fields_that_can_be() {
    let may = 893_980_800; // 1998-05-01
    let good = world_cup(may, 0, 1).repeat(200);
    for wrong in [
        world_cup(0, 0, 1),
        world_cup(u32::MAX, 0, 1),
        world_cup(may, 9, 1),
        world_cup(may, 0, 14),
    ] {
        // One bad row is skipped and named; a file of such rows is refused.
        let mixed = [&good[..], &wrong].concat();
        let asked = || options(Some(Format::WorldCupBinary));
        let source = open("x", Cursor::new(mixed)).unwrap();
        let (requests, report) = read_requests(source, asked()).unwrap();
        assert_eq!(
            (requests.len(), report.first_bad),
            (200, Some((201, Reason::Record)))
        );
        let strict = ReadOptions {
            max_bad: 0.01,
            ..asked()
        };
        let error = failed(&[&good[..20], &wrong.repeat(30_000)].concat(), strict);
        assert_eq!(error.place, Place::Row(2), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("row 2: a field has a value that cannot be"),
            "{said}"
        );
        assert!(said.contains("9999 of the first 10000 rows"), "{said}");
    }
    // All that the archive numbers, and joined in any order.
    let edges: Vec<u8> = (0..=8)
        .flat_map(|method| world_cup(may - u32::from(method), method, method + 4))
        .collect();
    let source = open("x", Cursor::new(edges)).unwrap();
    let (requests, report) = read_requests(source, options(Some(Format::WorldCupBinary))).unwrap();
    assert_eq!((requests.len(), report.bad_rows()), (9, 0));
}

#[test]
fn changed_excerpts_never_panic() {
    let mut rng = Rng::new(11);
    for original in excerpts() {
        for _ in 0..5 {
            let mut bytes = original.clone();
            for _ in 0..=rng.below(6) {
                let at = rng.below(bytes.len() as u32) as usize;
                match rng.below(6) {
                    0 => bytes[at] = rng.next_u64() as u8,
                    1 => bytes[at] ^= 1 << rng.below(8),
                    2 => bytes.truncate(at + 1),
                    3 => bytes.insert(at, b"\n\"[],: \t\0\xff"[rng.below(10) as usize]),
                    4 => drop(bytes.remove(at)),
                    _ => {
                        let piece = bytes[at..bytes.len().min(at + 40)].to_vec();
                        let to = rng.below(bytes.len() as u32) as usize;
                        bytes.splice(to..to, piece);
                    }
                }
                if bytes.is_empty() {
                    bytes.push(b'x');
                }
            }
            try_all(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        try_all(&bytes);
    }

    #[test]
    fn arbitrary_text_never_panics(text in "([0-9a-zA-Z.:/\"\\[\\], +-]{0,80}\n){0,8}") {
        try_all(text.as_bytes());
    }

    #[test]
    fn the_laboratorys_file_comes_back_as_it_was(
        rows in 1usize..3_000,
        keys in 1u32..200,
        hints: bool,
        wide: bool,
    ) {
        let mut accesses = made_up(rows, keys.min(rows as u32), hints);
        // The time of a first row is zero, so only a later one can be far away.
        if wide && rows > 1 {
            accesses.time_us[rows - 1] = 2 * TIME_MAX_US as u64;
        }
        let mut bytes = Vec::new();
        lab::write(&accesses, &mut bytes).unwrap();
        let source = open("x", Cursor::new(bytes.clone())).unwrap();
        let (back, report) = read_accesses(source, ReadOptions::default()).unwrap();
        prop_assert_eq!(report.format, Format::Lab);
        prop_assert_eq!(&back, &accesses);
        // Any one changed byte is noticed.
        let mut rng = Rng::new(rows as u64);
        let at = rng.below(bytes.len() as u32) as usize;
        bytes[at] ^= 1 << rng.below(8);
        let source = open("x", Cursor::new(bytes)).unwrap();
        let changed = read_accesses(source, options(Some(Format::Lab)));
        prop_assert!(changed.is_err(), "byte {}", at);
    }

    #[test]
    fn oracle_general_comes_back_as_it_was(rows in 1usize..2_000, keys in 1u32..300) {
        let mut accesses = made_up(rows, keys, false);
        // Identifiers that can be told from their number: of IPv4, or made of one.
        for (number, key) in accesses.keys.iter_mut().enumerate() {
            if !key.addr.is_v4() {
                *key = oracle_general::endpoint_of(1 << 60 | number as u64);
            }
        }
        for time in &mut accesses.time_us {
            *time = *time % 4_000_000_000 * 1_000_000;
        }
        accesses.time_us.sort_unstable();
        accesses.time_us[0] = 0;
        let mut bytes = Vec::new();
        oracle_general::write(&accesses, 7, &mut bytes).unwrap();
        let source = open("x", Cursor::new(bytes)).unwrap();
        let options = options(Some(Format::OracleGeneral));
        let (back, report) = read_accesses(source, options).unwrap();
        prop_assert_eq!(&back.time_us, &accesses.time_us);
        prop_assert_eq!(report.span_us.0, 7_000_000);
        let keys_of = |accesses: &Accesses| -> Vec<Endpoint> {
            accesses.id.iter().map(|id| accesses.keys[*id as usize]).collect()
        };
        prop_assert_eq!(keys_of(&back), keys_of(&accesses));
    }
}

#[test]
fn times_that_would_not_be_read_are_not_written() {
    let limit = 2 * TIME_MAX_US as u64;
    let written = |time_us: &[u64]| {
        let mut accesses = made_up(time_us.len(), 1, false);
        accesses.time_us = time_us.to_vec();
        lab::write(&accesses, Vec::new()).map_err(|e| (e.kind(), e.to_string()))
    };
    for times in [&[][..], &[0], &[0, limit], &[0, 7, 7]] {
        assert_eq!(written(times), Ok(()), "{times:?}");
    }
    for (times, why) in [
        (&[limit][..], "times do not count from the first"),
        (&[1, 2], "times do not count from the first"),
        (&[0, 2, 1], "time runs backwards"),
        (&[0, limit + 1], "a time beyond 146,000 years"),
    ] {
        let why = (ErrorKind::InvalidInput, why.to_owned());
        assert_eq!(written(times), Err(why), "{times:?}");
    }
}

/// Two sessions and three rows with hints, as the laboratory's file: the header, a chunk of
/// sessions at byte 64, one of rows at byte 112, the end at byte 167.
fn small_lab() -> Vec<u8> {
    let mut accesses = made_up(3, 2, true);
    accesses.time_us = vec![0, 10, 20];
    accesses.hint = vec![2, 0, 1];
    let mut bytes = Vec::new();
    lab::write(&accesses, &mut bytes).unwrap();
    assert_eq!(bytes.len(), 167 + 12);
    bytes
}

/// CRC-32 as gzip has it, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0xedb8_8320
            } else {
                sum >> 1
            };
        }
    }
    !sum
}

#[test]
fn sessions_without_an_access_are_written_and_read() {
    let key = |port: u16| Endpoint {
        addr: Address::v4([10, 0, 0, 1]),
        port,
    };
    let accesses = Accesses {
        time_us: vec![0, 5],
        id: vec![3, 1],
        keys: (0..5).map(key).collect(),
        hint: Vec::new(),
    };
    let mut file = Vec::new();
    lab::write(&accesses, &mut file).unwrap();
    let source = open("x", Cursor::new(file)).unwrap();
    let (read, _) = read_accesses(source, ReadOptions::default()).unwrap();
    assert_eq!(read, accesses);
}

#[test]
fn port_zero_is_a_port() {
    let table = "time_us,ip,port\n1,10.0.0.1,0\n2,10.0.0.1,7\n";
    let named = "csv:time=time_us,client=ip,port=port,unit=us";
    for format in [None, Some(named.parse::<Format>().unwrap())] {
        let source = open("x", Cursor::new(table)).unwrap();
        let (read, _) = read_accesses(source, options(format)).unwrap();
        let ports: Vec<u16> = read.keys.iter().map(|key| key.port).collect();
        assert_eq!(ports, [0, 7]);
    }
    let portless: Format = "csv:time=time_us,client=ip,unit=us".parse().unwrap();
    let source = open("x", Cursor::new(table)).unwrap();
    let refused = read_accesses(source, options(Some(portless))).unwrap_err();
    assert!(matches!(refused.fault, Fault::NoPorts("csv")), "{refused}");
}

#[test]
fn a_row_without_a_time_leaves_no_client() {
    let table = "time_us,ip,port\n9000000000000000000,10.0.0.1,7\n2,10.0.0.2,7\n";
    let source = open("x", Cursor::new(table)).unwrap();
    let half = ReadOptions {
        max_bad: 0.5,
        ..ReadOptions::default()
    };
    let (read, report) = read_requests(source, half).unwrap();
    assert_eq!(report.first_bad, Some((2, Reason::Time)));
    assert_eq!((read.clients.len(), read.client[0]), (1, 0));
}

#[test]
fn what_the_laboratorys_format_rules_out_is_named_by_its_byte() {
    let read = |bytes: &[u8]| {
        let source = open("x", Cursor::new(bytes.to_vec())).unwrap();
        read_accesses(source, ReadOptions::default())
    };
    let whole = small_lab();
    assert_eq!(read(&whole).unwrap().0.len(), 3);
    // Where something is changed, with what, and the byte and the words of the error.
    for (at, value, byte, word) in [
        (10, vec![1], 10, "zero in version 1"),
        (59, vec![1], 59, "zero in version 1"),
        (12, vec![2], 12, "flags"),
        (24, vec![255; 8], 24, "too many sessions"),
        (24, vec![4], 179, "fewer rows or sessions"),
        (16, vec![4], 179, "fewer rows"),
        // The second session like the first.
        (90, whole[72..90].to_vec(), 90, "there before"),
        // Hints, widths, and times: of the chunk's first row, of the row itself.
        (162, vec![3], 112, "a hint that does not exist"),
        (124, vec![2], 112, "width"),
        (128, vec![5], 112, "do not count from the first"),
        (136, vec![5], 112, "not the one that the chunk says"),
        (144, vec![1], 112, "runs backwards"),
        (148, vec![9], 112, "of a session that is not there"),
    ] {
        let mut bytes = whole.clone();
        bytes[at..at + value.len()].copy_from_slice(&value);
        for (from, to) in [(0, 60), (72, 108), (120, 163)] {
            let sum = crc32(&bytes[from..to]);
            bytes[to..to + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let error = read(&bytes).unwrap_err();
        assert_eq!(error.place, Place::Byte(byte), "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let more = [&whole[..], b"x"].concat();
    let error = read(&more).unwrap_err();
    assert_eq!(error.place, Place::Byte(179), "{error}");
}

#[test]
fn times_whose_difference_would_not_fit_are_no_times() {
    let table = |times: [i64; 3]| {
        let rows = times.map(|time| format!("{time},10.0.0.1,5\n"));
        format!("time_us,ip,port\n{}", rows.concat()).into_bytes()
    };
    let beyond = table([-i64::MAX, 0, i64::MAX]);
    for read in [as_accesses, as_requests] {
        assert_eq!(read(&table([-TIME_MAX_US, 0, TIME_MAX_US])).unwrap(), 3);
        let said = read(&beyond).unwrap_err().to_string();
        assert!(said.contains("line 2: no time that can be read"), "{said}");
        assert!(said.contains("2 of the first 3 rows"), "{said}");
    }
    let mut accesses = made_up(2, 1, false);
    accesses.time_us = vec![0, 2 * TIME_MAX_US as u64];
    let mut bytes = Vec::new();
    lab::write(&accesses, &mut bytes).unwrap();
    assert_eq!(as_accesses(&bytes).unwrap(), 2);
    // One session's identifier behind the header, so rows are at byte 102, the last time at 126.
    bytes[126..134].copy_from_slice(&(u64::MAX - 20).to_le_bytes());
    let sum = crc32(&bytes[102..142]);
    bytes[142..146].copy_from_slice(&sum.to_le_bytes());
    let said = as_accesses(&bytes).unwrap_err().to_string();
    assert!(said.contains("a time beyond 146,000 years"), "{said}");
}

/// Rows of a file read as accesses.
fn as_accesses(bytes: &[u8]) -> Result<usize, TraceError> {
    let source = open("x", Cursor::new(bytes.to_vec())).unwrap();
    read_accesses(source, ReadOptions::default()).map(|(accesses, _)| accesses.len())
}

/// Rows of a file read as requests.
fn as_requests(bytes: &[u8]) -> Result<usize, TraceError> {
    let source = open("x", Cursor::new(bytes.to_vec())).unwrap();
    read_requests(source, ReadOptions::default()).map(|(requests, _)| requests.len())
}

fn failed(bytes: &[u8], options: ReadOptions<'_>) -> TraceError {
    let source = open("some.log", Cursor::new(bytes.to_vec())).unwrap();
    read_requests(source, options).unwrap_err()
}

#[test]
fn next_accesses_are_those_of_the_trace() {
    let accesses = Accesses {
        time_us: vec![0, 1, 2, 3],
        id: vec![0, 1, 0, 0],
        keys: (0..2).map(oracle_general::endpoint_of).collect(),
        hint: Vec::new(),
    };
    let mut bytes = Vec::new();
    oracle_general::write(&accesses, 0, &mut bytes).unwrap();
    let next: Vec<i64> = bytes
        .chunks(24)
        .map(|record| i64::from_le_bytes(record[16..].try_into().unwrap()))
        .collect();
    assert_eq!(next, [2, -1, 3, -1]);
}

#[test]
fn wrong_files_are_told_what_they_are() {
    let none = ReadOptions::default;
    assert!(matches!(failed(b"", none()).fault, Fault::Empty(_)));
    assert!(matches!(failed(b"\n\n", none()).fault, Fault::Unknown(_)));
    let binary = failed(&[0x7f, b'E', b'L', b'F', 0, 0, 0, 1, 2, 3], none());
    let said = binary.to_string();
    assert!(
        said.contains("some.log") && said.contains("7f 45 4c 46"),
        "{said}"
    );
    let prose = failed(b"once upon a time\nthere was a log\n", none()).to_string();
    assert!(
        prose.contains("once upon") && prose.contains("csv:"),
        "{prose}"
    );
    // Longer than what is looked at.
    let long = failed(&[&[b'x'; 70_000][..], b"\n"].concat(), none()).to_string();
    assert!(
        long.contains("first line longer") && long.contains("--format"),
        "{long}"
    );
    // Said to be a log, of which any number of rows may be unreadable: there are some, but none
    // that can be read.
    let as_clf = failed(&[0u8; 3_000_000], options(Some(Format::Clf)));
    assert!(matches!(as_clf.fault, Fault::AllBad { .. }), "{as_clf}");
    let said = as_clf.to_string();
    assert!(said.contains("line 1: the line is longer"), "{said}");
    assert!(said.contains("not one of its 1 rows"), "{said}");
    let cut = failed(&[0x35; 30], options(Some(Format::WorldCupBinary)));
    assert!(matches!(cut.fault, Fault::Cut(_)), "{cut}");
    assert!(cut.to_string().contains("byte 20"), "{cut}");
    let packets = failed(b"x", options(Some(Format::Pcap)));
    assert!(matches!(packets.fault, Fault::NoRequests(_)), "{packets}");
    let line = b"h - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n";
    let source = open("x", Cursor::new(line.to_vec())).unwrap();
    let no_ports = read_accesses(source, ReadOptions::default()).unwrap_err();
    assert!(
        matches!(no_ports.fault, Fault::NoPorts("clf")),
        "{no_ports}"
    );
}

#[test]
fn limits_are_kept_and_named() {
    let line =
        |host: u32| format!("h{host} - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n");
    let log: String = (0..50).map(line).collect();
    let with = |limits| ReadOptions {
        limits,
        ..ReadOptions::default()
    };
    let few_clients = Limits {
        clients_max: 7,
        ..Limits::default()
    };
    let error = failed(log.as_bytes(), with(few_clients));
    assert!(matches!(error.fault, Fault::TooManyClients(7)), "{error}");
    assert!(error.to_string().contains("line 8"), "{error}");
    let few_rows = Limits {
        rows_max: 20,
        ..Limits::default()
    };
    let error = failed(log.as_bytes(), with(few_rows));
    assert!(matches!(error.fault, Fault::TooManyRows(20)), "{error}");
    let mut table = "time_us,ip,port\n".to_owned();
    for port in 1..20 {
        table += &format!("{port},10.0.0.1,{port}\n");
    }
    let few_sessions = Limits {
        sessions_max: 5,
        ..Limits::default()
    };
    let source = open("x", Cursor::new(table.into_bytes())).unwrap();
    let error = read_accesses(source, with(few_sessions)).unwrap_err();
    assert!(matches!(error.fault, Fault::TooManySessions(5)), "{error}");
}

#[test]
fn a_line_without_end_does_not_fill_memory() {
    let mut bytes = b"h - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n".repeat(200);
    let good = bytes.len();
    bytes.extend(vec![b'x'; 5 << 20]);
    bytes.push(b'\n');
    bytes.extend_from_within(..good);
    let source = open("x", Cursor::new(bytes)).unwrap();
    let (columns, report) = read_requests(source, ReadOptions::default()).unwrap();
    assert_eq!(columns.len(), 400);
    assert_eq!(report.first_bad, Some((201, Reason::LineLength)));
    assert_eq!(report.bad_rows(), 1);
}

#[test]
fn the_caller_can_stop_it_and_sees_how_far_it_is() {
    let line = b"h - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n";
    let bytes = line.repeat(100_000);
    let mut seen = Vec::new();
    let mut progress = |bytes| {
        seen.push(bytes);
        if seen.len() == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = ReadOptions {
        progress: Some(&mut progress),
        ..ReadOptions::default()
    };
    let error = failed(&bytes, options);
    assert!(matches!(error.fault, Fault::Stopped));
    assert!(seen.len() == 3 && seen.is_sorted() && seen[0] > 0);
}

#[test]
fn the_formats_that_are_listed_are_those_that_are_chosen_by_name() {
    let names = fairlead_trace::format::names();
    let (plain, table) = names.rsplit_once(' ').unwrap();
    assert_eq!(table, "csv:COLUMNS");
    assert_eq!(plain.split(' ').count(), 14);
    for name in plain.split(' ') {
        assert_eq!(name.parse::<Format>().unwrap().to_string(), name);
    }
    let told = "xml".parse::<Format>().unwrap_err();
    assert!(told.ends_with(&format!("one of: {names}")), "{told}");
    let source = open("x", Cursor::new(b"odd\n".to_vec())).unwrap();
    let told = source.detect().unwrap_err().to_string();
    assert!(told.ends_with(&format!("(one of: {names})")), "{told}");
}

#[test]
fn frames_that_are_skipped_may_come_first() {
    let row = b"1.2.3.4 - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n".as_slice();
    let frame = zstd::encode_all(row, 1).unwrap();
    let skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size".as_slice();
    let packed = [skipped, &frame, skipped, &frame].concat();
    let source = open("x.zst", Cursor::new(packed)).unwrap();
    let (requests, _) = read_requests(source, ReadOptions::default()).unwrap();
    assert_eq!(requests.len(), 2);
}

#[test]
fn what_is_packed_otherwise_is_told_how_to_unpack_it() {
    let mut tar = vec![0u8; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let files: [(&[u8], &str); 5] = [
        (b"\xfd7zXZ\0\0\x04\xe6\xd6", "xz -dc"),
        (b"BZh91AY&SY\0\x01", "bzip2 -dc"),
        (b"\x1f\x9d\x90\0\x01", "zcat"),
        (b"\xff\xfea\0b\0", "iconv"),
        (&tar, "tar -xO"),
    ];
    for (bytes, what_to_do) in files {
        let fault = failed(bytes, ReadOptions::default());
        assert!(matches!(fault.fault, Fault::Packed(_)), "{fault}");
        assert!(fault.to_string().contains(what_to_do), "{fault}");
    }
}

#[test]
fn a_capture_of_a_link_that_is_not_read_says_so() {
    let capture = |link: u32| {
        let words = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, link, 1, 0, 4, 4, 0];
        words
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let fault = |link| {
        let source = open("x", Cursor::new(capture(link))).unwrap();
        read_accesses(source, ReadOptions::default())
            .unwrap_err()
            .fault
    };
    // 802.11, and Ethernet without a TCP packet.
    assert!(matches!(fault(105), Fault::Link));
    assert!(matches!(fault(1), Fault::Empty(_)));
}
