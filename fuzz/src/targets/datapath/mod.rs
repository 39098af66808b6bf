//! `datapath`: a script of packets and time for a live switch, with fields that are near the valid
//! ones, so that chance reaches states that lie many packets deep.
//!
//! | file | concern |
//! |---|---|
//! | `settings.rs` | the switch's configuration |
//! | `peers.rs` | what clients and servers know |
//! | `texts.rs` | what clients say |
//! | `acts.rs` | what one step of the script means |
//! | `world.rs` | the switch, fed and drained |
//! | `oracle.rs` | what must hold |

mod acts;
mod oracle;
mod peers;
mod settings;
mod texts;
mod world;

use fairlead_base::Instant;

use self::world::World;
use super::Target;
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "datapath",
    about: "a script of packets and time: gauges, checksums, bytes and ends hold at every step",
    run,
    bytes_max: 400,
    tokens: acts::TOKENS,
};

/// Steps of one script, at most.
const STEPS_MAX: usize = 200;

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let seed = u64::from(script.u8());
    // Once from the beginning of time, once just before milliseconds no longer fit in 32 bits.
    let start = if script.flip() {
        u64::from(u32::MAX) - 4_000
    } else {
        1_000
    };
    let mut world = World::new(seed, Instant::from_millis(start));
    for _ in 0..STEPS_MAX {
        if script.is_empty() {
            break;
        }
        acts::act(&mut world, &mut script);
    }
    world.settle();
}
