//! Connections that may sleep (`bpf/lib/sleep.h`): both programs against a twin in Rust, segment by
//! segment. Compared are what becomes of each segment, what is known of the connection, and what
//! user space is shown. Not here, as it needs a real socket: which request a socket leaves unread,
//! and where a watched connection begins.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlead_bpf_loader::{Gives, HostPrograms, ResponseSpan, Shown, What, has_host_function};
use fairlead_tcp::{HostTerms, Progress, Sleeper};

use super::*;

/// How long it may take until the end of a response is known.
const DOUBT: Duration = Duration::from_secs(1);
const CHUNKS_END: &[u8] = b"\r\n0\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Awake,
    Closing,
    InDoubt,
    Asleep,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    phase: Phase,
    since: std::time::Instant,
    rcv_nxt: u32,
    snd_nxt: u32,
    acked: u32,
    begins_at: u32,
    chunks_end: u32,
    /// Where what the client has sent since the last response begins.
    asked_at: Option<u32>,
}

#[derive(Clone, Debug)]
struct Segment {
    flags: TcpFlags,
    seq: u32,
    ack: u32,
    payload: Vec<u8>,
}

impl Segment {
    fn has(&self, flag: TcpFlags) -> bool {
        self.flags.contains(flag)
    }

    fn end(&self) -> u32 {
        self.seq.wrapping_add(self.payload.len() as u32)
    }
}

/// What is known of one client.
#[derive(Debug, Default)]
struct Twin {
    life: Option<Life>,
    response: Option<(u32, ResponseSpan)>,
    /// The numbers of the request that is kept.
    kept: Option<(u32, u32)>,
    shown: Vec<What>,
}

fn is_after(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

impl Twin {
    fn begin(&mut self, first: u32, progress: &Progress) {
        self.life = Some(Life {
            phase: Phase::Awake,
            since: std::time::Instant::now(),
            rcv_nxt: progress.client_nxt,
            snd_nxt: progress.server_nxt,
            acked: progress.server_nxt,
            begins_at: progress.server_nxt,
            chunks_end: progress.server_nxt,
            asked_at: Some(first),
        });
    }

    /// Whether the last response is whole, if that is known.
    fn is_whole(&self, life: &Life) -> Option<bool> {
        if life.begins_at == life.snd_nxt {
            return Some(true);
        }
        let (at, span) = self.response.filter(|(at, _)| *at == life.begins_at)?;
        Some(match span {
            ResponseSpan::Bytes(bytes) => at.wrapping_add(bytes) == life.snd_nxt,
            ResponseSpan::Chunks => life.chunks_end == life.snd_nxt,
            ResponseSpan::Endless => false,
        })
    }

    fn is_whole_by_now(&self, life: &Life) -> Option<bool> {
        let known = self.is_whole(life);
        known.or_else(|| (life.since.elapsed() > DOUBT).then_some(false))
    }

    fn fall_asleep(&mut self, life: &mut Life) {
        life.rcv_nxt = life.asked_at.take().unwrap_or(life.rcv_nxt);
        life.phase = Phase::Asleep;
        self.shown.push(What::Asleep);
    }

    fn hear_client(&mut self, segment: &Segment) -> Fate {
        let Some(mut life) = self.life else {
            return Fate::Pass;
        };
        if segment.has(TcpFlags::SYN) {
            self.life = None;
            return Fate::Pass;
        }
        let (fate, goes_on) = self.hear_living(&mut life, segment);
        self.life = goes_on.then_some(life);
        fate
    }

    /// False when it is known no more.
    fn hear_living(&mut self, life: &mut Life, segment: &Segment) -> (Fate, bool) {
        let reset = segment.has(TcpFlags::RST);
        let ends = matches!(life.phase, Phase::Closing | Phase::InDoubt);
        if ends && !reset && self.hear_at_end(life, segment) {
            return (Fate::Drop, true);
        }
        match life.phase {
            Phase::Over => return (Fate::Drop, true),
            Phase::Asleep if reset => return (Fate::Drop, segment.seq != life.rcv_nxt),
            Phase::Asleep => {
                let exact = segment.seq == life.rcv_nxt; // it may have fallen asleep just now
                let says_nothing = segment.payload.is_empty() && !segment.has(TcpFlags::FIN);
                return match says_nothing && exact {
                    true => (Fate::Drop, true),
                    false => (Fate::Redirect, true),
                };
            }
            Phase::Awake | Phase::Closing | Phase::InDoubt => {}
        }
        if reset {
            return (Fate::Pass, false);
        }
        if segment.has(TcpFlags::ACK) && is_after(segment.ack, life.acked) {
            life.acked = segment.ack;
        }
        if life.phase == Phase::Awake && !segment.payload.is_empty() {
            let again = segment.seq == life.asked_at.unwrap_or(life.rcv_nxt);
            if again {
                self.kept = Some((segment.seq, segment.end()));
            }
            if is_after(segment.end(), life.rcv_nxt) {
                life.asked_at.get_or_insert(life.rcv_nxt);
                life.rcv_nxt = segment.end();
            }
        }
        (Fate::Pass, true)
    }

    /// True where the socket must not have the segment.
    fn hear_at_end(&mut self, life: &mut Life, segment: &Segment) -> bool {
        let whole = match life.phase {
            Phase::InDoubt => self.is_whole_by_now(life),
            _ => Some(true),
        };
        if segment.has(TcpFlags::ACK) && segment.ack == life.snd_nxt {
            life.acked = segment.ack;
            if whole == Some(true) {
                self.fall_asleep(life);
                return false;
            }
        }
        if whole.is_some() || segment.payload.is_empty() {
            return false;
        }
        if segment.seq == life.rcv_nxt && life.asked_at.is_none() {
            self.kept = Some((segment.seq, segment.end()));
        }
        true
    }

    fn hear_socket(&mut self, segment: &Segment) -> Fate {
        let Some(mut life) = self.life else {
            return Fate::Pass;
        };
        if matches!(life.phase, Phase::Asleep | Phase::Over) {
            return Fate::Drop;
        }
        let fate = if segment.has(TcpFlags::RST) {
            self.hear_reset(&mut life)
        } else {
            self.hear_bytes(&mut life, segment);
            match segment.has(TcpFlags::FIN) {
                true => self.hear_fin(&mut life, segment),
                false => Fate::Pass,
            }
        };
        let ended = segment.has(TcpFlags::RST) || segment.has(TcpFlags::FIN);
        self.life = (fate == Fate::Drop || !ended).then_some(life);
        fate
    }

    fn hear_bytes(&mut self, life: &mut Life, segment: &Segment) {
        let payload = &segment.payload[..];
        if payload.is_empty() || !is_after(segment.end(), life.snd_nxt) {
            return;
        }
        if life.asked_at.is_some() && segment.seq == life.snd_nxt {
            life.asked_at = None;
            life.begins_at = segment.seq;
            self.shown.push(What::Response);
        }
        life.snd_nxt = segment.end();
        if payload.ends_with(CHUNKS_END) || payload == &CHUNKS_END[2..] {
            life.chunks_end = segment.end();
        }
    }

    fn hear_reset(&mut self, life: &mut Life) -> Fate {
        match life.phase {
            Phase::Closing => Fate::Drop,
            Phase::InDoubt => {
                let whole = self.is_whole_by_now(life);
                if whole == Some(true) && life.acked == life.snd_nxt {
                    self.fall_asleep(life);
                }
                match whole {
                    Some(false) => Fate::Pass,
                    _ => Fate::Drop,
                }
            }
            _ => Fate::Pass,
        }
    }

    fn hear_fin(&mut self, life: &mut Life, segment: &Segment) -> Fate {
        let heard = life.asked_at.unwrap_or(life.rcv_nxt);
        let at_end = segment.payload.is_empty() && segment.seq == life.snd_nxt;
        let whole = match at_end && segment.ack == heard {
            true => self.is_whole(life),
            false => Some(false),
        };
        match whole {
            None if life.phase != Phase::InDoubt => {
                life.phase = Phase::InDoubt;
                life.since = std::time::Instant::now();
                self.shown.push(What::InDoubt);
                Fate::Drop
            }
            Some(true) if life.acked == life.snd_nxt => {
                self.fall_asleep(life);
                Fate::Drop
            }
            Some(true) => {
                life.phase = Phase::Closing;
                Fate::Drop
            }
            _ => {
                self.response = None;
                Fate::Pass
            }
        }
    }

    /// What the kernel's maps must say.
    fn known(&self) -> Option<(bool, u32, u32)> {
        let life = self.life.filter(|life| life.phase != Phase::Over)?;
        Some((life.phase == Phase::Asleep, life.rcv_nxt, life.snd_nxt))
    }
}

/// A number that is mostly this one, and sometimes one near it.
fn near(rng: &mut Rng, number: u32) -> u32 {
    match rng.chance(150_000) {
        true => number.wrapping_add(rng.below(41)).wrapping_sub(20),
        false => number,
    }
}

fn by_client(rng: &mut Rng, life: &Life) -> Segment {
    let (mut flags, mut payload) = (TcpFlags::ACK, Vec::new());
    let mut seq = near(rng, life.rcv_nxt);
    match rng.below(24) {
        0..=9 => payload = vec![b'G'; 1 + rng.below(60) as usize],
        10 => seq = life.rcv_nxt.wrapping_sub(1),
        11 => flags |= TcpFlags::FIN,
        12 if rng.chance(300_000) => flags |= TcpFlags::RST,
        13 if rng.chance(100_000) => flags = TcpFlags::SYN,
        14 => seq = life.asked_at.unwrap_or(seq),
        _ => {}
    }
    let ack = match rng.chance(800_000) {
        true => near(rng, life.snd_nxt),
        false => life.acked,
    };
    Segment {
        flags,
        seq,
        ack,
        payload,
    }
}

fn by_socket(rng: &mut Rng, life: &Life) -> Segment {
    let (mut flags, mut payload) = (TcpFlags::ACK, Vec::new());
    match rng.below(16) {
        0..=8 => {
            payload = vec![b'x'; rng.below(50) as usize];
            let end = [&b""[..], CHUNKS_END, &CHUNKS_END[2..]][rng.below(3) as usize];
            payload.extend_from_slice(end);
        }
        9..=11 => flags |= TcpFlags::FIN,
        12 if rng.chance(300_000) => flags |= TcpFlags::RST,
        _ => {}
    }
    let heard = life.asked_at.unwrap_or(life.rcv_nxt);
    let ack = match rng.chance(700_000) {
        true => heard,
        false => near(rng, life.rcv_nxt),
    };
    Segment {
        flags,
        seq: near(rng, life.snd_nxt),
        ack,
        payload,
    }
}

/// What user space does of its own accord.
fn by_user(rng: &mut Rng, twin: &mut Twin, maps: (&mut Gives, &mut Shown), client: &FlowKey) {
    let (gives, shown) = maps;
    let Some(life) = &mut twin.life else {
        return;
    };
    if life.phase == Phase::Asleep {
        match rng.chance(200_000) {
            true => {
                gives.end(client);
                life.phase = Phase::Over;
            }
            false => {
                let next = life.rcv_nxt.wrapping_add(20);
                assert!(gives.wake(client, next, *b"GET ", Duration::ZERO));
                life.asked_at = Some(life.rcv_nxt);
                (life.begins_at, life.rcv_nxt) = (life.snd_nxt, next);
                life.phase = Phase::Awake;
            }
        }
        return;
    }
    let sent = life.snd_nxt.wrapping_sub(life.begins_at);
    let span = match rng.below(5) {
        0 => ResponseSpan::Chunks,
        1 => ResponseSpan::Endless,
        2 => ResponseSpan::Bytes(sent.wrapping_add(5)),
        _ => ResponseSpan::Bytes(sent),
    };
    shown.set(client, life.begins_at, span).unwrap();
    twin.response = Some((life.begins_at, span));
}

#[test]
fn programs_and_twin_agree_on_who_sleeps() {
    run(|| {
        if has_host_function() != Some(true) {
            return skip("sleeping", "this kernel makes no sockets of cookies");
        }
        on_a_switch(|_, interface| {
            for (client, listen) in [
                ("10.1.0.9:40000", "10.1.0.3:80"),
                ("[fd01::9]:40000", "[fd01::3]:80"),
            ] {
                agree(interface, (endpoint(client), endpoint(listen)));
            }
        });
    });
}

fn agree(interface: u32, (from, listen): (Endpoint, Endpoint)) {
    let (mut programs, mut gives, mut shown) = HostPrograms::load(None, 64).unwrap();
    programs.set_watched(BTreeSet::from([listen]));
    programs.set(&[], "s", &BTreeSet::new(), true).unwrap();
    let client = FlowKey {
        src: from,
        dst: listen,
    };
    let (mut rng, mut twin, mut seen) = (Rng::new(33), Twin::default(), [0_u32; 5]);
    for step in 0..40_000 {
        let Some(life) = twin.life.filter(|_| !rng.chance(2_000)) else {
            let first = rng.next_u64() as u32;
            let progress = Progress {
                client_nxt: first.wrapping_add(9),
                server_nxt: rng.next_u64() as u32,
                method: *b"GET ",
                sleep_max_s: 9,
            };
            assert!(gives.give(&client, &terms(listen, first), Some(&progress)));
            twin.begin(first, &progress);
            continue;
        };
        seen[life.phase as usize] += 1;
        let way = rng.below(5);
        let (segment, fate, expected) = match way {
            0 | 1 => {
                let segment = by_client(&mut rng, &life);
                let frame = frame(client.src, client.dst, &segment);
                let fate = programs.try_frame(&frame, interface, false).unwrap();
                let expected = twin.hear_client(&segment);
                (segment, fate, expected)
            }
            2 | 3 => {
                let segment = by_socket(&mut rng, &life);
                let frame = frame(client.dst, client.src, &segment);
                let fate = programs.try_frame(&frame, interface, true).unwrap();
                let expected = twin.hear_socket(&segment);
                (segment, fate, expected)
            }
            _ => {
                by_user(&mut rng, &mut twin, (&mut gives, &mut shown), &client);
                continue;
            }
        };
        let case = format!("step {step}, way {way}: {life:?} {segment:?} {twin:?}");
        assert_eq!(fate, expected, "{case}");
        let known = gives.sleeper(&client);
        let known = known.map(|one: Sleeper| (one.is_asleep, one.client_nxt, one.server_nxt));
        assert_eq!(known, twin.known(), "{case}");
        for what in twin.shown.drain(..) {
            let next = shown.next_with(|one| (one.client, one.what));
            assert_eq!(next, Some((client, what)), "{case}");
        }
        assert!(shown.next_with(|_| ()).is_none(), "{case}");
        if let (Some((true, at, _)), Some((begins, _))) = (known, twin.kept) {
            assert_eq!(gives.unread(&client).is_some(), at == begins, "{case}");
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

fn terms(listener: Endpoint, first: u32) -> HostTerms {
    HostTerms {
        listener,
        mss: 1_460,
        scales: Some((7, 7)),
        sack: true,
        timestamps: false,
        first,
        again: false,
    }
}

fn frame(from: Endpoint, to: Endpoint, of: &Segment) -> Vec<u8> {
    let packet = segment(from, to).seq(of.seq).ack(of.ack).flags(of.flags);
    frame_of(&packet.payload(&of.payload).packet())
}
