//! Connections that are never quiet are handed off, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::handoff::{Proxy, connect, echo, ping, switch};
use crate::harness::{Family, Origin, PATIENCE, SetAtEnd, on_the_fast_path};

/// Connections at once.
const CONNECTIONS: usize = 24;
const PART_BYTES: u64 = 65_536;

/// All of them ask without a pause. What an end acknowledges on a request that the lock drops is
/// known all the same, so none waits for half a second while the others wait for it.
#[test]
fn connections_that_never_pause_are_all_handed_off() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let _switch = switch(lab);
        let proxy = Proxy::start(lab, family, 4 * PART_BYTES);
        let (is_over, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let _at_end = SetAtEnd(&is_over);
            for _ in 0..CONNECTIONS {
                let stream = connect(lab, family);
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut at = 0;
                    while !is_over.load(Ordering::Acquire) {
                        ping(&stream, at);
                        at += PART_BYTES;
                    }
                });
            }
            for _ in 0..CONNECTIONS {
                let (which, said) = proxy.says_one_of(["adopted", "refused"]);
                assert_eq!(which, 0, "refused {said}");
            }
        });
        println!("{CONNECTIONS} connections, {:?}", begun.elapsed());
    });
}
