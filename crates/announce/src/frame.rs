//! Frames of ARP (RFC 826) and of neighbour discovery (RFC 4861), read and written.

use fairlead_base::Address;
use fairlead_wire::checksum;

/// An Ethernet address.
pub type Hardware = [u8; 6];

const BROADCAST: Hardware = [0xff; 6];
const TYPE_ARP: u16 = 0x0806;
const TYPE_IPV6: u16 = 0x86dd;
const LINK_BYTES: usize = 14;
const ARP_BYTES: usize = 28;
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
const IPV6_BYTES: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Both messages without options: type, code, checksum, flags, target.
const MESSAGE_BYTES: usize = 24;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Routers drop what has any other hop limit, so that it comes from the link (RFC 4861).
const HOP_LIMIT: u8 = 255;
/// Router, solicited, override (RFC 4861, section 4.4).
const FLAG_ROUTER: u8 = 0x80;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;
const UNSPECIFIED: Address = Address([0; 16]);
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// What a frame says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Somebody asks for the owner of `target`. `sender` is an address that it uses itself; none
    /// for a probe.
    Question {
        /// The address in question.
        target: Address,
        /// The address of the sender, unless it only probes.
        sender: Option<Address>,
        /// The sender's hardware.
        from: Hardware,
    },
    /// Somebody says that it uses `address`.
    Claim {
        /// The address.
        address: Address,
        /// The sender's hardware.
        from: Hardware,
    },
}

/// Reads a frame; `None` if it is neither ARP nor neighbour discovery, or not well-formed.
pub fn read(frame: &[u8]) -> Option<Heard> {
    let from: Hardware = *frame.get(6..)?.first_chunk()?;
    let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    let rest = frame.get(LINK_BYTES..)?;
    match kind {
        TYPE_ARP => read_arp(rest),
        TYPE_IPV6 => read_message(rest, from),
        _ => None,
    }
}

fn read_arp(bytes: &[u8]) -> Option<Heard> {
    let arp: &[u8; ARP_BYTES] = bytes.first_chunk()?;
    if arp[..6] != ARP_KIND {
        return None;
    }
    let operation = u16::from_be_bytes([arp[6], arp[7]]);
    let from: Hardware = *arp[8..].first_chunk()?;
    let sender = Address::v4(*arp[14..].first_chunk()?);
    let target = Address::v4(*arp[24..].first_chunk()?);
    let probes = sender == Address::v4([0; 4]);
    match operation {
        // A gratuitous request claims its own address.
        ARP_REQUEST if sender == target => Some(Heard::Claim {
            address: sender,
            from,
        }),
        ARP_REQUEST => Some(Heard::Question {
            target,
            sender: (!probes).then_some(sender),
            from,
        }),
        ARP_REPLY if !probes => Some(Heard::Claim {
            address: sender,
            from,
        }),
        _ => None,
    }
}

fn read_message(bytes: &[u8], link: Hardware) -> Option<Heard> {
    let header: &[u8; IPV6_BYTES] = bytes.first_chunk()?;
    if header[0] >> 4 != 6 || header[6] != ICMPV6 || header[7] != HOP_LIMIT {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let message = bytes.get(IPV6_BYTES..IPV6_BYTES + length)?;
    let fixed: &[u8; MESSAGE_BYTES] = message.first_chunk()?;
    let source = Address::v6(*header[8..].first_chunk()?);
    let destination = Address::v6(*header[24..].first_chunk()?);
    let target = Address::v6(*fixed[8..].first_chunk()?);
    // Also refuses the IPv4 address that an IPv6 one may map.
    if fixed[1] != 0 || target.0[0] == 0xff || target.is_v4() || source.is_v4() {
        return None;
    }
    let pseudo = checksum::pseudo_header(&source, &destination, ICMPV6, length as u32);
    if fold(pseudo + checksum::sum(message)) != 0xffff {
        return None;
    }
    let option = option_of(&message[MESSAGE_BYTES..])?;
    let from = option.unwrap_or(link);
    match fixed[0] {
        SOLICITATION => Some(Heard::Question {
            target,
            sender: (source != UNSPECIFIED).then_some(source),
            from,
        }),
        ADVERTISEMENT => Some(Heard::Claim {
            address: target,
            from,
        }),
        _ => None,
    }
}

/// The hardware address among the options, if there is one; `None` for a list that is cut.
fn option_of(mut options: &[u8]) -> Option<Option<Hardware>> {
    let mut found = None;
    while !options.is_empty() {
        let (&kind, &eighths) = (options.first()?, options.get(1)?);
        let length = usize::from(eighths) * 8;
        // RFC 4861, section 4.6: a message with an option of length zero is discarded.
        if length == 0 || length > options.len() {
            return None;
        }
        if [OPTION_SOURCE, OPTION_TARGET].contains(&kind) {
            found = Some(*options.get(2..)?.first_chunk()?);
        }
        options = &options[length..];
    }
    Some(found)
}

/// A question whether somebody has `address`, from nobody: an ARP probe (RFC 5227), or the
/// solicitation of duplicate address detection (RFC 4862).
pub fn probe(address: Address, own: Hardware) -> Vec<u8> {
    if address.is_v4() {
        return arp(
            ARP_REQUEST,
            (own, [0; 4]),
            (BROADCAST, [0; 6], address.v4_octets()),
        );
    }
    let group = solicited_group(address);
    let source = UNSPECIFIED;
    message(
        (SOLICITATION, 0),
        address,
        (own, source),
        (multicast(group), group),
        None,
    )
}

/// Says to all that `address` is here: a gratuitous ARP request, or an unsolicited advertisement.
pub fn announcement(address: Address, own: Hardware) -> Vec<u8> {
    if address.is_v4() {
        let octets = address.v4_octets();
        return arp(ARP_REQUEST, (own, octets), (BROADCAST, [0; 6], octets));
    }
    let flags = FLAG_ROUTER | FLAG_OVERRIDE;
    let to = (multicast(ALL_NODES), ALL_NODES);
    message(
        (ADVERTISEMENT, flags),
        address,
        (own, address),
        to,
        Some(own),
    )
}

/// The answer to who asked for `address`.
pub fn answer(address: Address, own: Hardware, sender: Option<Address>, to: Hardware) -> Vec<u8> {
    if address.is_v4() {
        let asker = sender.map_or([0; 4], |sender| sender.v4_octets());
        return arp(ARP_REPLY, (own, address.v4_octets()), (to, to, asker));
    }
    let Some(sender) = sender else {
        // One that only probes hears what all hear (RFC 4861, section 7.2.4).
        return announcement(address, own);
    };
    let flags = FLAG_ROUTER | FLAG_SOLICITED | FLAG_OVERRIDE;
    let to = (to, sender.0);
    message(
        (ADVERTISEMENT, flags),
        address,
        (own, address),
        to,
        Some(own),
    )
}

/// The multicast address at which the owner of an IPv6 address is asked (RFC 4291, section 2.7.1).
fn solicited_group(address: Address) -> [u8; 16] {
    let [.., a, b, c] = address.0;
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]
}

/// The Ethernet address of the group in which questions for an address come; none for IPv4, where
/// they are broadcast.
pub fn group_of(address: Address) -> Option<Hardware> {
    (!address.is_v4()).then(|| multicast(solicited_group(address)))
}

/// RFC 2464, section 7.
fn multicast(group: [u8; 16]) -> Hardware {
    let [.., a, b, c, d] = group;
    [0x33, 0x33, a, b, c, d]
}

fn arp(
    operation: u16,
    (own, sender): (Hardware, [u8; 4]),
    (link, hardware, target): (Hardware, Hardware, [u8; 4]),
) -> Vec<u8> {
    [
        &link[..],
        &own,
        &TYPE_ARP.to_be_bytes(),
        &ARP_KIND,
        &operation.to_be_bytes(),
        &own,
        &sender,
        &hardware,
        &target,
    ]
    .concat()
}

fn message(
    (kind, flags): (u8, u8),
    target: Address,
    (own, source): (Hardware, Address),
    (link, destination): (Hardware, [u8; 16]),
    option: Option<Hardware>,
) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    body.extend(target.0);
    if let Some(hardware) = option {
        body.extend([OPTION_TARGET, 1]);
        body.extend(hardware);
    }
    let length = body.len() as u16;
    let to = Address::v6(destination);
    let pseudo = checksum::pseudo_header(&source, &to, ICMPV6, length.into());
    let sum = !fold(pseudo + checksum::sum(&body));
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(length.to_be_bytes());
    header.extend([ICMPV6, HOP_LIMIT]);
    header.extend(source.0);
    header.extend(destination);
    [&link[..], &own, &TYPE_IPV6.to_be_bytes(), &header, &body].concat()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Hardware = [2, 0, 0, 0, 0, 1];
    const OTHER: Hardware = [2, 0, 0, 0, 0, 9];

    fn address(text: &str) -> Address {
        Address::from(text.parse::<core::net::IpAddr>().unwrap())
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (target, asker) in [("10.1.0.3", "10.1.0.9"), ("2001:db8::3", "2001:db8::9")] {
            let (target, asker) = (address(target), address(asker));
            let question = |sender, from| Heard::Question {
                target,
                sender,
                from,
            };
            let claim = Heard::Claim {
                address: target,
                from: OWN,
            };
            assert_eq!(read(&probe(target, OWN)), Some(question(None, OWN)));
            assert_eq!(read(&announcement(target, OWN)), Some(claim));
            for sender in [None, Some(asker)] {
                assert_eq!(read(&answer(target, OWN, sender, OTHER)), Some(claim));
            }
            let frame = answer(target, OWN, Some(asker), OTHER);
            assert_eq!(frame[..6], OTHER, "to the asker alone");
        }
    }

    #[test]
    fn a_claim_by_arp_has_the_octets_of_the_standard() {
        let frame = announcement(address("10.1.0.3"), OWN);
        let expected = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2,
            0, 0, 0, 0, 1, 10, 1, 0, 3, 0, 0, 0, 0, 0, 0, 10, 1, 0, 3,
        ];
        assert_eq!(frame, expected);
    }

    #[test]
    fn solicitations_from_another_link_or_with_a_wrong_sum_are_not_read() {
        let good = probe(address("2001:db8::3"), OTHER);
        assert!(read(&good).is_some());
        for (at, value) in [(14 + 7, 64), (14 + 40 + 2, good[56] ^ 1), (14 + 40 + 1, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(read(&bad), None, "byte {at}");
        }
        for length in 0..good.len() {
            assert_eq!(read(&good[..length]), None, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_frame_makes_it_panic(
            kind in 0..3_usize,
            noise in proptest::collection::vec(any::<u8>(), 0..120),
            at in 0..90_usize,
        ) {
            let base = match kind {
                0 => probe(address("10.1.0.3"), OTHER),
                1 => announcement(address("2001:db8::3"), OTHER),
                _ => Vec::new(),
            };
            let mut frame = base;
            frame.truncate(at);
            frame.extend(noise);
            let _ = read(&frame);
        }
    }
}
