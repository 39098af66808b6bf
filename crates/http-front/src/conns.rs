//! The connections of a front, and the bytes in them.

use fairlead_base::Instant;

use crate::buffer::{Buffer, Stock};
use crate::client::Client;
use crate::server::Server;

/// A connection of a [`Front`](crate::Front).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Its place. Places are used again.
    pub index: u32,
    /// How often the place has been used.
    pub generation: u32,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    /// What was received.
    pub(crate) input: Buffer,
    /// Of the input, the bytes that go to the peer as they are.
    pub(crate) pass: usize,
    /// What goes out before bytes of the peer's input: heads, and answers of our own.
    pub(crate) out: Vec<u8>,
    /// What of it was sent.
    pub(crate) out_at: usize,
    /// The connection at the other end of a request.
    pub(crate) peer: Option<ConnId>,
    /// The other end sends nothing more.
    pub(crate) eof: bool,
    pub(crate) shut: Shut,
    /// It waits for room for what it has received.
    pub(crate) is_starved: bool,
    /// Nothing is read of it for the moment.
    pub(crate) is_held: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) side: Side,
}

/// The direction in which we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shut {
    Open,
    /// To be ended behind what there is to be sent.
    Wanted,
    Done,
}

/// Whose connection it is.
#[derive(Debug)]
pub(crate) enum Side {
    Client(Box<Client>),
    Server(Server),
}

impl Conn {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            input: Buffer::default(),
            pass: 0,
            out: Vec::new(),
            out_at: 0,
            peer: None,
            eof: false,
            shut: Shut::Open,
            is_starved: false,
            is_held: false,
            deadline: None,
            side,
        }
    }

    /// Nothing of our own waits to be sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out_at == self.out.len()
    }

    pub(crate) fn client(&mut self) -> Option<&mut Client> {
        match &mut self.side {
            Side::Client(client) => Some(client),
            Side::Server(_) => None,
        }
    }

    pub(crate) fn server(&mut self) -> Option<&mut Server> {
        match &mut self.side {
            Side::Server(server) => Some(server),
            Side::Client(_) => None,
        }
    }

    /// Drops the first bytes of the input, none of which goes to the peer.
    pub(crate) fn skip(&mut self, bytes: usize, stock: &mut Stock) {
        debug_assert_eq!(self.pass, 0, "bytes in front go to the peer");
        self.input.consume(bytes, stock);
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    conn: Option<Conn>,
}

impl Conns {
    pub(crate) fn add(&mut self, conn: Conn) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.conn = Some(conn);
        ConnId {
            index,
            generation: place.generation,
        }
    }

    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        let place = self.places.get_mut(id.index as usize)?;
        place
            .conn
            .as_mut()
            .filter(|_| place.generation == id.generation)
    }

    pub(crate) fn peek(&self, id: ConnId) -> Option<&Conn> {
        let place = self.places.get(id.index as usize)?;
        place
            .conn
            .as_ref()
            .filter(|_| place.generation == id.generation)
    }

    /// Two of them at once.
    pub(crate) fn pair(&mut self, one: ConnId, other: ConnId) -> Option<(&mut Conn, &mut Conn)> {
        let indices = [one.index as usize, other.index as usize];
        let [first, second] = self.places.get_disjoint_mut(indices).ok()?;
        let is_current =
            (first.generation, second.generation) == (one.generation, other.generation);
        first
            .conn
            .as_mut()
            .zip(second.conn.as_mut())
            .filter(|_| is_current)
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.get(id)?;
        self.free.push(id.index);
        self.places[id.index as usize].conn.take()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        (0..).zip(&self.places).filter_map(|(index, place)| {
            let id = ConnId {
                index,
                generation: place.generation,
            };
            Some((id, place.conn.as_ref()?))
        })
    }
}
