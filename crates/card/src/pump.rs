//! Bytes between a connection's rings and its socket.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use fairlead_offload::layout::{self, line, state};
use fairlead_offload::{Fault, Line, Piece};
use fairlead_os_ring::shared::{send_range, shut};
use fairlead_os_ring::token;
use fairlead_os_tcp::repair;

use crate::counts::CardCounts;
use crate::owner::Owner;

impl Owner {
    fn word(&self, number: u32, word: usize) -> &std::sync::atomic::AtomicU32 {
        self.memory.word(layout::word_at(number, word))
    }

    /// From the socket to the receive buffer.
    pub(crate) fn pump_in(&mut self, number: u32, counts: &mut CardCounts) {
        let mut got = 0;
        loop {
            let read = self.word(number, line::READ).load(Ordering::Acquire);
            let Some(open) = self.lines[number as usize].as_deref_mut() else {
                return;
            };
            let is_done = open.is_finished || open.is_failed || open.line.is_closed();
            if !open.readable || is_done {
                break;
            }
            let free = match open.line.free(read) {
                Ok(free) => free,
                Err(fault) => return self.fault(number, fault, counts),
            };
            if free.is_empty() {
                self.word(number, line::FULL).store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if self.word(number, line::READ).load(Ordering::SeqCst) == read {
                    break;
                }
                self.word(number, line::FULL).store(0, Ordering::SeqCst);
                continue;
            }
            let buffer = layout::receive_at(number);
            match self.memory.receive(open.socket.as_fd(), buffer, free) {
                Ok(0) => {
                    open.is_finished = true;
                    self.flag(number, state::FINISHED);
                    if let Some(open) = self.open(number) {
                        shut(open.token.as_fd(), false);
                    }
                }
                Ok(bytes) => {
                    let bytes = bytes as u32;
                    // What was there is read; only a FIN that came before has no event of its own.
                    open.readable = bytes == free.len() || open.is_ending;
                    open.bytes[1] += u64::from(bytes);
                    let position = open.line.receive(bytes);
                    self.word(number, line::RECEIVED)
                        .store(position, Ordering::Release);
                    got += u64::from(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => open.readable = false,
                Err(error) => self.fail(number, &error),
            }
        }
        counts.bytes[1] += got;
        fence(Ordering::SeqCst);
        if got > 0 {
            self.note_activity(number);
            self.give_token_if_wanted(number, counts);
        }
    }

    fn note_activity(&mut self, number: u32) {
        if let Some(open) = self.open(number) {
            open.active = Instant::now();
        }
    }

    fn give_token_if_wanted(&mut self, number: u32, counts: &mut CardCounts) {
        let wants = self.word(number, line::WANTS_TOKEN);
        if wants.load(Ordering::SeqCst) != 0
            && wants.swap(0, Ordering::SeqCst) != 0
            && let Some(open) = self.open(number)
        {
            counts.tokens += 1;
            token::give(open.token.as_fd());
        }
    }

    /// The program asks for what it may have missed: a token for bytes that it has not read, room
    /// to write.
    pub(crate) fn give_what_is_due(&mut self, number: u32, counts: &mut CardCounts) {
        let read = self.word(number, line::READ).load(Ordering::Acquire);
        let Some(open) = self.open(number) else {
            return;
        };
        match open.line.unread(read) {
            Err(fault) => return self.fault(number, fault, counts),
            Ok(unread) if !unread.is_empty() => self.give_token_if_wanted(number, counts),
            Ok(_) => {}
        }
        self.give_room_if_wanted(number, counts);
    }

    fn give_room_if_wanted(&mut self, number: u32, counts: &mut CardCounts) {
        let has_room = self.open(number).is_some_and(|open| open.line.has_room());
        let wants = self.word(number, line::WANTS_ROOM);
        if has_room
            && wants.load(Ordering::SeqCst) != 0
            && wants.swap(0, Ordering::SeqCst) != 0
            && let Some(open) = self.open(number)
        {
            counts.tokens += 1;
            token::drain(open.token.as_fd());
        }
    }

    /// From the send buffer, and from files, to the socket.
    pub(crate) fn pump_out(&mut self, number: u32, counts: &mut CardCounts) {
        let mut sent = 0;
        loop {
            let Some(open) = self.lines[number as usize].as_deref_mut() else {
                return;
            };
            let Some((piece, more)) = open.line.next() else {
                break;
            };
            if !open.writable || open.is_failed {
                break;
            }
            let socket = open.socket.as_fd();
            let outcome = match piece {
                Piece::Bytes { from, len } => {
                    let span = Line::span_of(from, len);
                    self.memory
                        .send(socket, layout::send_at(number), span, more)
                }
                Piece::Range { file, offset, len } => match &self.files[usize::from(file)] {
                    Some(file) => send_range(socket, file.as_fd(), offset, len),
                    None => return self.fault(number, Fault::Address, counts),
                },
            };
            match outcome {
                Ok(0) => {
                    // The program was told that these bytes are sent.
                    counts.short_files += 1;
                    return self.reset(number);
                }
                Ok(bytes) => {
                    sent += bytes as u64;
                    open.bytes[0] += bytes as u64;
                    open.line.took(bytes as u32);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => open.writable = false,
                Err(error) => self.fail(number, &error),
            }
        }
        counts.bytes[0] += sent;
        if sent > 0 {
            self.note_activity(number);
            self.show_progress(number, counts);
        }
        self.finish_out(number);
    }

    fn show_progress(&mut self, number: u32, counts: &mut CardCounts) {
        let Some(open) = self.open(number) else {
            return;
        };
        let (taken, ranges) = open.line.progress();
        self.word(number, line::TAKEN)
            .store(taken, Ordering::Release);
        self.word(number, line::RANGES_DONE)
            .store(ranges, Ordering::Release);
        fence(Ordering::SeqCst);
        self.give_room_if_wanted(number, counts);
    }

    /// A FIN, or the end of a connection that the program has closed.
    fn finish_out(&mut self, number: u32) {
        let read = self.word(number, line::READ).load(Ordering::Acquire);
        let Some(open) = self.open(number) else {
            return;
        };
        if open.line.take_fin() {
            shut(open.socket.as_fd(), false);
        }
        if open.line.is_closed() && (open.line.is_over() || open.is_failed) {
            let in_ring = open.line.unread(read).map_or(0, |span| span.len());
            let in_socket = repair::queues(open.socket.as_fd()).map_or(0, |queues| queues.0);
            // As the kernel does: who closes without having read resets the connection.
            if in_ring > 0 || in_socket > 0 {
                self.reset(number);
            } else {
                drop(self.end(number));
            }
        }
    }

    /// The connection has failed. The program sees it at its next call.
    fn fail(&mut self, number: u32, error: &io::Error) {
        let code = error.raw_os_error().unwrap_or(104) as u32; // ECONNRESET
        self.word(number, line::ERROR)
            .store(code, Ordering::Release);
        self.flag(number, state::RESET);
        if let Some(open) = self.open(number) {
            open.is_failed = true;
            open.line.forget_pieces();
            shut(open.token.as_fd(), true);
        }
    }

    /// The program's end of the token has hung up: its last copy is closed.
    pub(crate) fn hang_up(&mut self, number: u32, counts: &mut CardCounts) {
        if let Some(open) = self.open(number) {
            open.line.close();
            self.pump_out(number, counts);
        }
    }
}
