//! SYN_RCVD, which has no memory: the paper's Table 1.

use fairlead_base::SeqNumber;
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, REQUEST, Rig, http_config, linux};

#[test]
fn closed_syn_is_answered_and_nothing_is_kept() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let syn_ack = rig.syn(1_000, &linux(5_000));
    assert_eq!(syn_ack.header.flags, TcpFlags::SYN | TcpFlags::ACK);
    assert_eq!(syn_ack.header.ack, SeqNumber(1_001));
    assert_eq!(syn_ack.header.key.src, rig.vip);
    assert_eq!(syn_ack.header.key.dst, rig.client);
    let snapshot = rig.datapath.snapshot();
    assert_eq!(
        (snapshot.records, snapshot.setups, snapshot.buffered_bytes),
        (0, 0, 0)
    );
}

#[test]
fn spliced_data_and_acks_pass_both_ways_with_numbers_of_the_other_side() {
    let mut joined = Joined::with(http_config(), &Ends::default());
    let response = joined
        .by_server()
        .payload(b"HTTP/1.1 200 OK\r\n\r\n")
        .timestamps(joined.server_ts.wrapping_add(7), 5_010);
    let sent = joined.rig.put(&response);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].header.seq, SeqNumber(joined.seen_nxt));
    assert_eq!(sent[0].header.ack, SeqNumber(joined.client_nxt));
    assert_eq!(sent[0].header.key.src, joined.rig.vip);
    assert_eq!(sent[0].header.key.dst, joined.rig.client);
    assert_eq!(sent[0].payload(), b"HTTP/1.1 200 OK\r\n\r\n");
    let stamps = sent[0].timestamps().unwrap();
    assert_eq!(
        (stamps.value, stamps.echo),
        (joined.seen_ts.wrapping_add(7), 5_010)
    );

    let ack = joined
        .by_client()
        .ack(joined.seen_nxt.wrapping_add(19))
        .timestamps(5_020, joined.seen_ts.wrapping_add(7));
    let sent = joined.rig.put(&ack);
    assert_eq!(sent.len(), 1);
    assert_eq!(
        sent[0].header.ack,
        SeqNumber(joined.server_nxt.wrapping_add(19))
    );
    assert_eq!(sent[0].header.key.src, joined.source);
    assert_eq!(sent[0].header.key.dst, joined.server);
    let stamps = sent[0].timestamps().unwrap();
    assert_eq!(
        (stamps.value, stamps.echo),
        (5_020, joined.server_ts.wrapping_add(7))
    );
    let snapshot = joined.rig.datapath.snapshot();
    assert_eq!(
        (snapshot.live, snapshot.setups, snapshot.fast_packets),
        (1, 0, 2)
    );
    assert_eq!(REQUEST.len() as u32, joined.client_nxt - 1_001);
}
