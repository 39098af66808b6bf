//! Dense numbers for session identifiers.

use fairlead_base::{Address, Endpoint};

use crate::intern::{NameTable, NumberTable};

/// Numbers for session identifiers, in the order in which they are first seen. An IPv4 client is a
/// 48-bit key, an IPv6 client one of 144 bits.
#[derive(Clone, Debug, Default)]
pub struct EndpointTable {
    v4: NumberTable,
    v6: NameTable,
    keys: Vec<Endpoint>,
}

impl EndpointTable {
    /// The number of `key`, new or known; `None` if it is new and there are already `sessions_max`.
    #[inline]
    pub fn number(&mut self, key: Endpoint, sessions_max: u32) -> Option<u32> {
        let next = self.keys.len() as u32;
        let (number, fresh) = if key.addr.is_v4() {
            let address = u32::from_be_bytes(key.addr.v4_octets());
            let packed = u64::from(address) << 16 | u64::from(key.port);
            self.v4.number(packed, next)
        } else {
            let mut bytes = [0u8; 18];
            bytes[..16].copy_from_slice(&key.addr.0);
            bytes[16..].copy_from_slice(&key.port.to_be_bytes());
            self.v6.number(&bytes, next)
        };
        if fresh {
            if next >= sessions_max.min(u32::MAX - 1) {
                return None;
            }
            self.keys.push(key);
        }
        Some(number)
    }

    /// The numbers of many IPv4 identifiers, each as a key of 48 bits: address, then port. Gives
    /// how many got one; fewer than there are when a new one comes and there are `sessions_max`.
    #[inline]
    pub(crate) fn numbers_v4(
        &mut self,
        packed: &[u64],
        numbers: &mut [u32],
        sessions_max: u32,
    ) -> usize {
        let Self { v4, keys, .. } = self;
        v4.numbers(packed, numbers, |key| {
            let next = keys.len() as u32;
            (next < sessions_max.min(u32::MAX - 1)).then(|| {
                keys.push(unpacked_v4(key));
                next
            })
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The identifiers by number.
    pub fn into_keys(self) -> Vec<Endpoint> {
        self.keys
    }
}

/// The identifier of an IPv4 client from its 48-bit key.
#[inline]
pub(crate) fn unpacked_v4(packed: u64) -> Endpoint {
    Endpoint {
        addr: Address::v4(((packed >> 16) as u32).to_be_bytes()),
        port: packed as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_have_one_row_of_numbers_and_an_end() {
        let v4 = |port| Endpoint {
            addr: Address::v4([10, 0, 0, 1]),
            port,
        };
        let v6 = |port| Endpoint {
            addr: Address::v6([0x20; 16]),
            port,
        };
        let mut table = EndpointTable::default();
        assert!(table.is_empty());
        assert_eq!(table.number(v4(1), 3), Some(0));
        assert_eq!(table.number(v6(1), 3), Some(1));
        assert_eq!(table.number(v4(2), 3), Some(2));
        assert_eq!(table.number(v6(1), 3), Some(1));
        assert_eq!(table.number(v4(3), 3), None);
        assert_eq!(table.len(), 3);
        assert_eq!(table.into_keys(), [v4(1), v6(1), v4(2)]);
    }
}
