//! The bits of a session identifier, and which of them an index function sees.
//!
//! A session identifier is the client's address followed by its port: 48 bits for IPv4, 144 for
//! IPv6. The tag is always the whole of it; the index may be made of fewer bits (paper, section
//! 3.2).

use core::fmt;
use core::str::FromStr;

use fairlead_base::Endpoint;
use thiserror::Error;

/// Bits of a key, least significant first; those that a mask leaves out are closed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bits {
    /// 64 bits each, the first the least significant.
    pub limbs: [u64; 3],
    /// How many bits there are: 0 to 144.
    pub len: u32,
}

impl Bits {
    /// The `width` (1 to 32) bits from bit `from` on; bits past the end are zero.
    #[inline]
    pub fn chunk(&self, from: u32, width: u32) -> u32 {
        let (limb, shift) = ((from / 64) as usize, from % 64);
        let low = self.limbs.get(limb).copied().unwrap_or(0) >> shift;
        let high = match shift {
            0 => 0,
            _ => self.limbs.get(limb + 1).copied().unwrap_or(0) << (64 - shift),
        };
        ((low | high) & ((1u64 << width) - 1)) as u32
    }

    /// The remainder of the bits, read as one number, by `divisor` (not 0).
    pub fn modulo(&self, divisor: u32) -> u32 {
        self.limbs.iter().rev().fold(0u128, |rest, limb| {
            ((rest << 64) | u128::from(*limb)) % u128::from(divisor)
        }) as u32
    }

    /// Without the lowest `count` (0 to 63) bits.
    pub fn above(&self, count: u32) -> Self {
        let [a, b, c] = self.limbs;
        let join = |low: u64, high: u64| match count {
            0 => low,
            _ => (low >> count) | (high << (64 - count)),
        };
        Self {
            limbs: [join(a, b), join(b, c), join(c, 0)],
            len: self.len.saturating_sub(count),
        }
    }
}

/// The bits of address and port used for the index.
///
/// Written `all48` (all bits, for IPv6 all 144), `16` (the paper's choice: IP bits 24–31 and port
/// bits 8–15, where bit 0 is the most significant), `n` from 1 to 40 (the `n` least significant of
/// the 40 bits IP ++ port bits 8–15), or `AAAAAAAA:PPPP`, hexadecimal masks of address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Bits of the address; an IPv4 address is the lowest 32 of the 128.
    address: u128,
    /// Bits of the port.
    port: u16,
}

/// A mask that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "index bits `{0}` cannot be read: write `all48`, a number from 1 to 40, or hexadecimal masks \
     of address and port with at least one bit set, such as `000000ff:00ff`"
)]
pub struct MaskError(pub String);

impl Mask {
    /// Every bit.
    pub const ALL: Self = Self {
        address: u128::MAX,
        port: u16::MAX,
    };
    /// The paper's 16 bits (section 4.3): the last byte of the address, the low byte of the port.
    pub const PAPER: Self = Self {
        address: 0xff,
        port: 0xff,
    };

    /// The bits set in these. For an IPv4 client the lowest 32 bits of `address` count.
    pub fn new(address: u128, port: u16) -> Self {
        Self { address, port }
    }

    /// The `count` least significant of the 40 bits that are left when the port's upper byte is
    /// left out (Fig. 13); 16 is the paper's choice. More than 40 is 40.
    pub fn low(count: u32) -> Self {
        let port = count.min(8);
        let address = count.min(40) - port;
        Self {
            address: (1 << address) - 1,
            port: ((1u32 << port) - 1) as u16,
        }
    }

    /// Number of bits of an IPv4 key under this mask, which determines the hash's gates.
    pub fn bits_v4(&self) -> u32 {
        (self.address as u32).count_ones() + self.port.count_ones()
    }

    /// The bits of a session identifier.
    #[inline]
    pub fn select(&self, key: &Endpoint) -> Bits {
        let v4 = key.addr.is_v4();
        let (address, mask, whole) = if v4 {
            let octets = u32::from_be_bytes(key.addr.v4_octets());
            (u128::from(octets), self.address & 0xffff_ffff, 32)
        } else {
            (u128::from_be_bytes(key.addr.0), self.address, 128)
        };
        let (mut value, address_len) = close_up(address, mask, whole);
        let (port, port_len) = close_up(u128::from(key.port), u128::from(self.port), 16);
        let top = if port_len == 0 {
            0
        } else {
            (value >> (128 - port_len)) as u64
        };
        value = (value << port_len) | port;
        Bits {
            limbs: [value as u64, (value >> 64) as u64, top],
            len: address_len + port_len,
        }
    }
}

/// The bits of `value` at the ones of `mask`, closed up, and how many there are; `whole` is the
/// width of the value.
#[inline]
fn close_up(value: u128, mask: u128, whole: u32) -> (u128, u32) {
    let ones = mask.count_ones();
    // Masks are mostly runs of the lowest bits.
    if ones == whole || mask & mask.wrapping_add(1) == 0 {
        return (value & mask, ones);
    }
    let (mut rest, mut closed) = (mask, 0);
    for at in 0..ones {
        let bit = rest.trailing_zeros();
        closed |= ((value >> bit) & 1) << at;
        rest &= rest - 1;
    }
    (closed, ones)
}

impl FromStr for Mask {
    type Err = MaskError;

    fn from_str(text: &str) -> Result<Self, MaskError> {
        let error = || MaskError(text.to_owned());
        if text == "all48" || text == "all" || text == "48" {
            return Ok(Self::ALL);
        }
        if let Some((address, port)) = text.split_once(':') {
            let mask = Self {
                address: u128::from_str_radix(address, 16).map_err(|_| error())?,
                port: u16::from_str_radix(port, 16).map_err(|_| error())?,
            };
            return if mask.bits_v4() == 0 {
                Err(error())
            } else {
                Ok(mask)
            };
        }
        match text.parse() {
            Ok(count @ 1..=40) => Ok(Self::low(count)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all48");
        }
        match (1..=40).find(|count| Self::low(*count) == *self) {
            Some(count) => write!(f, "{count}"),
            None => write!(f, "{:08x}:{:04x}", self.address, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_base::Address;

    fn key(ip: [u8; 4], port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4(ip),
            port,
        }
    }

    #[test]
    fn all_bits_are_address_then_port() {
        let bits = Mask::ALL.select(&key([1, 2, 3, 4], 0x0506));
        assert_eq!((bits.limbs, bits.len), ([0x0102_0304_0506, 0, 0], 48));
        let mut octets = [0u8; 16];
        for (at, octet) in octets.iter_mut().enumerate() {
            *octet = at as u8 + 1;
        }
        let v6 = Endpoint {
            addr: Address::v6(octets),
            port: 0xaabb,
        };
        let bits = Mask::ALL.select(&v6);
        assert_eq!(bits.len, 144);
        assert_eq!(bits.limbs[2], 0x0102);
        assert_eq!(bits.limbs[1], 0x0304_0506_0708_090a);
        assert_eq!(bits.limbs[0], 0x0b0c_0d0e_0f10_aabb);
    }

    #[test]
    fn the_papers_bits_are_the_low_bytes() {
        let bits = Mask::PAPER.select(&key([1, 2, 3, 4], 0x0506));
        assert_eq!((bits.limbs[0], bits.len), (0x0406, 16));
        assert_eq!(Mask::low(16), Mask::PAPER);
        assert_eq!(Mask::low(40).bits_v4(), 40);
        let scattered: Mask = "80000001:8001".parse().unwrap();
        let bits = scattered.select(&key([0x80, 0, 0, 0], 1));
        assert_eq!((bits.limbs[0], bits.len), (0b1001, 4));
    }

    #[test]
    fn masks_are_written_as_they_are_read() {
        for text in ["all48", "16", "8", "40", "f0000001:8001"] {
            assert_eq!(text.parse::<Mask>().unwrap().to_string(), text);
        }
        for text in ["", "0", "41", "x:1", "0:0", "-1", "1:2:3"] {
            assert!(text.parse::<Mask>().is_err(), "{text}");
        }
    }

    #[test]
    fn chunks_and_remainders_cross_limbs() {
        let bits = Bits {
            limbs: [1 << 63, 1, 0x7],
            len: 144,
        };
        assert_eq!(bits.chunk(63, 2), 3);
        assert_eq!(bits.chunk(128, 8), 7);
        assert_eq!(bits.chunk(200, 8), 0);
        let number = (1u128 << 64) | (1 << 63);
        let low = Bits {
            limbs: [number as u64, (number >> 64) as u64, 0],
            len: 128,
        };
        assert_eq!(u128::from(low.modulo(61)), number % 61);
        assert_eq!(low.above(63).limbs[0], 3);
    }
}
