//! Joining a client's connection to a server's: what is settled before the server's SYN-ACK comes,
//! and what the record becomes by it. The engine does it, or a fast path that was left to do it.

use fairlead_base::SeqNumber;
use fairlead_wire::checksum;

use crate::record::Record;

/// What a client was promised, and has said, when its server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Our initial sequence number towards the client.
    pub dseq: SeqNumber,
    /// The client's window scale, with which the server is asked; `None`: without scaling.
    pub asked_scale: Option<u8>,
    /// The window scale that was offered to the client.
    pub offered_scale: Option<u8>,
    /// The timestamp value of ours that the client saw last.
    pub our_ts: u32,
}

/// What a server's SYN-ACK says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynAck {
    /// Its initial sequence number.
    pub isn: SeqNumber,
    /// Its window scale.
    pub scale: Option<u8>,
    /// Its timestamp value.
    pub ts: Option<u32>,
}

/// Fields of a [`Record`] that the server's SYN-ACK settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// [`Record::server_isn`].
    pub server_isn: u32,
    /// [`Record::seq_delta`].
    pub seq_delta: u32,
    /// [`Record::ts_delta`].
    pub ts_delta: u32,
    /// [`Record::client_shift`].
    pub client_shift: i8,
    /// [`Record::server_shift`].
    pub server_shift: i8,
}

impl Terms {
    /// The scale of the server's windows: it scales only if it was asked to.
    pub fn server_scale(&self, answer: &SynAck) -> Option<u8> {
        answer.scale.filter(|_| self.asked_scale.is_some())
    }

    /// What the record becomes by the server's answer.
    pub fn join(&self, answer: &SynAck) -> Joined {
        let server_scale = self.server_scale(answer);
        Joined {
            server_isn: answer.isn.0,
            seq_delta: self.dseq.0.wrapping_sub(answer.isn.0),
            ts_delta: answer.ts.map_or(0, |ts| self.our_ts.wrapping_sub(ts)),
            // Windows of ours that the client has seen were scaled by what we offered; the server
            // understands the client's scale only if it takes part itself.
            client_shift: match (self.asked_scale, server_scale) {
                (Some(client), None) => client as i8,
                _ => 0,
            },
            server_shift: server_scale.unwrap_or(0) as i8 - self.offered_scale.unwrap_or(0) as i8,
        }
    }
}

impl Joined {
    /// Writes it into a record, whose server has sent nothing else yet.
    pub fn apply_to(&self, record: &mut Record) {
        record.server_isn = self.server_isn;
        record.server_nxt = self.server_isn.wrapping_add(1);
        record.seq_delta = self.seq_delta;
        record.ts_delta = self.ts_delta;
        record.client_shift = self.client_shift;
        record.server_shift = self.server_shift;
    }
}

/// What a fast path needs to join a connection by itself: to answer the server's SYN-ACK with the
/// client's first bytes, in one segment.
///
/// It may do so for a SYN-ACK that acknowledges the client's initial sequence number plus one,
/// carries timestamps if and only if the record's flags say so, names an MSS and opens a window
/// that both hold the bytes. Everything else is the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// What was settled before.
    pub terms: Terms,
    /// The client's timestamp value, for the segment.
    pub client_ts: u32,
    /// The client's window field, as it sent it.
    pub client_window: u16,
    /// The largest segment that this host's devices carry towards the server.
    pub device_mss: u16,
    /// The client's first bytes: not empty.
    pub payload: &'a [u8],
}

impl Join<'_> {
    /// The payload's sum of big-endian 16-bit words, folded, not complemented (RFC 1071).
    pub fn payload_sum(&self) -> u16 {
        checksum::fold(checksum::sum(self.payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        dseq: SeqNumber(5),
        asked_scale: Some(9),
        offered_scale: Some(7),
        our_ts: 1_000,
    };

    const ANSWER: SynAck = SynAck {
        isn: SeqNumber(u32::MAX),
        scale: Some(8),
        ts: Some(1_200),
    };

    #[test]
    fn numbers_are_corrected_across_the_wrap() {
        let mut record = Record::default();
        TERMS.join(&ANSWER).apply_to(&mut record);
        assert_eq!((record.server_isn, record.server_nxt), (u32::MAX, 0));
        assert_eq!(record.seq_delta, 6);
        assert_eq!(record.ts_delta, 200u32.wrapping_neg());
        assert_eq!((record.client_shift, record.server_shift), (0, 1));
    }

    #[test]
    fn a_server_that_does_not_scale_gets_windows_in_bytes() {
        let joined = TERMS.join(&SynAck {
            scale: None,
            ts: None,
            ..ANSWER
        });
        assert_eq!((joined.client_shift, joined.server_shift), (9, -7));
        assert_eq!(joined.ts_delta, 0);
    }

    #[test]
    fn a_server_that_was_not_asked_does_not_scale() {
        let terms = Terms {
            asked_scale: None,
            offered_scale: None,
            ..TERMS
        };
        assert_eq!(terms.server_scale(&ANSWER), None);
        let joined = terms.join(&ANSWER);
        assert_eq!((joined.client_shift, joined.server_shift), (0, 0));
    }
}
