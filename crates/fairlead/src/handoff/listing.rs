//! What is handed off, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use fairlead_handoff::message::Cause;
use fairlead_handoff::{Cid, Command, Message, Op, Phase, Refusal};
use fairlead_http_front::TunnelEnds;
use fairlead_os_tcp::pass;
use serde::{Deserialize, Serialize};

use super::{Carrier, link_of};
use crate::admin::HandoffStatus;

/// One connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandoffRow {
    /// Its number.
    pub(crate) cid: u32,
    /// The user whose it is.
    pub(crate) user: u32,
    /// Where it is: `entering`, `carried` or `leaving`.
    pub(crate) phase: String,
    /// The client, and where it connected to.
    pub(crate) client: String,
    /// See above.
    pub(crate) listen: String,
    /// The address that the server sees, and the server.
    pub(crate) source: String,
    /// See above.
    pub(crate) server: String,
    /// Bytes from the client since the handoff.
    pub(crate) bytes_in: u64,
    /// Bytes from the server since the handoff.
    pub(crate) bytes_out: u64,
    /// Seconds since it came into this phase.
    pub(crate) seconds: u64,
}

/// All of them, and what was counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Handoffs {
    pub(crate) handoffs: Vec<HandoffRow>,
    /// Commands by name.
    pub(crate) commands: Vec<(String, u64)>,
    /// Refusals: command, reason, how often.
    pub(crate) refused: Vec<(String, String, u64)>,
    /// What was no message.
    pub(crate) malformed: u64,
}

impl Carrier {
    /// How much is handed off, and what was counted.
    pub(crate) fn counted(&self) -> HandoffStatus {
        let state = self.state();
        let ledger = &state.ledger;
        let owners: BTreeSet<u32> = ledger.entries().map(|entry| entry.owner.0).collect();
        let commands = Op::ALL.iter();
        let commands = commands.map(|&op| (op.name().to_owned(), ledger.counts.given(op)));
        let mut refused: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for (op, reason, count) in ledger.counts.refused() {
            let of = refused.entry(op.name().to_owned()).or_default();
            of.insert(reason.name().to_owned(), count);
        }
        HandoffStatus {
            connections: ledger.len().into(),
            owners: owners.len() as u64,
            commands: commands.collect(),
            refused,
            malformed: ledger.counts.malformed_total(),
        }
    }

    /// What is handed off.
    pub(crate) fn list(&self) -> Handoffs {
        let now_ms = Self::now_ms();
        let state = self.state();
        let rows = state.ledger.entries().map(|entry| {
            let keys = state.pairs.get(&entry.cid).map(|pair| pair.keys);
            let show = |at: usize, of_peer: bool| {
                let key = keys.map(|keys| keys[at]);
                let end = key.map(|key| if of_peer { key.src } else { key.dst });
                end.map_or_else(String::new, |end| end.to_string())
            };
            HandoffRow {
                cid: entry.cid.0,
                user: entry.owner.0,
                phase: match entry.phase {
                    Phase::Entering => "entering",
                    Phase::Carried => "carried",
                    Phase::Leaving => "leaving",
                }
                .to_owned(),
                client: show(0, true),
                listen: show(0, false),
                source: show(1, false),
                server: show(1, true),
                bytes_in: entry.bytes[0],
                bytes_out: entry.bytes[1],
                seconds: now_ms.saturating_sub(entry.since_ms) / 1_000,
            }
        });
        let counts = &state.ledger.counts;
        let refused = counts.refused();
        Handoffs {
            handoffs: rows.collect(),
            commands: Op::ALL
                .iter()
                .map(|&op| (op.name().to_owned(), counts.given(op)))
                .collect(),
            refused: refused
                .map(|(op, reason, count)| (op.name().into(), reason.name().into(), count))
                .collect(),
            malformed: counts.malformed_total(),
        }
    }

    /// The ends of a pair that the switch carries.
    pub(crate) fn ends(&self, cid: Cid) -> Option<TunnelEnds> {
        let [of_client, of_server] = self.state().pairs.get(&cid)?.keys;
        Some(TunnelEnds {
            client: of_client.src,
            listen: of_client.dst,
            server: of_server.src,
        })
    }

    /// Asks the owner of a connection to take it back.
    pub(crate) fn ask_back(&self, cid: Cid) -> Result<(), Refusal> {
        let mut guard = self.state();
        let state = &mut *guard;
        let pair = state.pairs.get(&cid);
        let link = pair.map(|pair| link_of(&state.links, pair));
        let command = Command::OsRestore {
            cause: Cause::Order,
            within_ms: 1_000,
        };
        let message = Message::command(cid, command);
        state.ledger.counts.message(&message);
        let sent = match link {
            None => Err(Refusal::Gone),
            // Its owner has gone, and nobody would take it.
            Some(None) => Err(Refusal::Unavailable),
            Some(Some(link)) => {
                let sent = pass::send(link.as_fd(), &message.encode(), &[]);
                sent.map_err(|_| Refusal::Busy)
            }
        };
        sent.inspect_err(|&reason| state.ledger.counts.refusal(Op::OsRestore, reason))
    }
}
