//! Each call means on the card what it means in the kernel: a program and its client write down
//! what they see, with the card and without it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use fairlead_handoff::Op;

use crate::bench::{Bench, HOST_V4, HOST_V6};

const SCRIPT: &str = include_str!("calls.py");

/// What both ends saw.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    server: String,
    client: String,
}

fn text_of(child: &mut Child) -> String {
    let mut text = String::new();
    let mut output = child.stdout.take().expect("its output");
    output.read_to_string(&mut text).unwrap();
    text
}

fn see(bench: &Bench, is_offloaded: bool, address: &str) -> Seen {
    let mut command = bench.program(is_offloaded, &["-c", SCRIPT, "server", "80"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = bench.host.start(&mut command).unwrap();
    let mut lines = BufReader::new(server.child().stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let rest = std::thread::spawn(move || {
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        text
    });
    let mut command = bench.peer(&["-c", SCRIPT, "client", address, "80"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut client = bench.client.start(&mut command).unwrap();
    let seen = text_of(client.child());
    let ended = client.child().wait().unwrap();
    let is_alive = server.child().try_wait().unwrap().is_none();
    drop(server);
    let server = rest.join().unwrap();
    assert!(ended.success() && is_alive, "{server}\n{seen}");
    Seen {
        server,
        client: seen,
    }
}

/// Lines of which one side has none.
fn differences(kernel: &str, card: &str) -> Vec<String> {
    let only = |here: &str, there: &str, mark: &str| -> Vec<String> {
        let there: Vec<&str> = there.lines().collect();
        let only = here.lines().filter(|line| !there.contains(line));
        only.map(|line| format!("{mark} {line}")).collect()
    };
    let (kernel, card) = (only(kernel, card, "kernel:"), only(card, kernel, "card:"));
    [kernel, card].concat()
}

#[test]
fn calls_mean_on_the_card_what_they_mean_in_the_kernel() {
    let Some(bench) = Bench::new("calls_mean_on_the_card_what_they_mean_in_the_kernel") else {
        return;
    };
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(bench.folder.join("file"), bytes).unwrap();
    let kernel = see(&bench, false, HOST_V4);
    let steps = kernel.server.lines().count();
    assert!(steps > 80, "{steps}");
    for address in [HOST_V4, HOST_V6] {
        let (card, counts) = bench.served(|_| see(&bench, true, address));
        let same = |text: &str| {
            text.replace(HOST_V6, HOST_V4)
                .replace("fd88::1", "10.88.0.1")
        };
        let [server, client] = [&card.server, &card.client].map(|text| same(text));
        let kernel_server = kernel.server.replace("::ffff:", "");
        let server = server.replace("::ffff:", "");
        let other = [
            differences(&kernel_server, &server),
            differences(&kernel.client, &client),
        ];
        assert!(other.concat().is_empty(), "{:#?}", other.concat());
        assert_eq!(kernel_server.lines().count(), server.lines().count());
        let moved = counts.commands.given(Op::Handoff);
        assert!(moved > 25, "only {moved} were handed off");
        assert!(counts.commands.given(Op::Restore) > 5);
        assert_eq!((counts.faults, counts.broken_rings), ([0; 5], 0));
    }
}
