//! Options of SYNs that no usual stack sends: what is answered is what the engine would have read.

use fairlead_base::{Packet, Rng};
use fairlead_bpf_loader::{Fate, Mode};
use fairlead_tcp::{CookieKey, ListenOffer, Promise, SynOffload};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{SynOptions, TcpFlags};

use super::{COOKIE, OFFER, endpoints, frame_of, kernel, monotonic_now, on_a_switch, run};

/// Options in groups of four bytes, in any order, any of them more than once, with any value.
fn some_list(rng: &mut Rng) -> Vec<u8> {
    let mut list = Vec::new();
    while list.len() < 40 && !rng.chance(200_000) {
        let [a, b, ..] = (rng.next_u64() as u32).to_be_bytes();
        let odd = [0, 1, 255][rng.below(3) as usize];
        match rng.below(12) {
            0..3 => list.extend([2, 4, a, b]),
            3 => list.extend([2, 4, 0, odd]),
            4 | 5 => list.extend([1, 3, 3, a % 15]),
            6 => list.extend([1, 3, 3, [15, 200, 255][rng.below(3) as usize]]),
            7 => list.extend([1, 1, 4, 2]),
            8 | 9 if list.len() <= 28 => {
                list.extend([[4, 2, 8, 10], [1, 1, 8, 10]][rng.below(2) as usize]);
                list.extend(rng.next_u64().to_be_bytes());
            }
            10 => list.extend([4, 2, 0, 0]),
            _ => list.extend([[1, 1, 1, 1], [1, 1, 3, 3], [34, 4, 7, 7]][rng.below(3) as usize]),
        }
    }
    list.truncate(40);
    list
}

fn lists_are_read_alike(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(19);
        let (kernel, mut table) = kernel(mode, 0);
        let listen = endpoints().listens[0];
        table.set_offer(listen, &ListenOffer { listen: 0, ..OFFER });
        let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
        let mut answered = 0;
        for _ in 0..2_000 {
            let list = some_list(&mut rng);
            let marks = [TcpFlags::NONE, TcpFlags::ECE | TcpFlags::CWR][rng.below(2) as usize];
            let syn = segment(endpoint("10.1.0.9:41000"), listen)
                .seq(rng.next_u64() as u32)
                .flags(TcpFlags::SYN | marks)
                .ttl(1 + rng.below(3) as u8)
                .options(&list)
                .packet();
            let trial = kernel.try_frame(&frame_of(&syn), interface, 1).unwrap();
            if trial.fate == Fate::Pass {
                assert_eq!(trial.frame, frame_of(&syn), "left as it was");
                continue;
            }
            assert_eq!(trial.fate, Fate::Redirect, "{list:?}");
            answered += 1;
            let header = tcp(&syn);
            let asked =
                SynOptions::parse(header.options(&syn.bytes)).expect("a list that is whole");
            let answer = Packet::from_bytes(&trial.frame[14..]);
            let told = tcp(&answer);
            assert!(told.checksum_valid(&answer.bytes), "{list:?}");
            assert_eq!(told.flags, TcpFlags::SYN | TcpFlags::ACK, "{list:?}");
            let promise = cookies.check(&header.key, header.seq, monotonic_now(), told.seq);
            let expected = Promise {
                mss: Promise::mss_class(asked.mss),
                window_scale: asked.window_scale,
                sack: asked.sack_permitted,
                scale_parity: true,
            };
            assert_eq!(promise, Some(expected), "{list:?}");
            let given = SynOptions::parse(told.options(&answer.bytes)).unwrap();
            assert_eq!(
                given.window_scale,
                asked.window_scale.map(|_| 7),
                "{list:?}"
            );
            assert_eq!(given.sack_permitted, asked.sack_permitted, "{list:?}");
            let echo = given.timestamps.map(|one| one.echo);
            assert_eq!(echo, asked.timestamps.map(|one| one.value), "{list:?}");
        }
        assert!(answered > 500, "{answered}");
    });
}

#[test]
fn tc_reads_options_of_syns_as_the_engine_does() {
    run(|| lists_are_read_alike(Mode::Tc));
}

#[test]
fn xdp_reads_options_of_syns_as_the_engine_does() {
    run(|| lists_are_read_alike(Mode::XdpNative));
}
