//! A host of its own for every test, or a word on why not.

use fairlead_netns::trial::{Needs, in_namespaces, name_of};
use fairlead_netns::{Host, World};

/// Runs `test` in a world of namespaces, or reports it as skipped.
pub(crate) fn in_a_world<F: FnOnce(&mut World)>(test: F) {
    let needs = Needs {
        tun: true,
        ..Needs::default()
    };
    let test = || test(&mut World::new().unwrap());
    in_namespaces(name_of::<F>(), needs, |_| {}, test);
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
