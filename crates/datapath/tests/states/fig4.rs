//! Every transition of the paper's Fig. 4, and those that it leaves out: a table of (state, event,
//! state), walked for either side.

use core::time::Duration;

use fairlead_datapath::{Side, State};
use fairlead_wire::TcpFlags;

use crate::rig::{Joined, REQUEST, Rig, http_config, linux, refusal, syn_ack};

/// What happens to a joined connection. `Near` is the side that closes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    NearData,
    FarData,
    NearFin,
    FarFin,
    /// The near side acknowledges all it has seen.
    NearAck,
    FarAck,
    NearRst,
    FarRst,
    /// A pure acknowledgement by the far side of less than all: a challenge after a RST.
    FarChallenge,
    IdleTimeout,
    HalfClosedTimeout,
    TwoMsl,
}

use Event::*;

const FREE: State = State::Free;

/// How each state is reached from SPLICED.
const PATHS: [(State, &[Event]); 7] = [
    (State::Spliced, &[]),
    (State::FinRelayed1, &[NearFin]),
    (State::AckRelayed1, &[NearFin, FarAck]),
    (State::FinRelayed2, &[NearFin, FarAck, FarFin]),
    // Both at once: no acknowledgement between the two FINs.
    (State::FinRelayed2, &[NearFin, FarFin]),
    (State::TimeWait, &[NearFin, FarAck, FarFin, NearAck]),
    (State::Reset, &[NearRst]),
];

/// What each event does, from the state that each path of [`PATHS`] leads to.
const TABLE: [(Event, [State; 7]); 12] = {
    use State::{
        AckRelayed1 as A1, FinRelayed1 as F1, FinRelayed2 as F2, Reset as R, Spliced as S,
        TimeWait as TW,
    };
    [
        //                   SPLICED F1  A1  F2  F2' TW    RESET
        (NearData, [S, F1, A1, F2, F2, TW, R]),
        (FarData, [S, F1, A1, F2, F2, TW, R]),
        (NearFin, [F1, F1, A1, F2, F2, TW, R]),
        (FarFin, [F1, F2, F2, F2, F2, TW, R]),
        (NearAck, [S, F1, A1, TW, F2, TW, R]),
        (FarAck, [S, A1, A1, F2, F2, TW, R]),
        (NearRst, [R, R, R, R, R, TW, R]),
        (FarRst, [R, R, R, R, R, TW, R]),
        (FarChallenge, [S, F1, A1, F2, F2, TW, R]),
        (IdleTimeout, [FREE, FREE, FREE, FREE, FREE, FREE, FREE]),
        (HalfClosedTimeout, [S, FREE, FREE, FREE, FREE, FREE, FREE]),
        (TwoMsl, [S, FREE, FREE, FREE, FREE, FREE, FREE]),
    ]
};

struct Walk {
    joined: Joined,
    near: Side,
    /// What each side has sent: a FIN counts once, and nothing comes behind it.
    closed: [bool; 2],
}

impl Walk {
    fn new(near: Side) -> Self {
        Self {
            joined: Joined::usual(),
            near,
            closed: [false; 2],
        }
    }

    fn fin(&mut self, side: Side) {
        let closed = &mut self.closed[usize::from(side != self.near)];
        let again = std::mem::replace(closed, true);
        let mut fin = self.joined.by(side).flags(TcpFlags::FIN | TcpFlags::ACK);
        if again {
            // A repetition of the FIN that was sent.
            let nxt = match side {
                Side::Client => self.joined.client_nxt,
                Side::Server => self.joined.server_nxt,
            };
            fin = fin.seq(nxt.wrapping_sub(1));
        } else {
            self.joined.advance(side, 1);
        }
        // Acknowledges nothing of the other side's FIN: that is another event.
        let others = self.closed[usize::from(side == self.near)];
        if others {
            fin = fin.ack(self.acked_by(side).wrapping_sub(1));
        }
        assert_eq!(self.joined.rig.put(&fin).len(), 1, "a FIN passes");
    }

    /// All that a side can acknowledge, in its own view.
    fn acked_by(&self, side: Side) -> u32 {
        match side {
            Side::Client => self.joined.seen_nxt,
            Side::Server => self.joined.client_nxt,
        }
    }

    fn data(&mut self, side: Side) {
        let closed = self.closed[usize::from(side != self.near)];
        let mut data = self.joined.by(side).payload(b"data");
        if closed {
            // A late copy of what came before the FIN.
            let nxt = match side {
                Side::Client => self.joined.client_nxt,
                Side::Server => self.joined.server_nxt,
            };
            data = data.seq(nxt.wrapping_sub(5));
        }
        // Acknowledges nothing new.
        data = data.ack(self.acked_by(side).wrapping_sub(1));
        assert_eq!(self.joined.rig.put(&data).len(), 1, "data passes");
    }

    fn step(&mut self, event: Event) {
        let far = self.near.other();
        let millis = |millis: u64| Duration::from_millis(millis);
        match event {
            NearData => self.data(self.near),
            FarData => self.data(far),
            NearFin => self.fin(self.near),
            FarFin => self.fin(far),
            NearAck => self.joined.acknowledge(self.near),
            FarAck => self.joined.acknowledge(far),
            NearRst | FarRst => {
                let side = if event == NearRst { self.near } else { far };
                let reset = self.joined.by(side).flags(TcpFlags::RST);
                self.joined.rig.put_one(&reset);
            }
            FarChallenge => {
                let less = self.acked_by(far).wrapping_sub(2);
                let challenge = self.joined.by(far).ack(less);
                self.joined.rig.put_one(&challenge);
            }
            IdleTimeout => drop(self.joined.rig.wait(millis(8_102_000))),
            HalfClosedTimeout | TwoMsl => drop(self.joined.rig.wait(millis(152_000))),
        }
    }
}

#[test]
fn every_event_in_every_joined_state_leads_where_the_diagram_says() {
    for near in [Side::Client, Side::Server] {
        for (event, outcomes) in TABLE {
            for ((state, path), outcome) in PATHS.into_iter().zip(outcomes) {
                let mut walk = Walk::new(near);
                for &step in path {
                    walk.step(step);
                }
                assert_eq!(walk.joined.state(), state, "{near:?}: {path:?}");
                walk.step(event);
                assert_eq!(
                    walk.joined.state(),
                    outcome,
                    "{near:?} first: {event:?} in {} by {path:?}",
                    state.name()
                );
                // Whatever happened: in the end nothing is left and everything ended once.
                walk.joined.rig.wait(Duration::from_secs(8_200));
                walk.joined.rig.assert_empty();
            }
        }
    }
}

/// The first half of the diagram: CLOSED to SPLICED, and the ways out of it.
#[test]
fn every_event_before_the_splice_leads_where_the_diagram_says() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    assert_eq!(rig.state(), None, "CLOSED");
    let opened = rig.open(1_000, &linux(5_000));
    assert_eq!(rig.state(), None, "SYN_RCVD has no record");
    rig.put(&opened.at(0));
    assert_eq!(rig.state(), None, "nor has the end of the handshake");
    rig.put(&opened.data(0, &REQUEST[..5]));
    assert_eq!(rig.state(), Some(State::Established));
    let syn = rig.put_one(&opened.data(5, &REQUEST[5..]));
    assert_eq!(rig.state(), Some(State::SynSent));
    rig.put(&syn_ack(&syn, 5, &linux(1)));
    assert_eq!(rig.state(), Some(State::Spliced));

    let mut rig = Rig::probed(http_config(), &linux(1));
    let (_, sent) = rig.request(1_000, REQUEST);
    rig.put(&refusal(&sent[0]));
    assert_eq!(rig.state(), Some(State::Answering), "no server is left");
    rig.wait(Duration::from_secs(60));
    assert_eq!(rig.state(), None);
    rig.assert_empty();
}

/// Every state has the name that the paper gives it.
#[test]
fn states_have_the_names_of_the_diagram() {
    let names = [
        (State::Free, "CLOSED"),
        (State::Established, "ESTABLISHED"),
        (State::SynSent, "SYN_SENT"),
        (State::Spliced, "SPLICED"),
        (State::FinRelayed1, "FIN_RELAYED1"),
        (State::AckRelayed1, "ACK_RELAYED1"),
        (State::FinRelayed2, "FIN_RELAYED2"),
        (State::TimeWait, "TIME_WAIT"),
    ];
    for (state, name) in names {
        assert_eq!(state.name(), name);
    }
}
