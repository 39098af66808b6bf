//! Changes of the host's addresses and routes.

use std::process::Stdio;

use fairlead_card::setup;
use fairlead_netns::trial::skip;

use crate::bench::{Bench, HOST_V4};
use crate::orders::{eventually, files};
use crate::whole::{Client, SERVER};

#[test]
fn a_card_follows_addresses_and_routes() {
    let Some(mut bench) = Bench::new("a_card_follows_addresses_and_routes") else {
        return;
    };
    let other = bench.plain_link("10.90.0.1/24", "10.90.0.2/24");
    let wire = bench.wire.clone();
    files(&bench);
    let mut command = bench.program(true, &["-c", SERVER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let ((), counts) = bench.served(|_| {
        let _server = bench.host.start(&mut command).unwrap();
        let mut kept = Client::connect(&bench.client, &format!("{HOST_V4}:80"));
        let mut turns = || (0..4).for_each(|file| kept.get(file));
        turns();
        assert_eq!((bench.on_card(), bench.on_host()), (1, 0));
        // Its peer is now reached by another interface.
        let route = format!("10.88.0.1/32 via 10.90.0.1 dev {other}");
        bench.host.ip(&format!("route add {route}")).unwrap();
        eventually("it comes back", || bench.on_host() == 1);
        turns();
        assert_eq!((bench.on_card(), bench.on_host()), (0, 1), "refused");
        bench.host.ip(&format!("route del {route}")).unwrap();
        // An address that the card did not have at first.
        let late = "fd88::22";
        bench
            .host
            .ip(&format!("addr add {late}/64 dev {wire} nodad"))
            .unwrap();
        let mut newcomer = Client::connect(&bench.client, &format!("[{late}]:80"));
        eventually("the new address is on the card", || {
            newcomer.get(3);
            bench.on_card() == 1
        });
        newcomer.get(5);
    });
    assert_eq!((counts.rerouted, counts.unfollowed), (1, 0));
    assert_eq!(counts.faults, [0; 5]);
}

#[test]
fn interfaces_that_others_need_are_not_taken() {
    let Some(mut bench) = Bench::new("interfaces_that_others_need_are_not_taken") else {
        return;
    };
    let wire = bench.plain_link("10.90.0.1/24", "10.90.0.2/24");
    let card = format!("{}-x", bench.card);
    let up = |bench: &Bench| bench.host.enter(|| setup::up(&card, &wire)).unwrap();
    let upper = format!("link add link {wire} name upper0 type macvlan");
    if bench.host.ip(&upper).is_err() {
        return skip("interfaces_that_others_need_are_not_taken", "no macvlan");
    }
    assert!(up(&bench).is_err_and(|why| why.contains("upper0 stands on")));
    bench.host.ip("link del upper0").unwrap();
    let master = format!("link add bridge0 type bridge\nlink set {wire} master bridge0");
    if bench.host.ip(&master).is_ok() {
        assert!(up(&bench).is_err_and(|why| why.contains("belongs to bridge0")));
        bench.host.ip("link del bridge0").unwrap();
    }
    up(&bench).unwrap();
    bench.host.enter(|| setup::down(&card)).unwrap().unwrap();
}
