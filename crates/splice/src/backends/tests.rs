//! The state around the policies: ids, counters, health as it shows in the choice.

use core::time::Duration;

use fairlead_base::{Address, Endpoint, Instant};

use super::*;
use crate::config::{Balance, Check, Pool as PoolConfig};

/// Servers 10.0.p.1, 10.0.p.2, … with these weights, for each pool.
pub(super) fn config(pools: &[(Balance, &[u16])]) -> Config {
    let pools = (0..=u16::MAX).zip(pools).map(|(id, (balance, weights))| {
        let servers = (1..=u16::MAX)
            .zip(weights.iter())
            .map(|(host, &weight)| Server {
                weight,
                ..Server::new(endpoint(id, host))
            });
        PoolConfig {
            balance: balance.clone(),
            ..PoolConfig::new(format!("pool{id}"), servers.collect())
        }
    });
    Config::new(Vec::new(), pools.collect())
}

fn endpoint(pool: u16, host: u16) -> Endpoint {
    let [high, low] = host.to_be_bytes();
    Endpoint {
        addr: Address::v4([10, pool as u8, high, low]),
        port: 8080,
    }
}

pub(super) fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

pub(super) const POOL: PoolId = PoolId(0);

/// Any client: of IPv4, as the servers are.
pub(super) const V4: Caller = Caller {
    v4: true,
    addr: None,
};

const OFFERS: Offers = Offers {
    mss: 1460,
    window_scale: Some(7),
    sack: true,
    timestamps: true,
};

#[test]
fn ids_run_over_all_pools_in_order() {
    let config = config(&[
        (Balance::RoundRobin, &[1, 1]),
        (Balance::Weighted, &[]),
        (Balance::LeastConnections, &[3]),
    ]);
    let mut backends = Backends::new(&config, 1).unwrap();
    assert_eq!(
        backends.ids(PoolId(0)).collect::<Vec<_>>(),
        [ServerId(0), ServerId(1)]
    );
    assert_eq!(backends.ids(PoolId(1)).count(), 0);
    assert_eq!(backends.ids(PoolId(2)).collect::<Vec<_>>(), [ServerId(2)]);
    assert_eq!(backends.ids(PoolId(3)).count(), 0);
    assert_eq!(
        backends.server(ServerId(2)),
        (PoolId(2), config.pools[2].servers[0])
    );
    assert_eq!(
        backends.pick(PoolId(2), 0, V4, &[], at(0)),
        Some(ServerId(2))
    );
    assert_eq!(
        backends.pick(PoolId(1), 0, V4, &[], at(0)),
        None,
        "a pool without servers"
    );
    assert_eq!(
        backends.pick(PoolId(3), 0, V4, &[], at(0)),
        None,
        "no such pool"
    );
    let listed: Vec<_> = backends
        .servers()
        .map(|(id, pool, _)| (id.0, pool.0))
        .collect();
    assert_eq!(listed, [(0, 0), (1, 0), (2, 2)]);
}

#[test]
fn as_many_servers_as_ids_are_held_and_one_more_is_refused() {
    let weights = vec![1; SERVERS_MAX];
    let full = config(&[(Balance::RoundRobin, &weights)]);
    let mut backends = Backends::new(&full, 1).unwrap();
    assert_eq!(backends.servers().count(), SERVERS_MAX);
    assert!(backends.pick(POOL, 0, V4, &[], at(0)).is_some());

    let over = config(&[(Balance::RoundRobin, &weights), (Balance::Weighted, &[1])]);
    let error = Backends::new(&over, 1).unwrap_err();
    assert_eq!(
        error,
        BackendsError::TooManyServers {
            count: SERVERS_MAX + 1
        }
    );
    assert!(error.to_string().contains("65536 servers"));
}

#[test]
fn connections_failures_and_answers_are_counted_in_the_snapshot() {
    let config = config(&[(Balance::RoundRobin, &[1, 2])]);
    let mut backends = Backends::new(&config, 1).unwrap();
    let [one, two] = [ServerId(0), ServerId(1)];
    backends.opened(one);
    backends.opened(one);
    backends.closed(one);
    assert!(backends.failed(two, at(1)));
    assert!(!backends.failed(two, at(1)), "no news");
    assert_eq!(backends.answered(one, OFFERS, at(2)), Change::More);
    assert_eq!(backends.answered(one, OFFERS, at(3)), Change::None);
    let fewer = Offers {
        sack: false,
        ..OFFERS
    };
    assert_eq!(backends.answered(one, fewer, at(4)), Change::Less);
    assert_eq!(backends.active(one), 1);
    assert_eq!(
        backends.offers(one),
        Some(Offers {
            sack: false,
            ..OFFERS
        })
    );
    assert_eq!(
        (backends.state(one), backends.state_since(one)),
        (ServerState::Up, at(2))
    );

    let pools = backends.snapshot(&config);
    assert_eq!(pools.len(), 1);
    assert_eq!(pools[0].name, "pool0");
    let [first, second] = &pools[0].servers[..] else {
        panic!("two servers")
    };
    assert_eq!(first.endpoint, config.pools[0].servers[0].endpoint);
    assert_eq!((first.active, first.total, first.failures), (1, 2, 0));
    assert_eq!(first.state, ServerState::Up);
    assert_eq!((second.active, second.total, second.failures), (0, 0, 2));
    assert_eq!((second.weight, second.state), (2, ServerState::Down));
}

#[test]
fn ids_of_no_server_change_nothing() {
    let config = config(&[(Balance::RoundRobin, &[1])]);
    let mut backends = Backends::new(&config, 1).unwrap();
    let stranger = ServerId(7);
    backends.opened(stranger);
    backends.closed(stranger);
    assert!(!backends.failed(stranger, at(0)));
    assert_eq!(backends.answered(stranger, OFFERS, at(0)), Change::None);
    assert!(!backends.reached(stranger, at(0)));
    assert_eq!(backends.state(stranger), ServerState::Unknown);
    assert_eq!(backends.active(stranger), 0);
    assert_eq!(
        backends.pick(POOL, 0, V4, &[stranger], at(0)),
        Some(ServerId(0))
    );
}

#[test]
fn a_server_that_is_down_gets_one_trial_connection_when_its_time_comes() {
    let config = config(&[(Balance::RoundRobin, &[1, 1])]);
    let mut backends = Backends::new(&config, 1).unwrap();
    let [one, two] = [ServerId(0), ServerId(1)];
    backends.failed(one, at(10));
    for _ in 0..5 {
        assert_eq!(backends.pick(POOL, 0, V4, &[], at(11)), Some(two));
    }
    let picks: Vec<_> = (0..6)
        .map(|_| backends.pick(POOL, 0, V4, &[], at(12)).unwrap())
        .collect();
    assert_eq!(
        picks.iter().filter(|&&id| id == one).count(),
        1,
        "{picks:?}"
    );
    assert_eq!(backends.state(one), ServerState::Down, "until it answers");
    backends.answered(one, OFFERS, at(13));
    let picks: Vec<_> = (0..6)
        .map(|_| backends.pick(POOL, 0, V4, &[], at(13)).unwrap())
        .collect();
    assert_eq!(
        picks.iter().filter(|&&id| id == one).count(),
        3,
        "{picks:?}"
    );
}

#[test]
fn when_all_that_is_left_is_down_it_is_used_anyway() {
    let config = config(&[(Balance::RoundRobin, &[1, 1, 0])]);
    let mut backends = Backends::new(&config, 1).unwrap();
    let [one, two] = [ServerId(0), ServerId(1)];
    backends.failed(one, at(10));
    assert_eq!(backends.pick(POOL, 0, V4, &[two], at(10)), Some(one));
    backends.failed(two, at(10));
    let mut picks: Vec<_> = (0..4)
        .map(|_| backends.pick(POOL, 0, V4, &[], at(10)).unwrap())
        .collect();
    picks.sort_unstable();
    assert_eq!(picks, [one, one, two, two]);
    assert_eq!(backends.pick(POOL, 0, V4, &[one, two], at(10)), None);
}

#[test]
fn affinity_hashes_depend_on_seed_and_bytes_and_nothing_else() {
    let config = config(&[(Balance::RoundRobin, &[1])]);
    let one = Backends::new(&config, 1).unwrap();
    let same = Backends::new(&config, 1).unwrap();
    let other = Backends::new(&config, 2).unwrap();
    assert_eq!(one.affinity_hash(b"alice"), same.affinity_hash(b"alice"));
    assert_ne!(one.affinity_hash(b"alice"), other.affinity_hash(b"alice"));
    assert_ne!(one.affinity_hash(b"alice"), one.affinity_hash(b"bob"));
}

/// One pool of servers with these weights, changed by `change`.
fn pool_of(weights: &[u16], change: impl FnOnce(&mut PoolConfig)) -> Backends {
    let mut config = config(&[(Balance::RoundRobin, weights)]);
    change(&mut config.pools[0]);
    Backends::new(&config, 0).unwrap()
}

fn picks(backends: &mut Backends, count: usize, now: Instant) -> Vec<u16> {
    (0..count)
        .filter_map(|_| backends.pick(POOL, 0, V4, &[], now))
        .map(|id| id.0)
        .collect()
}

#[test]
fn backups_get_connections_only_while_no_other_server_is_available() {
    let mut backends = pool_of(&[1, 1, 1], |pool| pool.servers[0].backup = true);
    assert_eq!(picks(&mut backends, 4, at(0)), [1, 2, 1, 2]);
    backends.set_admin(ServerId(1), Admin::Drain, at(0));
    assert_eq!(picks(&mut backends, 2, at(0)), [2, 2]);
    backends.failed(ServerId(2), at(0));
    assert_eq!(picks(&mut backends, 2, at(0)), [0, 0]);
    backends.set_admin(ServerId(1), Admin::Ready, at(0));
    assert_eq!(picks(&mut backends, 2, at(0)), [1, 1]);
}

#[test]
fn servers_that_are_taken_out_get_nothing_even_when_all_others_are_down() {
    for admin in [Admin::Drain, Admin::Maintenance] {
        let mut backends = pool_of(&[1, 1], |_| ());
        backends.set_admin(ServerId(0), admin, at(0));
        backends.failed(ServerId(1), at(0));
        assert_eq!(picks(&mut backends, 3, at(0)), [1, 1, 1], "all_down = try");
        backends.set_admin(ServerId(1), admin, at(0));
        assert_eq!(picks(&mut backends, 3, at(0)), []);
    }
}

#[test]
fn a_pool_that_refuses_tries_no_server_that_is_down() {
    let mut backends = pool_of(&[1, 1], |pool| {
        pool.all_down = AllDown::Refuse;
        pool.check = Some(Check::default());
    });
    backends.set_check(ServerId(0), false, at(0));
    assert_eq!(picks(&mut backends, 2, at(900)), [1, 1]);
    backends.set_check(ServerId(1), false, at(0));
    assert_eq!(picks(&mut backends, 2, at(900)), []);
}

#[test]
fn with_health_checks_no_client_is_sent_as_a_trial() {
    let mut backends = pool_of(&[1, 1], |pool| pool.check = Some(Check::default()));
    backends.failed(ServerId(0), at(0));
    assert_eq!(picks(&mut backends, 4, at(3_600)), [1; 4]);
    backends.reached(ServerId(0), at(3_600));
    assert_eq!(picks(&mut backends, 2, at(3_600)), [0, 1]);
}

/// Every policy that goes by weight follows the ramp.
#[test]
fn a_server_that_starts_slowly_has_a_rising_share() {
    for policy in policy::REGISTRY {
        let mut config = config(&[((policy.balance)(HashOn::ClientAddress), &[1, 1])]);
        config.pools[0].slow_start = Duration::from_secs(8);
        let mut backends = Backends::new(&config, 3).unwrap();
        backends.set_admin(ServerId(1), Admin::Maintenance, at(10));
        backends.set_admin(ServerId(1), Admin::Ready, at(20));
        let mut share = |now: u64| {
            let mut taken = 0;
            for client in 0..9_000u64 {
                let hash = backends.affinity_hash(&client.to_be_bytes());
                let id = backends.pick(POOL, hash, V4, &[], at(now)).unwrap();
                backends.opened(id);
                taken += id.0;
            }
            f64::from(taken) / 9_000.0
        };
        if matches!(policy.name, "least-connections" | "random-two") {
            // By load: it catches up, but not faster than its weight allows.
            assert!((0.05..0.3).contains(&share(20)), "{}", policy.name);
            continue;
        }
        for (now, wanted) in [(20, 1.0 / 9.0), (23, 4.0 / 12.0), (40, 0.5)] {
            let share = share(now);
            let name = policy.name;
            assert!((share - wanted).abs() < 0.02, "{name} at {now}: {share}");
        }
    }
}

#[test]
fn outliers_are_ejected_but_never_more_than_the_share_of_their_pool() {
    let mut backends = pool_of(&[1; 4], |pool| {
        pool.outlier = Some(Outlier {
            consecutive_connect_failures: 3,
            ..Outlier::default()
        });
    });
    let client = |last: u8| Address::v4([192, 0, 2, last]);
    for id in 0..4 {
        backends.reached(ServerId(id), at(0));
        // One client's: of that alone a server is not down.
        (0..3).for_each(|_| {
            backends.failed_for(ServerId(id), client(1), at(1));
        });
    }
    let ejected = |backends: &Backends| -> Vec<u16> {
        let is_out = |id: &u16| backends.unavailable(ServerId(*id)) == Some(Unavailable::Ejected);
        (0..4).filter(is_out).collect()
    };
    assert_eq!(ejected(&backends), [0, 1]);
    assert_eq!(picks(&mut backends, 4, at(2)), [2, 3, 2, 3]);
    assert_eq!(picks(&mut backends, 40, at(31)).iter().min(), Some(&0));
    assert_eq!(ejected(&backends), [0; 0]);
}

#[test]
fn a_weight_that_was_changed_is_followed() {
    for policy in policy::REGISTRY {
        let config = config(&[((policy.balance)(HashOn::ClientAddress), &[1, 1])]);
        let mut backends = Backends::new(&config, 3).unwrap();
        assert!(backends.set_weight(ServerId(1), 0) && !backends.set_weight(ServerId(1), 0));
        for client in 0..200u64 {
            let hash = backends.affinity_hash(&client.to_be_bytes());
            let id = backends.pick(POOL, hash, V4, &[], at(0));
            assert_eq!(id, Some(ServerId(0)), "{}", policy.name);
        }
        backends.set_weight(ServerId(0), 0);
        backends.set_weight(ServerId(1), 7);
        assert_eq!(backends.pick(POOL, 9, V4, &[], at(0)), Some(ServerId(1)));
    }
}
