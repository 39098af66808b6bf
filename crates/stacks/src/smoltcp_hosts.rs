//! Two hosts of smoltcp, back to back: a message is sent by one and received by the other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use anyhow::{Result, ensure};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::socket::{AnySocket, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpEndpoint};

use crate::fairlead_packet::{begin, end};
use crate::{Amount, kinds};

const MTU: usize = 9000;
const BUFFER_BYTES: usize = 65_535;
/// Longer than an acknowledgement is delayed.
const PAUSE_MS: i64 = 20;
const TCP_PORT: u16 = 80;
const UDP_PORT: u16 = 53;
const CLIENT_PORT: u16 = 49_152;

/// Packets on their way, and buffers to be used again.
#[derive(Clone, Default)]
struct Line {
    packets: Rc<RefCell<VecDeque<Vec<u8>>>>,
    free: Rc<RefCell<Vec<Vec<u8>>>>,
}

struct Wire {
    receive: Line,
    send: Line,
    has_checksums: bool,
}

struct Received(Vec<u8>, Line);

struct ToSend(Line);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_it: F) -> R {
        let result = use_it(&self.0);
        self.1.free.borrow_mut().push(self.0);
        result
    }
}

impl TxToken for ToSend {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let free = self.0.free.borrow_mut().pop();
        let mut packet = free.unwrap_or_else(|| Vec::with_capacity(MTU));
        packet.clear();
        packet.resize(len, 0);
        let result = fill(&mut packet);
        self.0.packets.borrow_mut().push_back(packet);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = ToSend;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        if !self.has_checksums {
            let mut checksums = ChecksumCapabilities::ignored();
            checksums.ipv4 = Checksum::Both;
            capabilities.checksum = checksums;
        }
        capabilities
    }

    fn receive(&mut self, _now: Instant) -> Option<(Received, ToSend)> {
        let packet = self.receive.packets.borrow_mut().pop_front()?;
        let received = Received(packet, self.receive.clone());
        Some((received, ToSend(self.send.clone())))
    }

    fn transmit(&mut self, _now: Instant) -> Option<ToSend> {
        Some(ToSend(self.send.clone()))
    }
}

struct Host {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
}

impl Host {
    fn new(receive: &Line, send: &Line, last: u8, has_checksums: bool) -> Result<Self> {
        let (receive, send) = (receive.clone(), send.clone());
        let mut wire = Wire {
            receive,
            send,
            has_checksums,
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = 7;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        let address = IpCidr::new(IpAddress::v4(10, 0, 0, last), 24);
        let mut has_room = false;
        interface.update_ip_addrs(|all| has_room = all.push(address).is_ok());
        ensure!(has_room, "an interface takes an address");
        let sockets = SocketSet::new(Vec::new());
        Ok(Self {
            wire,
            interface,
            sockets,
        })
    }

    fn poll(&mut self, now_ms: i64) {
        let now = Instant::from_millis(now_ms);
        let _ = self.interface.poll(now, &mut self.wire, &mut self.sockets);
    }

    fn socket<S: AnySocket<'static>>(&mut self, handle: SocketHandle) -> &mut S {
        self.sockets.get_mut(handle)
    }
}

fn pair(has_checksums: bool) -> Result<(Host, Host)> {
    let free = Rc::default();
    let line = || Line {
        packets: Rc::default(),
        free: Rc::clone(&free),
    };
    let (there, back) = (line(), line());
    let client = Host::new(&back, &there, 1, has_checksums)?;
    let server = Host::new(&there, &back, 2, has_checksums)?;
    Ok((client, server))
}

fn server_at(port: u16) -> IpEndpoint {
    IpEndpoint::new(IpAddress::v4(10, 0, 0, 2), port)
}

/// Messages by TCP, one at a time; acknowledgements come between them.
pub(crate) fn tcp(amount: Amount, has_checksums: bool) -> Result<()> {
    let (mut client, mut server) = pair(has_checksums)?;
    let socket = || {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket
    };
    let (mut sender, mut receiver) = (socket(), socket());
    receiver.listen(TCP_PORT)?;
    sender.connect(client.interface.context(), server_at(TCP_PORT), CLIENT_PORT)?;
    let (from, to) = (client.sockets.add(sender), server.sockets.add(receiver));
    let mut now_ms = 0;
    for _ in 0..6 {
        now_ms += 1;
        client.poll(now_ms);
        server.poll(now_ms);
    }
    ensure!(
        server.socket::<tcp::Socket<'_>>(to).may_recv(),
        "no connection"
    );
    let message = vec![0x5a; amount.size];
    let mut buffer = vec![0; amount.size];
    for _ in 0..amount.packets {
        now_ms += 1;
        begin(kinds::TCP_SEND);
        let sent = client.socket::<tcp::Socket<'_>>(from).send_slice(&message);
        client.poll(now_ms);
        end(kinds::TCP_SEND);
        ensure!(sent? == amount.size, "the message does not fit");
        begin(kinds::TCP_RECEIVE);
        server.poll(now_ms);
        let got = server.socket::<tcp::Socket<'_>>(to).recv_slice(&mut buffer);
        end(kinds::TCP_RECEIVE);
        ensure!(got? == amount.size && buffer == message, "another message");
        for _ in 0..2 {
            now_ms += PAUSE_MS;
            server.poll(now_ms);
            client.poll(now_ms);
        }
    }
    Ok(())
}

/// Messages by UDP, one at a time.
pub(crate) fn udp(amount: Amount, has_checksums: bool) -> Result<()> {
    let (mut client, mut server) = pair(has_checksums)?;
    let socket = || {
        let metadata = || vec![udp::PacketMetadata::EMPTY; 8];
        let buffer = || udp::PacketBuffer::new(metadata(), vec![0; BUFFER_BYTES]);
        udp::Socket::new(buffer(), buffer())
    };
    let (mut sender, mut receiver) = (socket(), socket());
    sender.bind(CLIENT_PORT)?;
    receiver.bind(UDP_PORT)?;
    let (from, to) = (client.sockets.add(sender), server.sockets.add(receiver));
    let message = vec![0x5a; amount.size];
    let mut buffer = vec![0; amount.size];
    let mut now_ms = 0;
    for _ in 0..amount.packets {
        now_ms += 1;
        begin(kinds::UDP_SEND);
        let socket = client.socket::<udp::Socket<'_>>(from);
        let sent = socket.send_slice(&message, server_at(UDP_PORT));
        client.poll(now_ms);
        end(kinds::UDP_SEND);
        sent?;
        begin(kinds::UDP_RECEIVE);
        server.poll(now_ms);
        let got = server.socket::<udp::Socket<'_>>(to).recv_slice(&mut buffer);
        end(kinds::UDP_RECEIVE);
        ensure!(
            got?.0 == amount.size && buffer == message,
            "another message"
        );
    }
    Ok(())
}
