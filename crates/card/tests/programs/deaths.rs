//! A card that dies at each step of a move: the connection goes on in the host, or its peer sees
//! the end, where only the card has it. Nobody waits.

use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_card::Step;
use fairlead_card::orders::{Order, ask};

use crate::apart::begin;
use crate::bench::{Bench, HOST_V4};
use crate::orders::{eventually, files};
use crate::whole::{Client, SERVER};

#[test]
fn a_card_dies_at_each_step_and_nobody_waits() {
    // They wait for most of their time.
    for steps in (0..Step::ALL.len()).collect::<Vec<_>>().chunks(2) {
        std::thread::scope(|scope| {
            for &at in steps {
                scope.spawn(move || dies_at(at));
            }
        });
    }
}

fn dies_at(at: usize) {
    let step = Step::ALL[at];
    let Some(bench) = Bench::new("a_card_dies_at_each_step_and_nobody_waits") else {
        return;
    };
    files(&bench);
    let _card = begin(&bench, Some(step));
    let mut command = bench.unprivileged(&["-c", SERVER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = bench.host.start(&mut command).unwrap();
    let mut client = Client::connect(&bench.client, &format!("{HOST_V4}:80"));
    let is_back = at >= Step::ALL.len() / 2;
    if is_back {
        // It is handed off, works, and is given back.
        (0..4).for_each(|file| client.get(file));
        assert_eq!(bench.on_card(), 1, "{step:?}");
        let _ = ask(&bench.orders(), Order::Give(None));
    } else {
        (0..2).for_each(|file| client.get(file));
    }
    eventually(&format!("{step:?}: the card dies"), || {
        ask(&bench.orders(), Order::List).is_err()
    });
    let began = Instant::now();
    let outcome = client.try_get(7);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{step:?}: {took:?}");
    let is_over = [Step::ToCardForgotten, Step::ToCardReleased].contains(&step);
    assert_eq!(outcome.is_err(), is_over, "{step:?}: {outcome:?}");
    if !is_over {
        // Not only what was on its way.
        (8..12).for_each(|file| client.get(file));
    }
    // Newcomers are served by the host, and by the next card.
    let mut next = Client::connect(&bench.client, &format!("{HOST_V4}:80"));
    (0..4).for_each(|file| next.get(file));
    assert_eq!(bench.on_card(), 0, "{step:?}");
    let _card = begin(&bench, None);
    let mut next = Client::connect(&bench.client, &format!("{HOST_V4}:80"));
    eventually(
        &format!("{step:?}: the program finds the next card"),
        || {
            next.get(8);
            bench.on_card() > 0
        },
    );
    std::fs::write(bench.folder.join("stop"), "").unwrap();
}
