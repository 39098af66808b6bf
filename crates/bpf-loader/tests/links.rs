//! What an instance without a BPF file system holds open. Alone in its process, which is looked at
//! as a whole.

use fairlead_bpf_loader::{Kernel, Mode, is_built_in};
use fairlead_netns::World;
use fairlead_netns::trial::{Needs, in_namespaces, name_of, skip};
use fairlead_tcp::Endpoints;

/// Descriptors of links that this process has.
fn open_links() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = open.filter_map(|one| std::fs::read_link(one.path()).ok());
    let is_link = |name: &str| name.contains("bpf_link") || name.contains("bpf-link");
    names
        .filter(|name| name.to_str().is_some_and(is_link))
        .count()
}

/// Where links are pinned, a file is all that is left of one; where they are not, descriptors are.
fn interfaces_come_and_go(mode: Mode) {
    let mut world = World::new().unwrap();
    let host = world.host("switch").unwrap();
    host.enter(|| {
        let loaded = Kernel::load(mode, 1, &Endpoints::default(), (1, 2), 3);
        let (mut kernel, _table) = loaded.unwrap();
        for round in 1..=5 {
            let add = "link add c type veth peer name cx\nlink set c up\nlink set cx up\n";
            host.ip(add).unwrap();
            kernel.attach("c").unwrap();
            kernel.forget_gone();
            assert_eq!(open_links(), 1, "{mode:?}, round {round}");
            host.ip("link del c\n").unwrap();
        }
        kernel.forget_gone();
        assert_eq!(open_links(), 0, "{mode:?}: none is of use");
    })
    .unwrap();
}

/// Runs `test`, which is written inside its test function, where programs may be loaded.
fn run<F: FnOnce()>(test: F) {
    let name = name_of::<F>();
    if !is_built_in() {
        return skip(name, "built without the kernel program");
    }
    let may = || Kernel::load(Mode::Tc, 1, &Endpoints::default(), (0, 0), 0).map(drop);
    in_namespaces(
        name,
        Needs::default(),
        |_| {},
        || match may().map_err(|error| format!("{error:?}")) {
            Ok(()) => test(),
            Err(why) if why.contains("PermissionDenied") => skip(name, "no right to use BPF"),
            Err(why) => panic!("root, and yet: {why}"),
        },
    );
}

#[test]
fn an_interface_that_comes_and_goes_costs_no_descriptors() {
    run(|| {
        interfaces_come_and_go(Mode::Tc);
        interfaces_come_and_go(Mode::XdpGeneric);
    });
}
