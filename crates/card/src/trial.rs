//! A program without a process, for tests that write whatever a program can write: its memory, its
//! descriptors, and peers at the other ends of its connections. There is no network: the sockets
//! are pairs of local ones.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use fairlead_base::{Address, Endpoint};
use fairlead_handoff::{Cid, MESSAGE_BYTES};
use fairlead_offload::layout::{self, LINE_BYTES, head};
use fairlead_os_ring::{shared, token};
use fairlead_os_tcp::{Identity, pass};

use crate::counts::CardCounts;
use crate::owner::{Open, Owner};

/// Bytes of the file that the program has named, by number 0.
pub const FILE_BYTES: usize = 10_000;

/// One program, and the card's side of it.
pub struct Trial {
    owner: Owner,
    counts: CardCounts,
    /// By line, from line 1 on: the peer, and the program's end of the token.
    ends: Vec<(UnixStream, Option<OwnedFd>)>,
    written: u32,
    is_sound: bool,
    _program: OwnedFd,
}

impl Trial {
    /// A program with this many connections, on lines 1 and up, and one file.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(connections: u32) -> io::Result<Self> {
        let (control, program) = pass::pair()?;
        let mut owner = Owner::new(control, 0)?;
        let nowhere = Endpoint {
            addr: Address([0; 16]),
            port: 0,
        };
        let mut ends = Vec::new();
        for line in 1..=connections {
            let (socket, peer) = UnixStream::pair()?;
            socket.set_nonblocking(true)?;
            peer.set_nonblocking(true)?;
            let (theirs, ours) = token::pair()?;
            let identity = Identity {
                local: nowhere,
                peer: nowhere,
            };
            owner.begin(line, Open::new(socket.into(), ours, identity, line));
            ends.push((peer, Some(theirs)));
        }
        let mut file = File::from(shared::scratch()?);
        file.write_all(&[b'f'; FILE_BYTES])?;
        owner.files[0] = Some(file.into());
        Ok(Self {
            owner,
            counts: CardCounts::default(),
            ends,
            written: 0,
            is_sound: true,
            _program: program,
        })
    }

    /// The number of a line's connection.
    pub fn cid(&self, line: u32) -> Cid {
        self.owner.cid(line)
    }

    /// The card has this line's connection still.
    pub fn has(&self, line: u32) -> bool {
        self.owner
            .lines
            .get(line as usize)
            .is_some_and(Option::is_some)
    }

    /// What was counted.
    pub fn counts(&self) -> &CardCounts {
        &self.counts
    }

    /// Writes a word of the memory.
    pub fn set(&self, place: usize, value: u32) {
        self.owner.memory.word(place).store(value, Ordering::SeqCst);
    }

    /// Reads a word of the memory.
    pub fn word(&self, place: usize) -> u32 {
        self.owner.memory.word(place).load(Ordering::SeqCst)
    }

    /// Puts a message into the command ring, and says so.
    pub fn post(&mut self, bytes: &[u8; MESSAGE_BYTES]) {
        self.owner.memory.put_command(self.written, bytes);
        self.written = self.written.wrapping_add(1);
        self.set(head::WRITTEN, self.written);
    }

    /// The card looks at the ring. False: it is broken, and all connections are reset.
    pub fn turn(&mut self) -> bool {
        if self.is_sound && !self.owner.turn(&mut self.counts) {
            self.is_sound = false;
            self.owner.leave(true, &mut self.counts);
        }
        self.is_sound
    }

    /// The card hears that a connection's socket is readable, and writable.
    pub fn wake(&mut self, line: u32) {
        if let Some(open) = self.owner.open(line) {
            (open.readable, open.writable) = (true, true);
        }
        self.owner.pump_in(line, &mut self.counts);
        self.owner.pump_out(line, &mut self.counts);
    }

    /// The program closes its descriptor.
    pub fn hang_up(&mut self, line: u32) {
        if let Some((_, token)) = self.ends.get_mut(line as usize - 1) {
            *token = None;
        }
        self.turn();
        self.owner.hang_up(line, &mut self.counts);
    }

    /// The card asks for the connection back.
    pub fn want_back(&mut self, line: u32) {
        let cause = fairlead_handoff::message::Cause::Order;
        self.owner.want_back(line, cause, &mut self.counts);
    }

    /// The program fills its descriptor, or reads from it.
    pub fn touch_token(&self, line: u32, fills: bool) {
        if let Some((_, Some(token))) = self.ends.get(line as usize - 1) {
            match fills {
                true => token::stop(token.as_fd()),
                false => drop(token::drain(token.as_fd())),
            }
        }
    }

    /// The peer sends bytes, as many as there is room for.
    pub fn peer_sends(&mut self, line: u32, bytes: &[u8]) -> usize {
        let end = self.ends.get_mut(line as usize - 1);
        end.and_then(|(peer, _)| peer.write(bytes).ok())
            .unwrap_or(0)
    }

    /// What the peer gets, `most` bytes at most.
    pub fn peer_gets(&mut self, line: u32, most: usize) -> Vec<u8> {
        let mut room = vec![0; most];
        let end = self.ends.get_mut(line as usize - 1);
        let got = end.and_then(|(peer, _)| peer.read(&mut room).ok());
        room.truncate(got.unwrap_or(0));
        room
    }

    /// True where a program may write and harm no connection but that of `line`: outside of the
    /// command ring and the heads, and of other lines' words and buffers.
    pub fn is_of(place: usize, line: u32) -> bool {
        let words = layout::word_at(line, 0)..layout::word_at(line, 0) + LINE_BYTES;
        let buffers = layout::send_at(line)..layout::send_at(line + 1);
        words.contains(&place) || buffers.contains(&place)
    }
}
