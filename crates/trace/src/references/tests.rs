use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn header() -> Header {
    Header {
        isa: "x86_64".to_owned(),
        cpu: "Haswell".to_owned(),
        emulator: "qemu-x86_64 7.2".to_owned(),
        command: vec!["a program".to_owned(), "1".to_owned()],
        kinds: vec![String::new(), "spliced ACK".to_owned()],
        objects: vec![Object {
            path: "/bin/true".to_owned(),
            start: 0x40_0000,
            size: 0x1000,
            base: 0,
            build_id: "ab12".to_owned(),
        }],
        ..Header::default()
    }
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for event in events {
        writer.push(*event).unwrap();
    }
    writer.finish(header()).unwrap()
}

/// All events, or what is wrong.
fn read(file: &[u8]) -> Result<(Header, Vec<Event>), String> {
    let say = |error: crate::TraceError| error.to_string();
    let mut reader = Reader::new("x.refs", Cursor::new(file)).map_err(say)?;
    let (mut all, mut chunk) = (Vec::new(), Vec::new());
    while reader.next_chunk(&mut chunk).map_err(say)? {
        all.append(&mut chunk);
    }
    Ok((reader.header().clone(), all))
}

fn address() -> impl Strategy<Value = u64> {
    // Both halves of the address space.
    prop_oneof![0..1u64 << 55, (0..1u64 << 55).prop_map(|address| !address)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (address(), 1..16u8, any::<bool>(), any::<bool>()).prop_map(
            |(address, length, branch, repeat)| Event::Instruction {
                address, length, branch, repeat
            }
        ),
        2 => (address(), 1..65u8).prop_map(|(address, size)| Event::Read { address, size }),
        2 => (address(), 1..65u8).prop_map(|(address, size)| Event::Write { address, size }),
    ]
}

/// Events in an order that can be: marks come in pairs.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let packet = (any::<u8>(), prop::collection::vec(event(), 0..20));
    prop::collection::vec(packet, 0..12).prop_map(|packets| {
        let mut all = Vec::new();
        for (kind, events) in packets {
            all.push(Event::Begin { kind });
            all.extend(events);
            all.push(Event::End { kind });
        }
        all
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(events in events()) {
        let (header, again) = read(&written(&events)).unwrap();
        prop_assert_eq!(&again, &events);
        prop_assert_eq!(header.totals.records, events.len() as u64);
        prop_assert_eq!(header.kind_name(1), "spliced ACK");
    }

    #[test]
    fn every_word_is_an_event_or_refused(word: u64) {
        if let Some(event) = Event::from_word(word) {
            prop_assert_eq!(event.to_word(), word);
        }
    }
}

fn some_events() -> Vec<Event> {
    let mut events = Vec::new();
    for packet in 0..40 {
        events.push(Event::Begin { kind: 1 });
        for step in 0..60 {
            let address = 0x40_0000 + step * 4;
            events.push(Event::Instruction {
                address,
                length: 4,
                branch: step % 7 == 0,
                repeat: false,
            });
            let size = 8;
            events.push(Event::Read {
                address: 0x7f00_0000_0000 + packet * step * 97,
                size,
            });
        }
        events.push(Event::End { kind: 1 });
    }
    events
}

#[test]
fn long_traces_have_many_sections_and_can_be_read_again() {
    let one = some_events();
    let events: Vec<Event> = one.iter().copied().cycle().take(one.len() * 30).collect();
    assert!(events.len() > 2 * SECTION_RECORDS);
    let file = written(&events);
    assert!(file.len() < events.len() * 2, "{} bytes", file.len());
    let mut reader = Reader::new("x.refs", Cursor::new(&file[..])).unwrap();
    for _ in 0..2 {
        let (mut seen, mut chunk) = (Vec::new(), Vec::new());
        while reader.next_chunk(&mut chunk).unwrap() {
            assert!(chunk.len() <= SECTION_RECORDS);
            seen.extend_from_slice(&chunk);
        }
        assert!(seen == events, "read otherwise than written");
        assert!(!reader.next_chunk(&mut chunk).unwrap() && chunk.is_empty());
        reader.rewind().unwrap();
    }
    let totals = reader.header().totals;
    assert_eq!(totals.packets, 40 * 30);
    assert_eq!(totals.instructions, 40 * 30 * 60);
    assert_eq!(totals.accesses, 40 * 30 * 60);
    assert!(reader.header().object_at(0x40_0fff).is_some());
    assert!(reader.header().object_at(0x40_1000).is_none());
}

#[test]
fn a_file_cut_anywhere_says_where() {
    let file = written(&some_events());
    for len in 0..file.len() {
        let said = read(&file[..len]).expect_err("a whole trace");
        let expected = if len < MAGIC.len() {
            "no trace of references"
        } else {
            "ends in the middle of"
        };
        assert!(said.contains(expected), "{len}: {said}");
        assert!(said.starts_with("x.refs: byte "), "{len}: {said}");
    }
}

#[test]
fn every_changed_byte_is_noticed() {
    let events = some_events();
    let file = written(&events);
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 0x21;
        let said = read(&changed).expect_err("a changed trace");
        assert!(said.starts_with("x.refs: byte "), "{at}: {said}");
    }
}

#[test]
fn foreign_files_and_later_versions_are_named() {
    for foreign in [
        &b""[..],
        b"GET / HTTP/1.1\r\n",
        b"\x28\xb5\x2f\xfd and more",
    ] {
        let said = read(foreign).unwrap_err();
        assert!(said.contains("no trace of references"), "{said}");
    }
    let mut later = written(&[]);
    later[7] = 2;
    assert!(read(&later).unwrap_err().contains("version 2"));
    assert_eq!(read(&written(&[])).unwrap().1, []);
}

#[test]
fn marks_out_of_order_are_refused() {
    let (begin, end) = (Event::Begin { kind: 1 }, Event::End { kind: 1 });
    let other = Event::End { kind: 2 };
    for wrong in [vec![end], vec![begin, begin], vec![begin, other]] {
        let said = read(&written(&wrong)).unwrap_err();
        assert!(said.contains("is impossible"), "{said}");
    }
    // A program that was killed leaves a packet open.
    assert_eq!(read(&written(&[begin])).unwrap().1, [begin]);
}
