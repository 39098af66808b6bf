//! Access lists: which client addresses may connect. Of the prefixes that contain an address, the
//! longest decides, and a default where none does.
//!
//! A list is kept twice: as it was given, for a fast path that has its own search, and as the
//! ranges between which the verdict changes, which are searched here in logarithmic time.

use core::fmt;
use std::collections::BTreeMap;

use fairlead_base::Address;

/// The longest prefix of a family, bits.
const V4_BITS: u8 = 32;
const V6_BITS: u8 = 128;

/// A prefix of addresses, and whether its addresses may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessEntry {
    /// The first address; bits behind the prefix are ignored.
    pub first: Address,
    /// Bits of the prefix, counted in its family: at most 32 for IPv4, 128 for IPv6.
    pub bits: u8,
    /// True if they may connect.
    pub allow: bool,
}

impl AccessEntry {
    fn family_bits(&self) -> u8 {
        if self.first.is_v4() { V4_BITS } else { V6_BITS }
    }

    /// By this lists are sorted, and each prefix is in them once.
    fn place(&self) -> (bool, u128, u8) {
        (self.first.is_v4(), self.range().0, self.bits)
    }

    /// The first and the last address, as numbers of the family.
    fn range(&self) -> (u128, u128) {
        let host_bits = u32::from(self.family_bits().saturating_sub(self.bits));
        let hosts = u128::MAX
            .checked_shl(host_bits)
            .map_or(u128::MAX, |mask| !mask);
        let first = number(self.first) & !hosts;
        (first, first | hosts)
    }
}

/// An address as a number of its family.
fn number(address: Address) -> u128 {
    match address.is_v4() {
        true => u32::from_be_bytes(address.v4_octets()).into(),
        false => u128::from_be_bytes(address.0),
    }
}

/// Who may connect.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessList {
    name: String,
    default_allow: bool,
    entries: Vec<AccessEntry>,
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl AccessList {
    /// A list of these prefixes. Addresses in none of them are allowed or denied by
    /// `default_allow`. Of two entries for the same prefix the one that denies counts.
    pub fn new(name: impl Into<String>, default_allow: bool, entries: Vec<AccessEntry>) -> Self {
        let mut entries = entries;
        // The wider ones first where several begin at one address, and of two for one prefix first
        // the one that denies.
        entries.sort_unstable_by_key(|one| (one.place(), one.allow));
        entries.dedup_by_key(|one| one.place());
        let of = |v4: bool| entries.iter().filter(move |one| one.first.is_v4() == v4);
        Self {
            name: name.into(),
            default_allow,
            v4: Ranges::of(of(true), default_allow, u32::MAX.into(), |at| at as u32),
            v6: Ranges::of(of(false), default_allow, u128::MAX, |at| at),
            entries,
        }
    }

    /// Its name in logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What holds for an address in none of its prefixes.
    pub fn default_allow(&self) -> bool {
        self.default_allow
    }

    /// Its prefixes, each once.
    pub fn entries(&self) -> &[AccessEntry] {
        &self.entries
    }

    /// What holds for exactly this prefix, if it is in the list. Bits of `first` behind the prefix
    /// are ignored.
    pub fn verdict(&self, first: Address, bits: u8) -> Option<bool> {
        let wanted = AccessEntry {
            first,
            bits,
            allow: false,
        };
        let at = self
            .entries
            .binary_search_by_key(&wanted.place(), AccessEntry::place);
        at.ok()
            .and_then(|at| self.entries.get(at))
            .map(|one| one.allow)
    }

    /// The list with other verdicts for some prefixes, of each the last one; `None` takes a prefix
    /// out.
    pub fn changed(&self, changes: &[(AccessEntry, Option<bool>)]) -> Self {
        let changed: BTreeMap<_, _> = changes
            .iter()
            .map(|(entry, verdict)| (entry.place(), (*entry, *verdict)))
            .collect();
        let kept = self.entries.iter().copied();
        let kept = kept.filter(|one| !changed.contains_key(&one.place()));
        let fresh = changed.values().filter_map(|(entry, verdict)| {
            Some(AccessEntry {
                allow: (*verdict)?,
                ..*entry
            })
        });
        let entries = kept.chain(fresh).collect();
        Self::new(self.name.clone(), self.default_allow, entries)
    }

    /// True if this client may connect.
    pub fn allows(&self, client: Address) -> bool {
        match client.is_v4() {
            true => self.v4.at(u32::from_be_bytes(client.v4_octets())),
            false => self.v6.at(u128::from_be_bytes(client.0)),
        }
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A list may have a million entries.
        f.debug_struct("AccessList")
            .field("name", &self.name)
            .field("default_allow", &self.default_allow)
            .field("first", &self.entries.get(..16).unwrap_or(&self.entries))
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

/// Where the verdict changes, in the order of addresses; the first range begins at zero.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges<T> {
    starts: Vec<T>,
    allow: Vec<bool>,
}

impl<T: Copy + Ord> Ranges<T> {
    /// Of entries in the order of their first addresses, wider ones first.
    fn of<'e>(
        entries: impl Iterator<Item = &'e AccessEntry>,
        default_allow: bool,
        highest: u128,
        narrow: fn(u128) -> T,
    ) -> Self {
        let mut changes = vec![(0, default_allow)];
        // Prefixes around the present place, the narrowest last.
        let mut around: Vec<(u128, bool)> = Vec::new();
        for entry in entries {
            let (first, last) = entry.range();
            leave(
                &mut around,
                Some(first),
                default_allow,
                highest,
                &mut changes,
            );
            change(&mut changes, first, entry.allow);
            around.push((last, entry.allow));
        }
        leave(&mut around, None, default_allow, highest, &mut changes);
        Self {
            starts: changes.iter().map(|(at, _)| narrow(*at)).collect(),
            allow: changes.iter().map(|(_, allow)| *allow).collect(),
        }
    }

    fn at(&self, place: T) -> bool {
        let after = self.starts.partition_point(|start| *start <= place);
        debug_assert!(after > 0, "the first range begins at zero");
        self.allow
            .get(after.wrapping_sub(1))
            .copied()
            .unwrap_or(false)
    }
}

/// Leaves the prefixes that end before `until`, or all.
fn leave(
    around: &mut Vec<(u128, bool)>,
    until: Option<u128>,
    default_allow: bool,
    highest: u128,
    changes: &mut Vec<(u128, bool)>,
) {
    while let Some(&(last, _)) = around.last()
        && until.is_none_or(|until| last < until)
    {
        around.pop();
        if last < highest {
            let allow = around.last().map_or(default_allow, |(_, allow)| *allow);
            change(changes, last + 1, allow);
        }
    }
}

/// From `at` on the verdict is `allow`.
fn change(changes: &mut Vec<(u128, bool)>, at: u128, allow: bool) {
    if changes.last().is_some_and(|(last, _)| *last == at) {
        changes.pop();
    }
    if changes.last().is_none_or(|(_, before)| *before != allow) {
        changes.push((at, allow));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<core::net::IpAddr>().unwrap())
    }

    fn entry(prefix: &str, allow: bool) -> AccessEntry {
        let (first, bits) = prefix.split_once('/').unwrap();
        AccessEntry {
            first: address(first),
            bits: bits.parse().unwrap(),
            allow,
        }
    }

    /// The rule, read plainly.
    fn plain(list: &AccessList, client: Address) -> bool {
        let holds = |one: &&AccessEntry| {
            let (first, last) = one.range();
            one.first.is_v4() == client.is_v4() && (first..=last).contains(&number(client))
        };
        let found = list.entries().iter().filter(holds);
        let longest = found.max_by_key(|one| one.bits);
        longest.map_or(list.default_allow(), |one| one.allow)
    }

    #[test]
    fn the_longest_prefix_decides_and_the_default_for_the_rest() {
        let list = AccessList::new(
            "office",
            false,
            vec![
                entry("10.0.0.0/8", true),
                entry("10.1.0.0/16", false),
                entry("10.1.2.0/24", true),
                entry("10.1.2.3/32", false),
                entry("2001:db8::/32", true),
            ],
        );
        for (client, allowed) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("10.1.0.0", false),
            ("10.1.1.255", false),
            ("10.1.2.0", true),
            ("10.1.2.3", false),
            ("10.1.2.4", true),
            ("10.1.3.0", false),
            ("10.2.0.0", true),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("::", false),
        ] {
            assert_eq!(list.allows(address(client)), allowed, "{client}");
        }
    }

    #[test]
    fn all_addresses_of_one_family_are_none_of_the_other() {
        let list = AccessList::new("six", false, vec![entry("::/0", true)]);
        assert!(list.allows(address("2001:db8::1")));
        assert!(!list.allows(address("10.0.0.1")));
        let list = AccessList::new("four", true, vec![entry("0.0.0.0/0", false)]);
        assert!(list.allows(address("2001:db8::1")));
        assert!(!list.allows(address("255.255.255.255")));
    }

    #[test]
    fn of_two_entries_for_one_prefix_the_one_that_denies_counts() {
        for order in [[true, false], [false, true]] {
            let entries = order.map(|allow| entry("10.0.0.0/8", allow)).to_vec();
            let list = AccessList::new("both", true, entries);
            assert_eq!(list.entries().len(), 1);
            assert!(!list.allows(address("10.1.1.1")));
        }
    }

    #[test]
    fn a_changed_list_has_the_new_verdicts_and_the_old_one_its_own() {
        let list = AccessList::new("office", false, vec![entry("10.0.0.0/8", true)]);
        let (ten, host) = (entry("10.0.0.0/8", true), entry("10.1.2.3/32", false));
        let six = entry("2001:db8::/32", false);
        let denied = list.changed(&[(host, Some(true)), (host, Some(false)), (six, Some(true))]);
        assert_eq!(denied.verdict(host.first, 32), Some(false));
        assert_eq!(denied.verdict(host.first, 8), Some(true), "the wider one");
        assert_eq!(denied.verdict(six.first, 32), Some(true));
        assert_eq!(denied.verdict(six.first, 33), None);
        assert!(!denied.allows(host.first) && denied.allows(address("10.1.2.4")));
        assert_eq!(denied.entries().len(), 3);
        assert!(list.allows(host.first));
        let back = denied.changed(&[(host, None), (six, None)]);
        assert_eq!(back, list);
        let empty = back.changed(&[(ten, None), (host, None)]);
        assert!(empty.entries().is_empty() && !empty.allows(ten.first));
    }

    /// Prefixes that lie in one another as often as not.
    fn some_entry() -> impl Strategy<Value = AccessEntry> {
        let four = (0..=32_u8, 0..4_u32, any::<bool>(), any::<bool>());
        four.prop_map(|(bits, pattern, allow, v4)| {
            let bytes = [0x0a01_0203_u32, 0x0a01_0280, 0x0aff_0000, 0xffff_ffff][pattern as usize];
            let first = match v4 {
                true => Address::v4(bytes.to_be_bytes()),
                false => Address::v6((u128::from(bytes) << 96 | u128::from(bytes)).to_be_bytes()),
            };
            AccessEntry {
                first,
                bits: if v4 { bits } else { bits * 4 },
                allow,
            }
        })
    }

    proptest! {
        #[test]
        fn ranges_say_what_the_rule_says(
            entries in proptest::collection::vec(some_entry(), 0..24),
            default_allow: bool,
            others: [u32; 4],
        ) {
            let list = AccessList::new("any", default_allow, entries);
            let mut clients: Vec<Address> =
                others.iter().map(|one| Address::v4(one.to_be_bytes())).collect();
            for one in list.entries() {
                // The ends of each range, and their neighbours.
                let (first, last) = one.range();
                let ends = [first, first.wrapping_sub(1), last, last.wrapping_add(1)];
                clients.extend(ends.map(|end| match one.first.is_v4() {
                    true => Address::v4((end as u32).to_be_bytes()),
                    false => Address::v6(end.to_be_bytes()),
                }));
            }
            for client in clients {
                prop_assert_eq!(list.allows(client), plain(&list, client), "{}", client);
            }
        }
    }
}
