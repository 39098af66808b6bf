//! The second pair of constants, of a record that was made of two connections.
//!
//! A splice that Fairlead set up itself uses the client's numbers towards the server, so one
//! constant, the record's, translates both streams. A pair of connections that somebody else set up
//! has numbers of its own on each leg. So the second constants are applied on the server's leg
//! alone, at the boundary: when a segment comes from the server its acknowledgement is put into the
//! client's numbers, and when one leaves for the server its sequence number is put into those that
//! the server knows. In between a pair is a record like any other.

use crate::record::Side;
use crate::window;

/// [`crate::Record::route`] of a pair; no configured route has this index.
pub const PAIR_ROUTE: u16 = u16::MAX;

/// What a pair's record lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Added to the client's sequence numbers, subtracted from the server's acknowledgements.
    pub seq: u32,
    /// Added to the client's timestamp values, subtracted from the server's echoes.
    pub ts: u32,
    /// Window scale correction of the client's windows, by [`window::rescale_within`].
    pub client_shift: i8,
    /// Window scale correction of the server's windows.
    pub server_shift: i8,
}

/// What was last seen of one end of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The number that it acknowledged, in the other end's own numbers.
    pub ack: u32,
    /// Its window: the client's as it sends it, the server's as the client's leg shows it.
    pub window: u16,
    /// Its last timestamp.
    pub timestamp: Option<u32>,
}

/// Changes to one segment on the server's leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renumbering {
    /// Added to the sequence number.
    pub seq_add: u32,
    /// Added to the acknowledgement number and to SACK edges.
    pub ack_add: u32,
    /// Added to the timestamp value.
    pub ts_value_add: u32,
    /// Added to the timestamp echo.
    pub ts_echo_add: u32,
    /// Shift of the window field, by [`window::rescale_within`].
    pub window_shift: i8,
}

impl Second {
    /// What is changed in a segment that came from `side`: the server's when it arrives, the
    /// client's when it leaves.
    #[inline]
    pub fn of(&self, side: Side) -> Renumbering {
        match side {
            Side::Client => Renumbering {
                seq_add: self.seq,
                ts_value_add: self.ts,
                window_shift: self.client_shift,
                ..Renumbering::default()
            },
            Side::Server => Renumbering {
                ack_add: self.seq.wrapping_neg(),
                ts_echo_add: self.ts.wrapping_neg(),
                window_shift: self.server_shift,
                ..Renumbering::default()
            },
        }
    }
}

impl Renumbering {
    /// A window field as the other leg must see it.
    #[inline]
    pub fn window(&self, window: u16) -> u16 {
        window::rescale_within(window, self.window_shift)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Rng;

    use super::*;

    /// Sequence and acknowledgement, timestamp value and echo.
    type Numbers = [u32; 4];

    fn renumber(numbers: Numbers, by: &Renumbering) -> Numbers {
        let add = [by.seq_add, by.ack_add, by.ts_value_add, by.ts_echo_add];
        core::array::from_fn(|at| numbers[at].wrapping_add(add[at]))
    }

    /// What one end sends and what it is answered speak of the same numbers.
    #[test]
    fn an_acknowledgement_comes_back_as_what_was_sent() {
        let mut rng = Rng::new(5);
        for _ in 0..10_000 {
            let second = Second {
                seq: rng.next_u64() as u32,
                ts: rng.next_u64() as u32,
                ..Second::default()
            };
            let [seq, ts] = [0; 2].map(|_| rng.next_u64() as u32);
            let [sent, _, value, _] = renumber([seq, 0, ts, 0], &second.of(Side::Client));
            // The server acknowledges what it received, and echoes what it saw.
            let [_, ack, _, echo] = renumber([0, sent, 0, value], &second.of(Side::Server));
            assert_eq!((ack, echo), (seq, ts));
            // Each direction leaves the other one's numbers alone.
            let [_, ack, _, echo] = renumber([0, seq, 0, ts], &second.of(Side::Client));
            assert_eq!((ack, echo), (seq, ts));
            let [sent, _, value, _] = renumber([seq, 0, ts, 0], &second.of(Side::Server));
            assert_eq!((sent, value), (seq, ts));
        }
    }

    #[test]
    fn nothing_is_what_no_pair_needs() {
        for side in [Side::Client, Side::Server] {
            assert_eq!(Second::default().of(side), Renumbering::default());
        }
        assert_eq!(Renumbering::default().window(7), 7);
    }
}
