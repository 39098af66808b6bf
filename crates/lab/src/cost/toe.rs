//! Receive time in a TCP offload engine (tcb-cache-2010, section 4.5 and figure 17).

use serde::Serialize;

pub use super::constants::Toe;

/// What one packet costs on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ToeTime {
    /// Time for a packet, ns.
    pub receive_ns: f64,
    /// The part of it that is spent on getting the TCB, ns.
    pub tcb_ns: f64,
}

/// Time for a packet at a miss ratio: protocol work, the cache's own latency, and memory for the
/// share that misses.
pub fn receive(constants: &Toe, miss_ratio: f64) -> ToeTime {
    let memory_ns = miss_ratio * constants.memory_ns * constants.memory_accesses;
    let tcb_ns = constants.hit_ns + memory_ns;
    ToeTime {
        receive_ns: constants.protocol_ns + tcb_ns,
        tcb_ns,
    }
}

/// The share of the receive time that is saved by going from one miss ratio to another.
pub fn saved_share(constants: &Toe, from: f64, to: f64) -> f64 {
    1.0 - receive(constants, to).receive_ns / receive(constants, from).receive_ns
}

/// The accesses to memory for a miss at which the saving reaches `share`; `None` when no number
/// of them does.
pub fn accesses_for_saving(constants: &Toe, from: f64, to: f64, share: f64) -> Option<f64> {
    // share = (from − to)·m·a / (fixed + from·m·a), solved for a.
    let fixed = constants.protocol_ns + constants.hit_ns;
    let gain = from - to - share * from;
    (gain > 0.0).then(|| share * fixed / (gain * constants.memory_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_share_of_a_missed_tcb_is_that_of_the_paper() {
        // Figure 1b: more than half of a packet's time when its TCB misses.
        let time = receive(&Toe::default(), 1.0);
        assert!(close(time.receive_ns, 107.6));
        assert!(time.tcb_ns / time.receive_ns > 0.5);
        let hit = receive(&Toe::default(), 0.0);
        assert!(close(hit.receive_ns, 57.6) && close(hit.tcb_ns, 6.4));
    }

    #[test]
    fn the_accesses_that_give_a_saving_give_it() {
        let toe = Toe::default();
        let accesses = accesses_for_saving(&toe, 0.50, 0.26, 0.20).unwrap();
        let there = Toe {
            memory_accesses: accesses,
            ..toe
        };
        assert!(close(saved_share(&there, 0.50, 0.26), 0.20));
        assert!(accesses > 1.0, "one access does not give 20 %: {accesses}");
        assert_eq!(accesses_for_saving(&toe, 0.5, 0.5, 0.2), None);
        assert_eq!(accesses_for_saving(&toe, 0.5, 0.45, 0.2), None);
    }
}
