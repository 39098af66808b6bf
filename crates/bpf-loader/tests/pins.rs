//! What a run leaves pinned, and what the next one makes of it.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use fairlead_base::{Address, Endpoint, SeqNumber};
use fairlead_bpf_loader::{
    FlowTableKind, Kernel, LoadError, Mode, Pins, PinsError, TcbGeometry, is_at_work_elsewhere,
    remove_filters, retire, survey,
};
use fairlead_netns::trial::{name_of, skip};
use fairlead_tcp::adoption::JOINING;
use fairlead_tcp::join::Terms;
use fairlead_tcp::{ConnectOffload, Endpoints, FlowOffload, Join, Line, Misfit, Record, State};

/// Runs `test` on a thread with networks and mounts of its own, and a BPF file system among them;
/// or skips it aloud.
fn apart<F: FnOnce() + Send + 'static>(test: F) {
    let thread = std::thread::spawn(move || {
        // SAFETY: system calls on numbers and on strings that end in zero.
        let apart = unsafe {
            let nothing = std::ptr::null::<libc::c_char>();
            libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    nothing,
                    libc::MS_REC | libc::MS_PRIVATE,
                    nothing.cast(),
                ) == 0
                && libc::mount(
                    c"bpf".as_ptr(),
                    c"/sys/fs/bpf".as_ptr(),
                    c"bpf".as_ptr(),
                    0,
                    nothing.cast(),
                ) == 0
        };
        apart.then(test).is_some()
    });
    match thread.join() {
        Ok(true) => {}
        Ok(false) => skip(name_of::<F>(), "a BPF file system of its own needs root"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn endpoints() -> Endpoints {
    let at = |last, port| Endpoint {
        addr: Address::v4([10, 0, 0, last]),
        port,
    };
    Endpoints {
        listens: vec![at(1, 80)],
        servers: vec![at(2, 81)],
        nats: vec![Address::v4([100, 64, 0, 1])],
    }
}

fn record(port: u16) -> Record {
    Record {
        client_addr: Address::v4([10, 9, 9, 9]),
        client_port: port,
        nat_port: port,
        state: State::Spliced,
        ..Record::default()
    }
}

const RECORDS: u32 = 64;
const HASH: FlowTableKind = FlowTableKind::Hash;

/// A run that gives three connections, keeps a fourth, and ends without a word.
fn run_and_crash(pins: &Arc<Pins>) {
    let endpoints = endpoints();
    let pins = Some(Arc::clone(pins));
    let (mut kernel, mut table) =
        Kernel::load_pinned(Mode::Tc, HASH, RECORDS, &endpoints, (3, 4), 5, pins).unwrap();
    kernel.attach("lo").unwrap();
    for line in [1, 4, 9] {
        let record = record(1_000 + line as u16);
        let keys = (record.client_key(&endpoints), record.server_key(&endpoints));
        assert!(table.offload(Line(line), &record, &keys.0, &keys.1));
    }
    let closing = Record {
        state: State::FinRelayed1,
        ..record(2_000)
    };
    table.persist(Line(6), &closing);
}

fn edit<const N: usize>(pins: &Pins, map: &str, index: u32, change: impl FnOnce(&mut [u8; N])) {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Raw<const N: usize>([u8; N]);
    // SAFETY: plain bytes.
    unsafe impl<const N: usize> aya::Pod for Raw<N> {}
    let map = MapData::from_pin(pins.folder().join(map)).unwrap();
    let mut map: Array<MapData, Raw<N>> = Map::from_map_data(map).unwrap().try_into().unwrap();
    let mut value = map.get(&index, 0).unwrap();
    change(&mut value.0);
    map.set(index, value, 0).unwrap();
}

#[test]
fn a_folder_that_was_made_for_nothing_goes_again() {
    apart(|| {
        let all = Path::new("/sys/fs/bpf/fairlead");
        let pins = Pins::open("empty").unwrap();
        pins.remove_if_empty();
        assert!(!all.exists());
        let pins = Pins::open("empty").unwrap();
        std::fs::create_dir(pins.folder().join("something")).unwrap();
        pins.remove_if_empty();
        assert!(pins.folder().exists());
    });
}

#[test]
fn a_later_run_finds_what_is_whole_and_drops_what_is_not() {
    apart(|| {
        let pins = Arc::new(Pins::open("one.of-two").unwrap());
        assert!(survey(&pins, 64, &HASH).unwrap().is_none());
        run_and_crash(&pins);
        edit::<64>(&pins, "fl_records", 4, |line| line[20] = 9);
        edit::<64>(&pins, "fl_records", 12, |line| line.fill(0x55));
        let remains = survey(&pins, 64, &HASH).unwrap().expect("it was in use");
        let found: Vec<(u32, bool, State)> = remains
            .records
            .iter()
            .map(|(line, kept)| (line.0, kept.given, kept.record.state))
            .collect();
        let spliced = State::Spliced;
        assert_eq!(
            found,
            [
                (1, true, spliced),
                (6, false, State::FinRelayed1),
                (9, true, spliced)
            ]
        );
        assert_eq!(remains.misfits[&Misfit::Index], 1);
        assert_eq!(remains.misfits[&Misfit::State], 1);
        assert_eq!((remains.cookie, remains.origin_ns), ((3, 4), 5));
        assert_eq!(remains.endpoints.listens, endpoints().listens);
        assert_eq!(remains.endpoints.servers, endpoints().servers);
        assert_eq!(remains.endpoints.nats, endpoints().nats);
    });
}

/// Between the first look and the moment in which the engine takes over for good, seconds may pass:
/// what ends in them is over.
#[test]
fn what_ends_after_the_next_run_has_looked_does_not_come_back() {
    apart(|| {
        let pins = Arc::new(Pins::open("retired").unwrap());
        run_and_crash(&pins);
        let remains = survey(&pins, RECORDS, &HASH).unwrap().unwrap();
        assert_eq!(remains.records.len(), 4);
        edit::<64>(&pins, "fl_records", 1, |line| line[60] = State::Free as u8);
        edit::<64>(&pins, "fl_records", 4, |line| {
            line[60] = State::TimeWait as u8
        });
        let lines = retire(&pins, &remains.endpoints).unwrap();
        let found = lines.iter().map(|(line, kept)| (line.0, kept.record.state));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                (4, State::TimeWait),
                (6, State::FinRelayed1),
                (9, State::Spliced)
            ]
        );
        // The program is at no interface any more.
        assert_eq!(pins.interfaces(), []);
        pins.clear().unwrap();
    });
}

/// Leaves it to the program to join the connection on this line.
fn arm(table: &mut impl ConnectOffload, line: u32, record: &Record) {
    let endpoints = endpoints();
    let keys = (record.client_key(&endpoints), record.server_key(&endpoints));
    let join = Join {
        terms: Terms {
            dseq: SeqNumber(1),
            asked_scale: None,
            offered_scale: None,
            our_ts: 0,
        },
        client_ts: 0,
        client_window: 1_000,
        device_mss: 1_460,
        payload: b"GET / HTTP/1.1",
    };
    assert!(table.arm(Line(line), line, record, &join, [&keys.0, &keys.1]));
}

/// A program that goes on by itself must not join what the next run did not find: that run would
/// end the connection, after its client has heard from the server.
#[test]
fn a_server_that_answers_after_the_next_run_has_looked_joins_nothing() {
    apart(|| {
        let pins = Arc::new(Pins::open("armed").unwrap());
        let shared = Some(Arc::clone(&pins));
        let (mut kernel, mut table) =
            Kernel::load_pinned(Mode::Tc, HASH, RECORDS, &endpoints(), (3, 4), 5, shared).unwrap();
        kernel.attach("lo").unwrap();
        for line in [2, 3, 4] {
            arm(&mut table, line, &record(1_000 + line as u16));
        }
        // One that was being joined when its processor stopped, and one that was joined.
        edit::<64>(&pins, "fl_records", 3, |line| line[60] = JOINING);
        edit::<64>(&pins, "fl_records", 4, |line| {
            line[60] = State::Spliced as u8
        });
        drop((kernel, table));
        let remains = survey(&pins, RECORDS, &HASH).unwrap().unwrap();
        let found: Vec<u32> = remains.records.iter().map(|(line, _)| line.0).collect();
        assert_eq!(found, [4]);
        for (line, state) in [(2, State::Free), (3, State::Free), (4, State::Spliced)] {
            edit::<64>(&pins, "fl_records", line, |bytes| {
                assert_eq!(bytes[60], state as u8, "line {line}");
            });
        }
    });
}

#[test]
fn other_layouts_and_sizes_are_refused_with_what_to_do() {
    apart(|| {
        let pins = Arc::new(Pins::open("layouts").unwrap());
        run_and_crash(&pins);
        let refused = |records| match survey(&pins, records, &HASH) {
            Err(error @ LoadError::OtherLayout(_)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(refused(65).contains("64 records"), "{}", refused(65));
        assert!(refused(65).contains("`fairlead down`"));
        // The version is behind two words and the clock's origin.
        edit::<80>(&pins, "fl_settings", 0, |settings| settings[24] ^= 0x40);
        assert!(refused(64).contains("it has layout"), "{}", refused(64));
        edit::<80>(&pins, "fl_settings", 0, |settings| settings[24] ^= 0x40);
        edit::<80>(&pins, "fl_settings", 0, |settings| settings[32] ^= 1);
        assert!(matches!(
            survey(&pins, 64, &HASH),
            Err(LoadError::OtherNamespace(_))
        ));
        edit::<80>(&pins, "fl_settings", 0, |settings| settings[32] ^= 1);
        edit::<80>(&pins, "fl_settings", 0, |settings| settings[23] = 0x7f);
        assert!(refused(64).contains("clock"), "{}", refused(64));
        // A map that is not there, and one of another shape in its place.
        std::fs::remove_file(pins.folder().join("fl_nat_at")).unwrap();
        assert!(refused(64).contains("fl_nat_at"));
        let other = MapData::from_pin(pins.folder().join("fl_server_at")).unwrap();
        other.pin(pins.folder().join("fl_nat_at")).unwrap();
        assert!(refused(64).contains("fl_nat_at"));
    });
}

/// Another build's optional maps are no other layout: what it lacks is made, what has another shape
/// there is made anew, and what only the other build knows stays.
#[test]
fn optional_maps_that_are_missing_or_differ_are_made_and_unknown_pins_stay() {
    apart(|| {
        let pins = Arc::new(Pins::open("optional").unwrap());
        run_and_crash(&pins);
        let at = |name: &str| pins.folder().join(name);
        let id = |name: &str| MapData::from_pin(at(name)).unwrap().info().unwrap().id();
        let unknown = MapData::from_pin(at("fl_counters")).unwrap();
        unknown.pin(at("fl_of_a_later_build")).unwrap();
        let unknown = id("fl_of_a_later_build");
        let take_over = |mode| {
            let remains = survey(&pins, RECORDS, &HASH).unwrap().unwrap();
            assert_eq!(remains.records.len(), 4);
            let again = Some(Arc::clone(&pins));
            let loaded = Kernel::load_pinned(mode, HASH, RECORDS, &endpoints(), (3, 4), 5, again);
            let (mut kernel, _table) = loaded.unwrap();
            kernel.attach("lo").unwrap();
            assert_eq!(kernel.counters().unwrap().to_engine, 0);
        };
        std::fs::remove_file(at("fl_counters")).unwrap();
        take_over(Mode::Tc);
        let counters = id("fl_counters");
        assert_ne!(counters, unknown, "made anew");
        take_over(Mode::Tc);
        assert_eq!(id("fl_counters"), counters, "what suits is taken over");
        // Another number of counters; what only XDP has is missing.
        assert!(!at("fl_addresses").exists());
        std::fs::remove_file(at("fl_counters")).unwrap();
        let other = MapData::from_pin(at("fl_nat_at")).unwrap();
        other.pin(at("fl_counters")).unwrap();
        take_over(Mode::XdpGeneric);
        assert_ne!(id("fl_counters"), id("fl_nat_at"));
        assert!(at("fl_addresses").exists());
        assert_eq!(id("fl_of_a_later_build"), unknown);
        pins.clear().unwrap();
    });
}

/// The TCB cache is a process's own, so it may come and go over the same hash map; an LRU hash map
/// is another map.
#[test]
fn another_flow_table_is_taken_over_or_refused() {
    apart(|| {
        let pins = Arc::new(Pins::open("kinds").unwrap());
        run_and_crash(&pins);
        let lru = FlowTableKind::LruHash { keys: 0 };
        let error = survey(&pins, RECORDS, &lru).unwrap_err();
        assert!(matches!(error, LoadError::OtherFlowTable), "{error}");
        assert!(error.to_string().contains("`fairlead down`"), "{error}");
        for lines in [1 << 10, 1 << 12] {
            let kind = FlowTableKind::TcbCache(TcbGeometry::of_lines(lines));
            let remains = survey(&pins, RECORDS, &kind).unwrap().unwrap();
            assert_eq!(remains.records.len(), 4);
            let again = Some(Arc::clone(&pins));
            let (mut kernel, _table) =
                Kernel::load_pinned(Mode::Tc, kind, RECORDS, &endpoints(), (3, 4), 5, again)
                    .unwrap();
            kernel.attach("lo").unwrap();
            assert_eq!(kernel.tcb_lines().unwrap().len(), lines as usize);
        }
        assert_eq!(
            survey(&pins, RECORDS, &HASH)
                .unwrap()
                .unwrap()
                .records
                .len(),
            4
        );
        pins.clear().unwrap();
    });
}

/// Puts the calling thread into a network namespace of its own.
fn leave_network() {
    // SAFETY: a system call on a number.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
}

/// Who removes pins by their name alone must not remove what works in another network.
#[test]
fn what_is_at_work_elsewhere_is_told_until_its_network_is_gone() {
    apart(|| {
        let pins = Arc::new(Pins::open("elsewhere").unwrap());
        assert!(!is_at_work_elsewhere(&pins), "nothing is there");
        run_and_crash(&pins);
        assert!(!is_at_work_elsewhere(&pins), "it is here");
        let first = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        leave_network();
        assert!(is_at_work_elsewhere(&pins));
        // SAFETY: a descriptor that is open.
        let back = unsafe { libc::setns(first.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(back, 0);
        assert!(!is_at_work_elsewhere(&pins), "it is here again");
        leave_network();
        drop(first);
        let patience = Instant::now() + Duration::from_secs(60);
        while is_at_work_elsewhere(&pins) {
            assert!(
                Instant::now() < patience,
                "its interfaces go with a network"
            );
            std::thread::yield_now();
        }
        pins.clear().unwrap();
    });
}

/// Of a build with another layout, too, however long its settings are: who is told to remove it
/// there, or removes it, ends connections.
#[test]
fn what_another_build_has_at_work_elsewhere_is_left_alone() {
    apart(|| {
        let pins = Arc::new(Pins::open("another").unwrap());
        run_and_crash(&pins);
        let settings = pins.folder().join("fl_settings");
        let mut namespace = [0; 8];
        edit::<80>(&pins, "fl_settings", 0, |settings| {
            namespace.copy_from_slice(&settings[32..40]);
            settings[24] ^= 0x40;
        });
        let refused = |here: bool| {
            assert_eq!(is_at_work_elsewhere(&pins), !here);
            match survey(&pins, RECORDS, &HASH).unwrap_err() {
                LoadError::OtherLayout(_) => assert!(here),
                LoadError::OtherNamespace(_) => assert!(!here),
                other => panic!("{other}"),
            }
        };
        let first = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        // SAFETY: a descriptor that is open.
        let back = || unsafe { libc::setns(first.as_raw_fd(), libc::CLONE_NEWNET) };
        refused(true);
        leave_network();
        refused(false);
        assert_eq!(back(), 0);
        // Settings of 64 bytes: the records' array in their place.
        std::fs::remove_file(&settings).unwrap();
        let other = MapData::from_pin(pins.folder().join("fl_records")).unwrap();
        other.pin(&settings).unwrap();
        edit::<64>(&pins, "fl_settings", 0, |settings| {
            settings[32..40].copy_from_slice(&namespace);
        });
        refused(true);
        leave_network();
        refused(false);
        assert_eq!(back(), 0);
        pins.clear().unwrap();
    });
}

/// Runs `ip` in the calling thread's network namespace.
fn ip(arguments: &str) {
    let mut ip = std::process::Command::new("ip");
    let status = ip.args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// There it would answer for addresses that are somebody else's, perhaps the ones that the
/// interface was moved for.
#[test]
fn a_program_leaves_an_interface_that_was_moved_to_another_network() {
    apart(|| {
        let (told, thread) = std::sync::mpsc::channel();
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let elsewhere = std::thread::spawn(move || {
            leave_network();
            // SAFETY: a system call without arguments.
            told.send(unsafe { libc::gettid() }).unwrap();
            let _ = wait.recv(); // until the test is over
        });
        let thread = thread.recv().unwrap();
        for mode in [Mode::Tc, Mode::XdpNative, Mode::XdpGeneric] {
            let pins = Arc::new(Pins::open(mode.name()).unwrap());
            let owned = Some(Arc::clone(&pins));
            let loaded = Kernel::load_pinned(mode, HASH, RECORDS, &endpoints(), (1, 2), 3, owned);
            let (mut kernel, _table) = loaded.unwrap();
            ip("link add stays type veth peer name stays2");
            ip("link add moves type veth peer name moves2");
            kernel.attach("stays").unwrap();
            kernel.attach("moves").unwrap();
            assert_eq!(kernel.forget_gone(), 0, "{mode:?}");
            ip(&format!("link set moves netns {thread}"));
            assert_eq!(kernel.forget_gone(), 1, "{mode:?}");
            let links = std::fs::read_dir(pins.folder()).unwrap().flatten();
            let links = links.map(|file| file.file_name().into_string().unwrap());
            let is_link = |name: &String| name.starts_with("link-") || name.starts_with("filter-");
            assert_eq!(links.filter(is_link).count(), 1, "{mode:?}");
            ip("link del stays");
            ip("link del moves2");
            pins.clear().unwrap();
        }
        drop(over);
        elsewhere.join().unwrap();
    });
}

/// As a network card does that a container was given: when that has ended, the machine has it back,
/// with the program on it.
#[test]
fn the_way_out_is_told_where_an_interface_has_outlived_its_network() {
    apart(|| {
        let home = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let (told, thread) = std::sync::mpsc::channel();
        let (over, wait) = std::sync::mpsc::channel::<()>();
        let at_home = std::thread::spawn(move || {
            // SAFETY: a system call without arguments.
            told.send(unsafe { libc::gettid() }).unwrap();
            let _ = wait.recv(); // until the interface has come
        });
        let thread = thread.recv().unwrap();
        leave_network();
        ip("link add card type veth peer name cable");
        let pins = Arc::new(Pins::open("outlived").unwrap());
        let owned = Some(Arc::clone(&pins));
        let loaded = Kernel::load_pinned(
            Mode::XdpGeneric,
            HASH,
            RECORDS,
            &endpoints(),
            (1, 2),
            3,
            owned,
        );
        let (mut kernel, table) = loaded.unwrap();
        kernel.attach("card").unwrap();
        drop((kernel, table));
        ip(&format!("link set card netns {thread}"));
        ip(&format!("link set cable netns {thread}"));
        // SAFETY: a descriptor that is open.
        let back = unsafe { libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(back, 0);
        drop(over);
        at_home.join().unwrap();
        let has_program = || {
            let mut ip = std::process::Command::new("ip");
            let shown = ip.args(["link", "show", "card"]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("xdp")
        };
        assert!(is_at_work_elsewhere(&pins) && has_program());
        let told = survey(&pins, RECORDS, &HASH).unwrap_err().to_string();
        let folder = pins.folder().display().to_string();
        assert!(told.contains(&format!("`rm -r {folder}`")), "{told}");
        std::fs::remove_dir_all(&folder).unwrap();
        // The kernel takes it off in its own time.
        let until = Instant::now() + Duration::from_secs(60);
        while has_program() {
            assert!(Instant::now() < until, "what the advice says is so");
        }
    });
}

#[test]
fn a_folder_has_one_owner_and_leaves_nothing() {
    apart(|| {
        let pins = Arc::new(Pins::open("alone").unwrap());
        assert!(matches!(Pins::open("alone"), Err(PinsError::InUse(_))));
        let other = Pins::open("other").unwrap();
        run_and_crash(&pins);
        assert!(!pins.clear().unwrap().is_empty());
        assert!(!Path::new("/sys/fs/bpf/fairlead/alone").exists());
        assert!(Pins::existing("alone").unwrap().is_none());
        drop(pins);
        assert!(Path::new("/sys/fs/bpf/fairlead/other").exists());
        other.clear().unwrap();
        assert!(!Path::new("/sys/fs/bpf/fairlead").exists());
    });
}

#[test]
fn what_was_never_in_use_is_forgotten() {
    apart(|| {
        let pins = Arc::new(Pins::open("halfway").unwrap());
        let loaded = Kernel::load_pinned(
            Mode::Tc,
            HASH,
            RECORDS,
            &endpoints(),
            (1, 2),
            3,
            Some(Arc::clone(&pins)),
        );
        drop(loaded.unwrap());
        assert!(survey(&pins, 1_000, &HASH).unwrap().is_none());
        assert_eq!(std::fs::read_dir(pins.folder()).unwrap().count(), 0);
    });
}

/// Has this kernel be one that attaches programs to tc by filters, to those who ask `/proc`.
fn be_older() {
    let release = std::env::temp_dir().join(format!("fairlead-release-{}", std::process::id()));
    std::fs::write(&release, "6.1.0\n").unwrap();
    let mut mount = std::process::Command::new("mount");
    mount.arg("--bind").arg(&release);
    let status = mount.arg("/proc/sys/kernel/osrelease").status().unwrap();
    std::fs::remove_file(&release).unwrap();
    assert!(status.success());
}

/// Programs at an interface by filters.
fn filters(interface: &str) -> usize {
    let mut tc = std::process::Command::new("tc");
    let output = tc.args(["filter", "show", "dev", interface, "ingress"]);
    let shown = String::from_utf8(output.output().unwrap().stdout).unwrap();
    shown.matches("fairlead_tc direct-action").count()
}

/// Before Linux 6.6, and without a BPF file system: a program stays where a run was killed.
#[test]
fn a_filter_that_a_killed_run_left_is_taken_over_or_removed() {
    apart(|| {
        be_older();
        ip("link add c type veth peer name cx");
        ip("link set c up");
        let run = || {
            let (mut kernel, table) =
                Kernel::load(Mode::Tc, RECORDS, &endpoints(), (1, 2), 3).unwrap();
            kernel.set_instance("one.of-two");
            kernel.attach("c").unwrap();
            (kernel, table)
        };
        std::mem::forget(run());
        assert_eq!(filters("c"), 1);
        std::mem::forget(run());
        assert_eq!(filters("c"), 1, "in the place of the first");
        assert_eq!(remove_filters("other").len(), 0);
        assert_eq!(remove_filters("one.of-two"), ["the program at c"]);
        assert_eq!(filters("c"), 0);
        drop(run());
        assert_eq!(filters("c"), 0, "an end in order");
        assert_eq!(remove_filters("one.of-two").len(), 0);
    });
}
