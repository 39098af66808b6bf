//! Why connections are not on the card, counted: once for each connection and change.

use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_offload::Reason;
use fairlead_offload::layout::head;

use crate::channel::Channel;

/// What was counted while no card was there to be told.
static UNTOLD: [AtomicU32; Reason::COUNT] = [const { AtomicU32::new(0) }; Reason::COUNT];

/// Counts one, for the card that it concerns.
pub(crate) fn count(why: Reason, channel: Option<&Channel>) {
    match channel {
        Some(channel) => add(why, 1, channel),
        None => drop(UNTOLD[why as usize].fetch_add(1, Ordering::Relaxed)),
    }
}

fn add(why: Reason, count: u32, channel: &Channel) {
    let place = head::REASONS + 4 * why as usize;
    let word = channel.memory.word(place);
    word.fetch_add(count, Ordering::Relaxed);
}

/// Tells a card that has come.
pub(crate) fn tell(channel: &Channel) {
    for &why in Reason::ALL {
        match UNTOLD[why as usize].swap(0, Ordering::Relaxed) {
            0 => {}
            count => add(why, count, channel),
        }
    }
}

/// What the process before a fork has counted is not this one's.
pub(crate) fn forget() {
    UNTOLD
        .iter()
        .for_each(|count| count.store(0, Ordering::Relaxed));
}
