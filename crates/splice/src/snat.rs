//! Source addresses and ports for connections to servers, when servers are not to see clients'.
//!
//! There is no map of what is in use: the caller's connection table knows that anyway. [`Snat`]
//! only names candidates, the caller takes the first that its table does not have. With 128
//! candidates drawn over the whole space, a space that is nine tenths full towards one server
//! fails one connection in 700,000.
//!
//! Absent by design: the table, sockets.

use core::hash::Hasher;
use core::iter::FusedIterator;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;
use std::sync::Arc;

use fairlead_base::{Address, Endpoint, Rng};
use siphasher::sip::SipHasher13;
use thiserror::Error;

/// Candidates for one connection, at most.
pub const CANDIDATES_MAX: u32 = 128;

/// The lowest port that is used; those below are for well-known services.
pub const PORT_MIN: u16 = 1024;

/// Addresses taken from one prefix, at most.
pub const PREFIX_ADDRESSES_MAX: usize = 4096;

const PORTS: u64 = u16::MAX as u64 - PORT_MIN as u64 + 1;

/// The source addresses, and the chance by which candidates are drawn.
#[derive(Clone, Debug)]
pub struct Snat {
    addresses: Vec<Address>,
    /// Indices into `addresses`. Shared with the iterators, so that the caller is free to use
    /// everything else while it tries candidates.
    v4: Arc<[u16]>,
    v6: Arc<[u16]>,
    key: (u64, u64),
    drawn: u64,
}

impl Snat {
    /// Over these addresses, both families in one list. An address that stands there twice counts
    /// once; of more than 65,536 addresses the rest is never used (an index has 16 bits).
    pub fn new(addresses: &[Address], seed: u64) -> Self {
        let all: Vec<u16> = (0..=u16::MAX).take(addresses.len()).collect();
        Self::among(addresses, &all, seed)
    }

    /// As [`Self::new`], but only the addresses with these indices are used.
    pub fn among(addresses: &[Address], usable: &[u16], seed: u64) -> Self {
        let mut seen = BTreeSet::new();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for &index in usable {
            let Some(address) = addresses.get(usize::from(index)) else {
                continue;
            };
            if seen.insert(*address) {
                if address.is_v4() {
                    v4.push(index)
                } else {
                    v6.push(index)
                }
            }
        }
        let mut rng = Rng::new(seed);
        Self {
            addresses: addresses.to_vec(),
            v4: v4.into(),
            v6: v6.into(),
            key: (rng.next_u64(), rng.next_u64()),
            drawn: 0,
        }
    }

    /// The address behind an index that a candidate named.
    pub fn address(&self, index: u16) -> Option<Address> {
        self.addresses.get(usize::from(index)).copied()
    }

    /// Candidates for a connection from `client` to `server`: index of an address of the server's
    /// family, and a port. All are different; none when there is no address of that family.
    ///
    /// The first candidate runs through the whole space before it comes to a place twice: a server
    /// that keeps a closed connection in TIME_WAIT would answer the same place's next SYN with an
    /// ACK of the old one (its timestamps may come from another client's clock), and the client
    /// would wait for a retransmission. By chance alone, one connection in a hundred met that once
    /// a server had a hundredth of the space in TIME_WAIT. The order is shuffled, so that nobody
    /// without the seed can tell the port in advance (RFC 6056); further candidates depend on both
    /// ends, too.
    pub fn candidates(&mut self, client: Endpoint, server: Endpoint) -> Candidates {
        let family = if server.addr.is_v4() {
            &self.v4
        } else {
            &self.v6
        };
        let family = Arc::clone(family);
        let space = family.len() as u64 * PORTS;
        self.drawn = self.drawn.wrapping_add(1);
        Candidates {
            family,
            space,
            next: self.place(self.drawn, space),
            at_first: true,
            stride: 0,
            drawn: (self.key, self.drawn),
            ends: [client, server],
            left: u64::from(CANDIDATES_MAX).min(space) as u32,
        }
    }

    /// Number `count` in a shuffled order of the places below `space`: `space` numbers one after
    /// the other give each place once.
    ///
    /// Four rounds of a Feistel network permute the next larger power of four; whoever lands
    /// outside of the space goes on from there, and is back after fewer than four steps on average.
    fn place(&self, count: u64, space: u64) -> u64 {
        if space < 2 {
            return 0;
        }
        let half_bits = (u64::BITS - (space - 1).leading_zeros()).div_ceil(2);
        let mask = (1 << half_bits) - 1;
        let mut place = count % space;
        loop {
            let (mut left, mut right) = (place >> half_bits, place & mask);
            for round in 0..4u8 {
                let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
                hasher.write(&[round]);
                hasher.write(&right.to_le_bytes());
                (left, right) = (right, (left ^ hasher.finish()) & mask);
            }
            place = (left << half_bits) | right;
            if place < space {
                return place;
            }
        }
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// An iterator over candidates: `(index of the address, port)`.
#[derive(Clone, Debug)]
pub struct Candidates {
    family: Arc<[u16]>,
    space: u64,
    next: u64,
    at_first: bool,
    /// From each candidate to the next; 0 until it is needed, which is seldom.
    stride: u64,
    /// What the stride is drawn from.
    drawn: ((u64, u64), u64),
    ends: [Endpoint; 2],
    left: u32,
}

impl Candidates {
    /// A stride without a common divisor with the space comes to every point before it comes to
    /// one twice. It is found at once: such numbers are never far apart.
    fn draw_stride(&self) -> u64 {
        let ((k0, k1), count) = self.drawn;
        let mut hasher = SipHasher13::new_with_keys(k0, k1);
        for end in self.ends {
            hasher.write(&end.addr.0);
            hasher.write(&end.port.to_le_bytes());
        }
        hasher.write(&count.to_le_bytes());
        let mut rng = Rng::new(hasher.finish());
        // The space has fewer than 2³² points: 65,536 addresses of 64,512 ports.
        let mut stride = 1 + (((rng.next_u64() >> 32) * self.space) >> 32);
        while greatest_common_divisor(stride, self.space) != 1 {
            stride += 1;
        }
        stride
    }
}

impl Iterator for Candidates {
    type Item = (u16, u16);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        if !std::mem::take(&mut self.at_first) {
            if self.stride == 0 {
                self.stride = self.draw_stride();
            }
            self.next = (self.next + self.stride) % self.space;
        }
        let index = self.family.get((self.next / PORTS) as usize).copied()?;
        let port = PORT_MIN + (self.next % PORTS) as u16;
        Some((index, port))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Candidates {}
impl FusedIterator for Candidates {}

/// A prefix whose addresses cannot be sources of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// Longer than an address.
    #[error("/{len} is longer than an address of this family, which has {max} bits")]
    TooLong {
        /// The length that was given.
        len: u8,
        /// The longest for this family.
        max: u8,
    },
    /// Bits are set behind the prefix, so that it is not clear what was meant.
    #[error("bits are set behind the prefix; did you mean {network}/{len}?")]
    HostBits {
        /// The address with these bits cleared.
        network: IpAddr,
        /// The length that was given.
        len: u8,
    },
    /// Holds addresses that are no unicast addresses of a network (RFC 6890).
    #[error("{address} is in it, which no connection can come from")]
    NotUnicast {
        /// The first such address.
        address: IpAddr,
    },
}

/// The host addresses of a prefix, the lowest [`PREFIX_ADDRESSES_MAX`] of them.
///
/// Left out are, for IPv4, the network and broadcast addresses, unless the prefix is /31 (RFC 3021)
/// or /32; for IPv6 the subnet-router anycast address (RFC 4291, section 2.6.1), unless the prefix
/// is /127 (RFC 6164) or /128.
///
/// # Errors
/// See [`PrefixError`].
pub fn addresses_of_prefix(prefix: (IpAddr, u8)) -> Result<Vec<Address>, PrefixError> {
    let (ip, len) = prefix;
    // Both families as numbers; `bits` of them count.
    let (number, bits) = match ip {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32u8),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let to_ip = |number: u128| match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(number as u32)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
    };
    if len > bits {
        return Err(PrefixError::TooLong { len, max: bits });
    }
    let host_bits = bits - len;
    let host_mask = if host_bits == 128 {
        u128::MAX
    } else {
        (1u128 << host_bits) - 1
    };
    let network = number & !host_mask;
    if number != network {
        return Err(PrefixError::HostBits {
            network: to_ip(network),
            len,
        });
    }
    let top = network | host_mask;
    let (first, last) = match (ip, host_bits) {
        (_, 0 | 1) => (network, top),
        (IpAddr::V4(_), _) => (network + 1, top - 1),
        (IpAddr::V6(_), _) => (network + 1, top),
    };
    (first..=last)
        .take(PREFIX_ADDRESSES_MAX)
        .map(|number| match to_ip(number) {
            ip if is_unicast(ip) => Ok(Address::from(ip)),
            address => Err(PrefixError::NotUnicast { address }),
        })
        .collect()
}

/// Whether a packet between machines may come from this address. IPv4-mapped IPv6 addresses never
/// stand on the wire.
fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            first != 0 && first < 224 && !v4.is_loopback()
        }
        IpAddr::V6(v6) => {
            let special = v6.is_unspecified() || v6.is_loopback() || v6.is_multicast();
            !special && v6.to_ipv4_mapped().is_none()
        }
    }
}

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn v4(last: u8, port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        }
    }

    fn v6(last: u8, port: u16) -> Endpoint {
        let mut octets = [0; 16];
        (octets[0], octets[15]) = (0xfd, last);
        Endpoint {
            addr: Address::v6(octets),
            port,
        }
    }

    fn addresses(text: &str) -> Result<Vec<Address>, PrefixError> {
        let (ip, len) = text.split_once('/').unwrap();
        addresses_of_prefix((ip.parse().unwrap(), len.parse().unwrap()))
    }

    fn listed(text: &str) -> Vec<String> {
        addresses(text)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn candidates_are_of_the_servers_family() {
        let mixed = [
            v4(1, 0).addr,
            v6(1, 0).addr,
            v4(2, 0).addr,
            v6(2, 0).addr,
            v6(3, 0).addr,
        ];
        let mut snat = Snat::new(&mixed, 1);
        let of_v4: BTreeSet<_> = (0..10)
            .flat_map(|_| snat.candidates(v6(9, 1), v4(8, 80)))
            .map(|(i, _)| i)
            .collect();
        let of_v6: BTreeSet<_> = (0..10)
            .flat_map(|_| snat.candidates(v4(9, 1), v6(8, 80)))
            .map(|(i, _)| i)
            .collect();
        assert_eq!(Vec::from_iter(of_v4), [0, 2]);
        assert_eq!(Vec::from_iter(of_v6), [1, 3, 4]);
        assert_eq!(snat.address(3), Some(mixed[3]));
        assert_eq!(snat.address(5), None);
    }

    #[test]
    fn without_an_address_of_the_family_there_is_no_candidate() {
        assert_eq!(
            Snat::new(&[], 1).candidates(v4(1, 1), v4(2, 2)).next(),
            None
        );
        assert_eq!(
            Snat::new(&[v4(3, 0).addr], 1)
                .candidates(v4(1, 1), v6(2, 2))
                .next(),
            None
        );
    }

    #[test]
    fn an_address_named_twice_counts_once() {
        let mut snat = Snat::new(&[v4(3, 0).addr; 5], 1);
        assert!(
            (0..20)
                .flat_map(|_| snat.candidates(v4(1, 1), v4(2, 2)))
                .all(|(i, _)| i == 0)
        );
    }

    #[test]
    fn first_candidates_spread_evenly_over_addresses_and_ports() {
        let pool = addresses("100.64.0.0/28").unwrap();
        let mut snat = Snat::new(&pool, 3);
        let mut by_address = [0u32; 14];
        let mut by_range = [0u32; 63];
        for _ in 0..12_600 {
            // The same two ends, over and over: the hardest case.
            let (index, port) = snat.candidates(v4(1, 5555), v4(2, 80)).next().unwrap();
            by_address[usize::from(index)] += 1;
            by_range[usize::from((port - PORT_MIN) / 1024)] += 1;
        }
        assert!(
            by_address.iter().all(|count| (780..1020).contains(count)),
            "{by_address:?}"
        );
        assert!(
            by_range.iter().all(|count| (140..260).contains(count)),
            "{by_range:?}"
        );
    }

    #[test]
    fn no_tuple_comes_twice_before_all_have_come_once() {
        let pool = [v4(3, 0).addr];
        let mut snat = Snat::new(&pool, 4);
        for _pass in 0..2 {
            let mut seen = BTreeSet::new();
            for client in 0..PORTS as u16 {
                let mut candidates = snat.candidates(v4(1, client), v4(2, 80));
                assert!(seen.insert(candidates.next().unwrap()), "client {client}");
            }
            assert_eq!(seen.len() as u64, PORTS);
        }
    }

    #[test]
    fn the_next_tuple_cannot_be_told_from_the_last() {
        let mut snat = Snat::new(&[v4(3, 0).addr], 4);
        let mut port = || i32::from(snat.candidates(v4(1, 1), v4(2, 80)).next().unwrap().1);
        let mut steps = BTreeSet::new();
        let mut last = port();
        for _ in 0..1_000 {
            let next = port();
            steps.insert(next - last);
            last = next;
        }
        assert!(
            steps.len() > 950,
            "{} different steps of 1,000",
            steps.len()
        );
    }

    #[test]
    fn a_nearly_full_space_is_still_found_a_place_in() {
        let mut snat = Snat::new(&[v4(3, 0).addr, v4(4, 0).addr], 5);
        let mut used = BTreeSet::new();
        let wanted = (2 * PORTS * 9 / 10) as usize;
        let mut refused = 0;
        while used.len() < wanted && refused < 10 {
            let mut candidates = snat.candidates(v4(1, used.len() as u16), v4(2, 80));
            if !candidates.any(|candidate| used.insert(candidate)) {
                refused += 1;
            }
        }
        assert_eq!(refused, 0, "refused before nine tenths were in use");
    }

    #[test]
    fn the_largest_space_is_walked_without_overflow() {
        let pool: Vec<_> = (0..70_000u32)
            .map(|n| Address::v4((0x0a00_0000 + n).to_be_bytes()))
            .collect();
        let mut snat = Snat::new(&pool, 6);
        let mut indices = BTreeSet::new();
        for port in 0..500 {
            let some: Vec<_> = snat.candidates(v4(1, port), v4(2, 80)).collect();
            assert_eq!(some.len(), 128);
            indices.extend(some.into_iter().map(|(index, _)| index));
        }
        assert!(
            indices.len() > 35_000,
            "{} of 65,536 addresses in 64,000 draws",
            indices.len()
        );
    }

    proptest! {
        #[test]
        fn candidates_are_distinct_in_range_and_the_same_for_the_same_seed(
            seed in any::<u64>(),
            count in 1usize..300,
            drawn_before in 0usize..5,
            client_port in any::<u16>(),
        ) {
            let pool: Vec<_> = (0..count as u32)
                .map(|n| Address::v4((0x0a00_0000 + n).to_be_bytes()))
                .collect();
            let draw = || {
                let mut snat = Snat::new(&pool, seed);
                for _ in 0..drawn_before {
                    snat.candidates(v4(1, client_port), v4(2, 80));
                }
                snat.candidates(v4(1, client_port), v4(2, 80)).collect::<Vec<_>>()
            };
            let candidates = draw();
            prop_assert_eq!(candidates.len(), 128);
            prop_assert!(candidates.iter().all(|&(index, port)|
                usize::from(index) < count && port >= PORT_MIN));
            prop_assert_eq!(candidates.iter().collect::<BTreeSet<_>>().len(), 128);
            prop_assert_eq!(draw(), candidates);
        }
    }

    #[test]
    fn a_prefix_gives_its_host_addresses() {
        assert_eq!(listed("192.0.2.8/30"), ["192.0.2.9", "192.0.2.10"]);
        assert_eq!(listed("192.0.2.8/31"), ["192.0.2.8", "192.0.2.9"]);
        assert_eq!(listed("192.0.2.8/32"), ["192.0.2.8"]);
        let many = listed("100.64.0.0/24");
        assert_eq!(
            (many.len(), &*many[0], &*many[253]),
            (254, "100.64.0.1", "100.64.0.254")
        );
        assert_eq!(
            listed("2001:db8::4/126"),
            ["2001:db8::5", "2001:db8::6", "2001:db8::7"]
        );
        assert_eq!(listed("2001:db8::4/127"), ["2001:db8::4", "2001:db8::5"]);
        assert_eq!(listed("2001:db8::4/128"), ["2001:db8::4"]);
    }

    #[test]
    fn a_wide_prefix_gives_its_first_4096_addresses() {
        for (text, last) in [
            ("10.0.0.0/8", "10.0.16.0"),
            ("2001:db8::/32", "2001:db8::1000"),
        ] {
            let listed = listed(text);
            assert_eq!((listed.len(), &*listed[4095]), (4096, last));
        }
    }

    #[test]
    fn impossible_prefixes_are_refused_with_what_to_write() {
        let error = addresses("100.64.0.5/24").unwrap_err();
        assert!(error.to_string().contains("100.64.0.0/24"), "{error}");
        assert_eq!(
            addresses("10.0.0.0/33"),
            Err(PrefixError::TooLong { len: 33, max: 32 })
        );
        assert_eq!(
            addresses("fd00::/129"),
            Err(PrefixError::TooLong { len: 129, max: 128 })
        );
        let nowhere = [
            "0.0.0.0/0",
            "127.0.0.0/8",
            "224.0.0.0/4",
            "255.255.255.255/32",
            "::/0",
            "::1/128",
            "ff02::/16",
            "::ffff:10.0.0.0/120",
        ];
        for text in nowhere {
            let error = addresses(text).unwrap_err();
            assert!(
                matches!(error, PrefixError::NotUnicast { .. }),
                "{text}: {error}"
            );
        }
    }
}
