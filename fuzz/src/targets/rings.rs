//! `rings`: what a program of offload writes into its memory and its command ring.

use fairlead_card::trial::{FILE_BYTES, Trial};
use fairlead_handoff::message::Control;
use fairlead_handoff::{Command, MESSAGE_BYTES, Message, Side};
use fairlead_offload::layout::{self, COMMANDS, LINE_BYTES, RECEIVE_BYTES, SEND_BYTES, head, line};
use fairlead_offload::{Fault, Piece};

use super::Target;
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "rings",
    about: "a program's rings: a wrong number ends its connection, and no other",
    run,
    bytes_max: 600,
    tokens: &[
        &[1, 0, 0, 100],
        &[2, 0, 0, 0, 0, 0, 100],
        &[5, 0, 0, 0, 0, 0],
        &[6, 0xff],
        &[9],
        &[10],
    ],
};

/// The connection that is harmed, and the one that must work to the end.
const ONE: u32 = 1;
const NEIGHBOUR: u32 = 2;

fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut trial = Trial::begin(2).expect("memory and sockets");
    let mut game = Game::default();
    while !script.is_empty() {
        game.act(&mut script, &mut trial);
        if !trial.turn() {
            assert!(!trial.has(ONE) && !trial.has(NEIGHBOUR), "all are reset");
            assert_eq!((game.breaks, trial.counts().broken_rings), (true, 1));
            return;
        }
    }
    assert!(!game.breaks, "an impossible position was not found out");
    let counts = trial.counts();
    let faults: u64 = counts.faults.iter().sum();
    for fault in Fault::ALL {
        note(
            "rings.fault",
            fault as u64 + 100 * counts.faults[fault as usize],
        );
    }
    note("rings.short", counts.short_files);
    note_size("rings.sent", counts.bytes[0] as usize);
    note_size("rings.got", counts.bytes[1] as usize);
    assert!(
        faults + counts.short_files <= 1,
        "a connection is reset once"
    );
    assert!(faults == 0 || !trial.has(ONE));
    works(&mut trial);
}

/// The neighbour's bytes go both ways.
fn works(trial: &mut Trial) {
    let place = layout::send_at(NEIGHBOUR);
    trial.set(place, u32::from_ne_bytes(*b"fine"));
    let piece = Piece::Bytes { from: 0, len: 4 };
    let command = send(piece.address().expect("an address"));
    trial.post(&Message::command(trial.cid(NEIGHBOUR), command).encode());
    // Each looks at some of the messages only.
    while trial.word(head::TAKEN) != trial.word(head::WRITTEN) {
        assert!(trial.turn(), "the ring is sound");
    }
    assert_eq!(trial.peer_gets(NEIGHBOUR, 100), b"fine");
    assert_eq!(trial.peer_sends(NEIGHBOUR, b"question"), 8);
    trial.wake(NEIGHBOUR);
    let received = trial.word(layout::word_at(NEIGHBOUR, line::RECEIVED));
    assert_eq!(received, 8);
    let place = layout::receive_at(NEIGHBOUR);
    assert_eq!(trial.word(place).to_ne_bytes(), *b"ques");
}

fn send(address: u64) -> Command {
    Command::Send {
        from: Side::Server,
        len: 0,
        address,
    }
}

#[derive(Default)]
struct Game {
    /// The position behind the last byte that was announced.
    sent: u32,
    /// The ring's position was made impossible.
    breaks: bool,
}

impl Game {
    fn act(&mut self, script: &mut Script<'_>, trial: &mut Trial) {
        match script.below(12) {
            0 => {
                let mut bytes = [0; MESSAGE_BYTES];
                let taken = script.take(MESSAGE_BYTES);
                bytes[..taken.len()].copy_from_slice(taken);
                // Whoever names another connection harms that one.
                let is_named = Message::decode(&bytes)
                    .is_ok_and(|message| message.cid == trial.cid(NEIGHBOUR));
                if !is_named {
                    trial.post(&bytes);
                }
            }
            1 => {
                let len = u32::from(script.u16()) % (SEND_BYTES + 1);
                let ahead = u32::from(script.u8());
                let from = self.sent.wrapping_add(ahead);
                if let Some(address) = (Piece::Bytes { from, len }).address() {
                    self.sent = from.wrapping_add(len);
                    self.post(trial, send(address));
                }
            }
            2 => {
                let piece = Piece::Range {
                    file: u16::from(script.u8()) % 3,
                    offset: u64::from(script.u8()) << 12,
                    len: script.u32() % (2 * FILE_BYTES as u32),
                };
                if let Some(address) = piece.address() {
                    self.post(trial, send(address));
                }
            }
            3 => {
                let control = script.pick(Control::ALL);
                let argument = u64::from(script.u32()) << (script.u8() % 33);
                self.post(trial, Command::Control { control, argument });
            }
            4 => {
                let bytes = u64::from(script.u16());
                let from = Side::Client;
                self.post(trial, Command::Received { from, bytes });
            }
            5 => {
                let word = usize::from(script.u8()) % LINE_BYTES / 4 * 4;
                trial.set(layout::word_at(ONE, word), script.u32());
            }
            6 => {
                let place = layout::send_at(ONE) + script.u32() as usize % SEND_BYTES as usize;
                assert!(Trial::is_of(place, ONE));
                trial.set(place / 4 * 4, script.u32());
            }
            7 => {
                let bytes = vec![b'p'; usize::from(script.u16()) % RECEIVE_BYTES as usize];
                trial.peer_sends(ONE, &bytes);
                trial.wake(ONE);
            }
            8 => {
                trial.peer_gets(ONE, usize::from(script.u16()));
                trial.wake(ONE);
            }
            9 => trial.touch_token(ONE, script.flip()),
            10 => match script.below(4) {
                0 => trial.hang_up(ONE),
                1 => trial.want_back(ONE),
                _ => trial.wake(ONE),
            },
            _ => self.break_ring(script, trial),
        }
    }

    fn break_ring(&mut self, script: &mut Script<'_>, trial: &mut Trial) {
        let ahead = COMMANDS + 1 + script.u32() % (u32::MAX - COMMANDS - 1);
        let taken = trial.word(head::TAKEN);
        trial.set(head::WRITTEN, taken.wrapping_add(ahead));
        self.breaks = true;
    }

    fn post(&self, trial: &mut Trial, command: Command) {
        trial.post(&Message::command(trial.cid(ONE), command).encode());
    }
}
