//! Linux's own TCP and UDP, traced in a virtual machine. Without QEMU or a kernel these tests are
//! skipped, and say so. They boot kernels, so they are among the long ones.

mod machine;

use fairlead_lab::Silent;
use fairlead_lab::protocol::layers::{Patterns, layers};
use fairlead_lab::protocol::linux;
use fairlead_lab::protocol::packets::{Counter, KindCounts};
use fairlead_lab::protocol::tracer::trace_guest;
use fairlead_trace::references::{Reader, Writer};

use machine::kernel;

const PACKETS: u32 = 60;

/// A trace as a file has it, and its counts.
fn traced(stack: &str, kernel: &std::path::Path) -> (Vec<u8>, Vec<KindCounts>) {
    let spec = linux::spec(stack, &[1, 512], PACKETS, kernel).unwrap();
    let mut writer = Writer::new(Vec::new()).unwrap();
    let outcome = trace_guest(&spec, &Silent, &mut |events| {
        events.iter().for_each(|event| writer.push(*event).unwrap());
        Ok(())
    })
    .unwrap();
    assert_eq!(outcome.trouble, None);
    let bytes = writer.finish(outcome.header).unwrap();
    let mut reader = Reader::new("x.refs", std::io::Cursor::new(&bytes)).unwrap();
    let mut counter = Counter::of(reader.header());
    let mut events = Vec::new();
    while reader.next_chunk(&mut events).unwrap() {
        counter.add(&events).unwrap();
    }
    let kinds = counter.finish(reader.header());
    (bytes, kinds)
}

#[test]
fn two_boots_are_equal_and_have_layers() {
    let Some(kernel) = kernel("two_boots_are_equal_and_have_layers") else {
        return;
    };
    let (first, kinds) = traced("linux-tcp", &kernel);
    // The machine's clock must not be this one's.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (second, _) = traced("linux-tcp", &kernel);
    assert!(first == second, "two boots differ");
    let names: Vec<_> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["TCP send", "TCP receive"]);
    for kind in &kinds {
        assert_eq!(kind.packets, 2 * u64::from(PACKETS), "of two sizes");
        // Thousands of instructions of a kernel, not the dozens of a marked gap.
        assert!(
            (2_000..50_000).contains(&kind.instructions.median),
            "{kind:?}"
        );
        assert!(kind.interrupted < kind.packets / 2, "{kind:?}");
    }
    let mut reader = Reader::new("x.refs", std::io::Cursor::new(&first)).unwrap();
    let report = layers(&mut reader, &Patterns::known().unwrap(), &Silent).unwrap();
    let share = |layer: &str| {
        let is_it = |row: &&fairlead_lab::protocol::layers::LayerRow| {
            row.kind == "TCP send" && row.layer == layer
        };
        report.rows.iter().find(is_it).map_or(0.0, |row| row.share)
    };
    assert!(
        share("tcp") > 0.2 && share("ip") > 0.05,
        "{:?}",
        report.rows
    );
    assert!(
        share("unknown") < 0.01 && share("other") < 0.2,
        "{:?}",
        report.rows
    );
}

#[test]
fn a_kernel_that_is_none_is_refused() {
    let own = std::env::current_exe().unwrap();
    let spec = linux::spec("linux-udp", &[1], 1, &own).unwrap();
    let error = trace_guest(&spec, &Silent, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("no Linux kernel"), "{error}");
}
