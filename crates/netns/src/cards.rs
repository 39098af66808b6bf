//! Links made of network cards that are wired to each other, instead of a veth pair: the drivers of
//! real hardware, or of what a virtual machine has.

use std::fs;
use std::time::{Duration, Instant};

/// Pairs of hardware addresses: `02:00:00:00:01:0a/02:00:00:00:01:0b,…`. A world's first link is
/// made of the first pair, and so on. The cards have to be in the namespace of the process that
/// asks for one, and come back there when the world ends.
pub const CARDS: &str = "FAIRLEAD_CARDS";

/// True when links are made of cards.
pub fn are_given() -> bool {
    std::env::var_os(CARDS).is_some()
}

/// How long the cards of an earlier world may take to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hardware addresses of a pair.
fn pair(number: usize) -> Option<(String, String)> {
    let all = std::env::var(CARDS).ok()?;
    let (a, b) = all.split(',').nth(number)?.split_once('/')?;
    Some((a.to_owned(), b.to_owned()))
}

/// The names that the cards of a pair have here, in the calling thread's namespace.
pub(crate) fn names(number: usize) -> Option<(String, String)> {
    let (a, b) = pair(number)?;
    let until = Instant::now() + PATIENCE;
    loop {
        if let (Some(a), Some(b)) = (name_of(&a), name_of(&b)) {
            return Some((a, b));
        }
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn name_of(address: &str) -> Option<String> {
    let mut all = fs::read_dir("/sys/class/net").ok()?.flatten();
    let found = all.find(|entry| {
        let told = fs::read_to_string(entry.path().join("address"));
        told.is_ok_and(|told| told.trim() == address)
    })?;
    found.file_name().into_string().ok()
}
