//! Lines of text: which of their fields is what, and what is no number, address or time.

use std::io::Cursor;

use fairlead_trace::{
    Column, ColumnMap, Format, ReadOptions, Reason, TraceError, open, read_requests,
};

fn read_table(columns: &str, table: &[u8]) -> Result<fairlead_trace::Requests, TraceError> {
    let source = open("x", Cursor::new(table.to_vec())).unwrap();
    let format = Some(columns.parse().unwrap());
    let options = ReadOptions {
        format,
        ..ReadOptions::default()
    };
    read_requests(source, options).map(|(requests, _)| requests)
}

#[test]
fn tables_are_read_by_number_and_by_name() {
    let table = b"when\twho\tsize\n2015-07-22T09:00:28Z\thost\t5\n2015-07-22 09:00:29\t::1\t-\n";
    let format: Format = "csv:time=when,client=who,bytes=3,unit=iso,separator=tab"
        .parse()
        .unwrap();
    assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
    let options = |format| ReadOptions {
        format: Some(format),
        max_bad: 1.0,
        ..ReadOptions::default()
    };
    let source = open("x", Cursor::new(table.to_vec())).unwrap();
    let (columns, _) = read_requests(source, options(format)).unwrap();
    assert_eq!(
        columns.time_us,
        [1_437_555_628_000_000, 1_437_555_629_000_000]
    );
    assert_eq!(columns.bytes, [5, u64::MAX]);
    assert!(columns.clients[0].named && !columns.clients[1].named);
    let mut map = ColumnMap::new(Column::Number(2));
    map.client = Some(Column::Number(1));
    map.object = Some(Column::Number(3));
    let table = b"1.2.3.4,-1.5,\"a \"\"quoted\"\", one\"\n1.2.3.4,2,\"open\n";
    let source = open("x", Cursor::new(table.to_vec())).unwrap();
    let (columns, report) = read_requests(source, options(Format::Csv(map))).unwrap();
    assert_eq!(columns.time_us, [-1_500_000]);
    assert_eq!(
        columns.object,
        [fairlead_trace::hash64(b"a \"quoted\", one")]
    );
    assert_eq!(report.first_bad, Some((2, Reason::Quote)));
    for wrong in [
        "csv:client=1",
        "csv:time=0",
        "csv:time=1,unit=h",
        "csv:time",
        "csv:time=1,time=2",
        "csv:time=1,client=2,client=3",
        "xml",
    ] {
        assert!(wrong.parse::<Format>().is_err(), "{wrong}");
    }
}

#[test]
fn a_client_is_known_behind_its_virtual_host_and_before_its_proxies() {
    let rest = "[10/Oct/2023:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5\n";
    for (before, client) in [
        ("10.0.0.1 - -", "::ffff:10.0.0.1"),
        ("www.example.com:443 10.0.0.1 - -", "::ffff:10.0.0.1"),
        ("www.example.com 2001:db8::1 - Some Body", "2001:db8::1"),
        ("10.0.0.1 10.9.9.9 - -", "::ffff:10.0.0.1"),
        ("10.0.0.1, 10.9.9.9 - -", "::ffff:10.0.0.1"),
        ("10.0.0.1, 10.8.8.8, 10.9.9.9 - -", "::ffff:10.0.0.1"),
        ("10.0.0.1,10.9.9.9 - -", "::ffff:10.0.0.1"),
        (
            "www.example.com:80 10.0.0.1, 10.9.9.9 - -",
            "::ffff:10.0.0.1",
        ),
        ("www.example.com 10.0.0.1,10.9.9.9 - -", "::ffff:10.0.0.1"),
        (
            "Oct 10 13:55:36 web1 nginx: 10.0.0.1 - -",
            "::ffff:10.0.0.1",
        ),
        (
            "Oct 10 13:55:36 10.7.7.7 httpd[12]: www.example.com:80 10.0.0.1, 10.9.9.9 - Some Body",
            "::ffff:10.0.0.1",
        ),
        ("10.0.0.1 - a[b]c", "::ffff:10.0.0.1"),
        ("10.0.0.1:50481 - -", "::ffff:10.0.0.1"),
        (
            "www.example.com 10.0.0.1:50481, 10.9.9.9:80 - -",
            "::ffff:10.0.0.1",
        ),
        ("[2001:db8::1] - -", "2001:db8::1"),
        ("[2001:db8::1]:50481 - -", "2001:db8::1"),
    ] {
        let log = format!("{before} {rest}").repeat(3);
        let source = open("x", Cursor::new(log.into_bytes())).unwrap();
        let (requests, _) = read_requests(source, ReadOptions::default()).unwrap();
        assert_eq!(requests.clients.len(), 1, "{before}");
        let octets = client.parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(requests.clients[0].address.0, octets, "{before}");
        assert!(!requests.clients[0].named, "{before}");
    }
}

/// The requests of a log in the Common Log Format.
fn read_log(text: &str) -> (fairlead_trace::Requests, fairlead_trace::Report) {
    let source = open("x.log", Cursor::new(text.as_bytes().to_vec())).unwrap();
    let options = ReadOptions {
        format: Some(Format::Clf),
        ..ReadOptions::default()
    };
    read_requests(source, options).unwrap()
}

const REST: &str = "[26/Nov/2026:10:00:00 +0000] \"GET /a HTTP/1.1\" 200 5\n";

#[test]
fn a_client_stands_behind_a_header_of_syslog() {
    for header in [
        "<190>1 2026-11-26T10:00:00.000Z web1 nginx 812 - - ",
        "<190>1 2026-11-26T10:00:00.000Z web1 nginx 812 ACCESS - ",
        "<190>1 2026-11-26T10:00:00.000Z web1 - - - - ",
        "<190>1 2026-11-26T10:00:00.000Z 10.9.9.9 - - - [origin software=\"x\"] ",
        // Without a priority, as some write files.
        "1 2026-11-26T10:00:00.000Z web1 nginx 812 - - ",
        "<190>Nov 26 10:00:00 web1 nginx: ",
        "2026-11-26T10:00:00.000Z web1 nginx[812]: ",
    ] {
        for (client, named) in [("10.0.0.1", false), ("host.example", true)] {
            let (requests, _) =
                read_log(&format!("{header}{client} - - {REST}{client} - - {REST}"));
            assert_eq!(requests.clients.len(), 1, "{header}{client}");
            assert_eq!(requests.clients[0].named, named, "{header}");
        }
    }
}

#[test]
fn the_time_is_the_last_one_before_the_request() {
    let stamp = |text: &str| text.replace(":00 +", ":07 +");
    for before in [
        "10.0.0.1 - [admin] ",
        "10.0.0.1 - [ad min] ",
        "10.0.0.1 - [x [y] ",
        "10.0.0.1 - [26/Nov/2020:10:00:00 +0000] ",
    ] {
        let (requests, _) = read_log(&format!("{before}{}", stamp(REST)));
        assert_eq!(requests.time_us, [1_795_687_207_000_000], "{before}");
        assert_eq!((requests.bytes, requests.status), (vec![5], vec![200]));
    }
    // Requests cannot change it.
    let (requests, _) = read_log(
        "10.0.0.1 - - [26/Nov/2026:10:00:07 +0000] \
         \"GET /a [26/Nov/2020:10:00:00 +0000] \" 404 9\n",
    );
    assert_eq!(requests.time_us, [1_795_687_207_000_000]);
}

#[test]
fn words_may_stand_between_time_and_request() {
    for words in ["0.123 ", "0/1200 D:0 ", "[x] "] {
        let (requests, _) = read_log(&format!(
            "10.0.0.1 - - {}",
            REST.replacen("\"GET", &format!("{words}\"GET"), 1)
        ));
        assert_eq!((requests.bytes[0], requests.status[0]), (5, 200), "{words}");
    }
    // In logs of S3 the first word is the owner of the bucket.
    let log =
        "owner bucket [26/Nov/2026:10:00:00 +0000] 192.0.2.1 - REQ GET key \"GET /k\" 200 - 1\n";
    let source = open("x.log", Cursor::new(log.as_bytes().to_vec())).unwrap();
    assert!(source.detect().is_err());
}

#[test]
fn a_port_after_the_client_is_read() {
    let log = format!(
        "10.0.0.1:40001 - - {REST}[2001:db8::1]:40002 - - {REST}host.example:7 - - {REST}\
         10.0.0.1 - - {REST}2001:db8::7 - - {REST}host.example - - {REST}10.0.0.1:99999 - - {REST}"
    );
    let (requests, _) = read_log(&log);
    assert_eq!(requests.port, [40_001, 40_002, 7, 0, 0, 0, 0]);
    assert_eq!(requests.client[..6], [0, 1, 2, 0, 3, 2]);
    let accesses = |log: &str| {
        let source = open("x.log", Cursor::new(log.as_bytes().to_vec())).unwrap();
        let options = ReadOptions {
            format: Some(Format::Clf),
            ..ReadOptions::default()
        };
        fairlead_trace::read_accesses(source, options)
    };
    let (accesses_of_ports, _) = accesses(&log).unwrap();
    assert_eq!(accesses_of_ports.keys[0].port, 40_001);
    let said = accesses(&format!("10.0.0.1 - - {REST}")).unwrap_err();
    assert!(said.to_string().contains("no client ports"), "{said}");
    let table = read_table("csv:time=1,client=2", b"1,10.0.0.1:40001\n").unwrap();
    assert_eq!(table.port, [40_001]);
}

#[test]
fn an_escaped_mark_does_not_end_a_request() {
    let stamp = "10.0.0.1 - - [26/Nov/2026:10:00:00 +0000]";
    for request in [
        r#""GET /a?q=\" 404 9 \"x HTTP/1.1""#,
        r#""GET /a?q=\\\" 404 9 x""#,
        r#""GET /a\\""#,
        // Nothing but an escaped mark is there.
        r#""GET /a\""#,
        r#""GET /a" b""#,
    ] {
        let (requests, _) = read_log(&format!("{stamp} {request} 200 5 \"-\" \"agent\"\n"));
        assert_eq!(
            (requests.status[0], requests.bytes[0]),
            (200, 5),
            "{request}"
        );
    }
}

#[test]
fn requests_without_a_client_are_left_out() {
    let log = format!("- - - {REST}10.0.0.1 - - {REST}unix: - - {REST}-host - - {REST}");
    let (requests, report) = read_log(&log);
    assert_eq!((requests.len(), requests.clients.len()), (2, 2));
    assert_eq!(report.passed[&fairlead_trace::Passed::NoClient], 2);
    let read = |log: &str, keep_unknown_clients| {
        let source = open("x.log", Cursor::new(log.as_bytes().to_vec())).unwrap();
        let options = ReadOptions {
            format: Some(Format::Clf),
            keep_unknown_clients,
            ..ReadOptions::default()
        };
        read_requests(source, options)
    };
    assert_eq!(read(&log, true).unwrap().0.len(), 4);
    let none = format!("- - - {REST}");
    assert_eq!(read(&none, true).unwrap().0.len(), 1);
    let said = read(&none, false).unwrap_err().to_string();
    assert!(said.contains("no request has a client"), "{said}");
}

#[test]
fn times_of_the_far_future_need_their_unit() {
    for (unit, time) in [
        ("ms", "1795687200123"),
        ("us", "1795687200123000"),
        ("ns", "1795687200123000000"),
        ("ns", "18446744073709551615"),
    ] {
        let table = format!("{time},10.0.0.1\n");
        let said = read_table("csv:time=1,client=2", table.as_bytes()).unwrap_err();
        let wanted = format!("add unit={unit} if it counts {unit}");
        assert!(said.to_string().contains(&wanted), "{time}: {said}");
        let seconds = read_table("csv:time=1,client=2,unit=s", table.as_bytes());
        assert_eq!(seconds.is_ok(), unit == "ms", "{time}");
    }
    let now = read_table("csv:time=1,client=2", b"1795687200.123,10.0.0.1\n").unwrap();
    assert_eq!(now.time_us, [1_795_687_200_123_000]);
}

#[test]
fn a_client_with_a_name_is_no_virtual_host_and_the_other_way_round() {
    let rest = "[10/Oct/2023:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5\n";
    for (before, others) in [
        ("a.example.net - -", "a.example.net - Some Body"),
        ("a.example.net - -", "www.example.com:80 a.example.net - -"),
        (
            "a.example.net - -",
            "www.example.com a.example.net - Some Body",
        ),
        (
            "a.example.net - -",
            "www.example.com:80 a.example.net, proxy - -",
        ),
        ("a.example.net - -", "a.example.net, proxy - -"),
        ("a.example.net - -", "a.example.net identity user"),
        ("a.example.net - -", "a.example.net identity - "),
        ("a.example.net - -", "a.example.net  -  - "),
        (
            "a.example.net - -",
            "Oct 10 13:55:36 web1 httpd: a.example.net - -",
        ),
        ("10.0.0.1 - -", "10.0.0.1 identity - -"),
    ] {
        let log = format!("{before} {rest}{others} {rest}").repeat(2);
        let source = open("x", Cursor::new(log.into_bytes())).unwrap();
        let (requests, _) = read_requests(source, ReadOptions::default()).unwrap();
        assert_eq!(requests.clients.len(), 1, "{others}");
    }
}

#[test]
fn numbers_that_are_none_are_not_taken_for_numbers() {
    let ends = |unit: &str, time: &str| {
        let table = format!("{time},1.2.3.4\n");
        read_table(
            &format!("csv:time=1,client=2,unit={unit}"),
            table.as_bytes(),
        )
        .map(|columns| columns.time_us[0])
    };
    assert_eq!(ends("us", "2.9").unwrap(), 2);
    assert_eq!(ends("ns", "2999.5").unwrap(), 2);
    assert_eq!(
        ends("s", "2305843009213.6").unwrap(),
        2_305_843_009_213_600_000
    );
    assert_eq!(
        ends("iso", "2016-02-29T00:00:00Z").unwrap(),
        1_456_704_000_000_000
    );
    for (unit, time) in [
        ("us", "2.x"),
        ("ns", "2.x"),
        // Beyond 2⁶¹ µs, and more than 64 bits hold, by the fraction.
        ("s", "2305843009213.7"),
        ("s", "9223372036854.9"),
        ("ms", "9223372036854775.9"),
        ("iso", "-2016-02-29T00:00:00Z"),
        ("iso", "2015-02-29T00:00:00Z"),
    ] {
        let said = ends(unit, time).unwrap_err().to_string();
        assert!(
            said.contains("no time that can be read"),
            "{unit} {time}: {said}"
        );
    }
}

#[test]
fn columns_that_the_header_lacks_or_has_twice_are_told() {
    let table = b"ts,src,src\n1,1.2.3.4,5.6.7.8\n";
    for columns in ["csv:time=ts,client=source", "csv:time=ts,client=src"] {
        let said = read_table(columns, table).unwrap_err().to_string();
        assert!(
            said.contains("line 1: of the columns that were named"),
            "{said}"
        );
    }
    assert_eq!(read_table("csv:time=ts,client=3", table).unwrap().len(), 1);
}

#[test]
fn a_table_of_accesses_has_addresses() {
    let table = "time_us,ip,port\n1,::ffff:1.2.3.4,5\n2,1.2.3.4,5\n3,2001:db8::1,5\n";
    assert_eq!(
        read_table("accesses", table.as_bytes())
            .unwrap()
            .clients
            .len(),
        2
    );
    for wrong in [
        "300.1.2.3",
        "1.2.3",
        "host.example.org",
        "1.2.3.4.5",
        "1.2.3.4:80",
        "",
    ] {
        let table = format!("time_us,ip,port\n1,{wrong},5\n");
        let said = read_table("accesses", table.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            said.contains("no client that can be read"),
            "{wrong}: {said}"
        );
    }
}

#[test]
fn a_table_of_accesses_without_a_header_keeps_its_first_row() {
    let times = |table: &str| {
        let read = read_table("accesses", table.as_bytes());
        read.map(|columns| columns.time_us)
    };
    let rows = "1,1.2.3.4,5\n2,1.2.3.4,5\n";
    assert_eq!(times(rows).unwrap(), [1, 2]);
    for header in ["time_us,ip,port", "\"time_us\",\"ip\",\"port\""] {
        assert_eq!(times(&format!("{header}\n{rows}")).unwrap(), [1, 2]);
    }
    // Another's table is not taken for one with these columns.
    let said = times(&format!("ts,src,sport\n{rows}")).unwrap_err();
    assert!(said.to_string().contains("line 1: no time"), "{said}");
    let quoted = format!("\"time_us\",\"ip\",\"port\"\n{rows}");
    let source = open("x", Cursor::new(quoted.into_bytes())).unwrap();
    assert_eq!(source.detect().unwrap(), Format::AccessCsv);
}

#[test]
fn blanks_may_stand_around_quotation_marks() {
    let read = |format: &str, row: &[u8]| read_table(format, row).unwrap().clients[0].named;
    let named = read("csv:time=1,client=2", b"3, \"10.0.0.3\" ,82\n");
    assert!(!named, "an address, not a name with marks");
    assert!(!read(
        "csv:time=1,client=3,separator=blank",
        b"3  \"10.0.0.3\" 82\n"
    ));
}

#[test]
fn lines_may_end_in_a_carriage_return_alone() {
    let row = "h{} - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n";
    let log: String = (0..3_000)
        .map(|at| row.replace("{}", &at.to_string()))
        .collect();
    let table = "time_us,ip,port\n1,10.0.0.1,7\n2,10.0.0.2,7\n".to_owned();
    for text in [log, table] {
        let read = |text: String, format: Option<Format>| {
            let options = ReadOptions {
                format,
                ..ReadOptions::default()
            };
            let source = open("x", Cursor::new(text.into_bytes())).unwrap();
            read_requests(source, options).unwrap()
        };
        let (wanted, report) = read(text.clone(), None);
        assert!(report.rows > 1);
        let returned = text.replace('\n', "\r");
        assert_eq!(read(returned.clone(), None).0, wanted);
        assert_eq!(read(returned, Some(report.format)).0, wanted);
    }
}

#[test]
fn a_mark_of_byte_order_is_no_part_of_the_first_row() {
    let mark = b"\xef\xbb\xbf".as_slice();
    let rows = b"time_us,ip,port\n1,1.2.3.4,5\n".as_slice();
    let source = open("x", Cursor::new([mark, rows].concat())).unwrap();
    assert_eq!(source.detect().unwrap(), Format::AccessCsv);
    let line = b"1.2.3.4 - - [09/Jul/1995:00:00:00 -0400] \"GET / HTTP/1.0\" 200 1\n".as_slice();
    let source = open("x", Cursor::new([mark, line].concat())).unwrap();
    let (requests, _) = read_requests(source, ReadOptions::default()).unwrap();
    assert!(!requests.clients[0].named);
}
