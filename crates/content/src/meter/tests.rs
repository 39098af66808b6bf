use super::*;
use crate::bus::ByKind;
use crate::command::DESCRIPTOR_BYTES;
use crate::residency::Policy;

const HEADERS: u32 = 66;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n";

fn meter(devices: u32, cache_bytes: u64) -> Meter {
    Meter::new(
        devices,
        SenderConfig {
            cache_bytes,
            block: BlockSize::PAGE,
            policy: Policy::Lru,
            admission: Admission::up_to_the_cache(cache_bytes),
            seed: 1,
        },
    )
}

fn file(inode: u64, revision: u64, offset: u64, len: u32) -> Piece {
    Piece::File {
        file: FileId { device: 1, inode },
        revision: Revision(revision),
        file_bytes: 10_000,
        offset,
        len,
        is_dirty: false,
    }
}

fn dirty(inode: u64, offset: u64, len: u32) -> Piece {
    let mut piece = file(inode, 1, offset, len);
    if let Piece::File { is_dirty, .. } = &mut piece {
        *is_dirty = true;
    }
    piece
}

fn seen<'a>(flow: u32, head: &'a [u8], pieces: &'a [Piece]) -> Seen<'a> {
    Seen {
        flow,
        header_bytes: HEADERS,
        segment_bytes: None,
        head,
        pieces,
    }
}

fn memory(len: usize) -> Piece {
    Piece::Memory { len: len as u32 }
}

#[test]
fn bytes_are_counted_by_kind_and_the_second_time_content_stays() {
    let mut meter = meter(1, 1 << 20);
    let pieces = [memory(HEAD.len()), file(7, 1, 0, 10_000)];
    let once = ByKind {
        content: 10_000,
        application_headers: HEAD.len() as u64,
        network_headers: u64::from(HEADERS),
        // Network header, head, three blocks.
        descriptors: 5 * DESCRIPTOR_BYTES as u64,
        other: 0,
    };
    meter.packet(&seen(0, HEAD, &pieces));
    assert_eq!(meter.report().without.bytes, once);
    assert_eq!(meter.report().with.bytes.content, 10_000);
    meter.packet(&seen(0, HEAD, &pieces));
    let report = meter.report();
    assert_eq!(report.without.bytes.content, 20_000);
    let with = report.with.bytes;
    assert_eq!(with.content, 10_000);
    assert_eq!(with.network_headers, 2 * u64::from(HEADERS));
    // An insert more for each block.
    assert_eq!(with.descriptors, (10 + 3) * DESCRIPTOR_BYTES as u64);
    assert_eq!((report.counts.hits, report.counts.bytes_saved), (3, 10_000));
}

#[test]
fn a_head_ends_at_its_empty_line_and_the_rest_is_other() {
    let mut meter = meter(1, 1 << 20);
    let text = [HEAD, b"generated"].concat();
    meter.packet(&seen(0, &text, &[memory(text.len() + 500)]));
    let bytes = meter.report().without.bytes;
    assert_eq!(bytes.application_headers, HEAD.len() as u64);
    assert_eq!(bytes.other, 509);
    // Without an end in sight all that was seen is head.
    meter.packet(&seen(0, &HEAD[..20], &[memory(2_000)]));
    let more = meter.report().without.bytes;
    assert_eq!(more.application_headers - bytes.application_headers, 20);
    assert_eq!(more.other - bytes.other, 1_980);
}

#[test]
fn what_is_no_tcp_is_other() {
    let mut meter = meter(1, 1 << 20);
    let pieces = [memory(1_200)];
    let packet = Seen {
        header_bytes: 0,
        ..seen(0, HEAD, &pieces)
    };
    meter.packet(&packet);
    let bytes = meter.report().without.bytes;
    assert_eq!((bytes.other, bytes.network_headers), (1_200, 0));
    assert_eq!(bytes.application_headers, 0);
}

#[test]
fn a_new_revision_is_not_sent_from_the_cache() {
    let mut meter = meter(1, 1 << 20);
    for revision in [1, 1, 2, 2] {
        meter.packet(&seen(0, &[], &[file(7, revision, 0, 4_096)]));
    }
    let report = meter.report();
    assert_eq!((report.counts.hits, report.counts.stale), (2, 1));
    assert_eq!(report.with.bytes.content, 8_192);
}

#[test]
fn dirty_pages_are_never_cached_and_end_what_was() {
    let mut meter = meter(2, 1 << 20);
    // On both devices.
    for flow in [0, u32::MAX] {
        meter.packet(&seen(flow, &[], &[file(7, 1, 0, 8_192)]));
    }
    meter.packet(&seen(0, &[], &[dirty(7, 4_000, 200)]));
    assert_eq!(meter.report().dirty_bytes, 200);
    assert_eq!(meter.report().counts.hits, 0);
    for flow in [0, u32::MAX] {
        meter.packet(&seen(flow, &[], &[file(7, 1, 0, 8_192)]));
    }
    let report = meter.report();
    assert_eq!((report.counts.hits, report.counts.inserts), (0, 8));
    assert_eq!(
        report.without.bytes,
        ByKind {
            descriptors: report.without.bytes.descriptors,
            content: 4 * 8_192 + 200,
            network_headers: 5 * u64::from(HEADERS),
            ..ByKind::default()
        }
    );
}

#[test]
fn a_range_behind_the_files_end_is_not_cached() {
    let mut meter = meter(1, 1 << 20);
    for _ in 0..2 {
        meter.packet(&seen(0, &[], &[file(7, 1, 8_192, 4_096)]));
    }
    let report = meter.report();
    assert_eq!((report.counts.hits, report.counts.inserts), (0, 0));
    assert_eq!(report.with.bytes.content, 2 * 4_096);
}

#[test]
fn segments_have_headers_of_their_own() {
    let mut meter = meter(1, 1 << 20);
    let pieces = [memory(HEAD.len()), file(7, 1, 0, 10_000)];
    let packet = Seen {
        segment_bytes: Some(1_448),
        ..seen(0, HEAD, &pieces)
    };
    meter.packet(&packet);
    meter.packet(&packet);
    let report = meter.report();
    let segments = (HEAD.len() as u64 + 10_000).div_ceil(1_448);
    let headers = 2 * segments * u64::from(HEADERS);
    assert_eq!(report.without.bytes.network_headers, headers);
    assert_eq!(report.without.bytes.content, 20_000);
    // Each block crosses once.
    assert_eq!(report.with.bytes.content, 10_000);
    assert_eq!(report.packets, 2);
}

#[test]
fn a_connection_has_one_device() {
    let mut meter = meter(2, 1 << 20);
    for flow in [1, 1, u32::MAX, u32::MAX] {
        meter.packet(&seen(flow, &[], &[file(7, 1, 0, 4_096)]));
    }
    let counts = meter.report().counts;
    assert_eq!((counts.inserts, counts.hits), (2, 2));
}

#[test]
fn revisions_differ_where_one_of_both_numbers_does() {
    let all: std::collections::BTreeSet<Revision> = (0..50)
        .flat_map(|changed| (0..50).map(move |version| Revision::of_file(changed, version)))
        .collect();
    assert_eq!(all.len(), 2_500);
}
