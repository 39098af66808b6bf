//! A host of its own for every test, or a word on why not.

use std::io::Write as _;
use std::process::Command;

use fairlead_netns::{Host, Rights, World, allowed, in_user_namespace, tun_allowed};

/// Runs `test` in a world of namespaces: in this process, or (an ordinary user) in a second run
/// of this very test that is root in a user namespace. Where neither is allowed it says so on the
/// terminal, past the test runner's capture, and passes.
pub(crate) fn in_a_world(name: &str, test: fn(&mut World)) {
    let rights = allowed().and_then(|rights| tun_allowed().map(|()| rights));
    match rights {
        Ok(Rights::AsItIs) => test(&mut World::new().unwrap()),
        Ok(Rights::InUserNamespace) => {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", name, "--nocapture"]);
            in_user_namespace(&mut again);
            assert!(
                again.status().unwrap().success(),
                "{name} failed in a user namespace"
            );
        }
        Err(why) => {
            let _ = std::io::stderr().write_all(format!("SKIPPED: {name}: {why}\n").as_bytes());
        }
    }
}

/// A host that forwards both families and has two addresses of its own.
pub(crate) fn forwarding_host(world: &mut World) -> Host {
    let host = world.host("switch").unwrap();
    host.sysctl("net.ipv4.ip_forward", "1").unwrap();
    host.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    host.ip("addr add 10.8.0.1/32 dev lo\naddr add fd08::1/128 dev lo nodad\n")
        .unwrap();
    host
}
