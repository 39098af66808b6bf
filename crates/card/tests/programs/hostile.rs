//! Programs that break their shared memory harm themselves alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use fairlead_handoff::message::{Control, Kind};
use fairlead_handoff::{Body, Cid, Command, MESSAGE_BYTES, Message, Side};
use fairlead_offload::layout::{self, BYTES, SEND_BYTES, head, line};
use fairlead_offload::{Fault, Piece};
use fairlead_os_ring::{Doorbell, Shared, token};
use fairlead_os_tcp::pass;

use crate::bench::{Bench, HOST_V4, PATIENCE};

/// A program that speaks to the card without the library.
struct Hostile {
    control: OwnedFd,
    memory: Shared,
    doorbell: Doorbell,
    written: u32,
}

impl Hostile {
    fn connect(bench: &Bench) -> Self {
        let control = pass::connect(&bench.socket).unwrap();
        assert!(pass::wait_for(control.as_fd(), PATIENCE).unwrap());
        let mut bytes = [0; MESSAGE_BYTES];
        let (_, both) = pass::receive(control.as_fd(), &mut bytes).unwrap().unwrap();
        let [memory, doorbell]: [OwnedFd; 2] = both.try_into().unwrap();
        Self {
            control,
            memory: Shared::map(memory).unwrap(),
            doorbell: Doorbell::of(doorbell),
            written: 0,
        }
    }

    /// Hands a connection off: its number, and the program's end of the token.
    fn hand_off(&self, socket: &TcpStream) -> (Cid, OwnedFd) {
        let (ours, cards) = token::pair().unwrap();
        let handoff = Command::Handoff {
            kind: Kind::Single,
            unwritten: [0; 2],
        };
        let bytes = Message::command(Cid::new(1, 0), handoff).encode();
        let both = [socket.as_fd(), cards.as_fd()];
        pass::send(self.control.as_fd(), &bytes, &both).unwrap();
        assert!(pass::wait_for(self.control.as_fd(), PATIENCE).unwrap());
        let mut bytes = [0; MESSAGE_BYTES];
        pass::receive(self.control.as_fd(), &mut bytes).unwrap();
        match Message::decode(&bytes).unwrap().body {
            Body::Done(_, cid) => (Cid(cid as u32), ours),
            other => panic!("{other:?}"),
        }
    }

    /// Puts a message into the ring, and says nothing yet.
    fn put(&mut self, bytes: &[u8; MESSAGE_BYTES]) {
        self.memory.put_command(self.written, bytes);
        self.written = self.written.wrapping_add(1);
    }

    fn post(&mut self, bytes: &[u8; MESSAGE_BYTES]) {
        self.put(bytes);
        self.tell(self.written);
    }

    fn tell(&self, written: u32) {
        let word = self.memory.word(head::WRITTEN);
        word.store(written, Ordering::SeqCst);
        self.doorbell.ring();
    }
}

/// A connection of a program, and the client's end of it.
struct Connection {
    cid: Cid,
    token: OwnedFd,
    peer: TcpStream,
    sent: u32,
}

impl Connection {
    fn begin(bench: &Bench, program: &Hostile) -> Self {
        let listen = || TcpListener::bind((HOST_V4, 0));
        let listener = bench.host.enter(listen).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let peer = bench.client.enter(|| TcpStream::connect(to)).unwrap();
        let peer = peer.unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let (cid, token) = program.hand_off(&listener.accept().unwrap().0);
        Self {
            cid,
            token,
            peer,
            sent: 0,
        }
    }

    /// The program answers its peer as it should.
    fn works(&mut self, program: &mut Hostile) {
        self.peer.write_all(b"question").unwrap();
        let place = layout::send_at(self.cid.line()) + (self.sent % SEND_BYTES) as usize;
        let word = program.memory.word(place);
        word.store(u32::from_ne_bytes(*b"fine"), Ordering::Release);
        program.post(&bytes(self.cid, self.sent, 4));
        self.sent += 4;
        let mut got = [0; 4];
        self.peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"fine");
    }

    fn is_reset(&mut self) -> bool {
        let mut room = [0; 65_536];
        loop {
            match self.peer.read(&mut room) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// `ch_nic_send` of an address.
fn send(cid: Cid, address: u64) -> [u8; MESSAGE_BYTES] {
    let command = Command::Send {
        from: Side::Server,
        len: 0,
        address,
    };
    Message::command(cid, command).encode()
}

fn bytes(cid: Cid, from: u32, len: u32) -> [u8; MESSAGE_BYTES] {
    let address = Piece::Bytes { from, len }.address();
    send(cid, address.expect("an address"))
}

type Harm = fn(&mut Hostile, &mut Connection);

/// What a program may do to one of its connections, and the fault that it is.
const HARMS: [(Fault, Harm); 6] = [
    (Fault::Address, |program, one| {
        program.post(&send(one.cid, 0));
    }),
    (Fault::Address, |program, one| {
        program.post(&bytes(one.cid, 1_000, 10));
    }),
    (Fault::SendBuffer, |program, one| {
        program.put(&bytes(one.cid, 0, SEND_BYTES));
        program.post(&bytes(one.cid, SEND_BYTES, SEND_BYTES));
    }),
    (Fault::ReadPosition, |program, one| {
        let place = layout::word_at(one.cid.line(), line::READ);
        program.memory.word(place).store(70_000, Ordering::SeqCst);
        one.peer.write_all(b"something to read").unwrap();
    }),
    (Fault::Address, |program, one| {
        let file = Piece::Range {
            file: 3,
            offset: 0,
            len: 100,
        };
        program.post(&send(one.cid, file.address().expect("an address")));
    }),
    (Fault::AfterEnd, |program, one| {
        let end = Command::Control {
            control: Control::ShutdownToClient,
            argument: 0,
        };
        program.put(&Message::command(one.cid, end).encode());
        program.post(&bytes(one.cid, 0, 10));
    }),
];

#[test]
fn a_wrong_number_resets_its_connection_and_nothing_else() {
    let Some(bench) = Bench::new("a_wrong_number_resets_its_connection_and_nothing_else") else {
        return;
    };
    let ((), counts) = bench.served(|_| {
        let mut program = Hostile::connect(&bench);
        let mut others = [0, 1].map(|_| Connection::begin(&bench, &program));
        for (_, harm) in HARMS {
            let mut one = Connection::begin(&bench, &program);
            harm(&mut program, &mut one);
            assert!(one.is_reset());
            others.iter_mut().for_each(|one| one.works(&mut program));
        }
    });
    for fault in Fault::ALL {
        let expected = HARMS.iter().filter(|one| one.0 == fault).count() as u64;
        assert_eq!(counts.faults[fault as usize], expected, "{fault:?}");
    }
    assert_eq!(counts.broken_rings, 0);
}

#[test]
fn a_broken_ring_ends_its_program_and_nothing_else() {
    let Some(bench) = Bench::new("a_broken_ring_ends_its_program_and_nothing_else") else {
        return;
    };
    let ((), counts) = bench.served(|_| {
        let mut sound = Hostile::connect(&bench);
        let mut neighbour = Connection::begin(&bench, &sound);
        let broken = Hostile::connect(&bench);
        let mut its = [0, 1].map(|_| Connection::begin(&bench, &broken));
        broken.tell(layout::COMMANDS + 1);
        assert!(its.iter_mut().all(Connection::is_reset));
        let malformed = Hostile::connect(&bench);
        let mut one = Connection::begin(&bench, &malformed);
        pass::send(malformed.control.as_fd(), &[0xff; MESSAGE_BYTES], &[]).unwrap();
        assert!(one.is_reset());
        neighbour.works(&mut sound);
    });
    assert_eq!((counts.broken_rings, counts.faults), (1, [0; 5]));
    assert_eq!(counts.commands.malformed_total(), 1);
}

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % below
    }
}

/// Writes and commands at random, of which some are nearly right.
fn rave(program: &mut Hostile, one: &Connection, numbers: &mut Numbers) {
    let lines = layout::word_at(0, 0);
    match numbers.next(10) {
        0 => {
            let place = lines + numbers.next(2_000) as usize / 4 * 4;
            let value = numbers.next(1 << 32) as u32;
            program.memory.word(place).store(value, Ordering::SeqCst);
        }
        1 => {
            let place = numbers.next(BYTES as u64) as usize / 4 * 4;
            // A broken ring would end the game.
            if !(head::WRITTEN..head::WRITTEN + 4).contains(&place) {
                let value = numbers.next(1 << 32) as u32;
                program.memory.word(place).store(value, Ordering::SeqCst);
            }
        }
        2 => {
            let place = layout::word_at(one.cid.line(), line::READ);
            program
                .memory
                .word(place)
                .store(numbers.next(8) as u32, Ordering::SeqCst);
        }
        3 => {
            let _ = token::drain(one.token.as_fd());
            token::stop(one.token.as_fd());
        }
        4..7 => {
            let mut message = [0; MESSAGE_BYTES];
            message.fill_with(|| numbers.next(256) as u8);
            if numbers.next(2) == 0 {
                message[..4].copy_from_slice(&one.cid.0.to_le_bytes());
                message[4] = numbers.next(13) as u8;
                message[5] &= 0x1f;
            }
            program.put(&message);
        }
        _ => {
            let len = numbers.next(u64::from(SEND_BYTES)) as u32 + 1;
            program.put(&bytes(one.cid, numbers.next(2) as u32 * len, len));
        }
    }
    if numbers.next(8) == 0 {
        program.tell(program.written);
    }
}

#[test]
fn whatever_a_program_writes_its_neighbours_are_served() {
    let Some(bench) = Bench::new("whatever_a_program_writes_its_neighbours_are_served") else {
        return;
    };
    let rounds = std::env::var("FAIRLEAD_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|text| text.parse().ok()).unwrap_or(60);
    let ((), counts) = bench.served(|_| {
        let mut sound = Hostile::connect(&bench);
        let mut neighbour = Connection::begin(&bench, &sound);
        for seed in 0..rounds {
            let mut numbers = Numbers(seed);
            let mut program = Hostile::connect(&bench);
            let one = Connection::begin(&bench, &program);
            for step in 0..300 {
                if step % 20 == 0 {
                    let _ = (&one.peer).write(b"some bytes");
                }
                rave(&mut program, &one, &mut numbers);
            }
            program.tell(program.written);
            neighbour.works(&mut sound);
        }
    });
    let faults: u64 = counts.faults.iter().sum();
    assert!(faults > rounds / 2, "{faults} of {rounds} were found out");
}
