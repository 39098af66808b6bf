//! A card as a process of its own, which can die or stand still.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use fairlead_card::orders::{Order, ask};
use fairlead_card::{Settings, Step, serve};
use fairlead_netns::Running;

use crate::bench::Bench;
use crate::orders::eventually;

/// What the process is to do: words with a space between them.
const VARIABLE: &str = "FAIRLEAD_CARD_APART";

/// In the card's process: the step at which it dies.
static DIES_AT: OnceLock<Step> = OnceLock::new();

fn at_step(step: Step) {
    if DIES_AT.get() == Some(&step) {
        std::process::abort();
    }
}

/// Begins it. It ends at this step, or when there is a file `stop` in the bench's folder.
pub(crate) fn begin(bench: &Bench, dies_at: Option<Step>) -> Running {
    let step = dies_at.and_then(|step| Step::ALL.iter().position(|one| *one == step));
    let step = step.map_or("-".to_owned(), |step| step.to_string());
    let (folder, most) = (bench.folder.display(), bench.most);
    let what = format!("{folder} {} {most} {step}", bench.card);
    let own = std::env::current_exe().unwrap();
    let mut command = bench.host.command(&own.to_string_lossy());
    command
        .args(["--exact", "apart::a_card_of_its_own", "--ignored"])
        .env(VARIABLE, what)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let running = bench.host.start(&mut command).unwrap();
    eventually("the card serves", || {
        ask(&bench.orders(), Order::List).is_ok()
    });
    running
}

#[test]
#[ignore = "the process of other tests' cards"]
fn a_card_of_its_own() {
    let Ok(what) = std::env::var(VARIABLE) else {
        return;
    };
    let words: Vec<&str> = what.split(' ').collect();
    let [folder, card, most, step] = words[..] else {
        panic!("{what}");
    };
    if let Ok(step) = step.parse::<usize>() {
        DIES_AT.set(Step::ALL[step]).unwrap();
    }
    let folder = PathBuf::from(folder);
    let settings = Settings {
        card: card.to_owned(),
        socket: folder.join("socket"),
        orders: folder.join("orders"),
        connections: most.parse().unwrap(),
        idle: Duration::from_secs(60),
        at_step,
    };
    serve(&settings, || {}, || folder.join("stop").exists()).unwrap();
}
