//! What one step of a script means.

use core::time::Duration;

use fairlead_base::{Checksum, Endpoint, Gso, Packet};
use fairlead_testkit::{Segment, endpoint, segment};
use fairlead_wire::{Classified, IcmpKind, SynOptions, TcpFlags, Timestamps, build, classify};

use super::settings::LISTENS;
use super::texts;
use super::world::{World, is_damaged};
use crate::novelty::note;
use crate::script::Script;
use crate::targets::repair;

/// Steps as they are written, for chance to put together: low four bits what, high four bits who.
pub(super) const TOKENS: &[&[u8]] = &[
    // Every probe is answered by a Linux-like server.
    &[ANSWER_ALL, 1],
    // A client connects, says all of a text, and a server takes it.
    &[WHOLE, 0, 0, 0, 1],
    &[WHOLE | 0x10, 1, 1, 0, 1],
    &[WHOLE | 0x20, 2, 2, 0, 0],
    &[WHOLE | 0x30, 3, 10, 0, 1],
    &[WHOLE | 0x40, 4, 0, 0, 1],
    &[WHOLE | 0x80, 0, 0, 0, 1],
    &[WHOLE | 0x90, 1, 0, 0, 1],
    // Both sides close.
    &[CLOSE, 0],
    &[CLOSE, 1],
    &[WAIT, 1],
    &[WAIT, 4],
    &[WAIT, 7],
    &[BATCH, 3],
    &[CLIENT, 255, 0, 4, 200, 200],
    &[CLIENT, 180, 255, 0, 200, 200],
    &[SERVER, 255, 20, 200, 200],
    &[SERVER, 170, 0, 200, 200],
    &[SERVER, 190, 0, 200, 200],
    &[OFFLOAD, 2],
    &[ICMP, 0, 0, 255],
];

const CONNECT: u8 = 0;
const CLIENT: u8 = 1;
const SERVER: u8 = 2;
const ANSWER: u8 = 3;
const ANSWER_ALL: u8 = 4;
const WHOLE: u8 = 5;
const CLOSE: u8 = 6;
const WAIT: u8 = 7;
const ICMP: u8 = 8;
const RAW: u8 = 9;
const AGAIN: u8 = 10;
const BATCH: u8 = 11;
const OFFLOAD: u8 = 12;
const DAMAGE: u8 = 13;
const STOP: u8 = 14;

/// Does one step.
pub(super) fn act(world: &mut World, script: &mut Script<'_>) {
    let step = script.u8();
    let who = usize::from(step >> 4);
    note("datapath.step", u64::from(step & 15));
    match step & 15 {
        CONNECT => connect(world, script, who),
        CLIENT => client_says(world, script, who),
        SERVER => server_says(world, script, who),
        ANSWER => answer(world, script, who),
        ANSWER_ALL => answer_all(world, script),
        WHOLE => whole(world, script, who),
        CLOSE => close(world, script, who),
        WAIT => wait(world, script),
        ICMP => icmp(world, script, who),
        RAW => raw(world, script),
        AGAIN => again(world, script, who),
        BATCH => world.batch = 1 + script.below(40),
        OFFLOAD => offload(world, script, who),
        DAMAGE => damage(world, script, who),
        STOP => stop(world, script),
        _ => {
            let packet = client_packet(world, script, who);
            world.feed(packet.packet());
        }
    }
}

/// A number near a valid one, mostly the valid one itself.
fn near(script: &mut Script<'_>, valid: u32) -> u32 {
    let off = match script.u8() {
        0 => 1,
        1 => u32::MAX,
        2 => u32::from(script.u8()),
        3 => u32::from(script.u8()).wrapping_neg(),
        4 => 1 << 31,
        5 => 65_535,
        6 => 1 << 24,
        7 => (1u32 << 24).wrapping_neg(),
        8 => 1 << 30,
        9 => return script.u32(),
        10 => u32::from(script.u16()),
        11 => u32::from(script.u16()).wrapping_neg(),
        _ => 0,
    };
    valid.wrapping_add(off)
}

fn flags(script: &mut Script<'_>) -> TcpFlags {
    match script.u8() {
        0..160 => TcpFlags::ACK,
        160..180 => TcpFlags::FIN | TcpFlags::ACK,
        180..190 => TcpFlags::RST,
        190..200 => TcpFlags::RST | TcpFlags::ACK,
        200..206 => TcpFlags::SYN,
        206..210 => TcpFlags::SYN | TcpFlags::ACK,
        210..214 => TcpFlags::FIN | TcpFlags::PSH,
        214..220 => TcpFlags(script.u8()),
        _ => TcpFlags::ACK | TcpFlags::PSH,
    }
}

fn syn_options(which: u8) -> SynOptions {
    let stamps = Some(Timestamps {
        value: 0xffff_fff0,
        echo: 0,
    });
    let linux = SynOptions {
        mss: Some(1_460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: stamps,
    };
    match which % 8 {
        0 => SynOptions::default(),
        2 => SynOptions {
            window_scale: None,
            ..linux
        },
        3 => SynOptions {
            timestamps: None,
            ..linux
        },
        4 => SynOptions {
            mss: Some(64),
            sack_permitted: false,
            ..linux
        },
        5 => SynOptions {
            window_scale: Some(14),
            mss: Some(65_535),
            ..linux
        },
        _ => linux,
    }
}

fn with_stamps(packet: Segment, stamps: Option<Timestamps>) -> Segment {
    match stamps {
        Some(stamps) => packet.timestamps(stamps.value, stamps.echo),
        None => packet,
    }
}

/// A listening endpoint of the client's family.
fn listen(world: &World, who: usize, which: u8) -> Endpoint {
    let v4 = world.clients[who].endpoint.addr.is_v4();
    let range = if v4 { 0..5 } else { 5..7 };
    let texts = &LISTENS[range];
    endpoint(texts[usize::from(which) % texts.len()])
}

/// A client sends a SYN: which listening endpoint, options, initial number.
fn connect(world: &mut World, script: &mut Script<'_>, who: usize) {
    let who = who % world.clients.len();
    let listen = listen(world, who, script.u8());
    let options = syn_options(script.u8());
    let isn = match script.u8() {
        0..200 => 1_000 * (1 + who as u32),
        200..230 => u32::MAX - 20,
        _ => script.u32(),
    };
    begin(world, who, listen, &options, isn);
}

fn begin(world: &mut World, who: usize, listen: Endpoint, options: &SynOptions, isn: u32) {
    let client = &mut world.clients[who];
    client.listen = listen;
    client.isn = isn;
    client.nxt = isn.wrapping_add(1);
    client.said = 0;
    client.stamps = options.timestamps;
    let syn = segment(client.endpoint, listen)
        .flags(TcpFlags::SYN)
        .seq(isn)
        .syn_options(options);
    world.feed(syn.packet());
}

/// A segment of a client: flags, what it says, how much, and how far its numbers are off.
fn client_packet(world: &mut World, script: &mut Script<'_>, who: usize) -> Segment {
    let who = who % world.clients.len();
    let flags = flags(script);
    let choice = script.u8();
    let count = usize::from(script.u8());
    let client = &mut world.clients[who];
    let mut noise = Vec::new();
    let payload: &[u8] = match choice {
        // Go on with the text.
        0..128 => texts::text(client.text)
            .get(client.said..)
            .unwrap_or_default(),
        128..160 => {
            client.text = usize::from(choice) % texts::COUNT;
            client.said = 0;
            texts::text(client.text)
        }
        160..200 => script.take(count),
        200..240 => {
            noise.resize(count * 8, choice);
            &noise
        }
        _ => &[],
    };
    let payload = &payload[..payload.len().min(if choice < 160 && count > 0 {
        count
    } else {
        usize::MAX
    })];
    let off = near(script, 0);
    let seq = client.nxt.wrapping_add(off);
    let ack = near(script, client.expects);
    if off == 0 {
        client.said += payload.len();
        let fin = u32::from(flags.contains(TcpFlags::FIN));
        client.nxt = client.nxt.wrapping_add(payload.len() as u32 + fin);
    }
    if let Some(stamps) = &mut client.stamps {
        stamps.value = stamps.value.wrapping_add(1);
    }
    let packet = segment(client.endpoint, client.listen)
        .flags(flags)
        .seq(seq)
        .ack(ack)
        .payload(payload);
    with_stamps(packet, client.stamps)
}

fn client_says(world: &mut World, script: &mut Script<'_>, who: usize) {
    let packet = client_packet(world, script, who);
    world.feed(packet.packet());
}

/// The server side that a step means, the newest first; `None` before there is one.
fn leg(world: &World, who: usize) -> Option<usize> {
    let count = world.legs.len();
    (count > 0).then(|| count - 1 - who % count)
}

/// A segment of a server: flags, how much it says, and how far its numbers are off.
fn server_says(world: &mut World, script: &mut Script<'_>, who: usize) {
    let flags = flags(script);
    let payload = vec![b's'; usize::from(script.u8())];
    let Some(at) = leg(world, who) else { return };
    let leg = &mut world.legs[at];
    let off = near(script, 0);
    let seq = leg.nxt.wrapping_add(off);
    let ack = near(script, leg.expects);
    if off == 0 {
        let fin = u32::from(flags.contains(TcpFlags::FIN));
        leg.nxt = leg.nxt.wrapping_add(payload.len() as u32 + fin);
    }
    if let Some(stamps) = &mut leg.stamps {
        stamps.value = stamps.value.wrapping_add(1);
    }
    let packet = segment(leg.server, leg.source)
        .flags(flags)
        .seq(seq)
        .ack(ack)
        .payload(payload);
    let packet = with_stamps(packet, leg.stamps);
    world.feed(packet.packet());
}

/// A server answers a SYN: how, and with which options.
fn answer(world: &mut World, script: &mut Script<'_>, who: usize) {
    let (how, options) = (script.u8(), script.u8());
    let Some(at) = leg(world, who) else { return };
    let ack = near(script, world.legs[at].their_isn.wrapping_add(1));
    let flags = match how {
        0..200 => TcpFlags::SYN | TcpFlags::ACK,
        200..230 => TcpFlags::RST | TcpFlags::ACK,
        230..240 => TcpFlags::ACK,
        _ => TcpFlags::SYN,
    };
    answer_leg(world, at, flags, options, ack);
}

fn answer_leg(world: &mut World, at: usize, flags: TcpFlags, options: u8, ack: u32) {
    let leg = &mut world.legs[at];
    let mut options = syn_options(options);
    // A server that was not asked for timestamps does not send them.
    options.timestamps = options.timestamps.and(leg.stamps);
    if flags.contains(TcpFlags::SYN) {
        leg.isn = 0xffff_ffc0;
        leg.nxt = leg.isn.wrapping_add(1);
        leg.stamps = options.timestamps;
    }
    let packet = segment(leg.server, leg.source)
        .flags(flags)
        .seq(leg.isn)
        .ack(ack)
        .window(if options.window_scale.is_some() {
            500
        } else {
            4_000
        })
        .syn_options(&options);
    world.feed(packet.packet());
}

/// Every server side answers as if it had just been sent a SYN.
fn answer_all(world: &mut World, script: &mut Script<'_>) {
    let options = script.u8();
    world.run_timeouts();
    for at in 0..world.legs.len() {
        let Some(leg) = world.legs.get(at) else {
            return;
        };
        let ack = leg.their_isn.wrapping_add(1);
        answer_leg(world, at, TcpFlags::SYN | TcpFlags::ACK, options, ack);
    }
}

/// A client connects, says all of a text, and the server that is chosen answers.
fn whole(world: &mut World, script: &mut Script<'_>, who: usize) {
    let who = who % world.clients.len();
    let listen = listen(world, who, script.u8());
    let text = script.below(texts::COUNT);
    let (client_options, server_options) = (script.u8(), script.u8());
    let isn = world.clients[who].nxt.wrapping_add(70_000);
    begin(
        world,
        who,
        listen,
        &syn_options(client_options.wrapping_add(1)),
        isn,
    );
    world.flush();
    let client = &mut world.clients[who];
    client.text = text;
    let payload = texts::text(text);
    client.said = payload.len();
    let packet = segment(client.endpoint, client.listen)
        .flags(TcpFlags::ACK | TcpFlags::PSH)
        .seq(client.nxt)
        .ack(client.expects)
        .payload(payload);
    client.nxt = client.nxt.wrapping_add(payload.len() as u32);
    let packet = with_stamps(packet, client.stamps);
    world.feed(packet.packet());
    world.flush();
    if let Some(at) = leg(world, 0) {
        let ack = world.legs[at].their_isn.wrapping_add(1);
        answer_leg(
            world,
            at,
            TcpFlags::SYN | TcpFlags::ACK,
            server_options,
            ack,
        );
    }
}

/// Both sides of the newest connection close, as far as the script lets them: bits for the
/// server's acknowledgement of the preamble, each FIN and each acknowledgement of it.
fn close(world: &mut World, script: &mut Script<'_>, who: usize) {
    let leave_out = script.u8();
    let who = who % world.clients.len();
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    for (step, flags) in [
        (0, TcpFlags::ACK),
        (1, fin),
        (2, TcpFlags::ACK),
        (3, fin),
        (4, TcpFlags::ACK),
    ] {
        if leave_out & 1 << step != 0 {
            continue;
        }
        if step % 2 == 1 && step == 1 || step == 4 {
            let client = &mut world.clients[who];
            let packet = segment(client.endpoint, client.listen)
                .flags(flags)
                .seq(client.nxt)
                .ack(client.expects);
            client.nxt = client
                .nxt
                .wrapping_add(u32::from(flags.contains(TcpFlags::FIN)));
            let packet = with_stamps(packet, client.stamps);
            world.feed(packet.packet());
        } else if let Some(at) = leg(world, 0) {
            let leg = &mut world.legs[at];
            let packet = segment(leg.server, leg.source)
                .flags(flags)
                .seq(leg.nxt)
                .ack(leg.expects);
            leg.nxt = leg
                .nxt
                .wrapping_add(u32::from(flags.contains(TcpFlags::FIN)));
            let packet = with_stamps(packet, leg.stamps);
            world.feed(packet.packet());
        }
        world.flush();
    }
}

fn wait(world: &mut World, script: &mut Script<'_>) {
    let which = script.u8();
    let (millis, exactly) = match which % 10 {
        0 => (1, true),
        1 => (41, true),
        2 => (251, true),
        3 => (1_001, true),
        4 => (2_500, false),
        5 => (3_100, true),
        6 => (5_500, false),
        7 => (31_000, false),
        8 => (65_000, false),
        _ => (u64::from(script.u16()), false),
    };
    world.wait(Duration::from_millis(millis), exactly);
}

/// An ICMP error about a packet that left: which one, what kind, how much of it is quoted.
fn icmp(world: &mut World, script: &mut Script<'_>, who: usize) {
    let (kind, code, count) = (script.u8(), script.u8(), script.u8());
    let Some(quoted) = world.recent.iter().rev().nth(who) else {
        return;
    };
    let Ok(Classified::Tcp(header)) = classify(&quoted.bytes) else {
        return;
    };
    let cut = usize::from(count) * 4 + 20;
    let quote = &quoted.bytes[..cut.min(quoted.bytes.len())];
    let router = endpoint(if header.v4 {
        "198.51.100.9:0"
    } else {
        "[2001:db8:f::9]:0"
    })
    .addr;
    let mut bytes = Vec::new();
    // Errors come back to whoever sent the packet, or to someone else by mistake.
    let dst = if code == 77 {
        header.key.dst.addr
    } else {
        header.key.src.addr
    };
    match kind % 4 {
        0 => {
            let mtu = 68 * (1 + u32::from(code));
            build::emit_icmp_too_big(&router, &dst, mtu, quote, &mut bytes);
        }
        1 => build::emit_icmp_unreachable(&router, &dst, code % 16, quote, &mut bytes),
        2 => build::emit_icmp_echo_request(&router, &dst, 1, 2, quote, &mut bytes),
        _ => {
            build::emit_icmp_unreachable(&router, &dst, code, quote, &mut bytes);
            let at = if header.v4 { 20 } else { 40 };
            bytes[at] = code;
            repair::repair(&mut bytes, repair::UPPER_CHECKSUM);
        }
    }
    if let Ok(Classified::Icmp(message)) = classify(&bytes) {
        let big = matches!(message.kind, IcmpKind::PacketTooBig { .. });
        note(
            "datapath.icmp",
            u64::from(big) << 1 | u64::from(message.quote.is_some()),
        );
    }
    world.feed(Packet::from_bytes(&bytes));
}

/// Bytes of the script as a packet; the first says what is put right in it.
fn raw(world: &mut World, script: &mut Script<'_>) {
    let what = script.u8();
    let count = usize::from(script.u8());
    let mut bytes = script.take(count).to_vec();
    repair::repair(&mut bytes, what);
    world.feed(Packet::from_bytes(&bytes));
}

/// A packet that left comes (back) in: as it is, or turned round.
fn again(world: &mut World, script: &mut Script<'_>, who: usize) {
    let turned = script.flip();
    let Some(packet) = world.recent.iter().rev().nth(who) else {
        return;
    };
    let mut packet = packet.clone();
    if turned && let Ok(Classified::Tcp(header)) = classify(&packet.bytes) {
        let back = segment(header.key.dst, header.key.src)
            .flags(header.flags)
            .seq(header.ack.0)
            .ack(header.seq.0.wrapping_add(header.segment_len()))
            .options(header.options(&packet.bytes))
            .payload(header.payload(&packet.bytes));
        packet = back.packet();
    }
    world.feed(packet);
}

/// A client's segment as a virtual device hands it over.
fn offload(world: &mut World, script: &mut Script<'_>, who: usize) {
    let how = script.u8();
    let packet = client_packet(world, script, who);
    let packet = match how % 4 {
        0 => packet.partial(),
        1 | 2 => {
            let mut packet = packet.super_packet(u16::from(how).max(1));
            packet.gso = Some(Gso {
                segment_bytes: u16::from(how).max(1),
            });
            packet
        }
        _ => Packet {
            checksum: Checksum::Verified,
            ..packet.packet()
        },
    };
    world.feed(packet);
}

/// A client's segment with a bit turned over on its way.
fn damage(world: &mut World, script: &mut Script<'_>, who: usize) {
    let (at, bit) = (usize::from(script.u8()), script.u8() % 8);
    let mut packet = client_packet(world, script, who).packet();
    let len = packet.bytes.len();
    packet.bytes[at % len] ^= 1 << bit;
    if script.flip() {
        repair::repair(&mut packet.bytes, repair::IP_CHECKSUM);
    }
    note("datapath.damaged", u64::from(is_damaged(&packet)));
    world.feed(packet);
}

/// The operator stops the switch: rarely, for nothing comes after it.
fn stop(world: &mut World, script: &mut Script<'_>) {
    match (script.u8(), script.u8()) {
        (0xd0, _) => {
            let now = world.now;
            world.flush();
            world.datapath.drain(now);
        }
        (0xab, 0xab) => world.abort(),
        _ => {}
    }
}
