//! One program, two cards.

use std::process::Stdio;

use fairlead_handoff::{Op, Refusal};

use crate::bench::{Bench, HOST_V4};
use crate::orders::files;
use crate::whole::{Client, SERVER};

#[test]
fn connections_go_to_the_card_that_has_their_address() {
    let name = "connections_go_to_the_card_that_has_their_address";
    let Some(mut bench) = Bench::new(name) else {
        return;
    };
    let second = bench.another("10.89.0.1/24", "10.89.0.2/24");
    files(&bench);
    let mut command = bench.program(true, &["-c", SERVER]);
    let sockets = [&bench.socket, &second.socket];
    command.env(
        "FAIRLEAD_OFFLOAD_SOCKET",
        std::env::join_paths(sockets).unwrap(),
    );
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (((), other), one) = bench.served(|_| {
        bench.served_by(&second, |_| {
            let _server = bench.host.start(&mut command).unwrap();
            let to = [HOST_V4, "10.89.0.2", HOST_V4, "10.89.0.2", "10.89.0.2"];
            let mut kept = to.map(|to| Client::connect(&bench.client, &format!("{to}:80")));
            for file in 0..20 {
                kept[file % 5].get(file);
            }
            assert_eq!((bench.on_card(), bench.on_host()), (2, 0));
        })
    });
    assert_eq!(
        one.commands.given(Op::Handoff),
        2 + 3,
        "all were asked of the first"
    );
    let mut refused = one.commands.refused();
    assert!(refused.any(|one| one == (Op::Handoff, Refusal::Address, 3)));
    assert_eq!(other.commands.given(Op::Handoff), 3);
    assert_eq!((one.faults, other.faults), ([0; 5], [0; 5]));
}
