//! How much figure 12's predictions hang on what the paper does not say: which packets count, and
//! how skewed clients' ports are. Each variant is fitted to TCB(Mod) by itself.

use fairlead_workload::{PacketModel, PortModel};

use super::{Given, published};
use crate::calibrate::{CalibrateSpec, calibrate};
use crate::control::Control;
use crate::error::LabError;
use crate::load::{Loader, StreamSpec};
use crate::spec::RunSpec;

/// Figure 12 under other assumptions.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// The assumptions.
    pub(super) name: String,
    /// Scheme and miss ratio, the fitted one first.
    pub(super) ratios: Vec<(String, f64)>,
}

/// Powers of the skew: 1 is even, the larger the nearer are first ports to the lowest.
const SKEWS: [f64; 3] = [1.0, 2.0, 4.0];

fn ports(skew: f64) -> PortModel {
    match PortModel::SEQUENTIAL {
        PortModel::Sequential { base, range, .. } => PortModel::Sequential { base, range, skew },
        other @ PortModel::Random { .. } => other,
    }
}

/// The recipes of the variants, with their names.
fn recipes(given: &Given, seed: u64) -> Vec<(String, StreamSpec)> {
    let mut recipes = Vec::new();
    for skew in SKEWS {
        let mut made = given.made.clone();
        made.seed = seed;
        if let Some(standard) = &mut made.standard {
            standard.ports = ports(skew);
            recipes.push((format!("port skew {skew}"), made));
            continue;
        }
        made.expansion.ports = ports(skew);
        for packets in [PacketModel::Request, PacketModel::Packets] {
            let mut made = made.clone();
            made.expansion.packets = packets;
            let which = match packets {
                PacketModel::Request => "requests",
                PacketModel::Packets => "packets",
            };
            recipes.push((format!("{which}, port skew {skew}"), made));
        }
    }
    recipes
}

/// Fits every variant that can be fitted; variants with an unreachable target are omitted.
pub(super) fn measure(
    given: &Given,
    target: f64,
    seed: u64,
    sessions_max: u32,
    loader: &mut Loader,
    threads: usize,
    control: &dyn Control,
) -> Result<Vec<Variant>, LabError> {
    let run = |scheme: &str| RunSpec {
        seed,
        ..RunSpec::paper(scheme)
    };
    let [fitted, predicted @ ..] = published::FIGURE_12_SCHEMES;
    let mut variants = Vec::new();
    for (name, made) in recipes(given, seed) {
        let asked = CalibrateSpec {
            made,
            fitted: run(fitted),
            target,
            predicted: predicted.iter().map(|scheme| run(scheme)).collect(),
            sessions_max,
        };
        let found = match calibrate(&asked, loader, threads, control) {
            Ok(found) => found,
            Err(LabError::Option { .. } | LabError::Empty(_)) => continue,
            Err(error) => return Err(error),
        };
        let schemes = found.runs.iter().map(|run| run.scheme.clone());
        let mut ratios: Vec<(String, f64)> = schemes.zip(found.miss_ratios).collect();
        ratios.push(("LRU, fully associative".to_owned(), found.lru_miss_ratio));
        variants.push(Variant {
            name: format!("{name}: {} open", found.sessions),
            ratios,
        });
    }
    Ok(variants)
}
