//! What joins armed connections: an array shared with the kernel program, by set-up.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{read_volatile, write_volatile};

use fairlead_base::SeqNumber;
use fairlead_tcp::{Join, Line, Ticket};
use fairlead_wire::Timestamps;

use crate::layout::{JOIN_BYTES, NO_SCALE, RawJoin};
use crate::mapping::Mapping;

/// Places, at most: so many connections can wait for their servers' SYN-ACKs in the kernel at once.
/// 6 MiB; those beyond wait in the engine.
pub(crate) const PLACES_MAX: u32 = 4_096;

/// What is noted of a ticket's taker beside its record: fields of [`fairlead_tcp::Taker`].
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) dseq: SeqNumber,
    pub(crate) stamps: Timestamps,
    pub(crate) window: u16,
    pub(crate) payload: Vec<u8>,
    pub(crate) begun_ms: u32,
}

/// See the module's text. The program reads a place only while the record that names it is armed or
/// being joined; the engine writes one only while no such record names it.
#[derive(Debug)]
pub(crate) struct JoinMemory(Mapping<RawJoin>);

impl JoinMemory {
    /// Maps the array behind `map`.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        Mapping::of(map, count).map(Self)
    }

    /// Fills what a ticket at a place says of its SYN-ACK and its SYN, before it is taken. False:
    /// no such place.
    pub(crate) fn prepare(&mut self, place: u32, ticket: &Ticket<'_>) -> bool {
        let Some(at) = self.0.at(place as usize) else {
            return false;
        };
        // SAFETY: inside the mapping and aligned, field by field. Nothing reads the place
        // meanwhile: see the type.
        unsafe {
            write_volatile(&raw mut (*at).line, ticket.line.0);
            write_volatile(&raw mut (*at).device_mss, ticket.device_mss);
            write_volatile(&raw mut (*at).syn_mss, ticket.syn_mss);
        }
        true
    }

    /// What the program has noted at a place of the client that took its ticket.
    pub(crate) fn taken(&self, place: u32) -> Option<Noted> {
        let at = self.0.at(place as usize)?;
        // SAFETY: inside the mapping and aligned; plain numbers, which the program does not change
        // any more once the record is armed. The payload has room for as many bytes as are read.
        unsafe {
            let bytes = usize::from(read_volatile(&raw const (*at).payload_bytes)).min(JOIN_BYTES);
            let mut payload = vec![0; bytes];
            let from = (&raw const (*at).payload).cast::<u8>();
            payload.as_mut_ptr().copy_from_nonoverlapping(from, bytes);
            Some(Noted {
                dseq: SeqNumber(read_volatile(&raw const (*at).dseq)),
                stamps: Timestamps {
                    value: read_volatile(&raw const (*at).client_ts),
                    echo: read_volatile(&raw const (*at).our_ts),
                },
                window: read_volatile(&raw const (*at).client_window),
                payload,
                begun_ms: read_volatile(&raw const (*at).begun_ms),
            })
        }
    }

    /// Fills a place; false when there is none, or no room for the payload.
    pub(crate) fn write(&mut self, place: u32, line: Line, join: &Join<'_>) -> bool {
        let bytes = join.payload.len();
        let Some(at) = self.0.at(place as usize) else {
            return false;
        };
        if bytes == 0 || bytes > JOIN_BYTES {
            return false;
        }
        let terms = &join.terms;
        // As words lie in memory: the sum does not depend on their order (RFC 1071, section 2).
        let payload_sum = join.payload_sum().to_be();
        // SAFETY: inside the mapping and aligned, field by field; the payload's bytes do not
        // overlap, and there is room for them. Nothing reads the place meanwhile: see the type.
        unsafe {
            write_volatile(&raw mut (*at).line, line.0);
            write_volatile(&raw mut (*at).dseq, terms.dseq.0);
            write_volatile(&raw mut (*at).our_ts, terms.our_ts);
            write_volatile(&raw mut (*at).client_ts, join.client_ts);
            write_volatile(&raw mut (*at).client_window, join.client_window);
            write_volatile(&raw mut (*at).device_mss, join.device_mss);
            write_volatile(&raw mut (*at).payload_bytes, bytes as u16);
            write_volatile(&raw mut (*at).payload_sum, payload_sum);
            write_volatile(
                &raw mut (*at).asked_scale,
                terms.asked_scale.unwrap_or(NO_SCALE),
            );
            let offered = terms.offered_scale.unwrap_or(NO_SCALE);
            write_volatile(&raw mut (*at).offered_scale, offered);
            let payload = (&raw mut (*at).payload).cast::<u8>();
            payload.copy_from_nonoverlapping(join.payload.as_ptr(), bytes);
        }
        true
    }
}
