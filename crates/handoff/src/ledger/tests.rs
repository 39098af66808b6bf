use std::collections::BTreeMap;
use std::vec::Vec;

use fairlead_base::Rng;

use super::*;
use crate::budget::Budget;

const ME: Owner = Owner(33);

const ROOM: Facts = Facts {
    port: 80,
    bytes_seen: 0,
    advertised: 0,
    free_lines: 100,
};

fn limits() -> Limits {
    Limits {
        connections: 6,
        owners: 2,
        moving: 4,
        kept_free: 10,
        budget: Budget {
            connections: 4,
            restores_per_second: 2,
        },
    }
}

fn ledger() -> Ledger {
    Ledger::new(limits(), Policy::All)
}

fn enter(ledger: &mut Ledger, owner: Owner) -> Result<Cid, Refusal> {
    ledger.enter(owner, Kind::Pair, &ROOM, 0)
}

fn refused(ledger: &Ledger) -> Vec<(Op, Refusal, u64)> {
    ledger.counts.refused().collect()
}

#[test]
fn a_connection_goes_there_and_back() {
    let mut ledger = ledger();
    let cid = enter(&mut ledger, ME).unwrap();
    assert_eq!(ledger.find(cid).unwrap().phase, Phase::Entering);
    ledger.carried(cid, 7, 5);
    ledger.seen(cid, Side::Server, 1_000);
    assert_eq!(ledger.leave(cid, 9).unwrap().bytes, [0, 1_000]);
    assert_eq!(ledger.leave(cid, 9), Err(Refusal::Busy));
    ledger.stays(cid, Refusal::Busy, 10);
    assert_eq!(ledger.find(cid).unwrap().phase, Phase::Carried);
    assert_eq!(ledger.leave(cid, 11).unwrap().record, Some(7));
    ledger.restored(cid);
    assert!(ledger.is_empty() && ledger.find(cid).is_none());
    assert_eq!(ledger.leave(cid, 12), Err(Refusal::Gone));
    ledger.check_invariants();
    let expected = [
        (Op::Restore, Refusal::Gone, 1),
        (Op::Restore, Refusal::Busy, 2),
    ];
    assert_eq!(refused(&ledger), expected);
}

#[test]
fn a_late_number_does_not_reach_the_next_connection_of_its_line() {
    let mut ledger = ledger();
    let first = enter(&mut ledger, ME).unwrap();
    ledger.stayed(first, Refusal::State);
    let second = enter(&mut ledger, ME).unwrap();
    assert_eq!(first.line(), second.line());
    assert!(ledger.find(first).is_none());
    ledger.carried(second, 0, 0);
    assert_eq!(ledger.leave(first, 0), Err(Refusal::Gone));
    assert_eq!(ledger.ended(first), None);
    assert_eq!(ledger.ended(second).unwrap().cid, second);
    ledger.check_invariants();
}

#[test]
fn every_limit_refuses_with_its_reason() {
    let mut ledger = ledger();
    let cids: Vec<_> = (0..4).map(|_| enter(&mut ledger, ME).unwrap()).collect();
    assert_eq!(enter(&mut ledger, ME), Err(Refusal::Budget));
    assert_eq!(enter(&mut ledger, Owner(1)), Err(Refusal::Busy), "4 move");
    for (record, &cid) in cids.iter().enumerate() {
        ledger.carried(cid, record as u32, 0);
    }
    for _ in 0..2 {
        enter(&mut ledger, Owner(1)).unwrap();
    }
    assert_eq!(
        enter(&mut ledger, Owner(2)),
        Err(Refusal::Budget),
        "2 owners"
    );
    assert_eq!(enter(&mut ledger, Owner(1)), Err(Refusal::TableFull));
    // Restores in one second.
    assert!(ledger.leave(cids[0], 0).is_ok() && ledger.leave(cids[1], 0).is_ok());
    ledger.restored(cids[0]);
    assert_eq!(ledger.leave(cids[2], 999), Err(Refusal::Budget));
    assert!(ledger.leave(cids[2], 1_000).is_ok());
    ledger.check_invariants();
}

#[test]
fn room_is_kept_for_newcomers_and_a_policy_is_asked_first() {
    let kept = limits().kept_free;
    let facts = |free_lines| Facts { free_lines, ..ROOM };
    let mut ledger = Ledger::new(limits(), Policy::Ports([80].into()));
    let mut enter = |facts: &Facts| ledger.enter(ME, Kind::Pair, facts, 0).map(|_| ());
    assert_eq!(enter(&facts(kept)), Err(Refusal::TableFull));
    assert_eq!(enter(&facts(kept + 1)), Ok(()));
    let other = Facts {
        port: 81,
        ..facts(0)
    };
    assert_eq!(enter(&other), Err(Refusal::Policy));
}

/// A plain model of the ledger: what is where, and nothing else.
type Model = BTreeMap<Cid, (Owner, Phase)>;

fn model_enter(model: &Model, owner: Owner, limits: &Limits) -> Result<(), Refusal> {
    let of = |owner| model.values().filter(move |one| one.0 == owner).count() as u32;
    let owners: std::collections::BTreeSet<_> = model.values().map(|one| one.0).collect();
    let moving = model.values().filter(|one| one.1 != Phase::Carried);
    let newcomer = of(owner) == 0 && owners.len() as u32 >= limits.owners;
    if newcomer || of(owner) >= limits.budget.connections {
        Err(Refusal::Budget)
    } else if model.len() as u32 >= limits.connections {
        Err(Refusal::TableFull)
    } else if moving.count() as u32 >= limits.moving {
        Err(Refusal::Busy)
    } else {
        Ok(())
    }
}

/// Random use against the model; every number that was ever given out stays in play.
#[test]
fn agrees_with_a_plain_model_under_random_use() {
    let limits = Limits {
        budget: Budget {
            restores_per_second: 0,
            ..limits().budget
        },
        ..limits()
    };
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut ledger = Ledger::new(limits, Policy::All);
        let (mut model, mut known) = (Model::new(), Vec::new());
        for now_ms in 0..500 {
            step(&mut rng, &mut ledger, &mut model, &mut known, now_ms);
            ledger.check_invariants();
            let entries = ledger.entries().map(|e| (e.cid, (e.owner, e.phase)));
            assert_eq!(entries.collect::<Model>(), model);
        }
    }
}

fn step(rng: &mut Rng, ledger: &mut Ledger, model: &mut Model, known: &mut Vec<Cid>, now_ms: u64) {
    if rng.below(3) == 0 || known.is_empty() {
        let owner = Owner(rng.below(4));
        let expected = model_enter(model, owner, ledger.limits());
        let entered = ledger.enter(owner, Kind::Pair, &ROOM, now_ms);
        assert_eq!(entered.map(|_| ()), expected);
        if let Ok(cid) = entered {
            assert_eq!(model.insert(cid, (owner, Phase::Entering)), None);
            known.push(cid);
        }
        return;
    }
    // Mostly one that lives; sometimes one that is long gone.
    let living: Vec<_> = model.keys().copied().collect();
    let cid = match rng.below(5) {
        1.. if !living.is_empty() => living[rng.below(living.len() as u32) as usize],
        _ => {
            known[known.len().saturating_sub(200)..]
                [rng.below(known.len().min(200) as u32) as usize]
        }
    };
    let moving = model.values().filter(|one| one.1 != Phase::Carried).count() as u32;
    match (model.get(&cid).map(|one| one.1), rng.below(3)) {
        (None, _) => {
            assert_eq!(ledger.leave(cid, now_ms), Err(Refusal::Gone));
            assert_eq!(ledger.ended(cid), None);
        }
        (Some(Phase::Entering), 0) => {
            ledger.stayed(cid, Refusal::Unstable);
            model.remove(&cid);
        }
        (Some(Phase::Entering), _) => {
            ledger.carried(cid, cid.line(), now_ms);
            model.get_mut(&cid).unwrap().1 = Phase::Carried;
        }
        (Some(Phase::Carried), 1..) => {
            let full = moving >= ledger.limits().moving;
            assert_eq!(ledger.leave(cid, now_ms).is_ok(), !full);
            if !full {
                model.get_mut(&cid).unwrap().1 = Phase::Leaving;
            }
        }
        (Some(Phase::Leaving), 0) => {
            ledger.stays(cid, Refusal::Busy, now_ms);
            model.get_mut(&cid).unwrap().1 = Phase::Carried;
        }
        (Some(Phase::Leaving), 1) => {
            ledger.restored(cid);
            model.remove(&cid);
        }
        (Some(_), _) => {
            assert!(ledger.ended(cid).is_some());
            model.remove(&cid);
        }
    }
}
