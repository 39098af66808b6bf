//! The expansion model against what it promises.

use std::collections::BTreeMap;

use fairlead_base::{Address, Rng};
use fairlead_trace::{Accesses, Client, HINT_CLOSING, HINT_OPENING, Requests, TIME_MAX_US};
use fairlead_workload::statistics::{bit_averages, gaps, open, totals};
use fairlead_workload::{
    Expansion, PacketModel, PortModel, Prepared, Standard, SubSecond, WorkloadError, expand,
};

const SECOND: i64 = 1_000_000;

/// A log of whole seconds: clients that come, ask for pages with what is in them, and read.
fn log(clients: u32, pages: u32, seed: u64) -> Requests {
    let mut rng = Rng::new(seed);
    let mut requests = Requests::default();
    for client in 0..clients {
        let address = Address::v4((0x1000_0000 + client * 77).to_be_bytes());
        requests.clients.push(Client {
            address,
            named: false,
        });
        let mut second = i64::from(rng.below(86_400));
        for _ in 0..=rng.below(pages) {
            for _ in 0..=rng.below(6) {
                requests.time_us.push(second * SECOND);
                requests.client.push(client);
                requests.port.push(0);
                requests.bytes.push(u64::from(rng.below(20_000)));
                requests.object.push(1);
                requests.status.push(200);
                second += i64::from(rng.below(3) / 2);
            }
            second += 5 + i64::from(rng.below(120));
        }
    }
    requests
}

#[test]
fn at_its_own_pace_every_request_is_an_access_within_its_second() {
    let requests = log(300, 8, 1);
    let expanded = expand(&requests, &Expansion::default(), 1).unwrap();
    let accesses = &expanded.accesses;
    assert_eq!((accesses.len(), expanded.warm_up_rows), (requests.len(), 0));
    assert!(accesses.time_us.is_sorted() && accesses.hint.is_empty());
    // By client: seconds as logged, up to the origin's own fraction of a second.
    let mut logged = BTreeMap::<Address, Vec<i64>>::new();
    for row in 0..requests.len() {
        let address = requests.clients[requests.client[row] as usize].address;
        logged
            .entry(address)
            .or_default()
            .push(requests.time_us[row]);
    }
    let first = requests.time_us.iter().min().unwrap();
    let mut found = BTreeMap::<Address, Vec<i64>>::new();
    for (time, id) in accesses.time_us.iter().zip(&accesses.id) {
        let address = accesses.keys[*id as usize].addr;
        found.entry(address).or_default().push(*time as i64);
    }
    for (address, times) in &mut logged {
        times.sort_unstable();
        for (logged, at) in times.iter().zip(&found[address]) {
            let off = at - (logged - first);
            assert!((-SECOND..SECOND).contains(&off), "{address}: {off}");
        }
    }
}

#[test]
fn gaps_within_a_page_keep_the_mean_of_the_log() {
    let requests = log(3_000, 10, 2);
    let expanded = expand(&requests, &Expansion::default(), 2).unwrap();
    let accesses = &expanded.accesses;
    let times: Vec<i64> = accesses.time_us.iter().map(|time| *time as i64).collect();
    let limits = gaps::Limits {
        on_gap_max_s: 2.0,
        end_us: None,
        counted_from: 0,
    };
    let found = gaps::measure(&accesses.id, &times, accesses.keys.len(), limits);
    let expected = expanded.on_gap_mean_us / 1e6;
    assert!(
        (found.on.mean - expected).abs() < 0.15 * expected,
        "{} {expected}",
        found.on.mean
    );
}

#[test]
fn sessions_end_after_the_timeout_and_take_the_next_port() {
    let mut requests = log(1, 1, 3);
    requests.time_us = [0, 10, 1_810, 3_611, 3_612].map(|at| at * SECOND).to_vec();
    for column in [&mut requests.bytes, &mut requests.object] {
        column.resize(5, 1);
    }
    (requests.client, requests.port) = (vec![0; 5], vec![0; 5]);
    requests.status.resize(5, 200);
    let expanded = expand(&requests, &Expansion::default(), 1).unwrap();
    // 1,800 s is no longer pause than the timeout, 1,801 s is.
    assert_eq!(
        (expanded.log_sessions, expanded.accesses.keys.len()),
        (2, 2)
    );
    let ports: Vec<u16> = expanded.accesses.keys.iter().map(|key| key.port).collect();
    assert_eq!((ports[1] - 1_024) % 256, (ports[0] - 1_024 + 1) % 256);
    assert_eq!(totals(&requests, 1_800.0).sessions, 2);
}

#[test]
fn as_many_sessions_are_open_as_were_asked_for() {
    let requests = log(800, 12, 4);
    for (wanted, seed) in [(20.0, 1), (300.0, 2), (3_000.0, 3)] {
        let expansion = Expansion {
            concurrent_sessions: Some(wanted),
            warm_up_s: Some(100.0),
            ..Expansion::default()
        };
        let expanded = expand(&requests, &expansion, seed).unwrap();
        assert!((expanded.concurrency_mean / wanted - 1.0).abs() < 1e-3);
        assert!(expanded.concurrency_peak as f64 >= wanted.floor());
        // Each access of the log is measured once.
        assert_eq!(expanded.rows, requests.len());
        let from = expanded.accesses.time_us[expanded.warm_up_rows];
        assert!(from >= expanded.measured_from_us);
        let last = expanded.accesses.time_us.last().unwrap();
        assert!(*last < expanded.measured_from_us + expanded.measured_us);
        if expanded.warm_up_rows > 0 {
            let before = expanded.accesses.time_us[expanded.warm_up_rows - 1];
            assert!(before < expanded.measured_from_us);
        }
        // Seen from the accesses alone, those that go on beyond the end close early.
        let Accesses {
            id, time_us, keys, ..
        } = &expanded.accesses;
        assert!(open::measure(id, time_us, keys.len(), 1).mean_open <= wanted * 1.001);
    }
}

/// Each session of the log begins once a period, so as many identifiers appear first in what is
/// measured; more would be sessions that were open and silent all through the warm-up.
#[test]
fn sessions_that_are_open_when_measuring_begins_have_been_seen() {
    let mut requests = log(60, 1, 12);
    requests.time_us.clear();
    requests.client.clear();
    for client in 0..60i64 {
        // The longest silence of one session, stamps a whole timeout apart, and shorter ones.
        for at in [0, 1_800, 1_801, 3_100, 3_101, 3_700] {
            requests.time_us.push((client * 13 + at) * SECOND);
            requests.client.push(client as u32);
        }
    }
    let rows = requests.time_us.len();
    requests.port = vec![0; rows];
    (requests.bytes, requests.object) = (vec![1; rows], vec![1; rows]);
    requests.status = vec![200; rows];
    let first_seen = |warm_up_s, wanted, seed| {
        let expansion = Expansion {
            concurrent_sessions: Some(wanted),
            warm_up_s,
            ..Expansion::default()
        };
        let expanded = expand(&requests, &expansion, seed).unwrap();
        assert_eq!(expanded.log_sessions, 60);
        assert_eq!(expanded.warm_up_s, Some(expansion.warm_up()));
        let mut seen = vec![false; expanded.accesses.keys.len()];
        let (before, counted) = expanded.accesses.id.split_at(expanded.warm_up_rows);
        before.iter().for_each(|id| seen[*id as usize] = true);
        let new = |id: &&u32| !std::mem::replace(&mut seen[**id as usize], true);
        counted.iter().filter(new).count()
    };
    for wanted in [40.0, 200.0, 3_000.0] {
        for seed in 1..6 {
            assert_eq!(
                first_seen(None, wanted, seed),
                60,
                "{wanted} open, seed {seed}"
            );
        }
        assert!(first_seen(Some(300.0), wanted, 1) > 60);
    }
    let given = |warm_up_s, concurrent_sessions| Expansion {
        warm_up_s,
        concurrent_sessions,
        ..Expansion::default()
    };
    assert_eq!(given(Some(300.0), Some(5.0)).short_warm_up(), Some(300.0));
    assert_eq!(given(Some(300.0), None).short_warm_up(), None);
    assert_eq!(given(Some(1_800.0), Some(5.0)).short_warm_up(), None);
    assert_eq!(given(None, Some(5.0)).short_warm_up(), None);
}

#[test]
fn the_timing_inside_a_session_is_not_touched() {
    let requests = log(200, 6, 5);
    let own = expand(&requests, &Expansion::default(), 9).unwrap();
    let expansion = Expansion {
        concurrent_sessions: Some(10.0),
        warm_up_s: Some(0.0),
        periods: 3,
        ..Expansion::default()
    };
    let dense = expand(&requests, &expansion, 9).unwrap();
    assert_eq!(dense.rows, 3 * requests.len());
    let gaps_of = |accesses: &fairlead_trace::Accesses| {
        let mut times = BTreeMap::<_, Vec<u64>>::new();
        for (time, id) in accesses.time_us.iter().zip(&accesses.id) {
            times
                .entry(accesses.keys[*id as usize])
                .or_default()
                .push(*time);
        }
        let gaps = |times: Vec<u64>| times.windows(2).map(|two| two[1] - two[0]).collect();
        times
            .into_iter()
            .map(|(key, times)| (key, gaps(times)))
            .collect::<BTreeMap<_, Vec<u64>>>()
    };
    let (own, dense) = (gaps_of(&own.accesses), gaps_of(&dense.accesses));
    let mut compared = 0;
    for (key, gaps) in &dense {
        // Repetitions have other addresses; of those that lie across an edge a part is there.
        if let Some(whole) = own.get(key) {
            let part = gaps.is_empty() || whole.windows(gaps.len()).any(|part| part == gaps);
            assert!(part, "{key}: {gaps:?} in {whole:?}");
            compared += gaps.len();
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn packets_open_acknowledge_and_close() {
    let mut requests = log(1, 1, 6);
    requests.time_us = vec![1_000 * SECOND, 1_001 * SECOND];
    requests.bytes = vec![10 * 1_460, u64::MAX];
    requests.object = vec![1, 1];
    (requests.client, requests.port, requests.status) = (vec![0; 2], vec![0; 2], vec![200; 2]);
    let expansion = Expansion {
        packets: PacketModel::Packets,
        ..Expansion::default()
    };
    let expanded = expand(&requests, &expansion, 1).unwrap();
    let hints = &expanded.accesses.hint;
    // SYN, two requests, five and one acknowledgements, FIN.
    assert_eq!(hints.len(), 1 + 2 + 5 + 1 + 1);
    assert_eq!(
        (hints[0], hints[hints.len() - 1]),
        (HINT_OPENING, HINT_CLOSING)
    );
    assert!(hints[1..hints.len() - 1].iter().all(|hint| *hint == 0));
    assert_eq!(expanded.responses_cut, 0);
    let cut = Expansion {
        acks_max: 2,
        ..expansion
    };
    let expanded = expand(&requests, &cut, 1).unwrap();
    assert_eq!(
        (expanded.accesses.len(), expanded.responses_cut),
        (1 + 2 + 2 + 1 + 1, 1)
    );
}

#[test]
fn ports_of_the_log_are_kept() {
    let mut requests = log(2, 1, 7);
    requests.client = vec![0, 0, 1, 0];
    requests.port = vec![50_000, 50_001, 50_000, 50_000];
    requests.time_us = vec![5, 6, 7, 8];
    (requests.bytes, requests.object, requests.status) = (vec![1; 4], vec![1; 4], vec![200; 4]);
    let expanded = expand(&requests, &Expansion::default(), 1).unwrap();
    let accesses = &expanded.accesses;
    // Stamps are finer than seconds: taken as they are.
    assert_eq!(accesses.time_us, [0, 1, 2, 3]);
    let ports: Vec<u16> = accesses
        .id
        .iter()
        .map(|id| accesses.keys[*id as usize].port)
        .collect();
    assert_eq!(ports, [50_000, 50_001, 50_000, 50_000]);
    assert_eq!(accesses.id[0], accesses.id[3]);
    assert_eq!(accesses.keys.len(), 3);
}

#[test]
fn ports_have_the_bits_of_the_paper() {
    // Fig. 7b: of 16 bits only the lower eight differ between sessions.
    let expanded = expand(&log(4_000, 3, 8), &Expansion::default(), 1).unwrap();
    let averages = bit_averages(&expanded.accesses.keys);
    assert_eq!(averages.port[..8], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    assert!(
        averages.port[10..]
            .iter()
            .all(|bit| (0.3..0.6).contains(bit)),
        "{averages:?}"
    );
    let random = Expansion {
        ports: PortModel::RANDOM,
        ..Expansion::default()
    };
    let expanded = expand(&log(4_000, 3, 8), &random, 1).unwrap();
    let averages = bit_averages(&expanded.accesses.keys);
    assert!(
        averages.port[4..]
            .iter()
            .all(|bit| (0.4..0.6).contains(bit)),
        "{averages:?}"
    );
}

#[test]
fn the_seed_is_the_only_chance() {
    let requests = log(100, 5, 9);
    let expansion = Expansion {
        concurrent_sessions: Some(50.0),
        ..Expansion::default()
    };
    let one = expand(&requests, &expansion, 1).unwrap();
    assert_eq!(one, expand(&requests, &expansion, 1).unwrap());
    assert_ne!(
        one.accesses,
        expand(&requests, &expansion, 2).unwrap().accesses
    );
    let prepared = Prepared::new(&requests, &expansion, 1).unwrap();
    assert_eq!(one, prepared.load(Some(50.0)).unwrap());
}

#[test]
fn what_cannot_be_had_is_said() {
    let requests = log(3, 1, 10);
    let refused = |expansion: Expansion| expand(&requests, &expansion, 1).unwrap_err();
    let zero = Expansion {
        session_timeout_s: 0.0,
        ..Expansion::default()
    };
    assert!(matches!(refused(zero), WorkloadError::Parameter(said) if said.contains("timeout")));
    let few = Expansion {
        rows_max: 2,
        ..Expansion::default()
    };
    assert_eq!(refused(few), WorkloadError::TooManyRows(2));
    let dense = Expansion {
        concurrent_sessions: Some(1e6),
        warm_up_s: Some(1e9),
        ..Expansion::default()
    };
    assert!(matches!(refused(dense), WorkloadError::TooManyRows(_)));
    let empty = expand(&Requests::default(), &Expansion::default(), 1);
    assert_eq!(empty.unwrap_err(), WorkloadError::Empty);
    let mut single = log(1, 1, 11);
    single.time_us.truncate(1);
    let alone = Expansion {
        concurrent_sessions: Some(2.0),
        ..Expansion::default()
    };
    single.client.truncate(1);
    single.port.truncate(1);
    single.bytes.truncate(1);
    let said = expand(&single, &alone, 1).unwrap_err();
    assert_eq!(said, WorkloadError::NeverOpen(2.0));
}

/// One client's requests at these times, with responses of these sizes.
fn one_client(times_us: &[i64], bytes: u64) -> Requests {
    let rows = times_us.len();
    Requests {
        time_us: times_us.to_vec(),
        client: vec![0; rows],
        clients: vec![Client {
            address: Address::v4([10, 0, 0, 1]),
            named: false,
        }],
        port: vec![0; rows],
        bytes: vec![bytes; rows],
        object: vec![1; rows],
        status: vec![200; rows],
        ..Requests::default()
    }
}

#[test]
fn a_response_does_not_outgrow_what_is_let_in() {
    // Half a billion acknowledgements, of which not one too many is made.
    let packets = Expansion {
        packets: PacketModel::Packets,
        acks_max: 4_000_000_000,
        rows_max: 1_000,
        ..Expansion::default()
    };
    let said = expand(&one_client(&[0], 1_000_000_000_000), &packets, 1);
    assert_eq!(said.unwrap_err(), WorkloadError::TooManyRows(1_000));
    // A SYN, the request, the acknowledgements and a FIN.
    let fits = one_client(&[0], (1_000 - 3) * 2 * 1_460);
    assert_eq!(expand(&fits, &packets, 1).unwrap().rows, 1_000);
    let more = one_client(&[0], (1_000 - 3) * 2 * 1_460 + 1);
    assert!(expand(&more, &packets, 1).is_err());
}

#[test]
fn times_at_both_ends_of_what_is_read_are_expanded() {
    let requests = one_client(&[-TIME_MAX_US, 0, 1, TIME_MAX_US], 1_000_000);
    let ends = Expansion {
        session_timeout_s: 1e300,
        on_gap_max_s: 1e300,
        client_bytes_per_s: 1e-300,
        round_trip_us: u64::MAX,
        packets: PacketModel::Packets,
        ..Expansion::default()
    };
    let single = Expansion::default();
    for (expansion, sessions) in [(&ends, 1), (&single, 3)] {
        let expanded = expand(&requests, expansion, 1).unwrap();
        assert_eq!(expanded.log_sessions, sessions);
        assert!(expanded.accesses.time_us.is_sorted());
        let span = *expanded.accesses.time_us.last().unwrap();
        assert!(span >= 2 * TIME_MAX_US as u64);
    }
    assert_eq!(totals(&requests, 1.0).span_us, 2 * TIME_MAX_US as u64);
}

#[test]
fn loads_that_cannot_be_counted_are_refused() {
    let requests = one_client(&[0, 1_000 * SECOND], 1);
    let load = |concurrent: f64, periods: u32| {
        let expansion = Expansion {
            concurrent_sessions: Some(concurrent),
            warm_up_s: Some(0.0),
            periods,
            ..Expansion::default()
        };
        expand(&requests, &expansion, 1)
    };
    assert_eq!(load(1e-9, 2_000).unwrap_err(), WorkloadError::TooLong);
    assert_eq!(load(1e-300, 1).unwrap_err(), WorkloadError::TooLong);
    // Thirty years to the session.
    let rare = load(1e-6, 1_000).unwrap();
    assert!(rare.rows == 2_000 && rare.accesses.time_us.is_sorted());
    // One session in many copies, hardly any of them with an access.
    assert!(matches!(load(9e8, 1), Err(WorkloadError::TooManyRows(_))));
}

#[test]
fn drawn_instants_keep_the_order_of_a_log_that_has_fractions() {
    let requests = one_client(&[100_000, 500_000, 900_000], 1);
    let short = Expansion {
        sub_second: SubSecond::Drawn,
        on_gap_max_s: 0.2,
        concurrent_sessions: Some(1.0),
        warm_up_s: Some(0.0),
        ..Expansion::default()
    };
    for seed in 0..20 {
        let expanded = expand(&requests, &short, seed).unwrap();
        // As long as the session is open: from its first access to its last, within the second.
        assert!(expanded.measured_us < SECOND as u64);
    }
}

#[test]
fn parameters_are_written_and_read_by_name() {
    let text = "session_timeout_s = 60\nconcurrent_sessions = 500\n\
                [ports]\nmodel = \"random\"\nlow = 1\nhigh = 2\n";
    let expansion: Expansion = toml::from_str(text).unwrap();
    assert_eq!(expansion.ports, PortModel::Random { low: 1, high: 2 });
    assert_eq!(expansion.on_gap_max_s, Expansion::default().on_gap_max_s);
    let PortModel::Random { low, .. } = PortModel::RANDOM else {
        panic!("another model");
    };
    let skewed = match PortModel::SEQUENTIAL {
        PortModel::Sequential { base, range, .. } => PortModel::Sequential {
            base,
            range,
            skew: 1.0,
        },
        other @ PortModel::Random { .. } => other,
    };
    for (text, model) in [
        ("\"random\"", PortModel::RANDOM),
        ("\"sequential\"", PortModel::SEQUENTIAL),
        ("{ model = \"random\" }", PortModel::RANDOM),
        (
            "{ model = \"random\", high = 40_000 }",
            PortModel::Random { low, high: 40_000 },
        ),
        ("{ model = \"sequential\", skew = 1.0 }", skewed),
    ] {
        let text = format!("ports = {text}");
        assert_eq!(toml::from_str::<Expansion>(&text).unwrap().ports, model);
        assert_eq!(toml::from_str::<Standard>(&text).unwrap().ports, model);
    }
    for (text, word) in [
        ("\"odd\"", "expected `sequential` or `random`"),
        ("5", "expected \"sequential\", \"random\""),
        ("{ model = \"random\", skew = 1.0 }", "skew"),
        ("{ low = 5 }", "model"),
    ] {
        let read = toml::from_str::<Expansion>(&format!("ports = {text}"));
        let said = read.unwrap_err().to_string();
        assert!(said.contains(word), "{text}: {said}");
    }
    let back: Expansion = toml::from_str(&toml::to_string(&expansion).unwrap()).unwrap();
    assert_eq!(back, expansion);
    assert!(toml::from_str::<Expansion>("timeout = 1").is_err());
    let json = serde_json::to_string(&Expansion::default()).unwrap();
    assert_eq!(
        serde_json::from_str::<Expansion>(&json).unwrap(),
        Expansion::default()
    );
}
