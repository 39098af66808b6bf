//! What the plugin writes, made into events.
//!
//! Its words are the records of a trace, and some more: texts and the end of the program. QEMU
//! reports an access of 16 bytes and more as several of 8, which are joined here.

use fairlead_trace::references::Event;

/// The text that the plugin sends, bytes at most.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// What the largest access has, bytes.
const ACCESS_BYTES_MAX: u8 = 64;
/// Pieces that QEMU makes of larger accesses, bytes.
const PIECE_BYTES: u8 = 8;

const OTHER: u64 = 3;
const OTHER_TEXT: u64 = 2;
const OTHER_EXIT: u64 = 3;
const OTHER_THREADS: u64 = 4;
const ADDRESS_MASK: u64 = (1 << 56) - 1;

/// Makes events of words.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Bytes of a word that has not arrived whole.
    partial: Vec<u8>,
    /// An access that the next one may continue.
    access: Option<Event>,
    last_instruction: Option<u64>,
    inside: Option<u8>,
    packets: u64,
    text: Vec<u8>,
    text_missing: u64,
    /// The program has ended, and everything has arrived.
    pub(super) is_over: bool,
    /// The program started threads.
    pub(super) has_threads: bool,
}

impl Stream {
    /// Appends the events of some bytes.
    ///
    /// # Errors
    /// Marks of packets that do not come in pairs, or words that no tracer writes.
    pub(super) fn take(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), String> {
        let mut rest = bytes;
        if !self.partial.is_empty() {
            let missing = (8 - self.partial.len()).min(rest.len());
            let (head, tail) = rest.split_at(missing);
            self.partial.extend_from_slice(head);
            rest = tail;
            if let Ok(word) = <[u8; 8]>::try_from(&self.partial[..]) {
                self.partial.clear();
                self.word(u64::from_le_bytes(word), events)?;
            }
        }
        let (words, tail) = rest.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word), events)?;
        }
        self.partial.extend_from_slice(tail);
        Ok(())
    }

    /// Appends what waits for more.
    pub(super) fn finish(&mut self, events: &mut Vec<Event>) {
        events.extend(self.access.take());
    }

    /// The kind of the packet that has begun and not ended.
    pub(super) fn open_packet(&self) -> Option<u8> {
        self.inside
    }

    /// Packets that have begun.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// What the plugin said, one `name value` a line, and the memory map.
    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }

    #[inline]
    fn word(&mut self, word: u64, events: &mut Vec<Event>) -> Result<(), String> {
        if self.text_missing > 0 {
            self.text_word(word);
            return Ok(());
        }
        if word >> 62 == OTHER {
            events.extend(self.access.take());
            return self.other(word, events);
        }
        let Some(event) = Event::from_word(word) else {
            return Err(format!("the tracer wrote {word:#x}, which is no record"));
        };
        if let Event::Instruction { .. } = event {
            events.extend(self.access.take());
            events.push(self.instruction(event));
            return Ok(());
        }
        match self.access.and_then(|before| joined(before, event)) {
            Some(whole) => self.access = Some(whole),
            None => events.extend(self.access.replace(event)),
        }
        Ok(())
    }

    /// The plugin flags instructions with a `rep` prefix; a further round has the same address.
    fn instruction(&mut self, event: Event) -> Event {
        let Event::Instruction {
            address,
            length,
            branch,
            repeat: is_rep,
        } = event
        else {
            return event;
        };
        let repeat = is_rep && self.last_instruction == Some(address);
        self.last_instruction = Some(address);
        Event::Instruction {
            address,
            length,
            branch,
            repeat,
        }
    }

    fn other(&mut self, word: u64, events: &mut Vec<Event>) -> Result<(), String> {
        match word >> 56 & 63 {
            OTHER_TEXT => {
                let missing = word & ADDRESS_MASK;
                if missing + self.text.len() as u64 > TEXT_BYTES_MAX {
                    return Err("the tracer's text is too long".to_owned());
                }
                self.text_missing = missing;
            }
            OTHER_EXIT => self.is_over = true,
            OTHER_THREADS => self.has_threads = true,
            _ => {
                let Some(event) = Event::from_word(word) else {
                    return Err(format!("the tracer wrote {word:#x}, which is no record"));
                };
                self.mark(event)?;
                events.push(event);
            }
        }
        Ok(())
    }

    fn mark(&mut self, event: Event) -> Result<(), String> {
        let after = self.last_instruction.take();
        let place = after.map_or_else(String::new, |at| {
            format!(" (after the instruction at {at:#x})")
        });
        match (event, self.inside) {
            (Event::Begin { kind }, None) => {
                self.inside = Some(kind);
                self.packets += 1;
            }
            (Event::Begin { .. }, Some(_)) => {
                let packets = self.packets;
                return Err(format!("a packet begins inside packet {packets}{place}"));
            }
            (Event::End { kind }, Some(open)) if kind == open => self.inside = None,
            (Event::End { kind }, Some(open)) => {
                let packets = self.packets;
                return Err(format!(
                    "packet {packets} begins as kind {open} and ends as kind {kind}{place}"
                ));
            }
            (_, _) => {
                let packets = self.packets;
                return Err(format!(
                    "a packet ends that has not begun, after {packets} packets{place}"
                ));
            }
        }
        Ok(())
    }

    fn text_word(&mut self, word: u64) {
        let bytes = word.to_le_bytes();
        let count = self.text_missing.min(8);
        self.text.extend_from_slice(&bytes[..count as usize]);
        self.text_missing -= count;
    }
}

/// Both accesses as one, if the second is the next piece of the same.
#[inline]
fn joined(before: Event, next: Event) -> Option<Event> {
    let fits = |address: u64, size: u8, next_at: u64, next_size: u8| {
        let continues = address.wrapping_add(u64::from(size)) == next_at;
        let are_pieces = next_size == PIECE_BYTES && size.is_multiple_of(PIECE_BYTES);
        (continues && are_pieces && size + next_size <= ACCESS_BYTES_MAX)
            .then_some(size + next_size)
    };
    match (before, next) {
        (
            Event::Read { address, size },
            Event::Read {
                address: at,
                size: more,
            },
        ) => fits(address, size, at, more).map(|size| Event::Read { address, size }),
        (
            Event::Write { address, size },
            Event::Write {
                address: at,
                size: more,
            },
        ) => fits(address, size, at, more).map(|size| Event::Write { address, size }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(words: &[u64], at_once: usize) -> Result<Vec<Event>, String> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (mut stream, mut events) = (Stream::default(), Vec::new());
        for piece in bytes.chunks(at_once) {
            stream.take(piece, &mut events)?;
        }
        stream.finish(&mut events);
        Ok(events)
    }

    fn fetch(address: u64, is_rep: bool) -> Event {
        let branch = false;
        Event::Instruction {
            address,
            length: 3,
            branch,
            repeat: is_rep,
        }
    }

    fn read(address: u64, size: u8) -> Event {
        Event::Read { address, size }
    }

    fn words(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.to_word()).collect()
    }

    #[test]
    fn pieces_of_an_access_are_joined_within_an_instruction() {
        let write = |address, size| Event::Write { address, size };
        let raw = [
            fetch(10, false),
            read(64, 8),
            read(72, 8),
            write(80, 8),
            write(96, 8),
            fetch(20, false),
            read(80, 8),
            fetch(30, false),
            read(88, 8),
            read(96, 4),
        ];
        let expected = [
            fetch(10, false),
            read(64, 16),
            write(80, 8),
            write(96, 8),
            fetch(20, false),
            read(80, 8),
            fetch(30, false),
            read(88, 8),
            read(96, 4),
        ];
        for at_once in [3, 8, 1000] {
            assert_eq!(events(&words(&raw), at_once).unwrap(), expected);
        }
    }

    #[test]
    fn further_rounds_of_rep_are_repeats() {
        let raw = [fetch(10, true), read(64, 1), fetch(10, true), read(65, 1)];
        let again = [
            fetch(10, true),
            fetch(13, false),
            fetch(10, false),
            fetch(10, false),
        ];
        let events = events(&words(&[&raw[..], &again].concat()), 8).unwrap();
        let repeats = |event: &Event| matches!(event, Event::Instruction { repeat: true, .. });
        let seen: Vec<bool> = events.iter().map(repeats).collect();
        assert_eq!(seen, [false, false, true, false, true, false, false, false]);
    }

    #[test]
    fn marks_must_come_in_pairs() {
        let (begin, end) = (Event::Begin { kind: 1 }, Event::End { kind: 1 });
        let said = |raw: &[Event]| events(&words(raw), 8).unwrap_err();
        assert!(said(&[begin, fetch(10, false), begin]).contains("inside packet 1 (after"));
        assert!(said(&[begin, end, end]).contains("not begun, after 1 packets"));
        assert!(said(&[begin, Event::End { kind: 2 }]).contains("kind 1 and ends as kind 2"));
        assert_eq!(events(&words(&[begin, end, begin]), 8).unwrap().len(), 3);
    }

    #[test]
    fn texts_and_the_end_are_no_events() {
        let other = |what: u64, value: u64| OTHER << 62 | what << 56 | value;
        let text = u64::from_le_bytes(*b"api 1\nxy");
        let mut stream = Stream::default();
        let mut events = Vec::new();
        let words = [
            other(OTHER_TEXT, 6),
            text,
            other(OTHER_THREADS, 0),
            other(OTHER_EXIT, 0),
        ];
        for word in words {
            stream.take(&word.to_le_bytes(), &mut events).unwrap();
        }
        assert_eq!((stream.said().as_str(), events.len()), ("api 1\n", 0));
        assert!(stream.is_over && stream.has_threads && stream.open_packet().is_none());
        let endless = other(OTHER_TEXT, 1 << 40).to_le_bytes();
        assert!(stream.take(&endless, &mut events).is_err());
        let impossible = other(9, 0).to_le_bytes();
        assert!(stream.take(&impossible, &mut events).is_err());
    }
}
