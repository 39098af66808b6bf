//! TCP options (RFC 9293, section 3.2; RFC 7323; RFC 2018): a bounded walk, the options of a SYN,
//! and edits in place.

use fairlead_base::DropReason;

/// End of the option list.
pub const KIND_END: u8 = 0;
/// One byte of padding.
pub const KIND_NOP: u8 = 1;
/// Maximum segment size, 4 bytes (RFC 9293, section 3.7.1).
pub const KIND_MSS: u8 = 2;
/// Window scale, 3 bytes (RFC 7323, section 2.2).
pub const KIND_WINDOW_SCALE: u8 = 3;
/// Selective acknowledgements permitted, 2 bytes (RFC 2018, section 2).
pub const KIND_SACK_PERMITTED: u8 = 4;
/// Selective acknowledgement: pairs of 32-bit edges (RFC 2018, section 3).
pub const KIND_SACK: u8 = 5;
/// Timestamps, 10 bytes (RFC 7323, section 3.2).
pub const KIND_TIMESTAMPS: u8 = 8;

/// Maximum length of a TCP option list.
pub const OPTIONS_BYTES_MAX: usize = 40;

/// The largest window shift (RFC 7323, section 2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

/// The usual layout of options with timestamps (RFC 7323, appendix A).
const USUAL_TIMESTAMPS: [u8; 4] = [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10];

/// The timestamps option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the receiver's clock as the sender last saw it.
    pub echo: u32,
}

/// The options of a SYN or SYN-ACK that a splice must know. Others are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynOptions {
    /// Maximum segment size in bytes, never `Some(0)`: a zero on the wire counts as absent.
    pub mss: Option<u16>,
    /// Window shift, at most [`WINDOW_SCALE_MAX`].
    pub window_scale: Option<u8>,
    /// True when the sender understands selective acknowledgements.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
}

impl SynOptions {
    /// Reads the option list of a SYN. When an option occurs twice, the last one counts.
    ///
    /// # Errors
    /// [`DropReason::BadTcpOptions`] when the list is malformed or one of the four options has
    /// another length than its RFC gives it.
    pub fn parse(options: &[u8]) -> Result<Self, DropReason> {
        let mut found = Self::default();
        let mut list = walk(options);
        for (kind, _, body) in &mut list {
            match (kind, body) {
                (KIND_MSS, &[high, low]) => {
                    found.mss = Some(u16::from_be_bytes([high, low])).filter(|&mss| mss != 0);
                }
                (KIND_WINDOW_SCALE, &[shift]) => {
                    found.window_scale = Some(shift.min(WINDOW_SCALE_MAX));
                }
                (KIND_SACK_PERMITTED, &[]) => found.sack_permitted = true,
                (KIND_TIMESTAMPS, body) if body.len() == 8 => {
                    found.timestamps = read_timestamps(body);
                }
                (KIND_MSS | KIND_WINDOW_SCALE | KIND_SACK_PERMITTED | KIND_TIMESTAMPS, _) => {
                    return Err(DropReason::BadTcpOptions);
                }
                _ => {}
            }
        }
        if list.malformed() {
            Err(DropReason::BadTcpOptions)
        } else {
            Ok(found)
        }
    }

    /// Appends the options to `out`, in groups of whole 32-bit words: at most 20 bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        if let Some(mss) = self.mss {
            out.extend([KIND_MSS, 4]);
            out.extend(mss.to_be_bytes());
        }
        let sack_permitted = [KIND_SACK_PERMITTED, 2];
        match self.timestamps {
            Some(Timestamps { value, echo }) => {
                // The permission fits where the padding of the timestamps would be.
                out.extend(if self.sack_permitted {
                    sack_permitted
                } else {
                    [KIND_NOP; 2]
                });
                out.extend([KIND_TIMESTAMPS, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            None if self.sack_permitted => {
                out.extend([KIND_NOP; 2]);
                out.extend(sack_permitted);
            }
            None => {}
        }
        if let Some(shift) = self.window_scale {
            out.extend([KIND_NOP, KIND_WINDOW_SCALE, 3, shift.min(WINDOW_SCALE_MAX)]);
        }
    }
}

/// The timestamps of a segment, if it has them. A malformed list ends the search.
#[inline]
pub fn timestamps(options: &[u8]) -> Option<Timestamps> {
    let at = timestamps_at(options)?;
    read_timestamps(options.get(at..)?)
}

/// Where within `options` the timestamps' first value byte is (TSecr follows 4 bytes later). The
/// eight bytes from there on are inside `options`.
#[inline]
pub fn timestamps_at(options: &[u8]) -> Option<usize> {
    if options.len() >= 12 && options.starts_with(&USUAL_TIMESTAMPS) {
        return Some(4);
    }
    walk(options)
        .find(|(kind, _, body)| *kind == KIND_TIMESTAMPS && body.len() == 8)
        .map(|(_, at, _)| at + 2)
}

#[inline]
fn read_timestamps(body: &[u8]) -> Option<Timestamps> {
    let &[v0, v1, v2, v3, e0, e1, e2, e3] = body.first_chunk::<8>()?;
    Some(Timestamps {
        value: u32::from_be_bytes([v0, v1, v2, v3]),
        echo: u32::from_be_bytes([e0, e1, e2, e3]),
    })
}

/// Goes through an option list. Padding is skipped; the end-of-list option ends the walk.
#[inline]
pub fn walk(options: &[u8]) -> OptionIter<'_> {
    OptionIter {
        options,
        at: 0,
        malformed: false,
    }
}

/// The walk made by [`walk`]: yields the kind, the offset of the kind byte within the list, and
/// the bytes after kind and length. Every step moves forward, so that it ends on any input.
#[derive(Clone, Debug)]
pub struct OptionIter<'a> {
    options: &'a [u8],
    at: usize,
    malformed: bool,
}

impl OptionIter<'_> {
    /// True when the walk ended because a length is below 2 or runs past the list.
    #[inline]
    pub fn malformed(&self) -> bool {
        self.malformed
    }
}

impl<'a> Iterator for OptionIter<'a> {
    type Item = (u8, usize, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match step(self.options, self.at) {
            Step::Found { at, next } => {
                self.at = next;
                Some((self.options[at], at, &self.options[at + 2..next]))
            }
            Step::End => {
                self.at = self.options.len();
                None
            }
            Step::Malformed => {
                self.at = self.options.len();
                self.malformed = true;
                None
            }
        }
    }
}

/// Goes through an option list like [`walk`] and lets `edit` change the bytes after kind and
/// length, such as SACK edges and timestamps. `edit` gets the kind, the offset of the option's
/// kind byte (its body begins 2 bytes later, which [`crate::checksum::Delta::u32_at`] wants to
/// know), and the body.
///
/// # Errors
/// [`DropReason::BadTcpOptions`] when the list is malformed; options before the fault have been
/// edited by then.
#[inline]
pub fn edit(
    options: &mut [u8],
    mut edit: impl FnMut(u8, usize, &mut [u8]),
) -> Result<(), DropReason> {
    let mut from = 0;
    loop {
        match step(options, from) {
            Step::Found { at, next } => {
                edit(options[at], at, &mut options[at + 2..next]);
                from = next;
            }
            Step::End => return Ok(()),
            Step::Malformed => return Err(DropReason::BadTcpOptions),
        }
    }
}

enum Step {
    /// An option lies in `at..next`; `at + 2 <= next <= options.len()`.
    Found {
        at: usize,
        next: usize,
    },
    End,
    Malformed,
}

/// Looks for the next option from offset `at` on.
#[inline]
fn step(options: &[u8], mut at: usize) -> Step {
    loop {
        match options.get(at) {
            None | Some(&KIND_END) => return Step::End,
            Some(&KIND_NOP) => at += 1,
            Some(_) => {
                let Some(&length) = options.get(at + 1) else {
                    return Step::Malformed;
                };
                let next = at + usize::from(length);
                if length < 2 || next > options.len() {
                    return Step::Malformed;
                }
                return Step::Found { at, next };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{Delta, fold, sum};
    use proptest::prelude::*;

    const LINUX_SYN: [u8; 20] = [
        2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    #[test]
    fn the_usual_syn_is_read_and_written() {
        let options = SynOptions::parse(&LINUX_SYN).unwrap();
        let expected = SynOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 7, echo: 0 }),
        };
        assert_eq!(options, expected);
        let mut out = Vec::new();
        options.emit(&mut out);
        assert_eq!(out, LINUX_SYN);
    }

    #[test]
    fn offsets_are_of_the_kind_byte_and_padding_is_skipped() {
        let list = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 200, 2, 0, 9, 9];
        let found: Vec<_> = walk(&list)
            .map(|(kind, at, body)| (kind, at, body.len()))
            .collect();
        assert_eq!(found, [(5, 2, 8), (200, 13, 0)]);
    }

    #[test]
    fn end_of_list_hides_what_follows() {
        let mut list = walk(&[2, 4, 1, 2, 0, 3, 0, 0]);
        assert_eq!(list.by_ref().count(), 1);
        assert!(!list.malformed());
        assert!(list.next().is_none());
    }

    #[test]
    fn impossible_lengths_are_malformed() {
        for list in [
            &[2u8][..],
            &[2, 0],
            &[2, 1, 1],
            &[1, 1, 2, 5, 0, 0],
            &[3, 255, 1],
        ] {
            let mut options = walk(list);
            assert_eq!(options.by_ref().count(), 0, "{list:?}");
            assert!(options.malformed(), "{list:?}");
            assert!(options.next().is_none());
            assert_eq!(SynOptions::parse(list), Err(DropReason::BadTcpOptions));
            assert_eq!(
                edit(&mut list.to_vec(), |_, _, _| ()),
                Err(DropReason::BadTcpOptions)
            );
            assert_eq!(timestamps(list), None);
        }
    }

    #[test]
    fn known_options_of_another_length_are_refused_in_a_syn() {
        for list in [
            &[2u8, 3, 5][..],
            &[2, 2],
            &[3, 2],
            &[3, 4, 1, 1],
            &[4, 3, 0],
            &[8, 2],
            &[8, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(
                SynOptions::parse(list),
                Err(DropReason::BadTcpOptions),
                "{list:?}"
            );
        }
    }

    #[test]
    fn unknown_options_are_passed_over() {
        // Fast open, MD5-like lengths, experiments.
        let list = [34, 2, 254, 6, 1, 2, 3, 4, 2, 4, 0, 100];
        assert_eq!(SynOptions::parse(&list).unwrap().mss, Some(100));
    }

    #[test]
    fn extreme_values_are_tamed() {
        let parsed = SynOptions::parse(&[3, 3, 255, 2, 4, 0, 0]).unwrap();
        assert_eq!(parsed.window_scale, Some(WINDOW_SCALE_MAX));
        assert_eq!(parsed.mss, None);
        assert_eq!(
            SynOptions::parse(&[2, 4, 0, 1, 2, 4, 0, 2]).unwrap().mss,
            Some(2)
        );
    }

    #[test]
    fn timestamps_are_found_in_every_layout() {
        let stamps = [0, 0, 1, 0, 0, 0, 2, 0];
        let expected = Some(Timestamps {
            value: 256,
            echo: 512,
        });
        for before in [
            &[1u8, 1][..],
            &[],
            &[1],
            &[4, 2],
            &[5, 10, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let list = [before, &[8, 10], &stamps].concat();
            assert_eq!(timestamps(&list), expected, "{before:?}");
            assert_eq!(timestamps_at(&list), Some(before.len() + 2));
        }
        assert_eq!(timestamps(&[1, 1, 8, 10, 0, 0, 0]), None);
        assert_eq!(timestamps(&[]), None);
        assert_eq!(timestamps(&[8, 4, 0, 0]), None);
    }

    #[test]
    fn edits_in_place_and_their_checksum() {
        // The SACK edges begin at an odd offset.
        let mut list = vec![
            1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0, 8, 10, 0, 0, 1, 0, 0, 0, 2, 0, 0,
        ];
        let before = fold(sum(&list));
        let mut delta = Delta::new();
        edit(&mut list, |_, at, body| {
            for (index, field) in body.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let old = u32::from_be_bytes(*field);
                let new = old.wrapping_add(0xffff_fe01);
                delta.u32_at(at + 2 + index * 4, old, new);
                *field = new.to_be_bytes();
            }
        })
        .unwrap();
        assert_eq!(list[..11], [1, 5, 10, 0xff, 0xff, 0xff, 1, 0, 0, 0, 1]);
        assert_eq!(
            timestamps(&list),
            Some(Timestamps {
                value: 0xffff_ff01,
                echo: 1
            })
        );
        assert_eq!(delta.apply_to_partial(before), fold(sum(&list)));
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            mss in prop::option::of(1u16..),
            window_scale in prop::option::of(0u8..=14),
            sack_permitted: bool,
            stamps in prop::option::of(any::<(u32, u32)>()),
        ) {
            let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            let options = SynOptions { mss, window_scale, sack_permitted, timestamps };
            let mut out = Vec::new();
            options.emit(&mut out);
            prop_assert!(out.len() <= 20 && out.len() % 4 == 0);
            prop_assert_eq!(SynOptions::parse(&out), Ok(options));
            prop_assert_eq!(super::timestamps(&out), timestamps);
        }

        #[test]
        fn any_bytes_are_walked_forward_and_within_bounds(
            list in prop::collection::vec(prop_oneof![0u8..12, any::<u8>()], 0..60),
        ) {
            let mut reached = 0;
            for (kind, at, body) in walk(&list) {
                prop_assert!(at >= reached && at + 2 + body.len() <= list.len());
                prop_assert_eq!(kind, list[at]);
                prop_assert_eq!(usize::from(list[at + 1]), body.len() + 2);
                reached = at + 2 + body.len();
            }
            let mut edited = list.clone();
            let mut seen = Vec::new();
            let outcome = edit(&mut edited, |kind, at, body| seen.push((kind, at, body.to_vec())));
            let mut walked = walk(&list);
            let expected: Vec<_> =
                walked.by_ref().map(|(kind, at, body)| (kind, at, body.to_vec())).collect();
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(outcome.is_err(), walked.malformed());
            prop_assert_eq!(edited, list.clone());
            let _ = SynOptions::parse(&list);
            let by_walk = walk(&list)
                .find(|(kind, _, body)| *kind == KIND_TIMESTAMPS && body.len() == 8)
                .and_then(|(_, _, body)| read_timestamps(body));
            prop_assert_eq!(timestamps(&list), by_walk);
        }
    }
}
