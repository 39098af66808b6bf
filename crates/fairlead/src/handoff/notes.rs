//! What is written down of a pair for a later run of the switch: whose it is, and what its sockets
//! were.

use fairlead_base::FlowKey;
use fairlead_handoff::{Cid, Owner};
use fairlead_os_tcp::{Identity, STATE_BYTES, State};

const VERSION: u8 = 1;

/// What is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notes {
    pub(super) cid: Cid,
    pub(super) owner: Owner,
    pub(super) sockets: [State; 2],
}

impl Notes {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.cid.0.to_le_bytes());
        bytes.extend(self.owner.0.to_le_bytes());
        for socket in &self.sockets {
            bytes.extend(socket.to_bytes());
        }
        bytes
    }

    /// From bytes that an earlier run left; what follows them is not looked at. `keys` are of
    /// packets from the client and from the server. `None`: nobody wrote this.
    pub(super) fn decode(bytes: &[u8], keys: &[FlowKey; 2]) -> Option<Self> {
        let mut rest = bytes;
        let [version] = take(&mut rest)?;
        let cid = Cid(u32::from_le_bytes(take(&mut rest)?));
        let owner = Owner(u32::from_le_bytes(take(&mut rest)?));
        let identity = |key: &FlowKey| Identity {
            local: key.dst,
            peer: key.src,
        };
        let mut socket = |key: &FlowKey| {
            let bytes: [u8; STATE_BYTES] = take(&mut rest)?;
            State::from_bytes(&bytes, identity(key))
        };
        let sockets = [socket(&keys[0])?, socket(&keys[1])?];
        (version == VERSION).then_some(Self {
            cid,
            owner,
            sockets,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_down_is_read_again_and_nothing_else() {
        let keys = [FlowKey::default(); 2];
        let mut bytes = vec![7; 220];
        bytes[0] = VERSION;
        for at in [60, 112] {
            bytes[at] = 10; // the family
        }
        let notes = Notes::decode(&bytes, &keys).unwrap();
        assert_eq!(
            (notes.cid, notes.owner),
            (Cid(0x0707_0707), Owner(0x0707_0707))
        );
        let written = notes.encode();
        assert_eq!(written.len(), 113);
        assert_eq!(Notes::decode(&written, &keys), Some(notes));
        for cut in 0..written.len() {
            assert_eq!(Notes::decode(&written[..cut], &keys), None);
        }
        assert_eq!(Notes::decode(&[0; 220], &keys), None);
        bytes[0] = VERSION + 1;
        assert_eq!(Notes::decode(&bytes, &keys), None);
    }
}
