//! Processor time for a request, with and without a TCB cache (tcb-cache-2010, section 4.5,
//! figures 18 and 19).
//!
//! The paper measured this in a full-system simulator; the cycles beside the TCB are only drawn.
//! So the model gives what follows from the printed constants (the cycles saved) and, where the
//! rest is not known, the rest at which the published saving would come out.

use serde::Serialize;

use super::constants::Cpu;

/// Cycles for the TCB of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuTime {
    /// Without a TCB cache: the walk through the bucket and the TCB's lines, through the
    /// second-level cache.
    pub original_cycles: f64,
    /// With a TCB cache.
    pub tcb_cache_cycles: f64,
    /// The difference.
    pub saved_cycles: f64,
    /// The saved share of receiving a request, if the total is known.
    pub receive_saved_share: Option<f64>,
    /// The saved share of a response, if the total is known.
    pub response_saved_share: Option<f64>,
}

/// The model at a miss ratio of the TCB cache.
pub fn request(constants: &Cpu, miss_ratio: f64) -> CpuTime {
    let touched = constants.tcb_lines + constants.bucket_steps;
    let each = constants.l2_cycles + constants.original_miss_ratio * constants.memory_cycles;
    let original_cycles = touched * each;
    let filled = constants.fill_lines + constants.bucket_steps;
    let tcb_cache_cycles = constants.tcb_cache_cycles + miss_ratio * filled * each;
    let saved_cycles = original_cycles - tcb_cache_cycles;
    let share = |other: Option<f64>| other.map(|cycles| saved_cycles / (cycles + original_cycles));
    CpuTime {
        original_cycles,
        tcb_cache_cycles,
        saved_cycles,
        receive_saved_share: share(constants.other_cycles),
        response_saved_share: share(constants.response_other_cycles),
    }
}

/// The total cycles, including the TCB, for which the saving is `share`: the condition for a
/// published saving.
pub fn whole_for_saving(constants: &Cpu, miss_ratio: f64, share: f64) -> Option<f64> {
    let time = request(constants, miss_ratio);
    (time.saved_cycles > 0.0 && share > 0.0).then(|| time.saved_cycles / share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saving_grows_as_misses_fall() {
        let cpu = Cpu::default();
        let mut last = f64::NEG_INFINITY;
        for percent in (0..=100).rev() {
            let time = request(&cpu, f64::from(percent) / 100.0);
            assert!(time.saved_cycles > last);
            last = time.saved_cycles;
        }
        // Every access a hit: 4 accesses of 310 cycles become one of 10.
        assert_eq!(last, 4.0 * 310.0 - 10.0);
        assert_eq!(request(&cpu, 0.0).receive_saved_share, None);
    }

    #[test]
    fn the_implied_whole_gives_the_share_back() {
        let mut cpu = Cpu::default();
        let whole = whole_for_saving(&cpu, 0.26, 0.23).unwrap();
        cpu.other_cycles = Some(whole - request(&cpu, 0.26).original_cycles);
        let share = request(&cpu, 0.26).receive_saved_share.unwrap();
        assert!((share - 0.23).abs() < 1e-12);
    }

    #[test]
    fn a_cache_that_always_misses_costs_its_own_latency() {
        let cpu = Cpu {
            tcb_lines: 1.0,
            ..Cpu::default()
        };
        assert_eq!(request(&cpu, 1.0).saved_cycles, -10.0);
        assert_eq!(whole_for_saving(&cpu, 1.0, 0.23), None);
    }
}
