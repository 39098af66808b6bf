//! Places of many keys, where sets are linear: the XOR of what each bit of the key adds.
//!
//! So it is the XOR of the contributions of each byte, which are looked up in a table: six lookups
//! for an IPv4 key, whatever the mask.

use fairlead_base::{Address, Endpoint};

use super::Indexer;
use crate::place::{Place, Places};

/// Keys from which tables are worth making.
pub(super) const WORTHWHILE: usize = 2048;
/// Bytes of an IPv4 key: the port's, then the address's, the low ones first.
const BYTES: usize = 6;
/// Keys whose cells are found before any is added.
const AHEAD: usize = 256;

fn key_of(bits: u64) -> Endpoint {
    Endpoint {
        addr: Address::v4(((bits >> 16) as u32).to_be_bytes()),
        port: bits as u16,
    }
}

/// The sets of a place in the order of a row of [`Places`], of which there are `N` at most.
fn cells_of<const N: usize>(place: &Place, banks: usize) -> [u32; N] {
    let mut cells = [0; N];
    let sets = place.first[..banks].iter().chain(&place.second[..banks]);
    for (cell, set) in cells.iter_mut().zip(sets) {
        *cell = *set;
    }
    cells
}

fn xor<const N: usize>(a: [u32; N], b: &[u32; N]) -> [u32; N] {
    core::array::from_fn(|cell| a[cell] ^ b[cell])
}

/// By byte of the key and its value, what it adds to each cell.
struct Tables<const N: usize> {
    /// Of a key without ones.
    zero: [u32; N],
    bytes: Box<[[[u32; N]; 256]; BYTES]>,
}

impl<const N: usize> Tables<N> {
    fn new(indexer: &Indexer, banks: usize) -> Self {
        let cells = |bits: u64| cells_of(&indexer.place(&key_of(bits)), banks);
        let zero = cells(0);
        let mut bytes = Box::new([[[0; N]; 256]; BYTES]);
        for (at, table) in bytes.iter_mut().enumerate() {
            for value in 1..256usize {
                let lowest = value & value.wrapping_neg();
                table[value] = if value == lowest {
                    xor(cells((value as u64) << (8 * at)), &zero)
                } else {
                    xor(table[lowest], &table[value ^ lowest])
                };
            }
        }
        Self { zero, bytes }
    }

    #[inline(always)]
    fn cells(&self, key: &Endpoint) -> [u32; N] {
        let [a, b, c, d] = key.addr.v4_octets();
        let [low, high] = key.port.to_le_bytes();
        let mut cells = self.zero;
        for (table, byte) in self.bytes.iter().zip([low, high, d, c, b, a]) {
            cells = xor(cells, &table[usize::from(byte)]);
        }
        cells
    }
}

/// Adds the places of all keys.
pub(super) fn add(indexer: &Indexer, places: &mut Places, keys: &[Endpoint]) {
    match places.row() {
        0..=2 => add_rows::<2>(indexer, places, keys),
        3..=4 => add_rows::<4>(indexer, places, keys),
        _ => add_rows::<8>(indexer, places, keys),
    }
}

fn add_rows<const N: usize>(indexer: &Indexer, places: &mut Places, keys: &[Endpoint]) {
    let banks = places.banks() as usize;
    let tables = Tables::<N>::new(indexer, banks);
    let mut rows = [[0; N]; AHEAD];
    for keys in keys.chunks(AHEAD) {
        for (row, key) in rows.iter_mut().zip(keys) {
            *row = if key.addr.is_v4() {
                tables.cells(key)
            } else {
                cells_of(&indexer.place(key), banks)
            };
        }
        places.push_rows(&rows[..keys.len()]);
    }
}
