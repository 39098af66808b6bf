//! One packet through the loaded program without an interface (BPF_PROG_TEST_RUN): what tests of
//! the translation and measurements of its cost are made with.

use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, Xdp};
use fairlead_base::FlowKey;
use fairlead_tcp::Hit;

use crate::attach::{Mode, TC_PROGRAM, XDP_PROGRAM};
use crate::flow_table::FlowTableKind;
use crate::hits::HitMaps;
use crate::host::HostPrograms;
use crate::kernel::{Kernel, LoadError};
use crate::layout::{HIT_CLOSES, HIT_FIN_HEARD, HIT_FIN_SENT, HIT_GIVEN, RawFlowKey};

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// What the program wants done.
    pub fate: Fate,
    /// The frame as it then is.
    pub frame: Vec<u8>,
    /// Time per run, as the kernel measured it.
    pub each: Duration,
}

/// A verdict of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// To the stack.
    Pass,
    /// Nowhere.
    Drop,
    /// Out of an interface.
    Redirect,
    /// Another number.
    Other(u32),
}

/// Offset of `ifindex` in `struct __sk_buff` and the structure's part that is given.
const SK_BUFF: (usize, usize) = (40, 192);
/// Offsets in it of `gso_segs` and `gso_size`.
const SK_BUFF_SEGMENTS: (usize, usize) = (164, 176);
/// Offsets of `data_end` and `ingress_ifindex` in `struct xdp_md`, and its size.
const XDP_MD: (usize, usize, usize) = (4, 12, 24);
/// Room for what comes out.
const FRAME_BYTES_MAX: usize = 2_048;

impl Kernel {
    /// Runs the program `repeat` times on an Ethernet frame that came in on the interface with
    /// index `interface`, of this network namespace, on the processor that calls. Only the first
    /// run sees `frame` as it is.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_frame(&self, frame: &[u8], interface: u32, repeat: u32) -> Result<Trial, LoadError> {
        self.try_segments(frame, interface, repeat, (0, 0))
    }

    /// The same, once, with a super-packet of this many segments with so many bytes of data each;
    /// XDP knows none, and gets the frame.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_super_packet(
        &self,
        frame: &[u8],
        interface: u32,
        (segments, bytes): (u32, u32),
    ) -> Result<Trial, LoadError> {
        self.try_segments(frame, interface, 1, (segments, bytes))
    }

    fn try_segments(
        &self,
        frame: &[u8],
        interface: u32,
        repeat: u32,
        (segments, bytes): (u32, u32),
    ) -> Result<Trial, LoadError> {
        let mut out = vec![0; FRAME_BYTES_MAX];
        let mode = self.mode;
        let context = match mode {
            Mode::Tc => {
                let mut context = vec![0; SK_BUFF.1];
                let fields = [
                    (SK_BUFF.0, interface),
                    (SK_BUFF_SEGMENTS.0, segments),
                    (SK_BUFF_SEGMENTS.1, bytes),
                ];
                for (at, value) in fields {
                    context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                }
                context
            }
            Mode::XdpNative | Mode::XdpGeneric => {
                let mut context = vec![0; XDP_MD.2];
                let length = frame.len() as u32;
                context[XDP_MD.0..XDP_MD.0 + 4].copy_from_slice(&length.to_ne_bytes());
                context[XDP_MD.1..XDP_MD.1 + 4].copy_from_slice(&interface.to_ne_bytes());
                context
            }
        };
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            repeat,
            ..TestRunOptions::new()
        };
        let name = match mode {
            Mode::Tc => TC_PROGRAM,
            Mode::XdpNative | Mode::XdpGeneric => XDP_PROGRAM,
        };
        let program = self.ebpf.program(name).ok_or(LoadError::Missing(name))?;
        let result = match mode {
            Mode::Tc => <&SchedClassifier>::try_from(program)?.test_run(options)?,
            Mode::XdpNative | Mode::XdpGeneric => <&Xdp>::try_from(program)?.test_run(options)?,
        };
        out.truncate(result.data_size_out as usize);
        Ok(Trial {
            fate: fate(mode, result.return_value),
            frame: out,
            each: result.duration,
        })
    }
}

impl HostPrograms {
    /// Runs the program for what comes in on an interface once, and shows what the frame is then.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_answer(&self, frame: &[u8], interface: u32) -> Result<Trial, LoadError> {
        run_for_frame(self.at_interfaces(false)?, frame, interface)
    }

    /// Runs a program once on an Ethernet frame: one that came in on the interface with this index,
    /// of this network namespace, or (`leaves`) that a socket of this machine sends there.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_frame(&self, frame: &[u8], interface: u32, leaves: bool) -> Result<Fate, LoadError> {
        run_at_tc(self.at_interfaces(leaves)?, frame, interface)
    }
}

/// Runs a program of tc once on an Ethernet frame that came in on an interface.
pub(crate) fn run_at_tc(
    program: &SchedClassifier,
    frame: &[u8],
    interface: u32,
) -> Result<Fate, LoadError> {
    Ok(run_for_frame(program, frame, interface)?.fate)
}

fn run_for_frame(
    program: &SchedClassifier,
    frame: &[u8],
    interface: u32,
) -> Result<Trial, LoadError> {
    let mut context = vec![0; SK_BUFF.1];
    context[SK_BUFF.0..SK_BUFF.0 + 4].copy_from_slice(&interface.to_ne_bytes());
    let mut out = vec![0; FRAME_BYTES_MAX];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        repeat: 1,
        ..TestRunOptions::new()
    };
    let result = program.test_run(options)?;
    out.truncate(result.data_size_out as usize);
    Ok(Trial {
        fate: fate(Mode::Tc, result.return_value),
        frame: out,
        each: result.duration,
    })
}

fn fate(mode: Mode, value: u32) -> Fate {
    // TC_ACT_UNSPEC, TC_ACT_SHOT, TC_ACT_REDIRECT; XDP_PASS, XDP_DROP, XDP_REDIRECT.
    let (pass, drop, redirect) = match mode {
        Mode::Tc => (u32::MAX, 2, 7),
        Mode::XdpNative | Mode::XdpGeneric => (2, 1, 4),
    };
    match value {
        value if value == pass => Fate::Pass,
        value if value == drop => Fate::Drop,
        value if value == redirect => Fate::Redirect,
        value => Fate::Other(value),
    }
}

/// A program that passes every packet, at an interface for as long as this lives: what the far end
/// of a veth needs for XDP, and a stranger's program for tests.
pub struct PassProgram(#[expect(dead_code, reason = "kept for its end")] aya::Ebpf);

impl PassProgram {
    /// Attaches one for XDP, not in the driver, to an interface of this network namespace.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn attach(interface: &str) -> Result<Self, LoadError> {
        let object = crate::kernel::object(Mode::XdpGeneric, &FlowTableKind::Hash);
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let mut ebpf = aya::Ebpf::load(object)?;
        let name = "fairlead_pass";
        let program = ebpf.program_mut(name).ok_or(LoadError::Missing(name))?;
        let program: &mut aya::programs::Xdp = program.try_into()?;
        program.load()?;
        program.attach(interface, aya::programs::XdpMode::Skb)?;
        Ok(Self(ebpf))
    }
    /// Attaches one to what an interface of this network namespace sends: ours for tc, which passes
    /// every packet while it has no connections.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn attach_at_egress(interface: &str) -> Result<Self, LoadError> {
        let object = crate::kernel::object(Mode::Tc, &FlowTableKind::Hash);
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        // Needed by programs without links (before Linux 6.6); elsewhere it does no harm.
        let _ = aya::programs::tc::qdisc_add_clsact(interface);
        let mut ebpf = aya::Ebpf::load(object)?;
        let name = crate::attach::TC_PROGRAM;
        let program = ebpf.program_mut(name).ok_or(LoadError::Missing(name))?;
        let program: &mut aya::programs::SchedClassifier = program.try_into()?;
        program.load()?;
        program.attach(interface, aya::programs::TcAttachType::Egress)?;
        Ok(Self(ebpf))
    }
}

impl HitMaps {
    /// What the programs know of a client's connection.
    pub fn connection(&self, client: &FlowKey) -> Option<Hit> {
        let raw = self.connections.get(&RawFlowKey::from(client), 0).ok()?;
        let is = |flag: u8| raw.flags & flag != 0;
        Some(Hit {
            since_ns: raw.since_ns,
            sent_ns: raw.sent_ns,
            object: raw.object,
            client_isn: raw.client_isn,
            asked_at: raw.asked_at,
            rcv_nxt: raw.rcv_nxt,
            answer_at: raw.answer_at,
            snd_nxt: raw.snd_nxt,
            acked: raw.acked,
            age: raw.age,
            stamp: u32::from_be(raw.stamp),
            mss: raw.mss,
            segment: raw.segment,
            given: is(HIT_GIVEN),
            closes: is(HIT_CLOSES),
            fin_sent: is(HIT_FIN_SENT),
            fin_heard: is(HIT_FIN_HEARD),
            scales: (raw.scales != 0).then_some((raw.client_scale, raw.our_scale)),
            sack: raw.sack != 0,
            timestamps: raw.timestamps != 0,
        })
    }

    /// Changes when a connection was heard of last.
    pub fn set_connection(&mut self, client: &FlowKey, hit: &Hit) {
        let key = RawFlowKey::from(client);
        if let Ok(mut raw) = self.connections.get(&key, 0) {
            (raw.since_ns, raw.sent_ns) = (hit.since_ns, hit.sent_ns);
            let _ = self.connections.insert(key, raw, 0); // there is room: it replaces one
        }
    }
}
