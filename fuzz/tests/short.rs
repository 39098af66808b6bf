//! Every target for a moment: its whole corpus, then changes of it from a fixed seed.

use std::time::Duration;

use fairlead_fuzz::session::{self, Plan};
use fairlead_fuzz::{Target, corpus, named};

fn run(name: &str) {
    let target: &Target = named(name).expect("a target");
    let plan = Plan {
        seed: 2_006,
        time: Duration::from_millis(1_500),
        corpus: corpus::home().join(name),
        artifacts: corpus::artifacts(),
        keep: None,
    };
    let outcome = session::run(target, &plan, |_| {}).expect("the corpus is readable");
    assert!(outcome.progress.seeds > 1, "{name} has a corpus");
    if let Some(find) = outcome.find {
        panic!(
            "{name}: {} at {}\ncargo run -p fairlead-fuzz -- --target {name} --input {}",
            find.panic.message,
            find.panic.place,
            find.path.display()
        );
    }
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )+

        #[test]
        fn no_target_is_left_out() {
            let here = [$(stringify!($name)),+];
            let all: Vec<_> = fairlead_fuzz::all().iter().map(|target| target.name).collect();
            assert_eq!(here[..], all);
        }
    };
}

targets!(
    packet,
    options,
    http_head,
    hello,
    proxy_protocol,
    reassembly,
    fragments,
    translate,
    datapath,
    capture,
    config,
    descriptors,
    references,
    handoff,
    pairing,
    rings,
    announce,
    cache_control,
    range,
    http_cache,
    http_front,
);
