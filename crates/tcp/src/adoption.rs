//! Records of an earlier run, as they are found in memory that outlived it: input like any other.

use crate::endpoints::Endpoints;
use crate::record::{Record, State, TRANSPARENT, flag};
use crate::second::{Second, Seen};

/// Set in a kept record's state while the engine had the connection, so that a fast path leaves
/// its packets alone.
pub const ENGINE_HAS: u8 = 0x80;

/// The state of a record that a fast path is joining at this moment (see [`crate::Join`]).
pub const JOINING: u8 = 0x40 | State::SynSent as u8;

/// The state of a record that is a ticket (see [`crate::Ticket`]).
pub const TICKET: u8 = 0x40 | State::Established as u8;

/// The largest window scale (RFC 7323, section 2.3), and so the largest correction.
const SHIFT_MAX: i8 = 14;

/// A record as an earlier run left it.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The record.
    pub record: Record,
    /// The fast path has the connection, and goes on with it.
    pub given: bool,
}

/// What a pair has besides its record, as an earlier run left it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPair {
    /// Its second constants.
    pub second: Second,
    /// What was last seen of its client and its server.
    pub seen: [Option<Seen>; 2],
    /// What the earlier run wrote down of it.
    pub notes: Vec<u8>,
}

impl KeptPair {
    /// False for corrections of windows that TCP does not have.
    pub fn is_possible(&self) -> bool {
        let shifts = [self.second.client_shift, self.second.server_shift];
        let scale = -SHIFT_MAX..=SHIFT_MAX;
        shifts.iter().all(|shift| scale.contains(shift))
    }
}

/// Why a record is not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Misfit {
    /// Its state is none, or one that nobody can go on with.
    State,
    /// It names a listening endpoint, a server or a source that does not exist.
    Index,
    /// An address or a port that no connection has, or addresses of both families on one leg.
    Address,
    /// A window scale that TCP does not have.
    Scale,
    /// Another record has the same addresses and ports.
    KeyInUse,
    /// There is no such line.
    Line,
    /// It is a pair's, and what it lacks is not there.
    Pair,
}

impl Misfit {
    /// What is wrong with it, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::State => "no such state",
            Self::Index => "an address that is not there",
            Self::Address => "impossible addresses",
            Self::Scale => "an impossible window scale",
            Self::KeyInUse => "addresses and ports of another",
            Self::Line => "no such line",
            Self::Pair => "a pair that lacks something",
        }
    }
}

/// Reads a record from the bytes of its line. `Ok(None)`: the line is free, or holds a connection
/// that had not been joined to a server's when the earlier run ended.
///
/// # Errors
/// What is impossible about it.
pub fn read(bytes: &[u8; 64], endpoints: &Endpoints) -> Result<Option<Kept>, Misfit> {
    let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let long =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[..16]);
    let state = match bytes[60] & !ENGINE_HAS {
        0..=2 | 9 | JOINING | TICKET => return Ok(None),
        3 => State::Spliced,
        4 => State::FinRelayed1,
        5 => State::AckRelayed1,
        6 => State::FinRelayed2,
        7 => State::TimeWait,
        8 => State::Reset,
        _ => return Err(Misfit::State),
    };
    let record = Record {
        client_addr: fairlead_base::Address(address),
        client_port: word(16),
        listen: word(18),
        server: word(20),
        nat_addr: word(22),
        nat_port: word(24),
        route: word(26),
        seq_delta: long(28),
        ts_delta: long(32),
        client_isn: long(36),
        server_isn: long(40),
        client_nxt: long(44),
        server_nxt: long(48),
        client_wraps: word(52),
        server_wraps: word(54),
        last_active: long(56),
        state,
        // What the engine held or had seen of a new connection went with it.
        flags: bytes[61] & !(flag::HELD | flag::SYN_SEEN),
        client_shift: bytes[62] as i8,
        server_shift: bytes[63] as i8,
    };
    check(&record, endpoints)?;
    let given = bytes[60] & ENGINE_HAS == 0;
    Ok(Some(Kept { record, given }))
}

fn check(record: &Record, endpoints: &Endpoints) -> Result<(), Misfit> {
    let transparent = record.nat_addr == TRANSPARENT;
    if usize::from(record.listen) >= endpoints.listens.len()
        || usize::from(record.server) >= endpoints.servers.len()
        || !transparent && usize::from(record.nat_addr) >= endpoints.nats.len()
    {
        return Err(Misfit::Index);
    }
    for key in [record.client_key(endpoints), record.server_key(endpoints)] {
        let ports = key.src.port != 0 && key.dst.port != 0;
        let addresses = key.src.addr.0 != [0; 16] && key.dst.addr.0 != [0; 16];
        if !ports || !addresses || key.src.addr.is_v4() != key.dst.addr.is_v4() {
            return Err(Misfit::Address);
        }
    }
    // A splice does not change the family: see `Record`.
    if record.client_addr.is_v4() != endpoints.server(record.server).addr.is_v4() {
        return Err(Misfit::Address);
    }
    let scale = -SHIFT_MAX..=SHIFT_MAX;
    if !scale.contains(&record.client_shift) || !scale.contains(&record.server_shift) {
        return Err(Misfit::Scale);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Endpoint, Rng};

    use super::*;

    fn at(last: u8, port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        }
    }

    fn endpoints() -> Endpoints {
        Endpoints {
            listens: vec![at(1, 80)],
            servers: vec![at(2, 81), at(3, 81)],
            nats: vec![Address::v4([100, 64, 0, 1])],
        }
    }

    /// A line as it lies in memory.
    fn line(record: &Record, kept: u8) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(&record.client_addr.0);
        let words = [
            record.client_port,
            record.listen,
            record.server,
            record.nat_addr,
            record.nat_port,
            record.route,
        ];
        for (at, word) in (16..).step_by(2).zip(words) {
            bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        let longs = [
            record.seq_delta,
            record.ts_delta,
            record.client_isn,
            record.server_isn,
            record.client_nxt,
            record.server_nxt,
        ];
        for (at, long) in (28..).step_by(4).zip(longs) {
            bytes[at..at + 4].copy_from_slice(&long.to_ne_bytes());
        }
        bytes[52..54].copy_from_slice(&record.client_wraps.to_ne_bytes());
        bytes[54..56].copy_from_slice(&record.server_wraps.to_ne_bytes());
        bytes[56..60].copy_from_slice(&record.last_active.to_ne_bytes());
        bytes[60] = record.state as u8 | kept;
        bytes[61] = record.flags;
        bytes[62] = record.client_shift as u8;
        bytes[63] = record.server_shift as u8;
        bytes
    }

    fn good() -> Record {
        Record {
            client_addr: Address::v4([10, 0, 0, 9]),
            client_port: 40_000,
            server: 1,
            nat_port: 2_000,
            route: 7,
            seq_delta: 1,
            ts_delta: 2,
            client_isn: 3,
            server_isn: 4,
            client_nxt: 5,
            server_nxt: 6,
            client_wraps: 7,
            server_wraps: 8,
            last_active: 9,
            state: State::Spliced,
            flags: flag::TIMESTAMPS,
            client_shift: -2,
            server_shift: 3,
            ..Record::default()
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let kept = read(&line(&good(), 0), &endpoints()).unwrap().unwrap();
        assert_eq!(format!("{:?}", kept.record), format!("{:?}", good()));
        assert!(kept.given);
        let kept = read(&line(&good(), ENGINE_HAS), &endpoints()).unwrap();
        assert!(!kept.unwrap().given);
    }

    #[test]
    fn what_the_layout_says_is_where_this_reads() {
        // The bytes of a real record, its padding-free layout being what maps hold.
        assert_eq!(core::mem::offset_of!(Record, client_port), 16);
        assert_eq!(core::mem::offset_of!(Record, route), 26);
        assert_eq!(core::mem::offset_of!(Record, server_nxt), 48);
        assert_eq!(core::mem::offset_of!(Record, state), 60);
        assert_eq!(core::mem::offset_of!(Record, server_shift), 63);
    }

    #[test]
    fn what_was_not_joined_is_no_connection_and_no_fault() {
        for state in [
            State::Free,
            State::Established,
            State::SynSent,
            State::Answering,
        ] {
            let record = Record { state, ..good() };
            assert!(read(&line(&record, 0), &endpoints()).unwrap().is_none());
        }
        let mut bytes = line(&good(), 0);
        bytes[60] = JOINING;
        assert!(read(&bytes, &endpoints()).unwrap().is_none());
    }

    #[test]
    fn every_impossible_value_is_named() {
        let cases = [
            (
                Record {
                    listen: 1,
                    ..good()
                },
                Misfit::Index,
            ),
            (
                Record {
                    server: 2,
                    ..good()
                },
                Misfit::Index,
            ),
            (
                Record {
                    nat_addr: 1,
                    ..good()
                },
                Misfit::Index,
            ),
            (
                Record {
                    client_port: 0,
                    ..good()
                },
                Misfit::Address,
            ),
            (
                Record {
                    nat_port: 0,
                    ..good()
                },
                Misfit::Address,
            ),
            (
                Record {
                    client_addr: Address([7; 16]),
                    ..good()
                },
                Misfit::Address,
            ),
            (
                Record {
                    client_addr: Address([0; 16]),
                    ..good()
                },
                Misfit::Address,
            ),
            (
                Record {
                    client_shift: 15,
                    ..good()
                },
                Misfit::Scale,
            ),
            (
                Record {
                    server_shift: -15,
                    ..good()
                },
                Misfit::Scale,
            ),
        ];
        for (record, misfit) in cases {
            assert_eq!(read(&line(&record, 0), &endpoints()).unwrap_err(), misfit);
        }
        let mut bytes = line(&good(), 0);
        bytes[60] = 10;
        assert_eq!(read(&bytes, &endpoints()).unwrap_err(), Misfit::State);
    }

    #[test]
    fn arbitrary_bytes_are_a_possible_record_or_none() {
        let mut rng = Rng::new(11);
        let endpoints = endpoints();
        let mut possible = 0;
        for _ in 0..20_000 {
            let mut bytes = line(&good(), 0);
            for _ in 0..rng.below(6) {
                bytes[rng.below(64) as usize] = rng.next_u64() as u8;
            }
            if let Ok(Some(kept)) = read(&bytes, &endpoints) {
                possible += 1;
                let client = kept.record.client_key(&endpoints);
                let server = kept.record.server_key(&endpoints);
                assert_eq!(client.dst, endpoints.listens[0]);
                assert!(endpoints.servers.contains(&server.src));
                assert_eq!(kept.record.flags & (flag::HELD | flag::SYN_SEEN), 0);
            }
        }
        assert!((1_000..19_000).contains(&possible), "{possible}");
    }
}
