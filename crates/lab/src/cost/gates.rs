//! Gates and gate delays of universal hash functions in hardware (tcb-cache-2010, sections 3.2
//! and 4.3): for each output bit, one AND for each input bit and a tree of XORs over them.

use serde::Serialize;

use super::constants::Gates;

/// What the index functions of a cache cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HashCost {
    /// Input bits of each function.
    pub input_bits: u32,
    /// Gates for one output bit.
    pub gates_per_output_bit: u64,
    /// Gates one behind the other: the AND and the depth of the XOR tree.
    pub gate_delays: u32,
    /// Time through them, ps.
    pub delay_ps: f64,
    /// Output bits of one function: the logarithm of the sets of a bank.
    pub output_bits: u32,
    /// Functions that the scheme has.
    pub functions: u32,
    /// Gates of all functions together.
    pub gates: u64,
}

/// Costs `functions` functions of `input_bits` to `output_bits` bits.
pub fn universal(constants: &Gates, input_bits: u32, output_bits: u32, functions: u32) -> HashCost {
    let inputs = u64::from(input_bits.max(1));
    let gates_per_output_bit = inputs + (inputs - 1);
    let depth = inputs.next_power_of_two().trailing_zeros();
    let gate_delays = 1 + depth;
    HashCost {
        input_bits,
        gates_per_output_bit,
        gate_delays,
        delay_ps: f64::from(gate_delays) * constants.gate_ps,
        output_bits,
        functions,
        gates: gates_per_output_bit * u64::from(output_bits) * u64::from(functions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_counts_come_out() {
        let constants = Gates::default();
        let whole = universal(&constants, 48, 6, 4);
        assert_eq!((whole.gate_delays, whole.gates_per_output_bit), (7, 95));
        let chosen = universal(&constants, 16, 6, 4);
        assert_eq!((chosen.gate_delays, chosen.gates_per_output_bit), (5, 31));
        assert_eq!(chosen.gates, 31 * 6 * 4);
        assert_eq!(chosen.delay_ps, 50.0);
    }

    #[test]
    fn one_input_bit_is_one_gate() {
        let one = universal(&Gates::default(), 1, 1, 1);
        assert_eq!((one.gate_delays, one.gates), (1, 1));
    }
}
