//! Clients that the switch connects for.

use fairlead_base::Endpoint;
use fairlead_wire::proxy_protocol::{emit_v1, emit_v2};

use super::world::{LISTEN, World, at, config};
use crate::{ConnId, Limits};

const A: &str = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";

fn header(client: Endpoint, listen: Endpoint) -> Vec<u8> {
    let mut header = Vec::new();
    emit_v2(client, listen, &mut header);
    header
}

fn connect(world: &mut World) -> ConnId {
    world.announced().expect("room")
}

#[test]
fn a_client_is_who_the_switch_says() {
    for piece in [1, 7, 1_000] {
        let mut world = World::new();
        world.piece = piece;
        let id = connect(&mut world);
        world.say(id, [&header(at(77, 7), LISTEN), A.as_bytes()].concat());
        let server = world.connects[0];
        let request = world.got(server);
        assert!(
            request.contains("X-Forwarded-For: 10.0.0.77\r\n"),
            "{request}"
        );
        world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        assert!(world.got(id).ends_with("hi"));
        world.say(id, A);
        assert!(
            world.got(server).starts_with("GET /b "),
            "the same connection"
        );
        world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nho");
        let events = world.events();
        let clients: Vec<_> = events.iter().map(|one| one.client).collect();
        assert_eq!(clients, [at(77, 7); 2]);
        world.end(id);
        assert!(world.front.is_idle());
    }
}

#[test]
fn whoever_is_not_announced_is_reset() {
    let mut first_version = Vec::new();
    emit_v1(at(77, 7), at(3, 3), &mut first_version);
    for said in [A.as_bytes(), &header(at(77, 7), at(3, 3)), &first_version] {
        let mut world = World::new();
        let id = connect(&mut world);
        world.say(id, said);
        assert!(world.far(id).reset);
        let counts = world.front.counts().numbers;
        assert_eq!((counts.front_turned_away, counts.front_clients), (1, 0));
        assert!(world.connects.is_empty());
    }
    let mut world = World::new();
    let id = connect(&mut world);
    world.say(id, &header(at(77, 7), LISTEN)[..20]);
    world.wait(std::time::Duration::from_secs(11));
    assert!(world.far(id).reset, "nobody waits for the rest");
    let id = connect(&mut world);
    world.end(id);
    assert!(world.far(id).closed && world.front.is_idle());
}

#[test]
fn each_client_may_have_its_number_of_connections() {
    let mut config = config();
    config.limits.front_per_client = 2;
    let mut world = World::of(config, Limits::default(), 1);
    // Those that are not announced yet count for nobody.
    let ids: Vec<_> = (0..5).map(|_| connect(&mut world)).collect();
    for (&id, port) in ids.iter().zip(1..) {
        world.say(id, header(at(77, port), LISTEN));
        assert_eq!(world.far(id).reset, port > 2, "{port}");
    }
    world.end(ids[0]);
    let id = connect(&mut world);
    world.say(id, header(at(77, 9), LISTEN));
    assert!(!world.far(id).reset, "one has gone");
    let id = connect(&mut world);
    world.say(id, header(at(78, 1), LISTEN));
    assert!(!world.far(id).reset, "another client");
    assert_eq!(world.front.counts().numbers.front_turned_away, 3);
}

#[test]
fn nobody_else_can_say_who_they_are() {
    let mut world = World::new();
    let (idle, waits) = (connect(&mut world), connect(&mut world));
    world.say(idle, header(at(77, 7), LISTEN));
    world.front.release(world.now);
    world.run();
    assert!(world.released.is_empty());
    assert!(world.far(idle).shut, "a FIN");
    // What was on its way is served.
    world.say(waits, [&header(at(77, 8), LISTEN), A.as_bytes()].concat());
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    assert!(world.got(waits).ends_with("hi") && world.far(waits).shut);
    world.wait(std::time::Duration::from_secs(3));
    assert!(world.front.is_idle());
}

#[test]
fn another_front_goes_on_counting() {
    let mut world = World::new();
    let id = connect(&mut world);
    world.say(id, [&header(at(77, 7), LISTEN), A.as_bytes()].concat());
    let counts = world.front.counts();
    assert_eq!(
        (counts.numbers.front_clients, counts.numbers.front_servers),
        (1, 1)
    );
    let mut after = World::new();
    after.front.go_on_counting(counts);
    let id = after.ask(A);
    let server = after.connects[0];
    after.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    after.end(id);
    let numbers = after.front.counts().numbers;
    assert_eq!((numbers.front_accepted, numbers.front_clients), (2, 0));
    assert_eq!((numbers.front_served, numbers.front_failures), (1, 1));
}
