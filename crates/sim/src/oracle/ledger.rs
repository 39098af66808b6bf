//! Every byte that an application sent or received, compared as it arrives.
//!
//! A client's stream names its client by a token; when a server has read it, the two parties are
//! bound, and from then on what each receives must be a prefix of what the other sent.

use std::collections::BTreeMap;

use fairlead_base::Endpoint;

/// One application's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Index into [`Ledger::clients`].
    Client(usize),
    /// Index into [`Ledger::servers`].
    Server(usize),
}

/// What one end said and heard.
#[derive(Debug, Default)]
pub(crate) struct Party {
    /// Its own endpoint.
    pub(crate) local: Endpoint,
    /// The one it talks to: a listening endpoint of the switch, or an address that the switch uses.
    pub(crate) remote: Endpoint,
    /// A server's name.
    pub(crate) name: String,
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
    /// It will send no more.
    pub(crate) closed: bool,
    /// It has read the other's end of stream.
    pub(crate) eof: bool,
    /// It reset the connection itself.
    pub(crate) aborted: bool,
    /// A server that ended its stream before it had said all.
    pub(crate) cut_short: bool,
    /// Its connection is gone.
    pub(crate) over: bool,
    /// The other end.
    pub(crate) peer: Option<usize>,
    /// Received bytes that were compared.
    proved: usize,
    /// Of a server: bytes at the start that the switch put there or rewrote.
    pub(crate) prefix: usize,
    /// Of a server: the client's bytes that `prefix` stands for.
    pub(crate) replaced: usize,
    /// Of a server: who its client is and where that connected to, by the PROXY header.
    pub(crate) told: Option<(Endpoint, Endpoint)>,
}

/// All parties of a world.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) clients: Vec<Party>,
    pub(crate) servers: Vec<Party>,
    by_tuple: BTreeMap<(Endpoint, Endpoint), Role>,
    by_token: BTreeMap<u64, usize>,
    pub(crate) failure: Option<String>,
}

impl Ledger {
    pub(crate) fn open_client(&mut self, token: u64, local: Endpoint, remote: Endpoint) -> Role {
        let index = self.clients.len();
        self.clients.push(Party {
            local,
            remote,
            ..Party::default()
        });
        self.by_token.insert(token, index);
        self.by_tuple.insert((local, remote), Role::Client(index));
        Role::Client(index)
    }

    pub(crate) fn open_server(&mut self, name: &str, local: Endpoint, remote: Endpoint) -> Role {
        let index = self.servers.len();
        self.servers.push(Party {
            local,
            remote,
            name: name.to_owned(),
            ..Party::default()
        });
        self.by_tuple.insert((local, remote), Role::Server(index));
        Role::Server(index)
    }

    pub(crate) fn party(&self, role: Role) -> &Party {
        match role {
            Role::Client(index) => &self.clients[index],
            Role::Server(index) => &self.servers[index],
        }
    }

    pub(crate) fn party_mut(&mut self, role: Role) -> &mut Party {
        match role {
            Role::Client(index) => &mut self.clients[index],
            Role::Server(index) => &mut self.servers[index],
        }
    }

    /// The party of a connection, by its own and the other's endpoint; the latest when a tuple was
    /// used again.
    pub(crate) fn role(&self, local: Endpoint, remote: Endpoint) -> Option<Role> {
        self.by_tuple.get(&(local, remote)).copied()
    }

    /// The client that has this token.
    pub(crate) fn client_of(&self, token: u64) -> Option<&Party> {
        self.by_token.get(&token).map(|&index| &self.clients[index])
    }

    pub(crate) fn peer(&self, role: Role) -> Option<Role> {
        match role {
            Role::Client(index) => self.clients[index].peer.map(Role::Server),
            Role::Server(index) => self.servers[index].peer.map(Role::Client),
        }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    pub(crate) fn heard(&mut self, role: Role, bytes: &[u8]) {
        self.party_mut(role).received.extend_from_slice(bytes);
        self.prove(role);
    }

    /// A server has read the token of the client whose stream it receives. `prefix` bytes at its
    /// start stand for the client's first `replaced` ones.
    pub(crate) fn bind(&mut self, server: Role, token: u64, prefix: usize, replaced: usize) {
        let Role::Server(server_index) = server else {
            return;
        };
        let Some(&client_index) = self.by_token.get(&token) else {
            return self.fail(format!(
                "a server received the token {token} that no client sent"
            ));
        };
        let client = &mut self.clients[client_index];
        if let Some(other) = client.peer {
            let names = [other, server_index].map(|index| self.servers[index].name.clone());
            return self.fail(format!(
                "two servers received the stream {token}: {names:?}"
            ));
        }
        client.peer = Some(server_index);
        let ends = (client.local, client.remote);
        let party = &mut self.servers[server_index];
        if party.told.is_some_and(|told| told != ends) {
            let told = party.told;
            return self.fail(format!(
                "the PROXY header before the stream {token} tells of {told:?}, not of {ends:?}"
            ));
        }
        party.peer = Some(client_index);
        party.prefix = prefix;
        party.replaced = replaced;
        self.prove(server);
        self.prove(Role::Client(client_index));
    }

    /// The end of the other's stream was read: all of it must have been, and there is only one.
    pub(crate) fn ended(&mut self, role: Role) {
        if core::mem::replace(&mut self.party_mut(role).eof, true) {
            return self.fail(format!("{role:?} read the end of its stream twice"));
        }
        let Some(peer) = self.peer(role) else { return };
        let expected = self.expected_len(role, peer);
        let (party, other) = (self.party(role), self.party(peer));
        if !other.closed || party.received.len() != expected {
            let (got, closed) = (party.received.len(), other.closed);
            self.fail(format!(
                "{role:?} read an end of stream after {got} bytes; {peer:?} sent {expected} so far \
                 (closed: {closed})"
            ));
        }
    }

    /// Bytes that `role` receives if it receives all that `peer` has sent so far.
    pub(crate) fn expected_len(&self, role: Role, peer: Role) -> usize {
        let sent = self.party(peer).sent.len();
        match role {
            Role::Client(_) => sent,
            Role::Server(index) => {
                let server = &self.servers[index];
                (sent + server.prefix).saturating_sub(server.replaced)
            }
        }
    }

    fn prove(&mut self, role: Role) {
        let party = self.party(role);
        let (from, to) = (party.proved, party.received.len());
        if party.peer.is_none() {
            return;
        }
        if let Err(what) = self.compare(role, from, &party.received[from..]) {
            return self.fail(what);
        }
        self.party_mut(role).proved = to;
    }

    /// Compares bytes that arrive at position `from` of the stream to `role` with what the other
    /// end sent there. Nothing to say before the two are bound.
    pub(crate) fn compare(&self, role: Role, from: usize, bytes: &[u8]) -> Result<(), String> {
        let Some(peer) = self.peer(role) else {
            return Ok(());
        };
        let (party, sent) = (self.party(role), &self.party(peer).sent);
        let own = party.prefix.saturating_sub(from).min(bytes.len());
        if own > 0 {
            // The application checked the prefix where it read it; packets must repeat it.
            let known = party.received.get(from..).unwrap_or(&[]);
            let known = &known[..known.len().min(own)];
            if known != &bytes[..known.len()] {
                return Err(format!(
                    "{role:?}: the prefix at {from} changes from packet to packet"
                ));
            }
        }
        let bytes = &bytes[own..];
        let at = (from + own).saturating_sub(party.prefix) + party.replaced;
        let Some(expected) = sent.get(at..at + bytes.len()) else {
            return Err(format!(
                "{role:?} receives {} bytes at {from}, but {peer:?} sent only {}",
                bytes.len(),
                sent.len()
            ));
        };
        match bytes
            .iter()
            .zip(expected)
            .position(|(got, sent)| got != sent)
        {
            None => Ok(()),
            Some(first) => Err(format!(
                "{role:?} receives another byte at {} of its stream than {peer:?} sent",
                from + own + first
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Ledger, Role, Role) {
        let mut ledger = Ledger::default();
        let end = Endpoint::default();
        let client = ledger.open_client(7, end, end);
        let server = ledger.open_server("one", end, end);
        ledger.party_mut(client).sent = b"GET / and a body".to_vec();
        (ledger, client, server)
    }

    #[test]
    fn equal_streams_pass_and_a_prefix_is_left_out() {
        let (mut ledger, client, server) = pair();
        ledger.heard(server, b"PROXY GET / a");
        ledger.bind(server, 7, 6, 0);
        ledger.heard(server, b"nd a body");
        ledger.party_mut(client).closed = true;
        ledger.ended(server);
        assert_eq!(ledger.failure, None);
        assert_eq!(ledger.compare(server, 6, b"GET"), Ok(()));
        assert_eq!(ledger.compare(server, 4, b"Y GE"), Ok(()));
        assert!(ledger.compare(server, 4, b"YGET").is_err());
    }

    #[test]
    fn a_wrong_byte_an_early_end_and_a_second_server_fail() {
        let (mut ledger, _, server) = pair();
        ledger.heard(server, b"GET / xnd");
        ledger.bind(server, 7, 0, 0);
        assert!(ledger.failure.unwrap().contains("another byte at 6"));

        let (mut ledger, client, server) = pair();
        ledger.bind(server, 7, 0, 0);
        ledger.heard(server, b"GET / and");
        ledger.party_mut(client).closed = true;
        ledger.ended(server);
        assert!(ledger.failure.unwrap().contains("after 9 bytes"));

        let (mut ledger, _, server) = pair();
        ledger.bind(server, 7, 0, 0);
        let second = ledger.open_server("two", Endpoint::default(), Endpoint::default());
        ledger.bind(second, 7, 0, 0);
        assert!(ledger.failure.unwrap().contains("two servers"));
    }

    #[test]
    fn a_proxy_header_that_tells_of_another_client_fails() {
        let end = |port| Endpoint {
            port,
            ..Endpoint::default()
        };
        for (told, fails) in [(1, false), (2, true)] {
            let mut ledger = Ledger::default();
            ledger.open_client(7, end(1), end(80));
            ledger.open_client(8, end(2), end(80));
            let server = ledger.open_server("one", end(81), end(9));
            ledger.party_mut(server).told = Some((end(told), end(80)));
            ledger.bind(server, 7, 0, 0);
            assert_eq!(ledger.failure.is_some(), fails, "{:?}", ledger.failure);
        }
    }

    #[test]
    fn a_rewritten_head_stands_for_the_bytes_it_replaced() {
        let (mut ledger, _, server) = pair();
        ledger.heard(server, b"get it / and a body");
        ledger.bind(server, 7, 9, 6);
        assert_eq!(ledger.failure, None);
        assert_eq!(ledger.expected_len(server, Role::Client(0)), 19);
    }
}
