//! Every number that the paper prints (tcb-cache-2010), with where it stands. Figures that are
//! only drawn have no numbers here: what the text says of them is a claim, held against ours as
//! a claim.

use serde::Serialize;

/// The columns of figure 12, by the names that this laboratory gives the schemes.
pub const FIGURE_12_SCHEMES: [&str; 4] = ["mod", "2-universal", "no-migrate", "spec"];

/// A row of figure 12: miss ratios per packet at 32 KiB, in the order of [`FIGURE_12_SCHEMES`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure12 {
    /// The paper's trace.
    pub trace: &'static str,
    /// Published miss ratios.
    pub miss_ratios: [f64; 4],
}

/// Figure 12, as section 4.2 prints it.
pub const FIGURE_12: [Figure12; 4] = [
    Figure12 {
        trace: "BU",
        miss_ratios: [0.56, 0.37, 0.32, 0.28],
    },
    Figure12 {
        trace: "NASA",
        miss_ratios: [0.50, 0.33, 0.28, 0.26],
    },
    Figure12 {
        trace: "Saskatchewan",
        miss_ratios: [0.69, 0.55, 0.51, 0.44],
    },
    Figure12 {
        trace: "ClarkNet",
        miss_ratios: [0.42, 0.31, 0.25, 0.22],
    },
];

/// The cache of the evaluation (table 1; sections 3.1 and 4.1).
pub const CAPACITY_BYTES: u64 = 32 * 1024;
/// Bytes of a line (section 3.1).
pub const LINE_BYTES: u64 = 64;
/// Ways of a set (section 3.1).
pub const WAYS: u32 = 4;

/// Sections 2.2 and 3.3, figure 3: an ON period's inter-request time is typically below this.
pub const ON_GAP_S: f64 = 1.0;
/// Section 4.1: universal functions drawn at random differ by no more than this share.
pub const HASH_SPREAD: f64 = 0.025;
/// How many functions were drawn (section 4.1).
pub const HASH_DRAWS: u32 = 1000;
/// Section 4.5, figure 17: receive time in a TOE falls by more than this share.
pub const TOE_SAVED: f64 = 0.20;
/// Section 4.5, figure 18: request processing time falls by up to this share.
pub const CPU_SAVED: f64 = 0.23;
/// Section 4.5, figure 19: response time falls by up to this share.
pub const RESPONSE_SAVED: f64 = 0.05;

/// Section 4.3: input bits, gate delays and gates for one output bit.
pub const GATES: [(u32, u32, u64); 2] = [(48, 7, 95), (16, 5, 31)];

/// The paper's traces and whether their logs are public under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PaperTrace {
    /// As the paper calls it.
    pub name: &'static str,
    /// Files of the Internet Traffic Archive.
    pub files: &'static str,
    /// Lines that the archive says these files have; 0 where it gives none.
    pub published_lines: u64,
}

/// The four traces. Where one is not given to the laboratory, its rows say so.
pub const TRACES: [PaperTrace; 4] = [
    PaperTrace {
        name: "BU",
        files: "BU-www-client-traces.tar.gz",
        published_lines: 0,
    },
    PaperTrace {
        name: "NASA",
        files: "NASA_access_log_Jul95.gz, NASA_access_log_Aug95.gz",
        published_lines: 1_891_715 + 1_569_898,
    },
    PaperTrace {
        name: "Saskatchewan",
        files: "UofS_access_log.gz",
        published_lines: 2_408_625,
    },
    PaperTrace {
        name: "ClarkNet",
        files: "clarknet_access_log_Aug28.gz, clarknet_access_log_Sep4.gz",
        published_lines: 3_328_587,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_reductions_follow_from_the_printed_ratios() {
        // Section 4.2 prints 50 %, 37 % and 47 % for BU, Saskatchewan and ClarkNet; it rounds.
        for (trace, printed) in [("BU", 0.50), ("Saskatchewan", 0.37), ("ClarkNet", 0.47)] {
            let row = FIGURE_12.iter().find(|row| row.trace == trace).unwrap();
            let [first, .., last] = row.miss_ratios;
            assert!((1.0 - last / first - printed).abs() < 0.011, "{trace}");
        }
    }

    #[test]
    fn each_row_falls_from_left_to_right() {
        for row in FIGURE_12 {
            assert!(row.miss_ratios.windows(2).all(|two| two[0] > two[1]));
        }
    }
}
