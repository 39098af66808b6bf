/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At tc egress: what each packet of a server consists of, for `fairlead content meter`. Packets are not
 * changed. User space gets one message a packet: its headers, and its payload as pieces.
 */
#define FL_TC
#include "lib/pieces.h"

#define FL_METER_RING_BYTES (8 << 20)

struct fl_meter_counts {
	__u64 lost_packets; /* that the ring had no room for */
	__u64 lost_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_meter_counts);
} fl_meter_counts FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FL_METER_RING_BYTES);
} fl_meter_ring FL_MAP_PRIVATE;

/* Sends the message; with the begin of a response. */
static __always_inline void fl_meter_tell(struct __sk_buff *ctx, struct fl_pieces_room *room)
{
	__u32 zero = 0, pieces = room->packet.pieces & (FL_PIECES_MAX - 1), head = 0, bytes;
	struct fl_meter_counts *counts;
	__u64 begin = 0;

	bytes = sizeof(struct fl_pieces_packet) + pieces * sizeof(struct fl_piece);
	if (pieces && room->packet.header_bytes && room->pieces[0].kind == FL_PIECE_MEMORY)
		head = room->pieces[0].len;
	if (head >= sizeof(begin) &&
	    !bpf_skb_load_bytes(ctx, room->packet.header_bytes, &begin, sizeof(begin)) &&
	    (begin & bpf_cpu_to_be64(0xffffffffffffff00)) == bpf_cpu_to_be64(0x485454502f312e00)) {
		if (head > FL_PIECES_HEAD_BYTES)
			head = FL_PIECES_HEAD_BYTES;
		if (!fl_within(&head, sizeof(begin), FL_PIECES_HEAD_BYTES) ||
		    bpf_skb_load_bytes(ctx, room->packet.header_bytes, (__u8 *)&room->packet + bytes,
				       head))
			head = 0;
	} else {
		head = 0;
	}
	room->packet.head_bytes = head;
	if (!bpf_ringbuf_output(&fl_meter_ring, &room->packet, bytes + head, BPF_RB_NO_WAKEUP))
		return;
	counts = bpf_map_lookup_elem(&fl_meter_counts, &zero);
	if (!counts)
		return;
	__sync_fetch_and_add(&counts->lost_packets, 1);
	__sync_fetch_and_add(&counts->lost_bytes, room->packet.bytes);
}

SEC("classifier")
int fairlead_meter(struct __sk_buff *ctx)
{
	struct fl_pieces_room *room = fl_pieces_room();
	struct fl_pieces_settings *settings;
	__u32 zero = 0;

	settings = bpf_map_lookup_elem(&fl_pieces_settings, &zero);
	if (room && settings && !fl_pieces_of(ctx, room, settings))
		fl_meter_tell(ctx, room);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
