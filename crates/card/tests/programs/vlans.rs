//! A card whose wire is the interface of a VLAN.

use std::process::Stdio;

use fairlead_handoff::Op;

use crate::bench::{Bench, HOST_V4, HOST_V6};
use crate::orders::files;
use crate::whole::{Client, FILES, SERVER};

#[test]
fn a_card_serves_a_vlan() {
    let Some(bench) = Bench::tagged("vlans::a_card_serves_a_vlan", 5) else {
        return;
    };
    files(&bench);
    let mut command = bench.program(true, &["-c", SERVER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let ((), counts) = bench.served(|_| {
        let _server = bench.host.start(&mut command).unwrap();
        let to = [format!("{HOST_V4}:80"), format!("[{HOST_V6}]:80")];
        let mut kept = to.each_ref().map(|to| Client::connect(&bench.client, to));
        for file in 0..FILES / 4 {
            kept.iter_mut().for_each(|one| one.get(file));
            Client::connect(&bench.client, &to[file % 2]).get(file);
        }
        assert_eq!((bench.on_card(), bench.on_host()), (2, 0));
    });
    assert_eq!(counts.faults, [0; 5]);
    assert_eq!(counts.commands.given(Op::Handoff), 2);
}
