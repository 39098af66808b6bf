//! Tagged frames at XDP: what is in them is handled as if it had come in by the VLAN's interface,
//! and leaves with the tag of the VLAN that it leaves by.

use fairlead_base::Packet;
use fairlead_bpf_loader::{Exit, Fate, Kernel, Mode, Tag, Vlan};
use fairlead_netns::Host;

use super::ways::{Packets, with_open_checksum, with_packets};
use super::{frame_of, interface_index, run};

/// The clients' VLAN, on the wire `w`.
const FRONT: Tag = Tag {
    protocol: 0x8100,
    vlan: 5,
};
/// The servers', there too.
const BACK: Tag = Tag {
    protocol: 0x88a8,
    vlan: 4_095,
};
/// A priority of a tag, and the bit for frames that may be dropped.
const PRIORITY: u16 = 0xb000;

fn with_tag(frame: &[u8], tag: Tag, priority: u16) -> Vec<u8> {
    let [protocol, number] = [tag.protocol, tag.vlan | priority].map(u16::to_be_bytes);
    [&frame[..12], &protocol, &number, &frame[12..]].concat()
}

/// What the program has to be told for the interfaces `c` and `s` to be VLANs' on a new one, whose
/// index this is.
fn on_a_wire(host: &Host, kernel: &mut Kernel, [front, back]: [Option<Tag>; 2]) -> u32 {
    let made = "link add w type veth peer name wx\nlink set w up\nlink set wx up\n";
    host.ip(made).unwrap();
    let device = interface_index(c"w");
    let both = [(c"c", front), (c"s", back)];
    let both = both.map(|(name, tag)| (interface_index(name), tag));
    let exits = both.map(|(interface, tag)| Exit {
        interface,
        device: if tag.is_some() { device } else { interface },
        tag,
        buffers: false,
    });
    kernel.set_exits(&exits).unwrap();
    let vlans = both.iter().filter_map(|&(interface, tag)| {
        let tag = tag?;
        Some(Vlan {
            interface,
            device,
            tag,
        })
    });
    kernel.set_vlans(&vlans.collect::<Vec<_>>()).unwrap();
    device
}

/// What becomes of a client's packet with and without tags, which are `tags` of the clients' and of
/// the servers' VLAN.
fn leaves_as_others(host: &Host, kernel: &mut Kernel, client: u32, packets: &Packets) {
    let all = [
        [Some(FRONT), Some(BACK)],
        [Some(FRONT), None],
        [None, Some(BACK)],
    ];
    let sent = |kernel: &Kernel, frame: &[u8], interface| {
        let trial = kernel.try_frame(frame, interface, 1).unwrap();
        assert_eq!(trial.fate, Fate::Redirect);
        trial.frame
    };
    for tags @ [front, back] in all {
        for (packet, out) in [(&packets.data, back), (&packets.syn, front)] {
            let plain = frame_of(packet);
            // An answer to a handshake depends on the time.
            loop {
                on_a_wire_less(kernel, client);
                let expected = sent(kernel, &plain, client);
                let wire = on_a_wire(host, kernel, tags);
                let came = front.map(|tag| with_tag(&plain, tag, PRIORITY));
                let by = if front.is_some() { wire } else { client };
                let seen = sent(kernel, came.as_ref().unwrap_or(&plain), by);
                host.ip("link del w\n").unwrap();
                on_a_wire_less(kernel, client);
                if sent(kernel, &plain, client) == expected {
                    let tagged = out.map(|tag| with_tag(&expected, tag, 0));
                    assert_eq!(seen, tagged.unwrap_or(expected));
                    break;
                }
            }
        }
    }
}

/// As [`super::kernel`] leaves it: no VLANs.
fn on_a_wire_less(kernel: &mut Kernel, client: u32) {
    let exits = [client, interface_index(c"s")].map(|interface| Exit {
        interface,
        device: interface,
        tag: None,
        buffers: false,
    });
    kernel.set_exits(&exits).unwrap();
    kernel.set_vlans(&[]).unwrap();
}

#[test]
fn xdp_takes_tags_off_and_puts_tags_on() {
    run(|| with_packets(Mode::XdpNative, leaves_as_others));
}

/// Frames that the program sees, and leaves to others.
fn stays_as_it_was(host: &Host, kernel: &mut Kernel, client: u32, packets: &Packets) {
    let wire = on_a_wire(host, kernel, [Some(FRONT), Some(BACK)]);
    let left = |packet: &Packet, tag: Tag, by: u32, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = with_tag(&frame_of(packet), tag, PRIORITY);
        change(&mut frame);
        let before = kernel.counters().unwrap().to_engine;
        let trial = kernel.try_frame(&frame, by, 1).unwrap();
        assert_eq!((trial.fate, &trial.frame), (Fate::Pass, &frame));
        kernel.counters().unwrap().to_engine - before
    };
    for packet in packets.each() {
        assert_eq!(left(&with_open_checksum(packet), FRONT, wire, &|_| {}), 1);
        let other = Tag { vlan: 6, ..FRONT };
        assert_eq!(left(packet, other, wire, &|_| {}), 0, "another VLAN");
        let other = Tag {
            protocol: 0x88a8,
            ..FRONT
        };
        assert_eq!(left(packet, other, wire, &|_| {}), 0, "and by its kind");
        assert_eq!(left(packet, FRONT, client, &|_| {}), 0, "on another wire");
        let elsewhere = |frame: &mut Vec<u8>| frame[5] ^= 1;
        assert_eq!(left(packet, FRONT, wire, &elsewhere), 0, "for another host");
        let twice = |frame: &mut Vec<u8>| *frame = with_tag(frame, FRONT, 0);
        assert_eq!(left(packet, FRONT, wire, &twice), 0, "two tags");
        let ends = |frame: &mut Vec<u8>| frame.truncate(18);
        assert_eq!(
            left(packet, FRONT, wire, &ends),
            0,
            "nothing behind the tag"
        );
        // Without a tag they are the wire's own.
        let bare = |frame: &mut Vec<u8>| drop(frame.drain(12..16));
        assert_eq!(left(packet, FRONT, wire, &bare), 0, "no tag");
    }
}

#[test]
fn xdp_gives_tags_back_with_what_it_leaves() {
    run(|| with_packets(Mode::XdpNative, stays_as_it_was));
}
