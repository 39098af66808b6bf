//! The card's process: programs connect to its Unix socket and hand their connections off.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fairlead_bpf_loader::Moving;
use fairlead_handoff::message::{Cause, Kind, Resource};
use fairlead_handoff::{Body, Cid, Command, MESSAGE_BYTES, Message, Op, Refusal};
use fairlead_netns::Namespace;
use fairlead_offload::layout::{FILES, LINES};
use fairlead_os_ring::{Hold, shared, token};
use fairlead_os_tcp::{pass, repair};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::counts::CardCounts;
use crate::guard::{Guard, Step};
use crate::moves::Mover;
use crate::orders::Orders;
use crate::owner::{Open, Owner};
use crate::routes::{Follower, is_reached};
use crate::setup::{HOLD, TO_HOST, mac_of, wire_of};

/// Programs at most.
const OWNERS: usize = 256;
/// Between two looks at whether the process is to stop.
const LOOK: Duration = Duration::from_millis(250);
/// How long programs have to take their connections back when the card stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a card is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the card's network namespace.
    pub card: String,
    /// Where programs connect.
    pub socket: PathBuf,
    /// Connections at most.
    pub connections: u32,
    /// Connections that moved no bytes for so long go back to their programs when room is scarce.
    pub idle: Duration,
    /// Where the operator's orders come; see [`crate::orders::orders_at`].
    pub orders: PathBuf,
    /// For tests: called at each step of a move.
    pub at_step: fn(Step),
}

/// Why a card does not serve.
#[derive(Debug)]
pub struct CardError {
    what: &'static str,
    why: String,
}

impl fmt::Display for CardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for CardError {}

fn failed<E: fmt::Display>(what: &'static str) -> impl FnOnce(E) -> CardError {
    move |why| CardError {
        what,
        why: why.to_string(),
    }
}

/// What an event is about; with an owner's and a line's number it is a [`Token`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Listener = 0,
    Control = 1,
    Doorbell = 2,
    Socket = 3,
    Token = 4,
    Orders = 5,
    Order = 6,
}

fn token_of(about: About, owner: usize, line: u32) -> Token {
    Token(about as usize | owner << 8 | (line as usize) << 24)
}

pub(crate) struct Card {
    poll: Poll,
    listener: OwnedFd,
    orders: Orders,
    pub(crate) owners: Vec<Option<Box<Owner>>>,
    mover: Mover,
    routes: Follower,
    pub(crate) most: u32,
    pub(crate) idle: Duration,
    /// Connections that have come, which gives them numbers.
    arrived: u32,
    /// When room is looked at next.
    pub(crate) relieved: Instant,
    pub(crate) counts: CardCounts,
}

/// Serves until `stop` says so; `ready` is called once programs can connect. Returns what was
/// counted.
///
/// # Errors
/// Why it cannot begin, or go on.
pub fn serve(
    settings: &Settings,
    ready: impl FnOnce(),
    mut stop: impl FnMut() -> bool,
) -> Result<CardCounts, CardError> {
    let mut card = Card::open(settings)?;
    ready();
    let mut events = Events::with_capacity(256);
    let mut until: Option<Instant> = None;
    loop {
        let due = until.is_some_and(|until| Instant::now() >= until || card.count() == 0);
        if due {
            break;
        }
        if until.is_none() && stop() {
            until = Some(Instant::now() + FAREWELL);
            card.ask_back();
        }
        let has_more = card.owners.iter().flatten().any(|owner| owner.has_more);
        let patience = if has_more { Duration::ZERO } else { LOOK };
        match card.poll.poll(&mut events, Some(patience)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other.map_err(failed("waiting for events"))?,
        }
        card.owners.iter().flatten().for_each(|owner| owner.wake());
        for event in &events {
            card.event(event);
        }
        card.round();
        card.follow();
    }
    let _ = std::fs::remove_file(&settings.socket);
    Ok(card.total())
}

impl Card {
    fn open(settings: &Settings) -> Result<Self, CardError> {
        let host = Namespace::own().map_err(failed("the host's network namespace"))?;
        let host_number = repair::own_namespace().map_err(failed("SO_NETNS_COOKIE"))?;
        let card = Namespace::named(&settings.card);
        let card = card.map_err(failed("the card's network namespace"))?;
        // From the host's namespace.
        let wire = wire_of(&settings.card).map_err(failed("the card's interface"))?;
        let routes = Follower::begin(&settings.card, &wire);
        let routes = routes.map_err(failed("following the host's routes"))?;
        let guard = Guard::begin().map_err(failed("the guard's process"))?;
        let moving = Moving::of(&settings.card).map_err(failed("the steering program's maps"))?;
        let _ = std::fs::remove_file(&settings.socket);
        let listener = pass::listen(&settings.socket).map_err(failed("the socket"))?;
        card.enter()
            .map_err(failed("entering the card's network namespace"))?;
        let mac = mac_of(TO_HOST).map_err(failed("the device to the host"))?;
        let hold = Hold::open(HOLD, TO_HOST, mac).map_err(failed("the device for held packets"))?;
        let poll = Poll::new().map_err(failed("epoll"))?;
        let waker = Waker::new(poll.registry(), token_of(About::Order, 0, 0));
        let waker = waker.map_err(failed("epoll"))?;
        let orders = Orders::listen(&settings.orders, waker);
        let orders = orders.map_err(failed("the socket for orders"))?;
        let this = Self {
            poll,
            listener,
            orders,
            owners: (0..OWNERS).map(|_| None).collect(),
            mover: Mover {
                moving,
                hold,
                host,
                card,
                host_number,
                held: 0,
                guard,
                at_step: settings.at_step,
            },
            routes,
            most: settings.connections,
            idle: settings.idle,
            arrived: 0,
            relieved: Instant::now(),
            counts: CardCounts::default(),
        };
        let files = [this.listener.as_fd(), this.orders.file()];
        for (file, about) in files.into_iter().zip([About::Listener, About::Orders]) {
            let about = token_of(about, 0, 0);
            this.watch(file, about, Interest::READABLE)
                .map_err(failed("epoll"))?;
        }
        Ok(this)
    }

    fn watch(&self, file: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        let number = file.as_raw_fd();
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&number), token, interest)
    }

    pub(crate) fn count(&self) -> usize {
        self.owners
            .iter()
            .flatten()
            .map(|owner| owner.count())
            .sum()
    }

    /// All counts, with those that others keep.
    pub(crate) fn total(&self) -> CardCounts {
        let mut counts = self.counts.clone();
        counts.held = self.mover.held;
        for owner in self.owners.iter().flatten() {
            owner.add_reasons(&mut counts.reasons);
        }
        counts
    }

    fn room(&self) -> u32 {
        self.most.saturating_sub(self.count() as u32)
    }

    /// Connections whose peers are not reached by this card any more go back.
    fn follow(&mut self) {
        self.counts.unfollowed = self.routes.failures();
        if !self.routes.has_changed() {
            return;
        }
        for owner in self.owners.iter_mut().flatten() {
            for line in 1..LINES {
                let open = owner.open(line);
                if open.is_some_and(|open| is_reached(&open.identity).is_err()) {
                    owner.want_back(line, Cause::Configuration, &mut self.counts);
                    self.counts.rerouted += 1;
                }
            }
        }
    }

    fn ask_back(&mut self) {
        for owner in self.owners.iter_mut().flatten() {
            owner.set_room(0);
            for number in 1..LINES {
                owner.want_back(number, Cause::Configuration, &mut self.counts);
            }
        }
        self.most = 0;
    }

    fn event(&mut self, event: &Event) {
        let Token(number) = event.token();
        let (about, owner, line) = (number & 0xff, number >> 8 & 0xffff, (number >> 24) as u32);
        if about == About::Listener as usize {
            return self.accept();
        }
        if about == About::Orders as usize {
            return self.orders.accept();
        }
        if about == About::Order as usize {
            return; // see `round`
        }
        let Some(mut one) = self.owners.get_mut(owner).and_then(Option::take) else {
            return;
        };
        let counts = &mut self.counts;
        let mut is_sound = true;
        if about == About::Control as usize {
            while is_sound && !one.has_left && self.control(&mut one, owner) {}
        } else if about == About::Doorbell as usize {
            one.doorbell.silence();
        } else if about == About::Socket as usize {
            if let Some(open) = one.open(line) {
                open.readable |= event.is_readable() || event.is_error();
                open.writable |= event.is_writable();
                open.is_ending |= event.is_read_closed() || event.is_error();
            }
            one.pump_in(line, counts);
            one.pump_out(line, counts);
        } else if event.is_read_closed() {
            // What the program wrote before it closed comes first.
            is_sound = one.commands(counts);
            one.hang_up(line, counts);
        }
        if !is_sound {
            one.leave(true, &mut self.counts);
        }
        self.owners[owner] = Some(one);
    }

    /// After all events: orders, commands of all programs; those that have nothing left are
    /// forgotten.
    fn round(&mut self) {
        while let Some(pending) = self.orders.next() {
            let document = self.obey(pending.order);
            pending.answer(document);
        }
        self.relieve();
        for place in &mut self.owners {
            let Some(owner) = place else { continue };
            if !owner.has_left && !owner.turn(&mut self.counts) {
                owner.leave(true, &mut self.counts);
            }
            if owner.has_left && owner.count() == 0 {
                owner.add_reasons(&mut self.counts.reasons);
                *place = None;
            }
        }
        let room = self.room();
        self.owners
            .iter()
            .flatten()
            .for_each(|owner| owner.set_room(room));
    }

    fn accept(&mut self) {
        while let Ok(Some((control, peer))) = pass::accept(self.listener.as_fd()) {
            let Some(place) = self.owners.iter().position(Option::is_none) else {
                continue; // closed: the program stays with the kernel
            };
            let made = Owner::new(control, peer.process).and_then(|owner| {
                owner.set_room(self.room());
                let level = u64::from(self.room());
                let resource = Resource::Lines;
                let hello = Command::OsResource { resource, level };
                let hello = Message::command(Cid(0), hello).encode();
                let both = [owner.memory.file(), owner.doorbell.as_fd()];
                pass::send(owner.control.as_fd(), &hello, &both)?;
                let about = |about| token_of(about, place, 0);
                self.watch(
                    owner.control.as_fd(),
                    about(About::Control),
                    Interest::READABLE,
                )?;
                self.watch(
                    owner.doorbell.as_fd(),
                    about(About::Doorbell),
                    Interest::READABLE,
                )?;
                Ok(owner)
            });
            if let Ok(owner) = made {
                self.owners[place] = Some(Box::new(owner));
            }
        }
    }

    /// Does what one message on the control socket says. False: no more are there.
    fn control(&mut self, owner: &mut Owner, place: usize) -> bool {
        let mut bytes = [0; MESSAGE_BYTES];
        let (got, descriptors) = match pass::receive(owner.control.as_fd(), &mut bytes) {
            Ok(None) => return false,
            Ok(Some((0, _))) | Err(_) => {
                owner.commands(&mut self.counts);
                owner.leave(false, &mut self.counts);
                return false;
            }
            Ok(Some(got)) => got,
        };
        let message = Message::decode(&bytes)
            .ok()
            .filter(|_| got == MESSAGE_BYTES);
        let Some(Message {
            cid,
            body: Body::Command(command),
        }) = message
        else {
            self.counts.commands.malformed();
            owner.leave(true, &mut self.counts);
            return false;
        };
        // In the order in which the program did it.
        if !owner.commands(&mut self.counts) {
            owner.leave(true, &mut self.counts);
            return false;
        }
        let op = command.op();
        self.counts.commands.command(op);
        let began = Instant::now();
        let outcome = match command {
            Command::Handoff {
                kind: Kind::Single, ..
            } => self
                .handoff(owner, place, descriptors)
                .map(|cid| (u64::from(cid.0), None)),
            Command::Restore { .. } => self
                .restore(owner, cid)
                .map(|socket| (u64::from(cid.0), Some(socket))),
            Command::Post { len, .. } => name_file(owner, len, descriptors).map(|()| (0, None)),
            _ => Err(Refusal::Unsupported),
        };
        self.note_time(op, began, outcome.is_ok());
        let (answer, socket) = match outcome {
            Ok((value, socket)) => (Message::done(cid, op, value), socket),
            Err(why) => {
                self.counts.commands.refusal(op, why);
                (Message::refused(cid, op, why), None)
            }
        };
        let beside: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        if pass::send(owner.control.as_fd(), &answer.encode(), &beside).is_err() {
            owner.leave(false, &mut self.counts);
        }
        if op == Op::Restore {
            self.mover.guard.settled();
        }
        true
    }

    fn note_time(&mut self, op: Op, began: Instant, done: bool) {
        let at = match op {
            Op::Handoff => 0,
            Op::Restore => 1,
            _ => return,
        };
        if done {
            let spent = began.elapsed().as_micros() as u64;
            self.counts.spent_us[at] += spent;
            self.counts.longest_us[at] = self.counts.longest_us[at].max(spent);
        }
    }

    fn handoff(
        &mut self,
        owner: &mut Owner,
        place: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Cid, Refusal> {
        let both: Result<[OwnedFd; 2], _> = descriptors.try_into();
        let [real, token] = both.map_err(|_| Refusal::Protocol)?;
        // This program is not among the others while it is at work.
        let count = self.count() + owner.count();
        let number = owner.free_line().filter(|_| count < self.most as usize);
        let number = number.ok_or(Refusal::TableFull)?;
        shared::never_wait(token.as_fd()).map_err(|_| Refusal::Protocol)?;
        let brought = self.mover.bring(real)?;
        self.arrived = self.arrived.wrapping_add(1);
        let mut open = Open::new(brought.socket, token, brought.identity, self.arrived);
        open._parked = brought.parked;
        owner.begin(number, open);
        let Some(open) = owner.open(number) else {
            return Err(Refusal::System);
        };
        let about = token_of(About::Socket, place, number);
        let both = Interest::READABLE | Interest::WRITABLE;
        let watched = self.watch(open.socket.as_fd(), about, both).and_then(|()| {
            let about = token_of(About::Token, place, number);
            self.watch(open.token.as_fd(), about, Interest::READABLE)
        });
        if watched.is_err() {
            owner.reset(number);
            return Err(Refusal::System);
        }
        owner.pump_in(number, &mut self.counts);
        Ok(owner.cid(number))
    }

    fn restore(&mut self, owner: &mut Owner, cid: Cid) -> Result<OwnedFd, Refusal> {
        let number = owner.find(cid).ok_or(Refusal::Gone)?;
        owner.pump_out(number, &mut self.counts);
        if let Some(open) = owner.open(number) {
            // Nothing more is to be seen of it.
            token::drain(open.token.as_fd());
        }
        self.mover.give_back(owner, number)
    }
}

/// A file gets a number, under which ranges of it are sent.
fn name_file(owner: &mut Owner, number: u16, descriptors: Vec<OwnedFd>) -> Result<(), Refusal> {
    let file: Result<[OwnedFd; 1], _> = descriptors.try_into();
    let [file] = file.map_err(|_| Refusal::Protocol)?;
    let file = std::fs::File::from(file);
    let is_regular = file.metadata().is_ok_and(|about| about.is_file());
    if number >= FILES || !is_regular {
        return Err(Refusal::Unsupported);
    }
    owner.files[usize::from(number)] = Some(file.into());
    Ok(())
}
