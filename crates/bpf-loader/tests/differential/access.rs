//! Access lists: the program denies the SYNs that the engine's own lists deny.

use std::sync::Arc;

use fairlead_base::{Address, DropReason, Endpoint, Rng};
use fairlead_bpf_loader::{AccessPrefix, AccessRule, Fate, Mode};
use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_tcp::{ListenOffer, SynOffload};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::TcpFlags;

use super::{OFFER, endpoints, frame_of, kernel, on_a_switch, run};

/// Addresses that have long beginnings in common.
fn some_address(rng: &mut Rng, v6: bool) -> Address {
    let mut bytes = match v6 {
        true => [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        false => Address::v4([10, 1, 2, 3]).0,
    };
    let from = if v6 { 2 } else { 13 };
    for _ in 0..rng.below(3) {
        let at = (from + rng.below(16 - from)) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
    Address(bytes)
}

fn some_list(rng: &mut Rng, name: &str) -> Arc<AccessList> {
    let entries = (0..rng.below(20)).map(|_| {
        let v6 = rng.chance(500_000);
        AccessEntry {
            first: some_address(rng, v6),
            bits: rng.below(if v6 { 129 } else { 33 }) as u8,
            allow: rng.chance(500_000),
        }
    });
    let entries = entries.collect();
    Arc::new(AccessList::new(name, rng.chance(500_000), entries))
}

fn prefixes(lists: &[Arc<AccessList>]) -> Vec<AccessPrefix> {
    let of = |(list, one): (u32, &Arc<AccessList>)| {
        let prefixes = one.entries().iter().map(move |entry| AccessPrefix {
            list,
            first: entry.first,
            bits: entry.bits,
            allow: entry.allow,
        });
        prefixes.collect::<Vec<_>>()
    };
    (0..).zip(lists).flat_map(of).collect()
}

fn lists_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(23);
        let (mut allowed, mut denied) = (0, 0);
        for _ in 0..6 {
            let lists: Vec<_> = ["a", "b", "c"].map(|name| some_list(&mut rng, name)).into();
            // Both endpoints have lists; not the same ones, nor in the same order.
            let of_listen = [vec![0_usize, 1], vec![2, 0]];
            let (mut kernel, mut table) = kernel(mode, 0);
            let rules: Vec<AccessRule> = (0..2_u16)
                .map(|index| AccessRule {
                    index,
                    listen: endpoints().listens[usize::from(index)],
                    lists: of_listen[usize::from(index)]
                        .iter()
                        .map(|&at| (at as u32, lists[at].default_allow()))
                        .collect(),
                    counter: u32::from(index) * 2,
                    reset: false,
                })
                .collect();
            kernel
                .set_access(&mut table, prefixes(&lists).into_iter(), &rules)
                .unwrap();
            for (index, listen) in (0..).zip(endpoints().listens) {
                let offer = ListenOffer {
                    listen: index,
                    ..OFFER
                };
                table.set_offer(listen, &offer);
            }
            let mut expected = [0_u64; 4];
            for _ in 0..400 {
                let v6 = rng.chance(500_000);
                let client = Endpoint {
                    addr: some_address(&mut rng, v6),
                    port: 41_000,
                };
                let listen = endpoints().listens[usize::from(v6)];
                if client.addr == listen.addr {
                    continue;
                }
                let syn = segment(client, listen).flags(TcpFlags::SYN).packet();
                let trial = kernel.try_frame(&frame_of(&syn), interface, 1).unwrap();
                let of = &of_listen[usize::from(v6)];
                let denying = of.iter().position(|&at| !lists[at].allows(client.addr));
                match denying {
                    Some(at) => {
                        assert_eq!(trial.fate, Fate::Drop, "{client} {lists:?}");
                        expected[usize::from(v6) * 2 + at] += 1;
                        denied += 1;
                    }
                    None => {
                        assert_eq!(trial.fate, Fate::Redirect, "{client} {lists:?}");
                        allowed += 1;
                    }
                }
            }
            assert_eq!(kernel.access_denied(4).unwrap(), expected);
            let drops = kernel.counters().unwrap().drops;
            assert_eq!(
                drops.of(DropReason::AccessDenied),
                expected.iter().sum::<u64>()
            );
        }
        assert!(allowed > 300 && denied > 500, "{allowed} {denied}");
    });
}

#[test]
fn tc_denies_the_syns_that_the_engine_denies() {
    run(|| lists_agree(Mode::Tc));
}

#[test]
fn xdp_denies_the_syns_that_the_engine_denies() {
    run(|| lists_agree(Mode::XdpNative));
}

#[test]
fn who_is_denied_aloud_is_the_engines_and_without_a_list_nobody_is() {
    run(|| {
        on_a_switch(|_, interface| {
            let (mut kernel, mut table) = kernel(Mode::Tc, 0);
            let listens = endpoints().listens;
            let rule = AccessRule {
                index: 0,
                listen: listens[0],
                lists: vec![(0, false)],
                counter: 0,
                reset: true,
            };
            kernel
                .set_access(&mut table, std::iter::empty(), &[rule])
                .unwrap();
            for (index, listen) in (0..).zip(&listens) {
                let offer = ListenOffer {
                    listen: index,
                    ..OFFER
                };
                table.set_offer(*listen, &offer);
            }
            let fate = |client: &str, listen: Endpoint| {
                let syn = segment(endpoint(client), listen).flags(TcpFlags::SYN);
                let frame = frame_of(&syn.packet());
                kernel.try_frame(&frame, interface, 1).unwrap().fate
            };
            assert_eq!(fate("10.1.0.9:41000", listens[0]), Fate::Pass);
            assert_eq!(fate("[fd01::9]:41000", listens[1]), Fate::Redirect);
            assert_eq!(kernel.access_denied(1).unwrap(), [0]);
        });
    });
}
