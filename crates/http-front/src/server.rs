//! A server's connection: reading responses.

use fairlead_base::Instant;
use fairlead_splice::backends::ServerId;

use crate::Action;
use crate::cached::Cached;
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

    /// To an end that speaks another protocol.
    pub(crate) fn of_tunnel(id: ServerId) -> Self {
        Self {
            reading: Reading::Tunnel,
            ..Self::new(id)
        }
    }

    fn begin(&mut self, head: &ResponseHead) {
        self.framing = head.framing;
        self.keeps = head.keeps;
        self.reading = match head.framing.is_empty() {
            true => Reading::Complete,
            false => Reading::Body,
        };
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
                self.send_to_peer(now, id);
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
            let Some(of) = to.client() else { return };
            let is_job = of.job.is_some();
            let Some(exchange) = of.exchange.as_mut() else {
                return;
            };
            let written = out.len();
            let read = ResponseHead::read(from.input.bytes(), &exchange.question, &mut out);
            let full = from.input.len() >= crate::BLOCK_BYTES;
            let head = match read {
                Ok(None) if full => Err(BadResponse::Malformed),
                other => other,
            };
            if let (Ok(Some(head)), false) = (&head, is_job)
                && let Cached::Pass(slot, reason) = exchange.cached
                && !head.is_interim()
            {
                let at = self.caches.now(now);
                let slot = self.caches.route_cache(slot);
                let bytes = from.input.bytes();
                slot.note_passed(at, (reason, &exchange.head), head, bytes, &mut out);
            }
            // The cache writes the head that clients get, interim ones apart.
            let of_job = if is_job {
                out.split_off(written)
            } else {
                Vec::new()
            };
            to.out = out;
            let head = match head {
                Err(_) => {
                    return self.end_exchange(now, client, RequestEnd::BadResponse, Some(502));
                }
                Ok(None) => return self.touch(now, client),
                Ok(Some(head)) => head,
            };
            match (head.is_interim(), is_job) {
                (true, _) => {
                    from.skip(head.len, &mut self.stock);
                    match is_job {
                        true => self.tell_owner(client, &of_job),
                        false => self.send_to_peer(now, id),
                    }
                }
                (false, true) => return self.fetched(now, client, id, &head),
                (false, false) => return self.pass_head(now, id, client, &head),
            }
        }
    }

    /// A response's head goes on to a client.
    pub(crate) fn pass_head(
        &mut self,
        now: Instant,
        id: ConnId,
        client: ConnId,
        head: &ResponseHead,
    ) {
        if let Some(exchange) = self.exchange(client) {
            exchange.status = Some(head.status);
            exchange.keeps = head.lets_client_keep(&exchange.question);
        }
        if let Some(from) = self.conns.get(id) {
            from.skip(head.len, &mut self.stock);
        }
        self.actions.push_back(Action::Send(client));
        self.begin_response(now, id, client, head);
    }

    /// A response's head has been read.
    fn begin_response(&mut self, now: Instant, id: ConnId, client: ConnId, head: &ResponseHead) {
        self.counts.numbers.add_status(head.status);
        if head.status == 101 {
            return self.begin_tunnel(now, client, id);
        }
        if let Some(server) = self.conns.get(id).and_then(Conn::server) {
            server.begin(head);
        }
        self.read_response_body(now, id, client);
    }

    /// Takes a response's head away; its body is read next.
    pub(crate) fn begin_body(&mut self, id: ConnId, head: &ResponseHead) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        conn.skip(head.len, &mut self.stock);
        if let Some(server) = conn.server() {
            server.begin(head);
        }
    }

    pub(crate) fn read_response_body(&mut self, now: Instant, id: ConnId, client: ConnId) {
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
        self.send_to_peer(now, id);
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
