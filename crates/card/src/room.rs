//! What the operator, and scarce room, ask of connections.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairlead_handoff::message::Cause;
use fairlead_offload::layout::head;
use serde_json::{Value, json};

use crate::orders::Order;
use crate::owner::Open;
use crate::serve::Card;

/// Of the card's room, the part that is kept for newcomers while others are idle.
const KEPT: u32 = 8;
/// Between two looks at who is idle, and until a program is asked again.
const PAUSE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(5);

/// The name of a process, as far as it has one.
fn program(process: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.unwrap_or_default().trim().to_owned()
}

fn row(process: i32, open: &Open) -> Value {
    let now = Instant::now();
    let seconds = |since: Instant| now.duration_since(since).as_secs();
    json!({
        "number": open.number,
        "process": process,
        "program": program(process),
        "peer": open.identity.peer.to_string(),
        "local": open.identity.local.to_string(),
        "seconds": seconds(open.since),
        "idle_seconds": seconds(open.active),
        "bytes_in": open.bytes[1],
        "bytes_out": open.bytes[0],
        "wanted_back": open.asked.is_some(),
    })
}

impl Card {
    /// Does what the operator wants, and answers.
    pub(crate) fn obey(&mut self, order: Order) -> Value {
        match order {
            Order::List => self.list(),
            Order::Take => {
                let owners = self.owners.iter().flatten();
                for owner in owners {
                    let takes = owner.memory.word(head::TAKES);
                    takes.fetch_add(1, Ordering::AcqRel);
                }
                json!({"asked": self.owners.iter().flatten().count()})
            }
            Order::Give(wanted) => {
                let mut asked = Vec::new();
                for owner in self.owners.iter_mut().flatten() {
                    for line in 1..owner.lines.len() as u32 {
                        let number = owner.open(line).map(|open| open.number);
                        let is_meant = wanted.is_none() || number == wanted;
                        if let Some(number) = number.filter(|_| is_meant) {
                            owner.want_back(line, Cause::Order, &mut self.counts);
                            asked.push(number);
                        }
                    }
                }
                match wanted.filter(|_| asked.is_empty()) {
                    Some(number) => json!({"refused": format!("{number}: no such connection")}),
                    None => json!({"asked": asked}),
                }
            }
        }
    }

    fn list(&self) -> Value {
        let owners = self.owners.iter().flatten();
        let rows = owners.flat_map(|owner| {
            let open = owner.lines.iter().flatten();
            open.map(|open| row(owner.process, open))
        });
        let rows: Vec<Value> = rows.collect();
        json!({
            "connections": rows,
            "most": self.most,
            "counts": self.total().document(),
        })
    }

    /// Asks programs to take back what has been idle longest, where less than the part that is
    /// kept for newcomers is free.
    pub(crate) fn relieve(&mut self) {
        let now = Instant::now();
        if now < self.relieved {
            return;
        }
        self.relieved = now + PAUSE;
        let wanted = self.most - self.most / KEPT;
        let surplus = (self.count() as u32).saturating_sub(wanted);
        if surplus == 0 {
            return;
        }
        let mut idle = Vec::new();
        for (place, owner) in self.owners.iter().enumerate() {
            let lines = owner
                .iter()
                .flat_map(|owner| owner.lines.iter().enumerate());
            for (line, open) in lines {
                let Some(open) = open.as_deref() else {
                    continue;
                };
                let was_asked = open.asked.is_some_and(|asked| now < asked + AGAIN);
                if !was_asked && !open.is_finished && now >= open.active + self.idle {
                    idle.push((open.active, place, line as u32));
                }
            }
        }
        idle.sort_unstable();
        for (_, place, line) in idle.into_iter().take(surplus as usize) {
            if let Some(owner) = &mut self.owners[place] {
                owner.want_back(line, Cause::Pressure, &mut self.counts);
            }
        }
    }
}
