//! A server's connection: reading responses.

use fairlead_base::Instant;
use fairlead_splice::backends::ServerId;

use crate::Action;
use crate::client::Phase;
use crate::conns::{Conn, ConnId, Side};
use crate::event::RequestEnd;
use crate::exchange::Failed;
use crate::framing::Framing;
use crate::front::Front;
use crate::response::{BadResponse, ResponseHead};

/// Of a server's connection.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) reading: Reading,
    framing: Framing,
    /// The server keeps the connection after this response.
    pub(crate) keeps: bool,
    /// It has carried a request before.
    pub(crate) is_reused: bool,
    /// It was announced to the server as that of one client.
    pub(crate) is_private: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// There is no connection yet.
    Connecting,
    /// It waits for a request.
    Idle,
    /// A response is awaited.
    Head,
    Body,
    /// The whole response is here.
    Complete,
    Tunnel,
}

impl Server {
    pub(crate) fn new(id: ServerId) -> Self {
        Self {
            id,
            reading: Reading::Connecting,
            framing: Framing::Length(0),
            keeps: false,
            is_reused: false,
            is_private: false,
        }
    }
}

impl Front {
    /// A connection to a server is made: it gets its request.
    pub(crate) fn server_connected(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let peer = conn.peer;
        conn.deadline = None;
        let Some(server) = conn.server() else { return };
        if server.reading != Reading::Connecting {
            return;
        }
        server.reading = Reading::Head;
        let server = server.id;
        self.backends.reached(server, now);
        if let Some(peer) = peer {
            self.touch(now, peer);
        }
        self.actions.push_back(Action::Send(id));
    }

    /// Something was received of a server.
    pub(crate) fn read_server(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let peer = conn.peer;
        let Some(server) = conn.server() else { return };
        match (server.reading, peer) {
            (Reading::Head, Some(client)) => self.read_response(now, id, client),
            (Reading::Body, Some(client)) => self.read_response_body(now, id, client),
            (Reading::Tunnel, Some(client)) => {
                conn.pass = conn.input.len();
                self.touch(now, client);
                self.send_to_peer(id);
            }
            // Nobody has asked. Behind a whole response it shows at its end.
            (Reading::Complete, Some(_)) => {}
            _ => self.close(id),
        }
    }

    fn read_response(&mut self, now: Instant, id: ConnId, client: ConnId) {
        loop {
            let Some((to, from)) = self.conns.pair(client, id) else {
                return;
            };
            let mut out = core::mem::take(&mut to.out);
            let Some(exchange) = to.client().and_then(|one| one.exchange.as_mut()) else {
                return;
            };
            let read = ResponseHead::read(from.input.bytes(), &exchange.question, &mut out);
            let full = from.input.len() >= crate::BLOCK_BYTES;
            let outcome = match read {
                Ok(None) if full => Err(BadResponse::Malformed),
                other => other,
            };
            let done = match outcome {
                Ok(Some(head)) => {
                    let interim = head.is_interim();
                    if !interim {
                        exchange.status = Some(head.status);
                        exchange.keeps = head.lets_client_keep(&exchange.question);
                    }
                    Ok(Some(head))
                }
                other => other,
            };
            to.out = out;
            let head = match done {
                Err(_) => {
                    return self.end_exchange(now, client, RequestEnd::BadResponse, Some(502));
                }
                Ok(None) => return self.touch(now, client),
                Ok(Some(head)) => head,
            };
            from.skip(head.len, &mut self.stock);
            self.actions.push_back(Action::Send(client));
            if !head.is_interim() {
                return self.begin_response(now, id, client, &head);
            }
        }
    }

    /// A response's head has been read.
    fn begin_response(&mut self, now: Instant, id: ConnId, client: ConnId, head: &ResponseHead) {
        self.counts.numbers.add_status(head.status);
        let Some((to, from)) = self.conns.pair(client, id) else {
            return;
        };
        if head.status == 101 {
            from.pass = from.input.len();
            to.pass = to.input.len();
            if let Some(server) = from.server() {
                server.reading = Reading::Tunnel;
            }
            if let Some(of) = to.client() {
                of.phase = Phase::Tunnel;
            }
            self.actions.push_back(Action::Send(id));
            return self.touch(now, client);
        }
        let Some(server) = from.server() else { return };
        server.framing = head.framing;
        server.keeps = head.keeps;
        server.reading = match head.framing.is_empty() {
            true => Reading::Complete,
            false => Reading::Body,
        };
        self.read_response_body(now, id, client);
    }

    fn read_response_body(&mut self, now: Instant, id: ConnId, client: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Conn {
            input, pass, side, ..
        } = conn;
        let Side::Server(server) = side else {
            return;
        };
        if server.reading == Reading::Body {
            match server.framing.take(&input.bytes()[*pass..]) {
                Ok(share) => {
                    *pass += share.bytes;
                    if share.is_last {
                        server.reading = Reading::Complete;
                    }
                }
                Err(_) => {
                    return self.end_exchange(now, client, RequestEnd::BadResponse, Some(502));
                }
            }
        }
        self.touch(now, client);
        self.send_to_peer(id);
    }

    /// A server sends nothing more.
    pub(crate) fn server_ended(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let peer = conn.peer;
        let Some(server) = conn.server() else { return };
        let Some(client) = peer else {
            return self.close(id);
        };
        match server.reading {
            Reading::Connecting | Reading::Head => self.server_failed(now, id),
            Reading::Body if matches!(server.framing, Framing::UntilClose) => {
                server.reading = Reading::Complete;
                server.keeps = false;
                self.actions.push_back(Action::Send(client));
                self.finish_if_done(now, client);
            }
            Reading::Body => self.end_exchange(now, client, RequestEnd::ServerLost, None),
            Reading::Complete | Reading::Idle => {}
            Reading::Tunnel => self.end_direction(now, id),
        }
    }

    /// A server's connection is no more, or was not made.
    pub(crate) fn server_failed(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let peer = conn.peer;
        let Some(server) = conn.server() else { return };
        let Some(client) = peer else {
            return self.close(id);
        };
        let (reading, is_reused) = (server.reading, server.is_reused);
        match reading {
            Reading::Connecting => {
                self.retry(now, client, Failed::Unreached, RequestEnd::NoServer);
            }
            Reading::Head => {
                let failed = match is_reused {
                    true => Failed::Stale,
                    false => Failed::Lost,
                };
                self.retry(now, client, failed, RequestEnd::ServerLost);
            }
            Reading::Tunnel => self.end_exchange(now, client, RequestEnd::Upgraded, None),
            // What it has sent is here.
            Reading::Complete => {
                conn.eof = true;
                conn.out.clear();
                conn.out_at = 0;
                self.finish_if_done(now, client);
            }
            Reading::Body | Reading::Idle => {
                self.end_exchange(now, client, RequestEnd::ServerLost, None);
            }
        }
    }

    /// A server did not connect in time, or its connection has waited for long enough.
    pub(crate) fn server_late(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        conn.deadline = None;
        match conn.peer {
            Some(_) => self.server_failed(now, id),
            None => self.close(id),
        }
    }
}
