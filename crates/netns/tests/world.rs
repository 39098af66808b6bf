//! Worlds made for real. Where this user may not have namespaces, each test says so and passes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use fairlead_netns::trial::{Needs, in_namespaces, name_of};
use fairlead_netns::{Error, Host, World};

/// Runs `test` if namespaces are available, or reports it as skipped.
fn in_a_world<F: FnOnce(&mut World)>(test: F) {
    in_namespaces(
        name_of::<F>(),
        Needs::default(),
        |_| {},
        || test(&mut World::new().unwrap()),
    );
}

fn pair(world: &mut World, a: &[&str], b: &[&str]) -> (Host, Host) {
    let (left, right) = (world.host("left").unwrap(), world.host("right").unwrap());
    world.link((&left, a), (&right, b)).unwrap();
    (left, right)
}

/// Sends `text` from one host to the other over TCP and back.
fn echo(from: &Host, to: &Host, address: &str) -> String {
    let listener = to.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let mut client = from.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"over the line").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn two_hosts_reach_each_other_by_both_families() {
    in_a_world(|world| {
        let (left, right) = pair(
            world,
            &["10.0.0.1/24", "fd00::1/64"],
            &["10.0.0.2/24", "fd00::2/64"],
        );
        assert_eq!(echo(&left, &right, "10.0.0.2:4000"), "over the line");
        assert_eq!(echo(&left, &right, "[fd00::2]:4000"), "over the line");
        assert_eq!(echo(&right, &left, "10.0.0.1:4000"), "over the line");
    });
}

#[test]
fn addresses_have_their_routes_when_a_link_is_made() {
    in_a_world(|world| {
        let (left, right) = pair(world, &["fd00::1/64"], &["10.0.0.2/24", "fd00::2/64"]);
        for (host, address) in [(left, "fd00::1"), (right, "fd00::2")] {
            let mut command = host.command("ip");
            command.args(["-6", "route", "show", "table", "local"]);
            let routes = String::from_utf8(command.output().unwrap().stdout).unwrap();
            for local in [format!("local {address} "), "local fe80::".to_owned()] {
                assert!(routes.contains(&local), "no {local:?}: {routes}");
            }
        }
    });
}

#[test]
fn a_host_in_the_middle_forwards_once_it_is_told_to() {
    in_a_world(|world| {
        let (left, middle) = pair(world, &["10.0.0.1/24"], &["10.0.0.2/24"]);
        let right = world.host("far").unwrap();
        world
            .link((&middle, &["10.0.1.1/24"]), (&right, &["10.0.1.2/24"]))
            .unwrap();
        left.route("10.0.1.0/24", "10.0.0.2").unwrap();
        right.route("10.0.0.0/24", "10.0.1.1").unwrap();
        middle.sysctl("net.ipv4.ip_forward", "1").unwrap();
        assert_eq!(echo(&left, &right, "10.0.1.2:4000"), "over the line");
    });
}

#[test]
fn a_command_sees_its_host_and_nothing_of_the_machine() {
    in_a_world(|world| {
        let (left, _right) = pair(world, &["10.0.0.1/24"], &["10.0.0.2/24"]);
        let output = left
            .command("ip")
            .args(["-brief", "link"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let names: Vec<_> = text
            .lines()
            .filter_map(|line| line.split(['@', ' ']).next())
            .collect();
        assert_eq!(names, ["lo", "right0"]);
    });
}

#[test]
fn a_process_ends_with_its_owner_and_the_namespace_with_its_last_holder() {
    in_a_world(|world| {
        let (left, right) = pair(world, &["10.0.0.1/24"], &["10.0.0.2/24"]);
        let sleeper = left
            .start(left.command("sleep").arg("600").stdout(Stdio::null()))
            .unwrap();
        let process = format!("/proc/{}", sleeper.id());
        assert!(std::path::Path::new(&process).exists());
        drop(sleeper);
        assert!(!std::path::Path::new(&process).exists());
        drop(left);
        // The kernel takes a namespace down in its own time; its end of the pair goes with it.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let output = right
                .command("ip")
                .args(["-brief", "link"])
                .output()
                .unwrap();
            if !String::from_utf8(output.stdout).unwrap().contains("left0") {
                break;
            }
            assert!(
                std::time::Instant::now() < until,
                "the namespace outlived its holders"
            );
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
}

#[test]
fn mistakes_are_told_in_the_words_of_the_tool() {
    in_a_world(|world| {
        let host = world.host("alone").unwrap();
        let error = host.route("10.9.0.0/24", "10.8.0.1").unwrap_err();
        assert!(matches!(&error, Error::Ip { .. }), "{error:?}");
        assert!(error.to_string().contains("10.9.0.0/24"), "{error}");
        for name in [
            "net.ipv4.no_such_setting",
            "kernel.hostname",
            "net.../../kernel/hostname",
        ] {
            let error = host.sysctl(name, "1").unwrap_err();
            assert!(matches!(&error, Error::Sysctl(..)), "{name}: {error:?}");
        }
    });
}
