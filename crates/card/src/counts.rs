//! What happened, and why connections were refused or reset.

use fairlead_handoff::{Counts, Op};
use fairlead_offload::{Fault, Reason};
use serde_json::{Value, json};

/// Counts of one card.
#[derive(Clone, Debug, Default)]
pub struct CardCounts {
    /// Commands and refusals.
    pub commands: Counts,
    /// Connections that were reset because their program broke the rules, by fault.
    pub faults: [u64; Fault::ALL.len()],
    /// Programs whose command ring was broken. All their connections are reset.
    pub broken_rings: u64,
    /// Ranges of files that were shorter than announced; the connection is reset.
    pub short_files: u64,
    /// Packets that were held and played again.
    pub held: u64,
    /// Tokens written.
    pub tokens: u64,
    /// Connections that were asked back because a route or an address changed.
    pub rerouted: u64,
    /// Changes of the host's addresses and routes that the card could not follow.
    pub unfollowed: u64,
    /// The longest handoff and restore, microseconds.
    pub longest_us: [u64; 2],
    /// All handoffs and restores, microseconds.
    pub spent_us: [u64; 2],
    /// Bytes to peers and from them.
    pub bytes: [u64; 2],
    /// Why connections are not on the card, as their programs say.
    pub reasons: [u64; Reason::COUNT],
}

impl CardCounts {
    /// A connection was reset for this.
    pub fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// As a document.
    pub fn document(&self) -> Value {
        let commands: Vec<Value> = Op::ALL
            .iter()
            .map(|op| json!({"command": op.name(), "count": self.commands.given(*op)}))
            .collect();
        let refused: Vec<Value> = self
            .commands
            .refused()
            .map(|(op, why, count)| {
                json!({"command": op.name(), "reason": why.name(), "count": count})
            })
            .collect();
        let faults: Vec<Value> = Fault::ALL
            .iter()
            .map(|fault| json!({"fault": fault.name(), "count": self.faults[*fault as usize]}))
            .collect();
        let reasons: Vec<Value> = Reason::ALL
            .iter()
            .map(|why| {
                let count = self.reasons[*why as usize];
                json!({"reason": why.name(), "meaning": why.meaning(), "count": count})
            })
            .collect();
        json!({
            "commands": commands,
            "refused": refused,
            "malformed": self.commands.malformed_total(),
            "faults": faults,
            "broken_rings": self.broken_rings,
            "short_files": self.short_files,
            "held_packets": self.held,
            "tokens": self.tokens,
            "rerouted": self.rerouted,
            "unfollowed_changes": self.unfollowed,
            "handoff_us": {"all": self.spent_us[0], "longest": self.longest_us[0]},
            "restore_us": {"all": self.spent_us[1], "longest": self.longest_us[1]},
            "bytes_to_peers": self.bytes[0],
            "bytes_from_peers": self.bytes[1],
            "not_on_the_card": reasons,
        })
    }
}
