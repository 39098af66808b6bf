//! Address prefixes: the pool of source addresses.

use core::fmt;
use core::net::IpAddr;

use fairlead_base::Address;
use fairlead_splice::snat::{PREFIX_ADDRESSES_MAX, PrefixError, addresses_of_prefix};

use super::diagnostic::{At, Diagnostic, Problems};
use super::section::quoted;

/// An address prefix, `100.64.0.0/24`; its host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    first: Address,
    len: u8,
}

/// The most source addresses, all prefixes together: a connection's record names its own by a
/// number of 16 bits, of which one means the client's address.
pub(super) const SNAT_ADDRESSES_MAX: usize = 65_534;

impl Prefix {
    /// The prefix of `len` bits that `address` is in; `None` when the family has no such length.
    pub fn of(address: IpAddr, len: u8) -> Option<Self> {
        let first = Address::from(address);
        let family_bits: u8 = if first.is_v4() { 32 } else { 128 };
        if len > family_bits {
            return None;
        }
        let kept = len + (128 - family_bits);
        let host_bits = 128 - u32::from(kept);
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        Some(Self {
            first: Address((u128::from_be_bytes(first.0) & mask).to_be_bytes()),
            len,
        })
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.first.to_ip()
    }

    /// Its length, bits.
    pub fn prefix_len(&self) -> u8 {
        self.len
    }

    /// True for an IPv4 prefix.
    pub fn is_v4(&self) -> bool {
        self.first.is_v4()
    }

    fn host_bits(&self) -> u32 {
        (if self.is_v4() { 32 } else { 128 }) - u32::from(self.len)
    }

    /// True when `address` is in it.
    pub fn contains(&self, address: Address) -> bool {
        address.is_v4() == self.is_v4() && Self::of(address.to_ip(), self.len) == Some(*self)
    }

    /// True when the two have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// True when it has more host addresses than are used.
    pub fn is_larger_than_used(&self) -> bool {
        self.host_bits() > PREFIX_ADDRESSES_MAX.ilog2()
    }

    /// The source addresses it gives: its host addresses, the lowest [`PREFIX_ADDRESSES_MAX`] of
    /// them.
    ///
    /// # Errors
    /// When it holds addresses that no connection can come from.
    pub fn hosts(&self) -> Result<Vec<Address>, PrefixError> {
        addresses_of_prefix((self.address(), self.len))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.len)
    }
}

/// Reads a prefix fit for source addresses.
pub(super) fn prefix(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<Prefix> {
    let mut refuse = |message: String, help: String| {
        problems.push(Diagnostic::error(&text.span, message).help(help));
        None
    };
    let example = format!("write {key} = \"100.64.0.0/24\"");
    let (address, len) = match text.value.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (text.value, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return refuse(
            format!("{} is not an address prefix", quoted(text.value)),
            example,
        );
    };
    let Some(len) = len else {
        let full = if address.is_ipv4() { 32 } else { 128 };
        return refuse(
            format!("{} has no prefix length", quoted(text.value)),
            format!("write \"{address}/{full}\" for this one address, or a prefix of several"),
        );
    };
    let Some(prefix) = len
        .parse::<u8>()
        .ok()
        .and_then(|len| Prefix::of(address, len))
    else {
        return refuse(format!("{} is not a prefix length", quoted(len)), example);
    };
    if prefix.address() != address {
        return refuse(
            format!("{address} is not the first address of a /{}", prefix.len),
            format!("write \"{prefix}\""),
        );
    }
    if let Err(error) = prefix.hosts() {
        return refuse(
            format!("{prefix} is not a prefix of host addresses: {error}"),
            example,
        );
    }
    if prefix.is_v4() && prefix.is_larger_than_used() {
        problems.push(
            Diagnostic::warning(
                &text.span,
                format!("of {prefix} only the lowest {PREFIX_ADDRESSES_MAX} addresses are used"),
            )
            .help(format!(
                "write \"{address}/20\" to leave the others to other hosts"
            )),
        );
    }
    Some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::of(address.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    fn hosts(text: &str) -> Vec<String> {
        of(text)
            .hosts()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn hosts_leave_out_what_no_host_has() {
        assert_eq!(hosts("100.64.0.0/30"), ["100.64.0.1", "100.64.0.2"]);
        assert_eq!(hosts("100.64.0.9/32"), ["100.64.0.9"]);
        assert_eq!(
            hosts("2001:db8::/126"),
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
        );
        for (text, larger) in [
            ("100.64.0.0/20", false),
            ("100.64.0.0/19", true),
            ("fd00::/64", true),
        ] {
            assert_eq!(of(text).is_larger_than_used(), larger, "{text}");
        }
        assert_eq!(hosts("fd00::/64").len(), PREFIX_ADDRESSES_MAX);
        assert!(of("0.0.0.0/0").hosts().is_err());
    }

    #[test]
    fn containment_keeps_the_families_apart() {
        let four = of("100.64.0.0/24");
        assert!(four.contains(Address::v4([100, 64, 0, 255])));
        assert!(!four.contains(Address::v4([100, 64, 1, 0])));
        assert!(!of("::/0").contains(Address::v4([100, 64, 0, 1])));
        assert!(of("0.0.0.0/0").contains(Address::v4([1, 2, 3, 4])));
        assert!(four.overlaps(&of("100.64.0.128/25")) && of("100.64.0.128/25").overlaps(&four));
        assert!(!four.overlaps(&of("100.64.1.0/24")));
    }

    #[test]
    fn host_bits_are_cleared_and_long_lengths_refused() {
        assert_eq!(of("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert_eq!(of("2001:db8::ffff/32").to_string(), "2001:db8::/32");
        assert_eq!(Prefix::of("10.0.0.0".parse().unwrap(), 33), None);
    }
}
