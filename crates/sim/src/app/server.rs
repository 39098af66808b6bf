//! A server's end of one connection: reads what its dialect says, names itself, answers.

use std::collections::VecDeque;

use fairlead_base::Instant;
use fairlead_splice::config::ProxyVersion;
use smoltcp::socket::tcp::State;

use super::http::{Head, REPLY_FIELD, TOKEN_FIELD, read_chunks};
use super::proxy::ProxyHeader;
use super::{Dialect, Gate, Line, Manner, ServerPlan, body_seed, hello_len, hello_token};
use crate::dice::stream_bytes;
use crate::oracle::{Ledger, Role};

/// A server at work on one connection.
#[derive(Debug)]
pub(crate) struct ServerApp {
    plan: ServerPlan,
    /// Received bytes that were understood, from the start of the stream.
    at: usize,
    proxy_read: bool,
    token: Option<u64>,
    requests: usize,
    named: bool,
    out: VecDeque<Vec<u8>>,
    out_at: usize,
    said: usize,
    read_gate: Gate,
    close_when_said: bool,
    pub(crate) done: bool,
    /// A binding happened in the last poll: the taps want to know.
    pub(crate) just_bound: bool,
}

impl ServerApp {
    pub(crate) fn new(plan: ServerPlan) -> Self {
        Self {
            proxy_read: plan.proxy.is_none(),
            plan,
            at: 0,
            token: None,
            requests: 0,
            named: false,
            out: VecDeque::new(),
            out_at: 0,
            said: 0,
            read_gate: Gate::default(),
            close_when_said: false,
            done: false,
            just_bound: false,
        }
    }

    /// Goes as far as it can; says when it wants to be called again without a packet.
    pub(crate) fn poll(&mut self, line: &mut Line<'_>) -> Option<Instant> {
        self.just_bound = false;
        if self.done {
            return None;
        }
        if line.socket.state() == State::Closed {
            line.read(usize::MAX);
            self.done = true;
            return None;
        }
        if matches!(line.socket.state(), State::SynReceived | State::Listen) {
            return None;
        }
        let pace = match self.plan.manner {
            Manner::Slow(pace) => Some(pace),
            _ => None,
        };
        let got = line.read(self.read_gate.allows(line.now, pace, usize::MAX));
        self.read_gate.passed(line.now, pace, got);
        if let Err(what) = self.understand(line.role, line.ledger) {
            let (role, name) = (line.role, &self.plan.name);
            line.ledger
                .fail(format!("{name} ({role:?}) does not understand: {what}"));
        }
        self.say(line);
        let ended = line.note_end();
        self.finish(line, ended);
        if line.socket.can_recv() {
            self.read_gate.wake(line.now, pace)
        } else {
            None
        }
    }

    fn say(&mut self, line: &mut Line<'_>) {
        let limit = match self.plan.manner {
            Manner::CloseAfter(bytes) | Manner::AbortAfter(bytes) => bytes,
            _ => usize::MAX,
        };
        while let Some(bytes) = self.out.front() {
            let rest = &bytes[self.out_at..];
            let taken = line.write(&rest[..rest.len().min(limit - self.said)]);
            self.out_at += taken;
            self.said += taken;
            if self.out_at == bytes.len() {
                self.out.pop_front();
                self.out_at = 0;
            } else if taken == 0 {
                break;
            }
        }
    }

    fn finish(&mut self, line: &mut Line<'_>, ended: bool) {
        match self.plan.manner {
            Manner::CloseAfter(bytes) if self.said >= bytes => {
                line.ledger.party_mut(line.role).cut_short = true;
                line.close();
            }
            Manner::AbortAfter(bytes) if self.said >= bytes => {
                line.ledger.party_mut(line.role).cut_short = true;
                line.abort();
                self.done = true;
            }
            _ if self.out.is_empty() && (self.close_when_said || ended) => line.close(),
            _ => {}
        }
    }

    fn understand(&mut self, role: Role, ledger: &mut Ledger) -> Result<(), String> {
        if let Dialect::Raw { greeting: true } = self.plan.dialect {
            self.name_itself();
        }
        if !self.proxy_read {
            let party = ledger.party(role);
            let version = self.plan.proxy.unwrap_or(ProxyVersion::V1);
            let Some(header) = ProxyHeader::read(version, &party.received)? else {
                return Ok(());
            };
            self.at = header.len;
            self.proxy_read = true;
            check_proxy(role, ledger, &header)?;
            // Whose stream follows it, shows when that is read.
            ledger.party_mut(role).told = Some((header.source, header.destination));
        }
        match self.plan.dialect {
            Dialect::Http => while self.understand_request(role, ledger)? {},
            Dialect::Tls | Dialect::Raw { .. } => self.understand_echo(role, ledger)?,
        }
        Ok(())
    }

    fn understand_request(&mut self, role: Role, ledger: &mut Ledger) -> Result<bool, String> {
        let received = &ledger.party(role).received;
        let bytes = &received[self.at..];
        let Some(head) = Head::read(bytes)? else {
            return Ok(false);
        };
        let token = head
            .number(TOKEN_FIELD)
            .ok_or("a request without a token")? as u64;
        let close = head
            .field("connection")
            .is_some_and(|value| value.contains("close"));
        let method = head
            .first_line
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned();
        let reply_bytes = head.number(REPLY_FIELD).unwrap_or(0);
        if self.token.is_none() {
            self.bind_request(role, ledger, token, &head)?;
        }
        if self.token != Some(token) {
            return Err(format!(
                "a request of client {token} among those of {:?}",
                self.token
            ));
        }
        let received = &ledger.party(role).received;
        let bytes = &received[self.at..];
        let used = if head.field("transfer-encoding").is_some() {
            let Some((body, used)) = read_chunks(&bytes[head.len..])? else {
                return Ok(false);
            };
            check_request_body(&body, token, self.requests)?;
            head.len + used
        } else {
            let len = head.number("content-length").unwrap_or(0);
            let Some(body) = bytes.get(head.len..head.len + len) else {
                return Ok(false);
            };
            if head.number("content-length").is_some() {
                check_request_body(body, token, self.requests)?;
            }
            head.len + len
        };
        self.at += used;
        let mut reply = format!(
            "HTTP/1.1 200 OK\r\nX-Server: {}\r\nContent-Length: {reply_bytes}\r\n",
            self.plan.name
        );
        if close {
            reply += "Connection: close\r\n";
        }
        reply += "\r\n";
        let mut reply = reply.into_bytes();
        if method != "HEAD" {
            let from = reply.len();
            reply.resize(from + reply_bytes, 0);
            stream_bytes(body_seed(token, self.requests, true), 0, &mut reply[from..]);
        }
        if !self.close_when_said {
            self.out.push_back(reply);
        }
        self.close_when_said |= close;
        self.requests += 1;
        Ok(true)
    }

    /// Binds this connection to its client. A head that is not the client's own, byte by byte, must
    /// be the client's but for the fields that one-shot service changes.
    fn bind_request(
        &mut self,
        role: Role,
        ledger: &mut Ledger,
        token: u64,
        head: &Head,
    ) -> Result<(), String> {
        self.token = Some(token);
        self.just_bound = true;
        let received = &ledger.party(role).received[self.at..self.at + head.len];
        let client = ledger.client_of(token);
        let Some(client) = client else {
            return Err(format!(
                "a request with the token {token}, which no client sent"
            ));
        };
        if client.sent.starts_with(received) {
            ledger.bind(role, token, self.at, 0);
            return Ok(());
        }
        let Ok(Some(original)) = Head::read(&client.sent) else {
            return Err("a request before its client had sent it".to_owned());
        };
        if head.first_line != original.first_line || head.lasting() != original.lasting() {
            return Err(format!("a request that its client did not send: {head:?}"));
        }
        if head.field("connection") != Some("close") {
            return Err(format!("a head that was changed to no purpose: {head:?}"));
        }
        ledger.bind(role, token, self.at + head.len, original.len);
        Ok(())
    }

    fn understand_echo(&mut self, role: Role, ledger: &mut Ledger) -> Result<(), String> {
        let received = &ledger.party(role).received;
        let stream = &received[self.at.min(received.len())..];
        if self.token.is_none() {
            let token = match self.plan.dialect {
                // Another protocol begins with another byte than a handshake record.
                Dialect::Tls if stream.first().is_none_or(|&first| first == 22) => {
                    hello_len(stream)?.and_then(|_| hello_token(stream))
                }
                _ => stream
                    .get(..8)
                    .and_then(|eight| eight.try_into().ok())
                    .map(u64::from_be_bytes),
            };
            let Some(token) = token else { return Ok(()) };
            self.token = Some(token);
            self.just_bound = true;
            let prefix = self.at;
            ledger.bind(role, token, prefix, 0);
            self.name_itself();
        }
        let received = &ledger.party(role).received;
        let echo = received[self.at..].to_vec();
        if !echo.is_empty() {
            self.at += echo.len();
            self.out.push_back(echo);
        }
        Ok(())
    }

    fn name_itself(&mut self) {
        if !core::mem::replace(&mut self.named, true) {
            self.out
                .push_back(format!("{}\n", self.plan.name).into_bytes());
        }
    }
}

/// The header must name a client of this world and where it connected to.
fn check_proxy(role: Role, ledger: &Ledger, header: &ProxyHeader) -> Result<(), String> {
    let known = ledger.role(header.source, header.destination);
    if matches!(known, Some(Role::Client(_))) {
        return Ok(());
    }
    Err(format!("{role:?}: a PROXY header of no client: {header:?}"))
}

fn check_request_body(body: &[u8], token: u64, number: usize) -> Result<(), String> {
    let mut expected = vec![0; body.len()];
    stream_bytes(body_seed(token, number, false), 0, &mut expected);
    if body == expected {
        Ok(())
    } else {
        Err(format!("the body of request {number} is wrong"))
    }
}
