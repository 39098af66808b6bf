//! Things with numbers that are used again, and serial numbers that are not.

/// Names one thing of a slab for ever: place and serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket {
    pub(crate) place: u32,
    serial: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    most: u32,
}

impl<T> Slab<T> {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            most,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.most as usize
    }

    /// `None` if it is full.
    pub(crate) fn insert(&mut self, thing: T) -> Option<Ticket> {
        if let Some(place) = self.free.pop() {
            let (serial, there) = &mut self.places[place as usize];
            *there = Some(thing);
            return Some(Ticket {
                place,
                serial: *serial,
            });
        }
        if self.is_full() {
            return None;
        }
        let place = self.places.len() as u32;
        self.places.push((0, Some(thing)));
        Some(Ticket { place, serial: 0 })
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&T> {
        let (serial, thing) = self.places.get(ticket.place as usize)?;
        thing.as_ref().filter(|_| *serial == ticket.serial)
    }

    pub(crate) fn named_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        let (serial, thing) = self.places.get_mut(ticket.place as usize)?;
        thing.as_mut().filter(|_| *serial == ticket.serial)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let (serial, thing) = self.places.get_mut(ticket.place as usize)?;
        if *serial != ticket.serial {
            return None;
        }
        let thing = thing.take()?;
        *serial = serial.wrapping_add(1);
        self.free.push(ticket.place);
        Some(thing)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let places = self.places.iter_mut().zip(0..);
        places.filter_map(|((_, thing), place)| Some((place, thing.as_mut()?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &T)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(place, (serial, thing))| {
                let ticket = Ticket {
                    place: place as u32,
                    serial: *serial,
                };
                Some((ticket, thing.as_ref()?))
            })
    }
}
