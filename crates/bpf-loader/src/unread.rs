//! Requests that sockets have been given and have not answered yet. One that its socket leaves
//! unread when it ends is given to the next one.

use aya::maps::{HashMap, MapData};
use fairlead_base::FlowKey;

use crate::layout::{RawFlowKey, RawUnread, UNREAD_BYTES};

/// Those of the clients that asked last.
#[derive(Debug)]
pub(crate) struct Unreads {
    map: HashMap<MapData, RawFlowKey, RawUnread>,
}

impl Unreads {
    pub(crate) fn new(map: HashMap<MapData, RawFlowKey, RawUnread>) -> Self {
        Self { map }
    }

    /// Keeps a packet whose payload has these numbers, if it is not too long.
    pub(crate) fn keep(&mut self, client: &FlowKey, numbers: (u32, u32), packet: &[u8]) {
        if let Some(unread) = unread(numbers, packet) {
            // Without it the connection ends with its socket, as others do.
            let _ = self.map.insert(RawFlowKey::from(client), unread, 0);
        }
    }

    /// The packet whose payload begins at this number.
    pub(crate) fn of(&self, client: &FlowKey, begins_at: u32) -> Option<Vec<u8>> {
        let unread = self.map.get(&RawFlowKey::from(client), 0).ok()?;
        (unread.begins_at == begins_at).then(|| packet(&unread).to_vec())
    }
}

/// `None` where the packet is too long.
fn unread((begins_at, ends_at): (u32, u32), packet: &[u8]) -> Option<RawUnread> {
    let mut unread = RawUnread {
        begins_at,
        ends_at,
        bytes: u32::try_from(packet.len()).ok()?,
        packet: [0; UNREAD_BYTES],
    };
    unread
        .packet
        .get_mut(..packet.len())?
        .copy_from_slice(packet);
    Some(unread)
}

fn packet(unread: &RawUnread) -> &[u8] {
    let bytes = (unread.bytes as usize).min(UNREAD_BYTES);
    &unread.packet[..bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_whole_and_what_does_not_is_not_kept() {
        for bytes in [1, 40, UNREAD_BYTES] {
            let text: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let kept = unread((5, 9), &text).unwrap();
            assert_eq!((kept.begins_at, kept.ends_at), (5, 9));
            assert_eq!(packet(&kept), text);
        }
        assert!(unread((5, 9), &[0; UNREAD_BYTES + 1]).is_none());
        // What the kernel wrote is not trusted with lengths.
        let mut kept = unread((5, 9), b"abc").unwrap();
        kept.bytes = u32::MAX;
        assert_eq!(packet(&kept).len(), UNREAD_BYTES);
    }
}
