//! SPLICED between ends that agreed to different options: windows, SACK, timestamps (RFC 7323,
//! RFC 2018), at any offset in the list.

use fairlead_datapath::Side;
use fairlead_wire::SynOptions;

use crate::rig::{Ends, Joined, REQUEST, Rig, http_config, linux};

/// Scales as each side said them, and what must become of a window field of 1,000 on its way.
#[test]
fn spliced_windows_are_rescaled_by_the_difference_and_never_closed_by_rounding() {
    let with_scale = |scale: Option<u8>| SynOptions {
        window_scale: scale,
        ..linux(5_000)
    };
    // (client's scale, server's at the probe, server's now, from the client, from the server)
    let cases = [
        (Some(7), Some(7), Some(7), [1_000, 1_000], [5, 5]),
        (Some(2), Some(9), Some(9), [1_000, 1_000], [5, 5]),
        // The server scales less than was promised to the client.
        (Some(7), Some(9), Some(4), [1_000, 31], [5, 1]),
        // … more: shifted left, and as much as the field holds.
        (Some(7), Some(2), Some(9), [1_000, 65_535], [5, 640]),
        // … not at all: both take the other's fields as they are.
        (Some(3), Some(7), None, [8_000, 7], [40, 1]),
        (Some(9), Some(7), None, [65_535, 7], [2_560, 1]),
        // The client does not scale: nothing was promised to anyone.
        (None, Some(7), None, [1_000, 1_000], [5, 5]),
        (Some(7), None, None, [1_000, 1_000], [5, 5]),
    ];
    for (client, probed, now, large, small) in cases {
        let probed_ends = Ends {
            client: with_scale(client),
            server: with_scale(probed),
            ..Ends::default()
        };
        let mut rig = Rig::probed(http_config(), &probed_ends.server);
        rig.client.port += 1;
        let ends = Ends {
            server: with_scale(now),
            ..probed_ends
        };
        let mut joined = Joined::on(rig, &ends);
        for (field, expected) in [(1_000, large), (5, small), (0, [0, 0])] {
            for (side, expected) in [Side::Client, Side::Server].into_iter().zip(expected) {
                let sent = joined.rig.put_one(&joined.by(side).window(field));
                assert_eq!(
                    sent.header.window, expected,
                    "{client:?} {probed:?} {now:?}: {field} from {side:?}"
                );
            }
        }
    }
}

#[test]
fn spliced_peers_without_options_have_none_put_in() {
    let bare = SynOptions {
        mss: Some(536),
        ..SynOptions::default()
    };
    let ends = Ends {
        client: bare,
        server: linux(900_000),
        ..Ends::default()
    };
    let mut joined = Joined::with(http_config(), &ends);
    for side in [Side::Client, Side::Server] {
        let sent = joined.rig.put_one(&joined.by(side).payload(b"x"));
        assert!(sent.options().is_empty());
    }
}

/// RFC 2018: the client's blocks speak of the server's bytes, in the numbers that the client sees.
#[test]
fn spliced_sack_edges_follow_the_acknowledgement_at_any_offset() {
    let layouts: [&[u8]; 3] = [&[1, 1], &[1], &[]];
    for padding in layouts {
        let mut joined = Joined::usual();
        let edges = [100u32, 200, 300, 400];
        let list = |base: u32| {
            let mut list = padding.to_vec();
            list.extend([5, 18]);
            for edge in edges {
                list.extend(base.wrapping_add(edge).to_be_bytes());
            }
            list.resize(20, 0);
            list
        };
        let ack = joined.by_client().options(&list(joined.seen_nxt));
        let sent = joined.rig.put_one(&ack);
        assert_eq!(sent.options(), list(joined.server_nxt));
        // The server's blocks speak of the client's bytes, whose numbers are the same everywhere.
        let ack = joined.by_server().options(&list(joined.client_nxt));
        let sent = joined.rig.put_one(&ack);
        assert_eq!(sent.options(), list(joined.client_nxt));
    }
}

#[test]
fn spliced_timestamps_and_sack_together_at_odd_offsets_are_translated() {
    let mut joined = Joined::usual();
    let list = |value: u32, echo: u32, base: u32| {
        let mut list = vec![1, 8, 10];
        list.extend(value.to_be_bytes());
        list.extend(echo.to_be_bytes());
        list.extend([5, 10]);
        list.extend(base.to_be_bytes());
        list.extend(base.wrapping_add(50).to_be_bytes());
        list.resize(24, 0);
        list
    };
    let ack = list(5_050, joined.seen_ts, joined.seen_nxt.wrapping_add(9));
    let sent = joined.rig.put_one(&joined.by_client().options(&ack));
    let seen = list(5_050, joined.server_ts, joined.server_nxt.wrapping_add(9));
    assert_eq!(sent.options(), seen);
}

#[test]
fn spliced_malformed_options_pass_for_the_receiver_to_judge() {
    let mut joined = Joined::usual();
    let odd = joined.by_client().options(&[5, 60, 1, 1]).payload(b"x");
    let sent = joined.rig.put_one(&odd);
    assert_eq!(sent.options(), [5, 60, 1, 1]);
}

/// A promise that the client got and that its server does not keep: SACK is only silence then.
#[test]
fn spliced_server_without_sack_serves_a_client_with_it() {
    let ends = Ends::default();
    let rig = Rig::probed(http_config(), &ends.server);
    let without = SynOptions {
        sack_permitted: false,
        ..linux(900_000)
    };
    let mut joined = Joined::on(
        rig,
        &Ends {
            server: without,
            ..ends
        },
    );
    let edges = |base: u32| [(base.wrapping_add(10), base.wrapping_add(20))];
    let ack = joined.by_client().sack(&edges(joined.seen_nxt));
    let sent = joined.rig.put_one(&ack);
    let expected = joined.by_server().sack(&edges(joined.server_nxt)).packet();
    assert_eq!(sent.options(), &expected.bytes[40..]);
}

/// The client's clock and the server's clock run as they did, with one constant between them.
#[test]
fn spliced_timestamps_never_go_back_for_the_client() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    rig.now = rig.now + core::time::Duration::from_millis(700);
    // A keep-alive shows the client a later clock of ours before it sends its request.
    let shown = rig.put_one(&opened.at(0).seq(1_000)).timestamps().unwrap();
    assert_eq!(shown.value, 1_700);
    let request = opened
        .data(0, crate::rig::REQUEST)
        .timestamps(5_800, shown.value);
    let syn = rig.put_one(&request);
    let sent = rig.put(&crate::rig::syn_ack(&syn, 77, &linux(0xffff_fff0)));
    let stamps = sent[0].timestamps().unwrap();
    assert_eq!((stamps.value, stamps.echo), (5_800, 0xffff_fff0));
    let key = syn.header.key;
    let data = fairlead_testkit::segment(key.dst, key.src)
        .seq(78)
        .ack(1_001 + crate::rig::REQUEST.len() as u32)
        .timestamps(3, 5_800)
        .payload(b"x");
    let seen = rig.put_one(&data).timestamps().unwrap();
    assert_eq!((seen.value, seen.echo), (1_700 + 0x13, 5_800));
}

#[test]
fn a_server_is_asked_for_segments_that_its_client_takes() {
    for (said, asked) in [
        (Some(256), 216),
        (None, 536),
        (Some(536), 536),
        (Some(1_435), 1_400),
        (Some(1_460), 1_460),
    ] {
        let mut rig = Rig::probed(http_config(), &linux(1));
        let client = SynOptions {
            mss: said,
            ..linux(5_000)
        };
        let opened = rig.open(1_000, &client);
        let syn = rig.put_one(&opened.data(0, REQUEST));
        assert_eq!(syn.syn_options().mss, Some(asked), "{said:?}");
    }
}
