//! Capabilities of this process.

use super::read;

/// Numbers and names from capabilities(7).
const NAMES: [(u32, &str); 6] = [
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (21, "CAP_SYS_ADMIN"),
    (24, "CAP_SYS_RESOURCE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];

/// Effective capabilities, and whether they apply to the initial user namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    bits: u64,
    /// False in a user namespace, where kernel programs cannot be loaded.
    pub(super) of_machine: bool,
}

impl Capabilities {
    /// Reads the capabilities of this process.
    pub(super) fn own() -> Self {
        Self::parse(
            &read("/proc/self/status").unwrap_or_default(),
            &read("/proc/self/uid_map").unwrap_or_default(),
        )
    }

    fn parse(status: &str, uid_map: &str) -> Self {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let map: Vec<&str> = uid_map.split_whitespace().collect();
        Self {
            bits: bits.unwrap_or(0),
            of_machine: map == ["0", "0", "4294967295"],
        }
    }

    pub(super) fn has(self, name: &str) -> bool {
        let number = NAMES.iter().find(|(_, one)| *one == name).map(|one| one.0);
        number.is_some_and(|number| self.bits & (1 << number) != 0)
    }

    /// The members of `wanted` that are missing.
    pub(super) fn missing<'a>(self, wanted: &[&'a str]) -> Vec<&'a str> {
        let missing = wanted.iter().copied().filter(|name| !self.has(name));
        missing.collect()
    }

    /// Capabilities missing for the kernel fast path. CAP_SYS_ADMIN includes the newer two.
    pub(super) fn missing_for_programs(self) -> Vec<&'static str> {
        if self.has("CAP_SYS_ADMIN") {
            return self.missing(&["CAP_NET_ADMIN"]);
        }
        self.missing(&["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_by_name() {
        let root = Capabilities::parse(
            "Name:\tx\nCapEff:\t000001ffffffffff\n",
            "         0          0 4294967295",
        );
        assert!(root.has("CAP_NET_ADMIN") && root.has("CAP_BPF") && root.of_machine);
        assert!(root.missing_for_programs().is_empty());
        let none = Capabilities::parse("CapEff:\t0000000000000000\n", "0 1000 1");
        assert!(!none.of_machine);
        let three = ["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"];
        assert_eq!(none.missing_for_programs(), three);
        let few = Capabilities::parse("CapEff:\t0000008000001000\n", "");
        assert_eq!(few.missing_for_programs(), ["CAP_PERFMON"]);
        assert_eq!(Capabilities::parse("", ""), Capabilities::default());
    }
}
