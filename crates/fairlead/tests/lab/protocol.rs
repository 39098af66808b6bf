//! `fairlead lab protocol` on a trace made by hand.

use fairlead_trace::references::{Event, Header, Writer};

use crate::support::{Folder, lab};
use crate::{json, refused, text};

/// One packet that reads these lines of 64 bytes.
fn trace(folder: &Folder, lines: &[u64]) -> String {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.push(Event::Begin { kind: 0 }).unwrap();
    for line in lines {
        let instruction = Event::Instruction {
            address: 0x40_0000,
            length: 4,
            branch: false,
            repeat: false,
        };
        writer.push(instruction).unwrap();
        let address = 0x7000_0000 + line * 64;
        writer.push(Event::Read { address, size: 8 }).unwrap();
    }
    writer.push(Event::End { kind: 0 }).unwrap();
    let header = Header {
        kinds: vec!["ACK".to_owned()],
        ..Header::default()
    };
    folder.write("T.refs", writer.finish(header).unwrap())
}

#[test]
fn a_sweep_has_the_policy_that_was_named() {
    let folder = Folder::new("policy");
    let path = trace(&folder, &[0, 1, 0, 2, 0, 1]);
    let usual = [
        "protocol", "sweep", &path, "--size", "128", "--ways", "2", "--line", "64",
    ];
    let misses = |policy: &[&str]| {
        let report = json(&[&usual[..], policy, &["--json"]].concat());
        let rows = report["misses"].as_array().unwrap();
        let is_it = |row: &&serde_json::Value| row["part"] == "data" && row["state"] == "cold";
        let row = rows.iter().find(is_it).unwrap();
        assert_eq!(row["references"], 6);
        let name = report["asked"]["policy"].as_str().unwrap().to_owned();
        (name, row["misses"].as_u64().unwrap())
    };
    // Line 2 takes the place of 1, then 1 that of 2.
    assert_eq!(misses(&[]), ("lru".to_owned(), 4));
    assert_eq!(misses(&["--policy", "lru"]), ("lru".to_owned(), 4));
    // A tree of two ways is LRU.
    assert_eq!(misses(&["--policy", "plru"]), ("plru".to_owned(), 4));
    // Line 2 takes the place of 0, though it was just read.
    assert_eq!(misses(&["--policy", "fifo"]), ("fifo".to_owned(), 5));
    let said = lab(&[&usual[..], &["--policy", "fifo"]].concat());
    let said = text(&said.stdout);
    assert!(
        said.contains("Smallest cache (fifo)") && said.contains("machines have LRU"),
        "{said}"
    );
    let names = "lru, fifo, plru, random, clock, drrip";
    let unknown = [&usual[..], &["--policy", "tide"]].concat();
    refused(&unknown, 2, &["--policy tide", names]);
    let odd = [
        "protocol", "sweep", &path, "--size", "48K", "--ways", "12", "--line", "64",
    ];
    assert!(lab(&odd).status.success());
    refused(
        &[&odd[..], &["--policy", "plru"]].concat(),
        2,
        &["--ways 12", "powers of two"],
    );
    let large = [
        "protocol", "sweep", &path, "--policy", "plru", "--size", "4G", "--line", "64",
    ];
    refused(&large, 2, &["--size", "16777216", "smaller"]);
    let help = text(&lab(&["protocol", "sweep", "--help"]).stdout);
    assert!(help.contains("pseudo-LRU"), "{help}");
}
