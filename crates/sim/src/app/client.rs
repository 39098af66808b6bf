//! A client: sends its turns at its pace, reads replies, ends as planned, and records what it
//! received.

use core::time::Duration;

use fairlead_base::Instant;
use smoltcp::socket::tcp::State;

use super::http::ReplyReader;
use super::{ClientPlan, Dialect, Expect, Finish, Gate, Line, Reply, RequestPlan, sooner};

/// How a client's connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientEnd {
    /// Both sides closed in order.
    Finished,
    /// The other side reset it.
    Reset,
    /// Nobody answered for too long.
    Silence,
    /// It reset the connection as planned.
    Aborted,
    /// It lost its patience.
    GaveUp,
}

/// A client at work.
#[derive(Debug)]
pub(crate) struct ClientApp {
    pub(crate) plan: ClientPlan,
    /// When it connected.
    started: Instant,
    turn: usize,
    turn_sent: usize,
    sent: usize,
    requests: Vec<RequestPlan>,
    reader: ReplyReader,
    /// First line of a server with a protocol other than HTTP.
    pub(crate) name: Option<String>,
    /// Bytes that the switch answered instead of a server (a TLS alert).
    pub(crate) alert: Option<Vec<u8>>,
    send_gate: Gate,
    read_gate: Gate,
    pub(crate) end: Option<ClientEnd>,
    /// Everything it wanted to hear has been heard.
    pub(crate) complete: bool,
    /// When the last byte for it came.
    heard_at: Instant,
    last_state: State,
}

impl ClientApp {
    pub(crate) fn new(plan: ClientPlan, started: Instant) -> Self {
        let requests = plan
            .turns
            .iter()
            .flat_map(|turn| turn.requests.iter().cloned())
            .collect();
        Self {
            plan,
            started,
            turn: 0,
            turn_sent: 0,
            sent: 0,
            requests,
            reader: ReplyReader::default(),
            name: None,
            alert: None,
            send_gate: Gate::default(),
            read_gate: Gate::default(),
            end: None,
            complete: false,
            heard_at: started,
            last_state: State::SynSent,
        }
    }

    /// Goes as far as it can; says when it wants to be called again without a packet.
    pub(crate) fn poll(&mut self, line: &mut Line<'_>, reset_in: bool) -> Option<Instant> {
        if self.end.is_some() {
            return None;
        }
        let state = line.socket.state();
        if state == State::Closed {
            self.read_all(line);
            self.conclude(line, reset_in);
            return None;
        }
        self.last_state = state;
        let give_up = self.started + self.plan.patience;
        if line.now >= give_up {
            self.leave(line, ClientEnd::GaveUp);
            return None;
        }
        if self.abort_due(line) {
            self.leave(line, ClientEnd::Aborted);
            return None;
        }
        if matches!(state, State::SynSent | State::SynReceived) {
            return sooner(Some(give_up), self.abort_at());
        }
        let mut wake = sooner(Some(give_up), self.abort_at());
        wake = sooner(wake, self.read_some(line));
        wake = sooner(wake, self.send_some(line));
        if self.abort_due(line) {
            self.leave(line, ClientEnd::Aborted);
            return None;
        }
        self.finish(line);
        self.last_state = line.socket.state();
        wake
    }

    fn leave(&mut self, line: &mut Line<'_>, end: ClientEnd) {
        line.abort();
        self.end = Some(end);
    }

    fn abort_at(&self) -> Option<Instant> {
        match self.plan.finish {
            Finish::AbortAfter(after) => Some(self.started + after),
            _ => None,
        }
    }

    fn abort_due(&self, line: &Line<'_>) -> bool {
        match self.plan.finish {
            Finish::AbortAfter(_) => self.abort_at().is_some_and(|at| line.now >= at),
            Finish::AbortAfterSent(bytes) => {
                self.sent >= bytes && line.socket.state() != State::SynSent
            }
            Finish::AbortAfterReceived(bytes) => line.received().len() >= bytes.max(1),
            _ => false,
        }
    }

    fn read_all(&mut self, line: &mut Line<'_>) {
        line.read(usize::MAX);
        self.understand(line);
    }

    fn read_some(&mut self, line: &mut Line<'_>) -> Option<Instant> {
        // smoltcp drops unread data at the end of TIME_WAIT.
        let resting = line.socket.state() == State::TimeWait;
        let pace = self.plan.read_pace.filter(|_| !resting);
        let most = self.read_gate.allows(line.now, pace, usize::MAX);
        let got = line.read(most);
        self.read_gate.passed(line.now, pace, got);
        if got > 0 {
            self.heard_at = line.now;
        }
        self.understand(line);
        if line.socket.can_recv() {
            self.read_gate.wake(line.now, pace)
        } else {
            None
        }
    }

    /// Parses the received data.
    fn understand(&mut self, line: &mut Line<'_>) {
        let result = match self.plan.dialect {
            Dialect::Http => {
                let received = &line.ledger.party(line.role).received;
                self.reader.read(received, self.plan.token, &self.requests)
            }
            Dialect::Tls | Dialect::Raw { .. } => self.understand_echo(line),
        };
        if let Err(what) = result {
            let role = line.role;
            line.ledger
                .fail(format!("{role:?} does not understand: {what}"));
        }
        self.complete = match self.plan.dialect {
            Dialect::Http => self.reader.replies.len() >= self.requests.len(),
            _ => self.all_sent() && self.echo_complete(line),
        };
    }

    fn understand_echo(&mut self, line: &Line<'_>) -> Result<(), String> {
        let received = line.received();
        if self.name.is_some() || self.alert.is_some() {
            return Ok(());
        }
        // An alert record is 21, version, length 2, level, description (RFC 8446, section 6).
        if self.plan.dialect == Dialect::Tls && received.first() == Some(&21) {
            if received.len() >= 7 {
                if received[..2] != [21, 3] || received[3..6] != [0, 2, 2] || received.len() > 7 {
                    return Err(format!("no fatal alert: {received:?}"));
                }
                self.alert = Some(received.to_vec());
            }
            return Ok(());
        }
        if let Some(end) = received.iter().position(|&byte| byte == b'\n') {
            let name = core::str::from_utf8(&received[..end]).map_err(|_| "a name")?;
            self.name = Some(name.to_owned());
        } else if received.len() > 256 {
            return Err("no server's name".to_owned());
        }
        Ok(())
    }

    /// The echo is compared with what the server sent by the ledger, and with what we sent here.
    fn echo_complete(&self, line: &Line<'_>) -> bool {
        let Some(name) = &self.name else { return false };
        let party = line.ledger.party(line.role);
        party
            .received
            .get(name.len() + 1..)
            .is_some_and(|echo| echo == party.sent)
    }

    fn all_sent(&self) -> bool {
        self.turn >= self.plan.turns.len()
    }

    fn may_take_turn(&self) -> bool {
        let Some(turn) = self.plan.turns.get(self.turn) else {
            return false;
        };
        match self.plan.dialect {
            Dialect::Http => self.reader.replies.len() >= turn.replies_before,
            Dialect::Tls | Dialect::Raw { .. } => turn.replies_before == 0 || self.name.is_some(),
        }
    }

    fn send_some(&mut self, line: &mut Line<'_>) -> Option<Instant> {
        let mut wake = None;
        while self.may_take_turn() && line.socket.can_send() {
            let first = self.sent < self.plan.first_bytes;
            let pace = if first {
                self.plan.first_pace
            } else {
                self.plan.pace
            };
            let turn = &self.plan.turns[self.turn].bytes;
            let mut most = self
                .send_gate
                .allows(line.now, pace, turn.len() - self.turn_sent);
            if first {
                most = most.min(self.plan.first_bytes - self.sent);
            }
            if let Finish::AbortAfterSent(bytes) = self.plan.finish {
                most = most.min(bytes.saturating_sub(self.sent));
            }
            if most == 0 && self.turn_sent < turn.len() {
                wake = self.send_gate.wake(line.now, pace);
                break;
            }
            let taken = line.write(&turn[self.turn_sent..self.turn_sent + most]);
            self.send_gate.passed(line.now, pace, taken);
            self.turn_sent += taken;
            self.sent += taken;
            if self.turn_sent == turn.len() {
                self.turn += 1;
                self.turn_sent = 0;
            } else if taken == 0 {
                break;
            }
        }
        wake
    }

    fn finish(&mut self, line: &mut Line<'_>) {
        let ended = line.note_end();
        let close = match self.plan.finish {
            Finish::HalfClose => self.all_sent(),
            Finish::WaitForServer => ended,
            _ => self.complete && self.all_sent(),
        };
        if close || ended {
            line.close();
        }
    }

    fn conclude(&mut self, line: &mut Line<'_>, reset_in: bool) {
        let both_closed = matches!(
            self.last_state,
            State::TimeWait | State::LastAck | State::Closing
        );
        // A slow reader may find the end only when the connection is already gone.
        if both_closed && !line.ledger.party(line.role).eof {
            line.ledger.ended(line.role);
        }
        let orderly = both_closed && line.ledger.party(line.role).closed;
        let unsent = line.socket.send_queue();
        self.end = Some(if orderly && unsent == 0 {
            ClientEnd::Finished
        } else if reset_in {
            ClientEnd::Reset
        } else {
            ClientEnd::Silence
        });
    }

    /// From its start to the last byte it received.
    pub(crate) fn took(&self) -> Duration {
        self.heard_at.since(self.started)
    }

    /// The complete replies (HTTP).
    pub(crate) fn replies(&self) -> &[Reply] {
        &self.reader.replies
    }

    /// The status that the switch itself answered with.
    pub(crate) fn status(&self) -> Option<u16> {
        match self.reader.replies.last() {
            Some(Reply {
                status,
                server: None,
                ..
            }) => Some(*status),
            _ => None,
        }
    }

    /// The server that answered, by its own words.
    pub(crate) fn server(&self) -> Option<&str> {
        let by_reply = self
            .reader
            .replies
            .iter()
            .find_map(|reply| reply.server.as_deref());
        by_reply.or(self.name.as_deref())
    }

    /// Compares the outcome with the expected one. In `lossy` worlds a server may be unreachable;
    /// `refused` is true if the switch reported a refusal of this client.
    pub(crate) fn judge(
        &self,
        received: &[u8],
        refused: bool,
        lenient: bool,
        cut_short: bool,
    ) -> Result<(), String> {
        let Some(end) = self.end else {
            return Err("did not end".to_owned());
        };
        if matches!(end, ClientEnd::Aborted) {
            return Ok(());
        }
        let status = self.status();
        let got = || {
            format!(
                "expected {:?}, got {end:?}, server {:?}, status {status:?}, alert {:?}, {} of {} \
                 replies, complete {}, {} bytes of another, refused {refused}",
                self.plan.expect,
                self.server(),
                self.alert,
                self.reader.replies.len(),
                self.requests.len(),
                self.complete,
                self.reader.unfinished(received),
            )
        };
        let turned_away = status.is_some() || self.alert.is_some() || self.server().is_none();
        let good = match &self.plan.expect {
            Expect::Server(names) => {
                let right = self
                    .server()
                    .is_some_and(|name| names.iter().any(|one| one == name));
                let whole = right && self.complete && end == ClientEnd::Finished;
                let cut = cut_short && (right || self.server().is_none());
                whole || cut || (lenient && refused && turned_away)
            }
            Expect::Status(statuses) => {
                status.is_some_and(|status| statuses.contains(&status)) && refused
            }
            Expect::Alert => self.alert.is_some() && refused,
            Expect::Refused => received.is_empty() && end == ClientEnd::Reset,
            Expect::Anything => true,
        };
        if good { Ok(()) } else { Err(got()) }
    }
}
