//! Connections that have changed to another protocol, and are handed off.

use std::time::Duration;

use super::world::{LISTEN, World, at, config};
use crate::{ConnId, RequestEnd, TunnelEnds};

const ASK: &str = "GET /b HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
const ANSWER: &str = "HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

/// A tunnel: its client and its server.
fn tunnel(world: &mut World) -> [ConnId; 2] {
    world.front.let_tunnels_leave(true);
    let client = world.ask(ASK);
    let server = *world.connects.last().expect("a server");
    world.say(server, ANSWER);
    assert!(world.got(client).starts_with("HTTP/1.1 101"));
    world.got(server);
    [client, server]
}

fn ends() -> TunnelEnds {
    TunnelEnds {
        client: at(99, 9),
        listen: LISTEN,
        server: at(20, 8_000),
    }
}

fn refused(world: &World) -> u64 {
    world.front.counts().numbers.front_handoffs_refused
}

#[test]
fn a_quiet_tunnel_is_handed_off_and_forgotten() {
    let mut world = World::new();
    let [client, server] = tunnel(&mut world);
    assert_eq!(
        world.front.poll_hand_off(),
        None,
        "its ends have just sent something"
    );
    world.wait(Duration::from_millis(200));
    assert_eq!(world.front.poll_hand_off(), Some([client, server]));
    assert_eq!(world.front.poll_hand_off(), None, "once");
    // It is nobody's affair how long that takes, and nothing is read meanwhile.
    world.wait(Duration::from_secs(120));
    assert!(world.front.space(client).is_none() && world.front.space(server).is_none());
    assert_eq!(world.front.poll_hand_off(), None);
    world.front.handed_off(world.now, client);
    assert!(world.front.is_idle() && !world.front.knows(server));
    let events = world.events();
    assert_eq!((events.len(), events[0].end), (1, RequestEnd::HandedOff));
    assert_eq!(
        (events[0].status, events[0].server.is_some()),
        (Some(101), true)
    );
    let counts = world.front.counts().numbers;
    let counted = (
        counts.front_handed_off,
        counts.front_upgraded,
        counts.front_servers,
    );
    assert_eq!(counted, (1, 0, 0));
}

#[test]
fn a_refusal_leaves_it_as_it_was() {
    let mut world = World::new();
    let [client, server] = tunnel(&mut world);
    let mut asked = 0;
    for round in 0..2_000 {
        world.wait(Duration::from_millis(100));
        if let Some(ids) = world.front.poll_hand_off() {
            assert_eq!(ids, [client, server]);
            world.front.stays(world.now, client, true);
            asked += 1;
            world.run();
        }
        if round % 500 == 0 {
            world.say(client, "ping");
            world.say(server, "pong");
            assert_eq!((&*world.got(server), &*world.got(client)), ("ping", "pong"));
        }
    }
    // Each attempt costs its ends something: there are few, and then no more.
    assert_eq!((asked, refused(&world)), (8, 8));
    world.end(client);
    world.end(server);
    assert_eq!(world.events()[0].end, RequestEnd::Upgraded);
}

#[test]
fn what_cannot_be_carried_is_tried_once() {
    let mut world = World::new();
    let [client, _] = tunnel(&mut world);
    world.wait(Duration::from_millis(200));
    assert!(world.front.poll_hand_off().is_some());
    world.front.stays(world.now, client, false);
    world.wait(Duration::from_secs(50));
    assert_eq!((world.front.poll_hand_off(), refused(&world)), (None, 1));
}

#[test]
fn a_busy_tunnel_leaves_once_everything_is_written() {
    let mut world = World::new();
    let [client, server] = tunnel(&mut world);
    let part = vec![b'x'; 60_000];
    for _ in 0..20 {
        world.say(client, &part);
        world.got(server);
    }
    // Something is here that the server has not taken yet.
    world.say_only(client, b"rest");
    world.front.handle_time(world.now);
    assert_eq!(world.front.poll_hand_off(), None);
    assert!(world.front.space(client).is_none(), "nothing more is read");
    world.run();
    assert_eq!(world.got(server), "rest");
    assert_eq!(world.front.poll_hand_off(), Some([client, server]));
    world.front.stays(world.now, client, true);
    // The server takes nothing: it may wait for the client, which is read again.
    world.wait(Duration::from_secs(1));
    world.say_only(client, b"rest");
    world.front.handle_time(world.now);
    assert_eq!(world.front.poll_hand_off(), None);
    world
        .front
        .handle_time(world.now + Duration::from_millis(100));
    assert!(world.front.space(client).is_some());
    world.front.received(world.now, client, 0);
    world.run();
    assert_eq!(world.got(server), "rest");
}

#[test]
fn only_open_tunnels_of_known_clients_leave() {
    let mut world = World::new();
    let [client, server] = tunnel(&mut world);
    world.end(client);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.front.poll_hand_off(), None, "one direction has ended");
    world.end(server);
    assert!(world.front.is_idle());
    // Plain requests never leave.
    world.ask("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
    world.wait(Duration::from_secs(1));
    assert_eq!(world.front.poll_hand_off(), None);
    // Nor does anything where the driver cannot, or another process takes over.
    let [_, _] = tunnel(&mut world);
    world.front.release(world.now);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.front.poll_hand_off(), None);
}

#[test]
fn an_abort_while_it_moves_ends_it_here() {
    let mut world = World::new();
    let [client, server] = tunnel(&mut world);
    world.wait(Duration::from_millis(200));
    assert!(world.front.poll_hand_off().is_some());
    world.front.abort(world.now);
    world.front.handed_off(world.now, client);
    world.front.stays(world.now, client, true);
    assert!(!world.front.knows(client) && !world.front.knows(server));
    let ends: Vec<_> = world.events().iter().map(|one| one.end).collect();
    assert_eq!(ends, [RequestEnd::Aborted]);
}

#[test]
fn what_comes_back_is_copied_for_good() {
    let mut world = World::new();
    world.front.let_tunnels_leave(true);
    let [client, server] = world.back(&ends()).expect("a route");
    world.say(client, "ping");
    world.say(server, "pong");
    assert_eq!((&*world.got(server), &*world.got(client)), ("ping", "pong"));
    world.wait(Duration::from_secs(30));
    assert_eq!(world.front.poll_hand_off(), None);
    world.end(server);
    assert!(world.far(client).shut);
    world.end(client);
    assert!(world.front.is_idle());
    let events = world.events();
    assert_eq!(
        (events[0].end, events[0].client),
        (RequestEnd::Upgraded, at(99, 9))
    );
    assert_eq!(world.front.counts().numbers.front_handed_back, 1);
    for strange in [
        TunnelEnds {
            listen: at(3, 3),
            ..ends()
        },
        TunnelEnds {
            server: at(20, 8_001),
            ..ends()
        },
    ] {
        assert!(world.back(&strange).is_none() && strange.place(&config()).is_none());
    }
}
