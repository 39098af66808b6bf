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
