//! Connections to the front, where the kernel makes no sockets of them.

use fairlead_datapath::Uncached;
use fairlead_datapath::config::{CacheRule, Pool, PoolId, ProxyVersion, Server};
use fairlead_testkit::endpoint;
use fairlead_wire::TcpFlags;

use crate::rig::{REQUEST, Rig, http_config, linux};

const FRONT: &str = "192.0.0.8:9000";

fn rig(always: bool) -> Rig {
    let mut config = http_config();
    for route in &mut config.services[0].routes {
        route.cache = Some(CacheRule {
            always,
            ..CacheRule::new(1 << 20)
        });
    }
    config.front = Some(PoolId(config.pools.len() as u16));
    config.pools.push(Pool {
        proxy_protocol: Some(ProxyVersion::V2),
        ..Pool::new("(front)", vec![Server::new(endpoint(FRONT))])
    });
    Rig::probed(config, &linux(1))
}

/// Where a client's connection goes.
fn goes_to(rig: &mut Rig, isn: u32) -> fairlead_base::Endpoint {
    let opened = rig.open(isn, &linux(5_000));
    let sent = rig.put(&opened.data(0, REQUEST));
    // A client that begins anew ends its connection before.
    let last = sent.last().expect("a SYN");
    assert_eq!(last.header.flags, TcpFlags::SYN);
    last.header.key.dst
}

fn uncached(target: &str) -> Vec<Uncached> {
    let of = |route| Uncached {
        service: 0,
        route,
        host: "example.com".to_owned(),
        target: target.as_bytes().to_vec(),
    };
    (0..8).map(of).collect()
}

#[test]
fn established_goes_to_the_front_unless_the_url_is_known_not_to_be_kept() {
    let mut rig = rig(false);
    let pools = rig.datapath.snapshot().pools;
    assert!(
        pools.iter().all(|pool| pool.name != "(front)"),
        "it is not shown"
    );
    assert_eq!(goes_to(&mut rig, 1_000), endpoint(FRONT));
    rig.datapath.note_uncached(rig.now, &uncached("/another"));
    assert_eq!(goes_to(&mut rig, 1_001), endpoint(FRONT));
    rig.datapath.note_uncached(rig.now, &uncached("/a.jpg"));
    assert_eq!(goes_to(&mut rig, 1_002), endpoint("10.2.0.1:8081"));
    let counted = rig.datapath.snapshot();
    assert_eq!((counted.cache_bypassed, counted.host_fallbacks), (1, 2));
    let later = rig.now + core::time::Duration::from_secs(121);
    rig.datapath.note_uncached(later, &[]);
    assert_eq!(goes_to(&mut rig, 1_003), endpoint(FRONT), "for two minutes");
}

#[test]
fn established_always_goes_to_the_front_where_all_are_to() {
    let mut rig = rig(true);
    rig.datapath.note_uncached(rig.now, &uncached("/a.jpg"));
    assert_eq!(goes_to(&mut rig, 1_000), endpoint(FRONT));
    assert_eq!(rig.datapath.snapshot().cache_bypassed, 0);
}
