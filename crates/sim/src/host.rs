//! A host: a smoltcp stack with its sockets, the applications on them, and its door to the link.

use core::cell::Cell;
use core::net::IpAddr;
use std::collections::VecDeque;

use fairlead_base::{Address, Endpoint, Instant};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::AnySocket as _;
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{HardwareAddress, IpCidr, IpEndpoint, IpListenEndpoint};

use crate::app::{ClientApp, ClientPlan, Line, Manner, ServerApp, ServerPlan, sooner};
use crate::net::segment::{ACK, SYN};
use crate::net::{LinkPlan, QuirkState, Quirks, Segment, TooBig};
use crate::oracle::{Ledger, Role, Taps};

/// A host and its link.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Its name in traces.
    pub name: String,
    /// Its addresses, both families in one list, at most 8.
    pub addrs: Vec<Address>,
    /// The longest packet its own link carries.
    pub mtu: usize,
    /// What lies between it and the switch.
    pub link: LinkPlan,
    /// How its stack differs from smoltcp's.
    pub quirks: Quirks,
    /// Timestamps (RFC 7323): its clock's value at the start of the world, or none.
    pub timestamps: Option<u32>,
    /// What it serves.
    pub servers: Vec<ServerPlan>,
}

thread_local! {
    /// smoltcp asks a plain function for timestamp values: the host that is being served sets this.
    static TIMESTAMP: Cell<u32> = const { Cell::new(0) };
}

fn timestamp() -> u32 {
    TIMESTAMP.get()
}

/// A host at work.
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    seed: u64,
    generation: u64,
    path_mtu: usize,
    port: Port,
    iface: Interface,
    sockets: SocketSet<'static>,
    quirks: QuirkState,
    listeners: Vec<Listener>,
    calls: Vec<Call>,
    next_port: u16,
    /// When it wants to be served without a packet.
    pub(crate) wake: Option<Instant>,
    /// Clients whose connections are gone, with their numbers.
    pub(crate) finished: Vec<(usize, Role, ClientApp)>,
}

struct Listener {
    plan: ServerPlan,
    /// Sockets without a connection yet, and whether they have seen a SYN.
    waiting: Vec<(SocketHandle, bool)>,
}

struct Call {
    handle: SocketHandle,
    role: Role,
    app: App,
    wake: Option<Instant>,
}

enum App {
    Client(usize, Box<ClientApp>),
    Server(Box<ServerApp>),
}

/// Listening sockets kept ready: smoltcp has no backlog.
const LISTENING: usize = 2;
/// Rounds of serving at one instant before the host is called stuck.
const ROUNDS_MAX: u32 = 2_000;
const MTU_V4_MIN: usize = 576;
const MTU_V6_MIN: usize = 1_280;
const FIRST_PORT: u16 = 40_000;

impl Host {
    pub(crate) fn new(plan: HostPlan, seed: u64, now: Instant) -> Self {
        let mut port = Port {
            mtu: plan.mtu,
            arrived: VecDeque::new(),
            left: Vec::new(),
        };
        let iface = interface(&plan.addrs, &mut port, seed, now);
        let listeners = plan
            .servers
            .iter()
            .filter(|server| server.manner != Manner::Refusing)
            .map(|server| Listener {
                plan: server.clone(),
                waiting: Vec::new(),
            })
            .collect();
        Self {
            path_mtu: plan.mtu,
            quirks: QuirkState::new(plan.quirks, plan.mtu),
            plan,
            seed,
            generation: 0,
            port,
            iface,
            sockets: SocketSet::new(Vec::new()),
            listeners,
            calls: Vec::new(),
            next_port: FIRST_PORT,
            wake: Some(now),
            finished: Vec::new(),
        }
    }

    /// Connections that are not gone yet.
    pub(crate) fn busy(&self) -> usize {
        self.calls.len()
    }

    /// What its connections are doing, for a failure's report.
    pub(crate) fn describe(&self) -> Vec<String> {
        let describe = |call: &Call| {
            let socket = self.sockets.get::<tcp::Socket<'_>>(call.handle);
            format!(
                "{} {:?} {:?} {} <> {:?} unsent {} unread {}",
                self.plan.name,
                call.role,
                socket.state(),
                socket
                    .local_endpoint()
                    .map_or_else(String::new, |end| end.to_string()),
                socket.remote_endpoint().map(|end| end.to_string()),
                socket.send_queue(),
                socket.recv_queue(),
            )
        };
        self.calls.iter().map(describe).collect()
    }

    /// Opens a client's connection.
    pub(crate) fn connect(
        &mut self,
        number: usize,
        mut plan: ClientPlan,
        now: Instant,
        ledger: &mut Ledger,
    ) {
        let family = plan.target.addr.is_v4();
        let addr = self
            .plan
            .addrs
            .iter()
            .copied()
            .find(|addr| addr.is_v4() == family);
        let Some(addr) = addr else {
            return ledger.fail(format!("{} has no address to connect from", self.plan.name));
        };
        let port = plan.port.unwrap_or_else(|| {
            let port = self.next_port;
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            port
        });
        plan.port = Some(port);
        let local = Endpoint { addr, port };
        let generator: Option<fn() -> u32> = self.plan.timestamps.map(|_| timestamp as fn() -> u32);
        let mut socket = plan.socket.socket(generator);
        let context = self.iface.context();
        if let Err(problem) = socket.connect(context, ip(plan.target), ip(local)) {
            return ledger.fail(format!("{}: {problem:?}", self.plan.name));
        }
        let role = ledger.open_client(plan.token, local, plan.target);
        let handle = self.sockets.add(socket);
        let app = App::Client(number, Box::new(ClientApp::new(plan, now)));
        self.calls.push(Call {
            handle,
            role,
            app,
            wake: None,
        });
    }

    /// A server's process ends: nobody listens any more, and its connections are reset.
    pub(crate) fn end_server(&mut self, endpoint: Endpoint, ledger: &mut Ledger) {
        for listener in &mut self.listeners {
            if listener.plan.endpoint == endpoint {
                for (handle, _) in listener.waiting.drain(..) {
                    self.sockets.remove(handle);
                }
            }
        }
        self.listeners
            .retain(|listener| listener.plan.endpoint != endpoint);
        for call in &mut self.calls {
            if let App::Server(server) = &mut call.app
                && ledger.party(call.role).local == endpoint
            {
                self.sockets.get_mut::<tcp::Socket<'_>>(call.handle).abort();
                ledger.party_mut(call.role).aborted = true;
                ledger.party_mut(call.role).cut_short = true;
                server.done = true;
            }
        }
    }

    /// A packet from the link.
    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        mut bytes: Vec<u8>,
        ledger: &mut Ledger,
        taps: &mut Taps,
    ) {
        if let Ok(Some(message)) = TooBig::read(&bytes) {
            return self.hear_too_big(now, message, ledger, taps);
        }
        if let Err(what) = taps.arriving(&bytes, ledger) {
            ledger.fail(format!("{} receives {what}", self.plan.name));
        }
        if self.is_silent(&bytes)
            || self.knows_already(&bytes, ledger)
            || !self.quirks.arriving(&mut bytes)
        {
            return;
        }
        self.port.arrived.push_back(bytes);
    }

    /// True for a SYN of a connection that is already there. smoltcp would hand it to any listening
    /// socket and answer with a second sequence number. A connection in TIME_WAIT makes room
    /// (RFC 9293, section 3.10.7.4, RFC 6191).
    fn knows_already(&mut self, bytes: &[u8], ledger: &mut Ledger) -> bool {
        let Ok(segment) = Segment::read(bytes) else {
            return false;
        };
        if !segment.has(SYN) || segment.has(ACK) {
            return false;
        }
        let ends = (Some(ip(segment.dst)), Some(ip(segment.src)));
        let known = self.sockets.iter().find_map(|(handle, socket)| {
            let socket = tcp::Socket::downcast(socket)?;
            let theirs = (socket.local_endpoint(), socket.remote_endpoint());
            (theirs == ends).then(|| (handle, socket.state()))
        });
        let Some((handle, state)) = known else {
            return false;
        };
        let call = self.calls.iter().position(|call| call.handle == handle);
        match (state, call) {
            (State::TimeWait, Some(call)) => {
                let call = self.calls.swap_remove(call);
                self.sockets.remove(handle);
                ledger.party_mut(call.role).over = true;
                false
            }
            _ => true,
        }
    }

    fn is_silent(&self, bytes: &[u8]) -> bool {
        let Ok(segment) = Segment::read(bytes) else {
            return false;
        };
        self.plan
            .servers
            .iter()
            .any(|server| server.endpoint == segment.dst && server.manner == Manner::Silent)
    }

    /// RFC 1191 and RFC 8201: believes the message if it quotes what this host sent, and sends
    /// shorter packets from now on. smoltcp takes the new length from a new interface.
    fn hear_too_big(&mut self, now: Instant, message: TooBig, ledger: &mut Ledger, taps: &Taps) {
        let known = taps
            .flow(message.src, message.dst)
            .is_some_and(|flow| flow.sent(message.seq));
        if !known {
            // RFC 5927, section 4.1: an error about what was never sent is a stranger's.
            if taps
                .flow(message.src, message.dst)
                .is_some_and(|flow| flow.is_far(message.seq))
            {
                return;
            }
            return ledger.fail(format!(
                "{} received \"too big\" about a packet it never sent: {message:?}",
                self.plan.name
            ));
        }
        let least = if message.src.addr.is_v4() {
            MTU_V4_MIN
        } else {
            MTU_V6_MIN
        };
        let mtu = message.mtu.max(least);
        if mtu < self.path_mtu {
            self.path_mtu = mtu;
            self.port.mtu = mtu;
            self.generation += 1;
            let seed = self
                .seed
                .wrapping_add(self.generation.wrapping_mul(0x9E37_79B9));
            self.iface = interface(&self.plan.addrs, &mut self.port, seed, now);
        }
    }

    /// Lets stack and applications do all they can; returns what leaves.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        ledger: &mut Ledger,
        taps: &mut Taps,
    ) -> Vec<Vec<u8>> {
        let offset = self.plan.timestamps.unwrap_or(0);
        TIMESTAMP.set(offset.wrapping_add(now.as_millis() as u32));
        for round in 0.. {
            self.iface
                .poll(time(now), &mut self.port, &mut self.sockets);
            let mut touched = self.accept(ledger);
            touched |= self.talk(now, ledger, taps);
            self.sweep(ledger);
            if !touched {
                break;
            }
            if round > ROUNDS_MAX {
                ledger.fail(format!("{} does not come to rest", self.plan.name));
                break;
            }
        }
        let stack = self.iface.poll_at(time(now), &self.sockets);
        let stack = stack.map(|at| Instant::from_micros(at.total_micros().max(0) as u64));
        self.wake = self
            .calls
            .iter()
            .fold(stack, |wake, call| sooner(wake, call.wake));
        let mut left = core::mem::take(&mut self.port.left);
        for bytes in &mut left {
            self.quirks.leaving(bytes);
            if let Err(what) = taps.leaving(bytes) {
                ledger.fail(format!("{}: {what}", self.plan.name));
            }
        }
        left
    }

    /// Takes connections from listening sockets and replaces those.
    fn accept(&mut self, ledger: &mut Ledger) -> bool {
        let mut touched = false;
        for listener in &mut self.listeners {
            let mut at = 0;
            while at < listener.waiting.len() {
                let (handle, seen_syn) = listener.waiting[at];
                let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
                match socket.state() {
                    State::Listen if !seen_syn => at += 1,
                    State::SynReceived => {
                        listener.waiting[at].1 = true;
                        at += 1;
                    }
                    // A socket that fell back to listening has forgotten some of its options.
                    State::Listen | State::Closed => {
                        self.sockets.remove(handle);
                        listener.waiting.swap_remove(at);
                    }
                    _ => {
                        let ends = socket.local_endpoint().zip(socket.remote_endpoint());
                        listener.waiting.swap_remove(at);
                        let Some((local, remote)) = ends else {
                            continue;
                        };
                        let name = &listener.plan.name;
                        let role = ledger.open_server(name, our(local), our(remote));
                        let app = App::Server(Box::new(ServerApp::new(listener.plan.clone())));
                        self.calls.push(Call {
                            handle,
                            role,
                            app,
                            wake: None,
                        });
                        touched = true;
                    }
                }
            }
            let ready = listener
                .waiting
                .iter()
                .filter(|(_, seen_syn)| !seen_syn)
                .count();
            for _ in ready..LISTENING {
                let generator: Option<fn() -> u32> =
                    self.plan.timestamps.map(|_| timestamp as fn() -> u32);
                let mut socket = listener.plan.socket.socket(generator);
                let end = ip(listener.plan.endpoint);
                let end = IpListenEndpoint {
                    addr: Some(end.addr),
                    port: end.port,
                };
                if let Err(problem) = socket.listen(end) {
                    ledger.fail(format!("{}: {problem:?}", self.plan.name));
                }
                listener.waiting.push((self.sockets.add(socket), false));
            }
        }
        touched
    }

    fn talk(&mut self, now: Instant, ledger: &mut Ledger, taps: &mut Taps) -> bool {
        let mut touched = false;
        for call in &mut self.calls {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(call.handle);
            let mut line = Line {
                now,
                role: call.role,
                socket,
                ledger,
                touched: false,
            };
            match &mut call.app {
                App::Client(_, client) => {
                    let party = line.ledger.party(call.role);
                    let flow = taps.flow(party.local, party.remote);
                    let reset_in = flow.is_some_and(|flow| flow.reset_in);
                    call.wake = client.poll(&mut line, reset_in);
                    touched |= line.touched;
                }
                App::Server(server) => {
                    call.wake = server.poll(&mut line);
                    touched |= line.touched;
                    if server.just_bound
                        && let Err(what) = taps.bound(call.role, ledger)
                    {
                        ledger.fail(what);
                    }
                }
            }
        }
        touched
    }

    /// Puts away connections that are gone.
    fn sweep(&mut self, ledger: &mut Ledger) {
        let mut at = 0;
        while at < self.calls.len() {
            let call = &self.calls[at];
            let socket = self.sockets.get::<tcp::Socket<'_>>(call.handle);
            let over = match &call.app {
                App::Client(_, client) => client.end.is_some(),
                App::Server(server) => server.done,
            };
            // An aborted socket keeps its tuple until its RST has left.
            if !over || socket.state() != State::Closed || socket.remote_endpoint().is_some() {
                at += 1;
                continue;
            }
            let call = self.calls.swap_remove(at);
            self.sockets.remove(call.handle);
            ledger.party_mut(call.role).over = true;
            if let App::Client(number, client) = call.app {
                self.finished.push((number, call.role, *client));
            }
        }
    }
}

/// A point in virtual time as smoltcp writes it.
fn time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1_000) as i64)
}

fn interface(addrs: &[Address], port: &mut Port, seed: u64, now: Instant) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut iface = Interface::new(config, port, time(now));
    iface.update_ip_addrs(|list| {
        for addr in addrs {
            let prefix = if addr.is_v4() { 32 } else { 128 };
            // The capacity is eight (a feature of the dependency); more are a mistake in a plan.
            let _ = list.push(IpCidr::new(addr.to_ip().into(), prefix));
        }
    });
    for addr in addrs {
        // There is one way out, and its address is never asked for: the medium is IP.
        let _ = match addr.to_ip() {
            IpAddr::V4(v4) => iface.routes_mut().add_default_ipv4_route(v4).is_ok(),
            IpAddr::V6(v6) => iface.routes_mut().add_default_ipv6_route(v6).is_ok(),
        };
    }
    iface
}

fn ip(endpoint: Endpoint) -> IpEndpoint {
    IpEndpoint {
        addr: endpoint.addr.to_ip().into(),
        port: endpoint.port,
    }
}

fn our(endpoint: IpEndpoint) -> Endpoint {
    Endpoint {
        addr: IpAddr::from(endpoint.addr).into(),
        port: endpoint.port,
    }
}

/// The device of a host's stack: what arrived and what leaves.
struct Port {
    mtu: usize,
    arrived: VecDeque<Vec<u8>>,
    left: Vec<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut Vec<Vec<u8>>);

impl Device for Port {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived, Leaving<'_>)> {
        let bytes = self.arrived.pop_front()?;
        Some((Arrived(bytes), Leaving(&mut self.left)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.left))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut bytes = vec![0; len];
        let result = write(&mut bytes);
        self.0.push(bytes);
        result
    }
}
