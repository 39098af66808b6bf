//! How often each bit of session identifiers is set (tcb-cache-2010, Fig. 7). Bit 0 is the most
//! significant, as in the paper.

use fairlead_base::Endpoint;
use serde::{Deserialize, Serialize};

/// Averages of bits over IPv4 session identifiers, each counted once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BitAverages {
    /// Of the address: 32.
    pub address: Vec<f64>,
    /// Of the port: 16.
    pub port: Vec<f64>,
    /// Identifiers that were counted.
    pub sessions: u64,
    /// Identifiers of IPv6, which were not.
    pub v6: u64,
}

/// Averages of the bits of session identifiers.
pub fn bit_averages(keys: &[Endpoint]) -> BitAverages {
    let mut address = [0u64; 32];
    let mut port = [0u64; 16];
    let mut sessions = 0u64;
    for key in keys.iter().filter(|key| key.addr.is_v4()) {
        sessions += 1;
        let bits = u32::from_be_bytes(key.addr.v4_octets());
        for (bit, count) in address.iter_mut().enumerate() {
            *count += u64::from(bits >> (31 - bit) & 1);
        }
        for (bit, count) in port.iter_mut().enumerate() {
            *count += u64::from(key.port >> (15 - bit) & 1);
        }
    }
    let average = |count: &u64| *count as f64 / sessions.max(1) as f64;
    BitAverages {
        address: address.iter().map(average).collect(),
        port: port.iter().map(average).collect(),
        sessions,
        v6: keys.len() as u64 - sessions,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Address;

    use super::*;

    #[test]
    fn bit_0_is_the_most_significant() {
        let key = |a, port| Endpoint {
            addr: Address::v4([a, 0, 0, 1]),
            port,
        };
        let v6 = Endpoint {
            addr: Address::v6([1; 16]),
            port: 0xffff,
        };
        let averages = bit_averages(&[key(128, 1), key(0, 0x8001), v6]);
        assert_eq!((averages.sessions, averages.v6), (2, 1));
        assert_eq!(
            (
                averages.address[0],
                averages.address[1],
                averages.address[31]
            ),
            (0.5, 0.0, 1.0)
        );
        assert_eq!((averages.port[0], averages.port[15]), (0.5, 1.0));
        assert_eq!(bit_averages(&[]).address, vec![0.0; 32]);
    }
}
