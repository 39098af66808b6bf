//! What a hashing pool looks at to send a client to the same server again.

use std::borrow::Cow;

use fairlead_base::Address;

use crate::config::HashOn;
use crate::routes::Subject;

/// The bytes to be hashed, borrowed from the request where they stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity<'a> {
    /// The client's address, 16 bytes in either family.
    Client(Address),
    /// The value of a header or a cookie.
    Value(Cow<'a, [u8]>),
}

impl Affinity<'_> {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Client(address) => &address.0,
            Self::Value(bytes) => bytes,
        }
    }
}

/// What `hash_on` names in `subject`, or the address of the client where that is missing or empty:
/// otherwise all who have none would meet on one server.
pub fn affinity<'a>(hash_on: &HashOn, subject: &Subject<'a>, client: Address) -> Affinity<'a> {
    let value = match hash_on {
        HashOn::ClientAddress => None,
        HashOn::Header(name) => subject.http().and_then(|head| head.joined(name)),
        HashOn::Cookie(name) => subject
            .http()
            .and_then(|head| head.cookie(name))
            .map(|value| Cow::Borrowed(value.as_bytes())),
    };
    match value {
        Some(bytes) if !bytes.is_empty() => Affinity::Value(bytes),
        _ => Affinity::Client(client),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_wire::http::{HeadScanner, Scan};

    use super::super::tests::{POOL, V4, at, config};
    use super::super::{Backends, ServerId};
    use super::*;
    use crate::config::Balance;

    const CLIENT: Address = Address([7; 16]);

    fn chosen(hash_on: &HashOn, request: &str) -> Vec<u8> {
        match HeadScanner::default().scan(request.as_bytes()) {
            Scan::Complete(head) => affinity(hash_on, &Subject::Http(&head), CLIENT)
                .as_bytes()
                .to_vec(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_header_or_cookie_named_or_else_the_clients_address() {
        let request =
            "GET / HTTP/1.1\r\nHost: a\r\nX-User: eve\r\nX-None:\r\nCookie: id=42; no=\r\n\r\n";
        for (hash_on, wanted) in [
            (HashOn::ClientAddress, &CLIENT.0[..]),
            (HashOn::Header("x-user".into()), b"eve"),
            (HashOn::Header("absent".into()), &CLIENT.0),
            (HashOn::Header("x-none".into()), &CLIENT.0),
            (HashOn::Cookie("id".into()), b"42"),
            (HashOn::Cookie("ID".into()), &CLIENT.0),
            (HashOn::Cookie("no".into()), &CLIENT.0),
        ] {
            assert_eq!(chosen(&hash_on, request), wanted, "{hash_on:?}");
            let client = Affinity::Client(CLIENT);
            assert_eq!(
                affinity(&hash_on, &Subject::Tcp, CLIENT),
                client,
                "{hash_on:?}"
            );
        }
    }

    #[test]
    fn lines_of_one_header_are_hashed_as_the_list_that_they_form() {
        let hash_on = HashOn::Header("x-user".into());
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nX-User: eve\r\nX-User: bob\r\n\r\n";
        let list = "GET / HTTP/1.1\r\nHost: a\r\nx-user: eve, bob\r\n\r\n";
        assert_eq!(chosen(&hash_on, lines), b"eve, bob");
        assert_eq!(chosen(&hash_on, list), b"eve, bob");
    }

    #[test]
    fn a_client_comes_back_to_its_server_and_clients_are_spread() {
        let config = config(&[
            (Balance::Maglev(HashOn::ClientAddress), &[1; 8]),
            (Balance::RoundRobin, &[1]),
        ]);
        let mut backends = Backends::new(&config, 2).unwrap();
        let mut seen = [0u32; 8];
        for host in 0..=255 {
            let client = Address::v4([192, 0, 2, host]);
            let hash = backends.hash_for(POOL, &Subject::Tcp, client);
            let ServerId(first) = backends.pick(POOL, hash, V4, &[], at(0)).unwrap();
            let again = backends.hash_for(POOL, &Subject::Tcp, client);
            assert_eq!(
                backends.pick(POOL, again, V4, &[], at(9)),
                Some(ServerId(first))
            );
            seen[usize::from(first)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 10), "{seen:?}");
        let not_hashing = config.pools.len() as u16 - 1;
        let pool = crate::config::PoolId(not_hashing);
        assert_eq!(backends.hash_for(pool, &Subject::Tcp, CLIENT), 0);
    }
}
