//! The operator lists connections, gives and takes; scarce room.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_card::orders::{Order, ask};
use fairlead_handoff::Op;
use fairlead_netns::Running;

use crate::bench::{Bench, HOST_V4, PATIENCE};
use crate::whole::{Client, FILES, SERVER, content};

/// What [`SERVER`] serves.
pub(crate) fn files(bench: &Bench) {
    for file in 0..FILES {
        std::fs::write(bench.folder.join(format!("f{file}")), content(file)).unwrap();
    }
}

fn web_server(bench: &Bench) -> Running {
    files(bench);
    let mut command = bench.program(true, &["-c", SERVER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    bench.host.start(&mut command).unwrap()
}

fn client(bench: &Bench) -> Client {
    Client::connect(&bench.client, &format!("{HOST_V4}:80"))
}

/// Waits until this is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn operators_list_give_and_take() {
    let Some(bench) = Bench::new("operators_list_give_and_take") else {
        return;
    };
    let ask = |order| ask(&bench.orders(), order);
    assert!(ask(Order::List).is_err_and(|why| why.contains("no card serves")));
    let ((), counts) = bench.served(|_| {
        let server = web_server(&bench);
        let mut kept = [(); 3].map(|()| client(&bench));
        let mut turns = |count: usize| {
            for file in 0..count * 3 {
                kept[file % 3].get(file);
            }
        };
        turns(4);
        assert_eq!(bench.on_card(), 3);
        let list = ask(Order::List).unwrap();
        let rows = list["connections"].as_array().unwrap();
        let sent = (0..12).filter(|file| file % 3 == 0).skip(2);
        let sent: usize = sent.map(|file| content(file).len()).sum();
        let of_first = rows.iter().find(|row| row["number"] == 1).unwrap();
        assert!(of_first["bytes_out"].as_u64().unwrap() > sent as u64);
        assert_eq!(of_first["local"], "10.88.0.2:80");
        assert!(of_first["program"].as_str().unwrap().starts_with("python"));
        // One, which stays where it is.
        ask(Order::Give(Some(1))).unwrap();
        eventually("it comes back", || bench.on_host() == 1);
        turns(4);
        assert_eq!((bench.on_card(), bench.on_host()), (2, 1));
        let again = ask(Order::Give(Some(1)));
        assert!(again.is_err_and(|why| why.contains("no such connection")));
        // All, until they may go again.
        ask(Order::Give(None)).unwrap();
        eventually("all come back", || bench.on_host() == 3);
        turns(4);
        assert_eq!((bench.on_card(), bench.on_host()), (0, 3));
        ask(Order::Take).unwrap();
        turns(4);
        assert_eq!((bench.on_card(), bench.on_host()), (3, 0));
        // A card that ends asks for those that it has.
        drop(server);
        eventually("they end with their program", || bench.on_card() == 0);
    });
    assert_eq!(counts.commands.given(Op::OsRestore), 1 + 2);
    assert_eq!(counts.faults, [0; 5]);
}

#[test]
fn idle_connections_make_room_for_newcomers() {
    let Some(mut bench) = Bench::new("idle_connections_make_room_for_newcomers") else {
        return;
    };
    (bench.most, bench.idle) = (16, Duration::from_millis(500));
    let ((), counts) = bench.served(|_| {
        let _server = web_server(&bench);
        let mut kept: Vec<Client> = (0..20).map(|_| client(&bench)).collect();
        for round in 0..4 {
            kept.iter_mut().for_each(|one| one.get(round));
        }
        // The rest stayed with the host; an eighth becomes free.
        eventually("room is made", || {
            (bench.on_card(), bench.on_host()) == (14, 6)
        });
        let mut newcomers = [(); 2].map(|()| client(&bench));
        for round in 0..4 {
            newcomers.iter_mut().for_each(|one| one.get(round));
        }
        assert!(bench.on_card() >= 14);
        kept.iter_mut().for_each(|one| one.get(9));
    });
    assert!(counts.commands.given(Op::OsRestore) >= 2);
    assert_eq!(counts.faults, [0; 5]);
}
