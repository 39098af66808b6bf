//! What `fairlead offload` and `fairlead run` need (docs/offload.md). `serve` needs nothing of it:
//! what is missing is no problem.

use fairlead_netns::program;

use super::{Check, Facts};
use crate::offload::run::library;

const ABOUT: &str = "offload";
/// Folders of cards, in the BPF file system.
const PINS: &str = "/sys/fs/bpf";
const PREFIX: &str = "fairlead-offload-";

pub(super) fn look(facts: &Facts, checks: &mut Vec<Check>) {
    let rights = facts.capabilities;
    let wanted = ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"];
    let missing = rights.missing(&wanted);
    checks.push(match rights.of_machine && missing.is_empty() {
        true => Check::ok(ABOUT, "rights", "network namespaces can be made"),
        false => Check::unseen(ABOUT, "rights", "cards cannot be made by this process")
            .advise("run `fairlead offload` as root, outside user namespaces"),
    });
    checks.push(match program("ip") {
        Some(at) => Check::ok(ABOUT, "iproute2", format!("{}", at.display())),
        None => {
            Check::unseen(ABOUT, "iproute2", "the `ip` tool is missing").advise("install iproute2")
        }
    });
    checks.push(match library() {
        Ok(at) => Check::ok(ABOUT, "library", format!("{}", at.display())),
        Err(why) => Check::unseen(ABOUT, "library", why)
            .advise("`cargo build --release -p fairlead-bypass`, or `make install`"),
    });
    let cards = cards();
    if !cards.is_empty() {
        checks.push(filters(&cards, facts));
    }
}

/// Cards of this machine.
fn cards() -> Vec<String> {
    let entries = std::fs::read_dir(PINS).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut cards: Vec<String> = names
        .filter_map(|name| Some(name.strip_prefix(PREFIX)?.to_owned()))
        .collect();
    cards.sort();
    cards
}

/// Packets of offloaded connections do not reach the host's packet filters.
fn filters(cards: &[String], facts: &Facts) -> Check {
    const NAME: &str = "cards";
    let cards = cards.join(", ");
    match facts.chains.as_deref() {
        Ok([]) => Check::ok(ABOUT, NAME, cards),
        Ok(_) => {
            let what = format!("{cards}: its packets do not pass the nftables chains of this host");
            Check::warning(ABOUT, NAME, what)
                .advise("load the same rules in the card's network namespace")
        }
        Err(error) => Check::unseen(ABOUT, NAME, format!("{cards}; nftables: {error}")),
    }
}
