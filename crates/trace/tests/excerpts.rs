//! The excerpts of tests/traces, and the whole logs where they are at hand.

use std::fs::File;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use fairlead_trace::{
    BYTES_UNKNOWN, Fault, Format, Packets, Passed, Place, ReadOptions, Reason, Report, Requests,
    open, read_accesses, read_requests,
};

const SECOND: i64 = 1_000_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn requests(path: &Path, max_bad: f64) -> (Requests, Report) {
    let options = ReadOptions {
        max_bad,
        ..ReadOptions::default()
    };
    let source = open(path.display().to_string(), File::open(path).unwrap()).unwrap();
    read_requests(source, options).unwrap_or_else(|error| panic!("{error}"))
}

fn excerpt(name: &str) -> (Requests, Report) {
    requests(&root().join("tests/traces").join(name), 0.05)
}

#[test]
fn excerpts_are_told_by_content_and_read() {
    for (name, format, rows, clients, bad, back) in [
        ("nasa.log", "clf", 120, 24, 0, 0),
        ("calgary.log", "clf", 103, 2, 1, 0),
        ("combined.log", "clf", 139, 47, 0, 2),
        ("epa.log", "epa", 80, 16, 2, 0),
        ("sdsc.log", "sdsc", 75, 18, 0, 0),
        ("worldcup.bin", "worldcup", 400, 79, 0, 0),
        ("worldcup.csv", "worldcup-csv", 100, 99, 0, 26),
        ("elb.log", "elb", 80, 70, 0, 40),
        ("edgar.csv", "edgar", 99, 24, 0, 0),
        ("youtube.dat", "youtube", 100, 85, 1, 0),
        ("zeek-ssl.log", "zeek", 40, 24, 0, 0),
        ("zeek-conn.log", "zeek", 32, 19, 0, 0),
        ("zeek-http.log", "zeek", 40, 25, 0, 0),
    ] {
        let (columns, report) = excerpt(name);
        assert_eq!(report.format.name(), format, "{name}");
        let found = (
            report.rows,
            columns.clients.len(),
            report.bad_rows(),
            report.stepped_back,
        );
        assert_eq!(found, (rows, clients, bad, back), "{name}");
        let lengths = [
            columns.client.len(),
            columns.port.len(),
            columns.bytes.len(),
            columns.object.len(),
            columns.status.len(),
        ];
        assert_eq!(lengths, [columns.len(); 5], "{name}");
        assert!(
            columns
                .client
                .iter()
                .all(|client| (*client as usize) < clients),
            "{name}"
        );
    }
}

#[test]
fn first_rows_have_the_values_of_their_lines() {
    let row = |name: &str| {
        let (columns, _) = excerpt(name);
        let client = columns.clients[columns.client[0] as usize];
        let address = client.address.to_string();
        let address = if client.named { String::new() } else { address };
        (
            columns.time_us[0],
            address,
            columns.port[0],
            columns.bytes[0],
            columns.status[0],
        )
    };
    let none = String::new;
    assert_eq!(
        row("nasa.log"),
        (805_262_400 * SECOND, none(), 0, 85_465, 200)
    );
    assert_eq!(
        row("calgary.log"),
        (783_027_701 * SECOND, none(), 0, 150, 200)
    );
    let combined = (
        1_455_944_445 * SECOND,
        "194.187.168.230".to_owned(),
        0,
        187,
        200,
    );
    assert_eq!(row("combined.log"), combined);
    assert_eq!(
        row("epa.log"),
        (
            809_754_805 * SECOND,
            "141.243.1.172".to_owned(),
            0,
            1_497,
            200
        )
    );
    assert_eq!(
        row("sdsc.log"),
        (809_074_800 * SECOND, none(), 0, BYTES_UNKNOWN, 0)
    );
    assert_eq!(
        row("worldcup.bin"),
        (893_971_817 * SECOND, none(), 0, 24_736, 200)
    );
    assert_eq!(
        row("worldcup.csv"),
        (893_976_372 * SECOND, none(), 0, 508, 200)
    );
    let elb = (
        1_437_555_628_019_143,
        "123.242.248.130".to_owned(),
        54_635,
        699,
        200,
    );
    assert_eq!(row("elb.log"), elb);
    assert_eq!(
        row("edgar.csv"),
        (1_498_780_800 * SECOND, none(), 0, 80_251, 200)
    );
    let youtube = (
        1_189_828_805_208_862,
        "140.8.48.66".to_owned(),
        0,
        BYTES_UNKNOWN,
        0,
    );
    assert_eq!(row("youtube.dat"), youtube);
    let (edgar, _) = excerpt("edgar.csv");
    assert!(
        edgar.clients[0]
            .address
            .to_string()
            .starts_with("101.81.133.")
    );
    let (youtube, report) = excerpt("youtube.dat");
    // A fraction of five digits is a decimal fraction, too.
    assert_eq!(youtube.time_us[1], 1_189_828_807_710_850);
    assert_eq!(report.first_bad, Some((101, Reason::Cut)));
}

#[test]
fn what_is_not_meant_is_told_from_what_is_bad() {
    let (_, report) = excerpt("combined.log");
    assert_eq!(report.passed[&Passed::Blank], 1);
    let (_, report) = excerpt("zeek-conn.log");
    assert_eq!(
        (
            report.passed[&Passed::NotTcp],
            report.passed[&Passed::Comment]
        ),
        (8, 9)
    );
    let (_, report) = excerpt("calgary.log");
    assert_eq!(report.first_bad, Some((104, Reason::Status)));
}

#[test]
fn a_world_cup_row_without_status_is_a_row() {
    let rows = "5872,01/May/1998,05:33:04,/english/a\"/,-,0\n\
                5872,01/May/1998,05:33:05,/english/b,200,17\n";
    let source = open("wc.csv", Cursor::new(rows)).unwrap();
    let options = ReadOptions {
        format: Some(Format::WorldCupCsv),
        max_bad: 0.0,
        ..ReadOptions::default()
    };
    let (columns, _) = read_requests(source, options).unwrap();
    assert_eq!(columns.status, [0, 200]);
}

#[test]
fn past_the_share_that_is_let_pass_reading_stops_and_says_where() {
    let path = root().join("tests/traces/epa.log");
    let source = open("epa.log", File::open(path).unwrap()).unwrap();
    let error = read_requests(source, ReadOptions::default()).unwrap_err();
    assert_eq!(error.place, Place::Line(81));
    let said = error.to_string();
    for word in [
        "epa.log",
        "line 81",
        "size",
        "2 of the first 82",
        "1 %",
        "max_bad",
    ] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn packed_files_are_read_like_plain_ones() {
    let plain = std::fs::read(root().join("tests/traces/nasa.log")).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Two members, as logs that were joined packed have.
    gzip.write_all(&plain[..500]).unwrap();
    let mut packed = gzip.finish().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain[500..]).unwrap();
    packed.extend(gzip.finish().unwrap());
    let zstandard = zstd::encode_all(plain.as_slice(), 3).unwrap();
    let read = |bytes: Vec<u8>| {
        let source = open("log", Cursor::new(bytes))?;
        read_requests(source, ReadOptions::default())
    };
    let expected = read(plain).unwrap();
    assert_eq!(read(packed.clone()).unwrap(), expected);
    assert_eq!(read(zstandard.clone()).unwrap(), expected);
    for cut in [
        &packed[..packed.len() - 20],
        &zstandard[..zstandard.len() - 20],
    ] {
        let error = read(cut.to_vec()).unwrap_err();
        assert!(matches!(error.fault, Fault::Cut(_)), "{error}");
        assert!(error.to_string().contains("fetch it again"), "{error}");
    }
}

#[test]
fn captures_of_the_project_are_read() {
    for (name, both) in [
        ("http-2011.pcap", 149),
        ("http-1997-big-endian.pcap.gz", 57),
        ("tls-sites.pcapng.zst", 60),
        ("tls-ipv6-2020.pcap", 37),
        ("tls-midstream-2021.pcap", 35),
        ("tcp-snapped-raw-ip-2025.pcap", 160),
    ] {
        let read = |packets| {
            let file = File::open(root().join("tests/captures").join(name)).unwrap();
            let options = ReadOptions {
                packets,
                ..ReadOptions::default()
            };
            read_accesses(open(name, file).unwrap(), options).unwrap()
        };
        let (accesses, report) = read(Packets::Both);
        assert_eq!((report.rows, report.format), (both, Format::Pcap), "{name}");
        assert!(
            accesses.time_us.is_sorted() && accesses.time_us[0] == 0,
            "{name}"
        );
        let (accesses, report) = read(Packets::FromClients);
        assert_eq!(
            report.rows + report.passed[&Passed::FromServer],
            both,
            "{name}"
        );
        // Counted by hand: packets to port 80.
        assert!(name != "http-2011.pcap" || report.rows == 72, "{name}");
        assert!(
            accesses.keys.iter().all(|key| key.port >= 1_024),
            "{name}: {:?}",
            accesses.keys
        );
    }
}

/// The directory of complete logs; without it, `test` is reported as skipped.
fn shared(test: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("FAIRLEAD_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => root().join("../shared"),
    };
    let folder = folder.join("data");
    if folder.is_dir() {
        return Some(folder);
    }
    let why = "no whole logs are at hand; FAIRLEAD_SHARED=FOLDER says where they are";
    fairlead_netns::trial::skip(test, why);
    None
}

#[test]
fn whole_logs_have_the_rows_they_are_known_to_have() {
    let Some(folder) = shared("whole_logs_have_the_rows_they_are_known_to_have") else {
        return;
    };
    // Name, rows with those that cannot be read, those, distinct clients (0: not known), bytes.
    for (name, rows, bad, clients, bytes) in [
        ("epa-http.log.zst", 47_748, 21, 2_333, 311_863_990),
        ("sdsc-http.log.zst", 28_338, 0, 0, 0),
        ("nasa-1995-07-09.log.zst", 35_272, 0, 2_554, 754_180_424),
        ("calgary-1994-10-24_1995-01-31.log.zst", 125_888, 1, 2, 0),
        ("calgary-1995-06_07.log.zst", 108_661, 0, 2, 0),
        (
            "wc98-day6-sample200k.csv.zst",
            200_000,
            0,
            17_506,
            1_502_471_633,
        ),
        ("wc98-tools-test_log.bin.zst", 1_000, 0, 140, 0),
        (
            "airisdata-blog-2016.log.zst",
            206_860,
            0,
            8_799,
            5_795_670_463,
        ),
        // One line less than it has: that one is empty.
        (
            "almhuette-2015_2016.log.zst",
            335_397,
            0,
            21_348,
            66_600_142_498,
        ),
        (
            "almhuette-2020_2021.log.zst",
            372_231,
            0,
            9_309,
            278_894_109_776,
        ),
        ("paytm-elb-10k.log.zst", 10_000, 0, 2_534, 50_321_545),
        ("edgar-2017-06-30-10k.csv.zst", 9_999, 0, 326, 1_203_545_272),
        ("umass-youtube-2007-09-15.dat.zst", 37_500, 1, 0, 0),
        ("wrccdc-2018-zeek-ssl.log.zst", 49_474, 0, 115, 0),
        ("cloudPhysicsIO.vscsi.zst", 113_872, 0, 1, 0),
    ] {
        let (columns, report) = requests(&folder.join(name), 0.01);
        assert_eq!((report.seen(), report.bad_rows()), (rows, bad), "{name}");
        if clients > 0 {
            assert_eq!(columns.clients.len(), clients, "{name}");
        }
        if bytes > 0 {
            let known = columns
                .bytes
                .iter()
                .filter(|bytes| **bytes != BYTES_UNKNOWN);
            assert_eq!(known.sum::<u64>(), bytes, "{name}");
        }
    }
}

#[test]
fn whole_captures_have_the_packets_they_are_known_to_have() {
    let Some(folder) = shared("whole_captures_have_the_packets_they_are_known_to_have") else {
        return;
    };
    for (name, packets) in [
        ("http-browse-2011.pcap.zst", 4_767),
        ("http-mixed-2010.pcap.zst", 4_321),
        ("http-1997.dmp.zst", 1_270),
        ("http-range-206a.pcap.zst", 672),
        ("http-bro.org-2014.pcap.zst", 751),
        ("tls-alexa-app-2017.pcapng.zst", 3_325),
        ("tls-reddit-2020.pcap.zst", 1_942),
        ("tls-sites-sni.pcapng.zst", 693),
        ("tls-netflix-2017.pcap.zst", 1_748),
        ("tls-pinterest-2020.pcap.zst", 911),
        ("tls-teams-2020.pcap.zst", 1_317),
        ("tls-iphone-ecn-2020.pcap.zst", 403),
        ("tls-firefox-2020.pcap.zst", 667),
        ("tls-weibo-2016.pcap.zst", 454),
        ("tls-clienthello-2021.pcap.zst", 7_451),
        ("tcp-sack-nasa-sim-1996.dmp.zst", 15_710),
        ("tcp-dsack.dmp.zst", 15_710),
        ("tcp-hardware-dups.dmp.zst", 1_453),
        ("tcp-ecn-2025.pcap.zst", 5_856),
        ("tcpreplay-test.pcap.zst", 116),
    ] {
        let read = |packets| {
            let file = File::open(folder.join("captures").join(name)).unwrap();
            let options = ReadOptions {
                packets,
                ..ReadOptions::default()
            };
            let read = read_accesses(open(name, file).unwrap(), options);
            read.unwrap_or_else(|error| panic!("{error}")).1
        };
        let both = read(Packets::Both);
        assert_eq!((both.rows, both.bad_rows()), (packets, 0), "{name}");
        let clients = read(Packets::FromClients);
        let seen = clients.rows + clients.passed.get(&Passed::FromServer).unwrap_or(&0);
        assert_eq!((seen, clients.bad_rows()), (packets, 0), "{name}");
    }
}
