//! Addresses, endpoints and the key of a flow.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IPv4 or IPv6 address in 16 bytes; IPv4 as the IPv4-mapped form `::ffff:a.b.c.d`
/// (RFC 4291, section 2.5.5.2), so that one record layout serves both families.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Address(pub [u8; 16]);

const MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Address {
    /// From the four bytes of an IPv4 address.
    #[inline]
    pub const fn v4(octets: [u8; 4]) -> Self {
        let [a, b, c, d] = octets;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// From the sixteen bytes of an IPv6 address.
    #[inline]
    pub fn v6(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// True for an IPv4 address.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.0[..12] == MAPPED_PREFIX
    }

    /// The four bytes of an IPv4 address (the last four bytes of any address).
    #[inline]
    pub fn v4_octets(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// The part shared by all addresses of a subscriber: a whole IPv4 address, or the first 64 bits
    /// of an IPv6 address, because a host with one address of such a network can use all of them
    /// (RFC 6177, section 2).
    pub fn subscriber(&self) -> Self {
        let mut subscriber = *self;
        if !self.is_v4() {
            subscriber.0[8..].fill(0);
        }
        subscriber
    }

    /// The part shared by all subscribers of a site: a whole IPv4 address, or the first 48 bits of
    /// an IPv6 address. Prefixes of this size are commonly assigned (RFC 6177), but unrelated
    /// subscribers may share one.
    pub fn site(&self) -> Self {
        let mut site = self.subscriber();
        if !self.is_v4() {
            site.0[6..8].fill(0);
        }
        site
    }

    /// As the standard library's type.
    pub fn to_ip(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.v4_octets()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self::v6(v6.octets()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

/// An address and a TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Endpoint {
    /// The address.
    pub addr: Address,
    /// The port, in host order.
    pub port: u16,
}

impl From<SocketAddr> for Endpoint {
    fn from(socket: SocketAddr) -> Self {
        Self {
            addr: socket.ip().into(),
            port: socket.port(),
        }
    }
}

impl Endpoint {
    /// As the standard library's type.
    pub fn to_socket(self) -> SocketAddr {
        SocketAddr::new(self.addr.to_ip(), self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_socket().fmt(f)
    }
}

/// The directed 4-tuple of a TCP flow. The protocol is always TCP here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FlowKey {
    /// Who sent the packet.
    pub src: Endpoint,
    /// The destination.
    pub dst: Endpoint,
}

/// The secret for hashing flow keys, so that an attacker cannot choose colliding tuples. Derived
/// from the core's seed.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 4]);

impl HashKey {
    /// From 64 seed bits, stretched.
    pub fn new(seed: u64) -> Self {
        let mut rng = crate::Rng::new(seed);
        Self([
            rng.next_u64(),
            rng.next_u64(),
            rng.next_u64(),
            rng.next_u64() | 1,
        ])
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8; 16], at: usize) -> u64 {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

impl FlowKey {
    /// The same flow seen from the other end.
    #[inline]
    pub fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
        }
    }

    /// A keyed hash by folded multiplication: three multiplications for either family.
    #[inline]
    pub fn hash64(&self, key: &HashKey) -> u64 {
        let [k0, k1, k2, k3] = key.0;
        let ports = (u64::from(self.src.port) << 16) | u64::from(self.dst.port);
        let src = fold(
            word(&self.src.addr.0, 0) ^ k0,
            word(&self.src.addr.0, 8) ^ k1,
        );
        let dst = fold(
            word(&self.dst.addr.0, 0) ^ k2,
            word(&self.dst.addr.0, 8) ^ k3,
        );
        fold(
            src ^ k1 ^ ports.rotate_left(17),
            dst.rotate_left(32) ^ k0 ^ ports,
        )
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.src, self.dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_round_trip() {
        for text in ["10.1.0.3", "2001:db8::7", "::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Address::from(ip).to_ip(), ip);
            assert_eq!(Address::from(ip).is_v4(), ip.is_ipv4());
        }
    }

    #[test]
    fn neighbouring_keys_spread_over_all_low_and_high_bits() {
        let key = HashKey::new(7);
        let mut low = [0u32; 64];
        let mut high = [0u32; 64];
        for port in 0..6_400u16 {
            let flow = FlowKey {
                src: Endpoint {
                    addr: Address::v4([10, 0, 0, 1]),
                    port,
                },
                dst: Endpoint {
                    addr: Address::v4([10, 0, 0, 2]),
                    port: 80,
                },
            };
            let hash = flow.hash64(&key);
            low[(hash & 63) as usize] += 1;
            high[(hash >> 58) as usize] += 1;
        }
        for count in low.iter().chain(&high) {
            assert!(
                (50..=160).contains(count),
                "bucket of {count}, expected about 100"
            );
        }
    }
}
