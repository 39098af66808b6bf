//! The state of a socket as bytes, for another process. The socket is connected and its queues are
//! empty; its addresses are written down elsewhere.

use fairlead_tcp::pairing::{ESTABLISHED, Leg, Scales, Stamps};

use crate::repair::{Identity, State};

/// The length of such a text.
pub const STATE_BYTES: usize = 52;

const HAS_TIMESTAMPS: u8 = 1;
const HAS_SCALES: u8 = 2;
const HAS_SACK: u8 = 4;
const HAS_ECN: u8 = 8;
const HAS_MICROSECONDS: u8 = 16;

impl State {
    /// Everything but the addresses and the queues.
    pub fn to_bytes(&self) -> [u8; STATE_BYTES] {
        let leg = &self.leg;
        let stamps = leg.timestamps.map_or([0; 2], |one| [one.own, one.peer]);
        let scales = leg.scales.map_or([0; 2], |one| [one.peer, one.own]);
        let longs = [
            leg.rcv_nxt,
            leg.write_seq,
            stamps[0],
            stamps[1],
            leg.window,
            leg.window_max,
            leg.promised,
            self.window_at,
            self.told_at,
            self.buffers[0],
            self.buffers[1],
        ];
        let has = [
            (leg.timestamps.is_some(), HAS_TIMESTAMPS),
            (leg.scales.is_some(), HAS_SCALES),
            (leg.sack, HAS_SACK),
            (leg.ecn, HAS_ECN),
            (self.microseconds, HAS_MICROSECONDS),
        ];
        let flags = has.iter().filter(|one| one.0).map(|one| one.1).sum();
        let words = [leg.mss, leg.own_mss].map(u16::to_le_bytes);
        let mut bytes = [0; STATE_BYTES];
        let all = longs.iter().flat_map(|long| long.to_le_bytes());
        let all = all.chain(words.into_iter().flatten()).chain(scales);
        let all = all.chain([flags, self.family as u8]);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }

    /// What [`Self::to_bytes`] has written. `None`: nobody wrote this.
    pub fn from_bytes(bytes: &[u8; STATE_BYTES], identity: Identity) -> Option<Self> {
        let long = |at: usize| {
            let four = bytes[at * 4..].first_chunk();
            four.map_or(0, |four| u32::from_le_bytes(*four))
        };
        let [a, b, c, d, peer, own, flags, family] = *bytes[44..].first_chunk()?;
        let family = i32::from(family);
        let known = [libc::AF_INET, libc::AF_INET6].contains(&family);
        if !known || peer > 14 || own > 14 || flags > 31 {
            return None;
        }
        let has = |flag: u8| flags & flag != 0;
        Some(Self {
            leg: Leg {
                local: identity.local,
                peer: identity.peer,
                state: ESTABLISHED,
                rcv_nxt: long(0),
                write_seq: long(1),
                unread: 0,
                unacknowledged: 0,
                timestamps: has(HAS_TIMESTAMPS).then_some(Stamps {
                    own: long(2),
                    peer: long(3),
                }),
                sack: has(HAS_SACK),
                scales: has(HAS_SCALES).then_some(Scales { peer, own }),
                ecn: has(HAS_ECN),
                mss: u16::from_le_bytes([a, b]),
                own_mss: u16::from_le_bytes([c, d]),
                window: long(4),
                window_max: long(5),
                promised: long(6),
            },
            window_at: long(7),
            told_at: long(8),
            buffers: [long(9), long(10)],
            family,
            microseconds: has(HAS_MICROSECONDS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again_and_nothing_else() {
        let identity = Identity {
            local: Default::default(),
            peer: Default::default(),
        };
        let mut read = 0;
        let mut word = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = [0; STATE_BYTES];
            for byte in &mut bytes {
                word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
                *byte = (word >> 56) as u8;
            }
            bytes[48..51].iter_mut().for_each(|byte| *byte &= 15);
            bytes[50] |= bytes[0] & HAS_MICROSECONDS;
            bytes[51] = [2, 10, 0, 255][usize::from(bytes[51] & 3)];
            let Some(state) = State::from_bytes(&bytes, identity) else {
                continue;
            };
            read += 1;
            let again = State::from_bytes(&state.to_bytes(), identity);
            assert_eq!(again, Some(state));
        }
        assert!((5_000..15_000).contains(&read), "{read}");
        assert_eq!(State::from_bytes(&[0; STATE_BYTES], identity), None);
    }
}
