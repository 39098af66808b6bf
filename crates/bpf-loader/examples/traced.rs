//! The first program of a virtual machine in which the kernel program is traced: frames go through
//! it by `BPF_PROG_TEST_RUN`, each between marks. `scripts/stacks --kernel` builds it, and
//! `fairlead lab protocol budget` runs it.
//!
//! The machine has two dummy interfaces, `dummy0` to clients and `dummy1` to servers; `/dummy.ko`
//! is their module.

#[path = "../../../tracer/fairlead_packet.rs"]
mod fairlead_packet;
#[path = "traced/machine.rs"]
mod machine;
#[path = "traced/packets.rs"]
mod packets;

fairlead_packet::names!(
    b"loop of 50 rounds\n\
      tc IPv4 spliced ACK\ntc IPv4 full segment\ntc IPv4 SYN\ntc IPv4 client's FIN\n\
      tc IPv6 spliced ACK\ntc IPv6 full segment\ntc IPv6 SYN\ntc IPv6 client's FIN\n\
      xdp IPv4 spliced ACK\nxdp IPv4 full segment\nxdp IPv4 SYN\nxdp IPv4 client's FIN\n\
      xdp IPv6 spliced ACK\nxdp IPv6 full segment\nxdp IPv6 SYN\nxdp IPv6 client's FIN"
);

fn main() {
    // What follows is for a machine of its own, and ends it.
    assert_eq!(std::process::id(), 1, "for the first program of a machine");
    let outcome = machine::set_up().and_then(|()| {
        let rounds = std::env::args().nth(1).and_then(|word| word.parse().ok());
        packets::run(rounds.ok_or("arguments: ROUNDS")?)
    });
    match outcome {
        Ok(()) => machine::end_with("is done"),
        Err(why) => machine::end_with(&format!("failed: {why}")),
    }
}
