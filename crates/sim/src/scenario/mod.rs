//! Scenarios: a world drawn from a seed, run to its end, and judged.

mod clients;
mod draw;
mod services;

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::Endpoint;
use fairlead_datapath::{End, Event};

use crate::app::{ClientEnd, ClientPlan, Expect};
use crate::oracle::Role;
use crate::order::Order;
use crate::world::{Failure, World, WorldPlan};

/// A drawn world and what happens in it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from.
    pub seed: u64,
    /// Hosts, links, the switch's configuration.
    pub world: WorldPlan,
    /// Clients, by their host.
    pub clients: Vec<(usize, ClientPlan)>,
    /// Links lose or damage packets for a while, so that a server may be out of reach.
    pub lossy: bool,
    orders: Vec<(fairlead_base::Instant, Order)>,
}

/// What came of a scenario that kept every promise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Virtual time at its end, milliseconds.
    pub virtual_ms: u64,
    /// Clients.
    pub clients: usize,
    /// Clients whose conversation with a server went as planned.
    pub served: usize,
    /// Clients that the switch turned away.
    pub refused: usize,
    /// Clients that left early, as planned.
    pub aborted: usize,
    /// Clients that were reset.
    pub reset: usize,
    /// Stream bytes from clients to servers, and back.
    pub stream_bytes: u64,
    /// Packets that were compared before and after the switch.
    pub compared: u64,
    /// Changes with every bit of every packet.
    pub digest: u64,
}

/// Runs the scenario of a seed.
///
/// # Errors
/// The first promise that was broken, with the last packets before it.
pub fn run_seed(seed: u64) -> Result<Outcome, Failure> {
    run_scenario(&Scenario::draw(seed))
}

/// Runs a scenario.
///
/// # Errors
/// As [`run_seed`].
pub fn run_scenario(scenario: &Scenario) -> Result<Outcome, Failure> {
    let mut world = World::new(scenario.world.clone())?;
    for (host, plan) in &scenario.clients {
        world.add_client(*host, plan.clone());
    }
    for &(at, order) in &scenario.orders {
        world.add_order(at, order);
    }
    world.run()?;
    let longest = scenario.world.config.services.iter().map(|service| {
        let timeouts = service.timeouts;
        timeouts.idle + timeouts.half_closed + timeouts.time_wait + timeouts.head
    });
    let patience = longest.max().unwrap_or_default() + Duration::from_secs(60);
    world.settle(patience)?;
    judge(scenario, &world).map_err(|what| world.fail(what))
}

fn judge(scenario: &Scenario, world: &World) -> Result<Outcome, String> {
    let closed = closed_events(world.events());
    let mut outcome = Outcome {
        seed: scenario.seed,
        steps: world.steps(),
        virtual_ms: world.now().as_millis(),
        clients: world.seats.len(),
        aborted: world.ends(ClientEnd::Aborted),
        reset: world.ends(ClientEnd::Reset),
        compared: world.compared(),
        digest: world.digest(),
        ..Outcome::default()
    };
    for (number, seat) in world.seats.iter().enumerate() {
        let (Some(role), Some(app)) = (seat.role, &seat.app) else {
            return Err(format!("client {number} never ended"));
        };
        let party = world.ledger.party(role);
        let peer = world.ledger.peer(role).map(|peer| world.ledger.party(peer));
        let refused = !world.refusals(party.local).is_empty();
        let cut_short = peer.is_some_and(|peer| peer.cut_short);
        app.judge(&party.received, refused, scenario.lossy, cut_short)
            .map_err(|what| format!("client {number} {}: {what}", party.local))?;
        outcome.stream_bytes += (party.sent.len() + party.received.len()) as u64;
        outcome.refused += usize::from(refused);
        let whole = app.end == Some(ClientEnd::Finished) && app.complete && !cut_short;
        outcome.served += usize::from(whole && peer.is_some());
        if let Some(peer) = peer
            && whole
        {
            check_pair(world, role)?;
            if world.middle() == crate::Middle::Switch {
                let ends = closed
                    .get(&(party.local, peer.remote))
                    .map_or(&[][..], Vec::as_slice);
                check_closed(party.sent.len(), peer.sent.len(), ends)
                    .map_err(|what| format!("client {number} {}: {what}: {ends:?}", party.local))?;
            }
        }
    }
    Ok(outcome)
}

/// Both ends of a conversation that went to its end agree on all of it.
fn check_pair(world: &World, client: Role) -> Result<(), String> {
    let Some(server) = world.ledger.peer(client) else {
        return Ok(());
    };
    let expected = world.ledger.expected_len(server, client);
    let (ours, theirs) = (world.ledger.party(client), world.ledger.party(server));
    if theirs.received.len() != expected || ours.received.len() != theirs.sent.len() {
        return Err(format!(
            "{client:?} sent {} and received {}; {server:?} received {} of {expected} and sent {}",
            ours.sent.len(),
            ours.received.len(),
            theirs.received.len(),
            theirs.sent.len()
        ));
    }
    Ok(())
}

type Ended = (u64, u64, End);

/// Connections that the switch reports as closed, by client and by the source the server saw.
fn closed_events(events: &[Event]) -> BTreeMap<(Endpoint, Endpoint), Vec<Ended>> {
    let mut closed: BTreeMap<_, Vec<Ended>> = BTreeMap::new();
    for event in events {
        if let Event::Closed {
            client,
            source,
            bytes_in,
            bytes_out,
            end,
            ..
        } = event
        {
            closed
                .entry((*client, *source))
                .or_default()
                .push((*bytes_in, *bytes_out, *end));
        }
    }
    closed
}

/// The switch's account of a conversation must be the applications' account.
fn check_closed(sent: usize, received: usize, ends: &[Ended]) -> Result<(), String> {
    if ends.is_empty() {
        return Err("no event tells its end".to_owned());
    }
    // An operator may end it while its last acknowledgement is under way. The others are of other
    // conversations between the same ends.
    let right = |end: &Ended| {
        let orderly = matches!(end.2, End::Finished | End::Aborted);
        orderly && (end.0, end.1) == (sent as u64, received as u64)
    };
    if ends.iter().any(right) {
        return Ok(());
    }
    Err(format!(
        "{sent} bytes were sent and {received} received, and both ends closed; the switch tells of \
         something else"
    ))
}

/// True for an expectation that the switch meets without a server.
pub(crate) fn is_refusal(expect: &Expect) -> bool {
    matches!(expect, Expect::Status(_) | Expect::Alert | Expect::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_of_a_whole_conversation_has_its_bytes_and_its_end() {
        let whole = (5, 6, End::Finished);
        for told in [
            vec![whole],
            vec![(5, 6, End::Aborted)],
            vec![(1, 0, End::ResetByClient), whole],
        ] {
            assert_eq!(check_closed(5, 6, &told), Ok(()), "{told:?}");
        }
        for told in [
            vec![],
            vec![(5, 7, End::Finished)],
            vec![(5, 6, End::IdleTimeout)],
            vec![(5, 6, End::ResetByServer)],
            vec![(1, 0, End::Finished), (5, 7, End::Finished)],
        ] {
            assert!(check_closed(5, 6, &told).is_err(), "{told:?}");
        }
    }
}
