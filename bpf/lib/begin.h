/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A client's first bytes, where the engine has decided such a head before: a ticket names the server
 * and the source, the packet becomes the SYN to that server, and its bytes wait for the SYN-ACK as
 * those of any armed connection (lib/join.h). The engine learns of it later; what it would have done
 * is in crates/splice/src/engine, and differential tests hold the two together.
 */
#ifndef FAIRLEAD_BEGIN_H
#define FAIRLEAD_BEGIN_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "capture.h"
#include "cookie.h"
#include "emit.h"
#include "flows.h"
#include "head.h"
#include "join.h"
#include "maps.h"
#include "parse.h"
#include "synack.h"
#include "translate.h"

/* No verdict of either context: the packet is the engine's, and nothing was changed. */
#define FL_NOT_BEGUN (-1)

#if !defined(FL_FLOWS_LRU)

#define FL_SUM_AT_ONCE 512

/* What is gathered while a connection is begun: more than fits on the stack. */
struct fl_beginning {
	struct fl_syn old;
	struct fl_answer syn;
	struct fl_edits edits;
	struct fl_way way;
	__u32 bytes; /* of the SYN's header */
	__u16 payload_sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_beginning);
} fl_beginnings FL_MAP_PRIVATE;

/* The sum of `bytes` of payload, as words lie in memory, folded. What follows them in `reading` is
 * zeros up to the next word. */
static __always_inline __u16 fl_payload_sum(struct fl_reading *reading, __u32 bytes)
{
	__s64 sum = 0;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < FL_JOIN_BYTES; at += FL_SUM_AT_ONCE) {
		__u32 left = at < bytes ? (bytes - at + 3) & ~3u : 0;

		if (left > FL_SUM_AT_ONCE)
			left = FL_SUM_AT_ONCE;
		if (!fl_within(&left, 1, FL_SUM_AT_ONCE))
			break;
		sum = bpf_csum_diff(0, 0, (__be32 *)(reading->payload + at), left, sum);
		if (sum < 0)
			return 0;
	}
	return fl_checksum_fold(sum);
}

/* The lane for a packet's first bytes, which are in `reading` then; none for a head that is not
 * plain, or that the engine has not decided yet. Global, so that it is verified once. */
__noinline int fl_lane_of(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
			  struct fl_settings *settings)
{
	__u32 zero = 0, bytes, *lane;
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);
	__u64 key;

	if (!packet || !listen || !settings || !reading)
		return -1;
	bytes = packet->payload_bytes;
	if (!fl_within(&bytes, 1, FL_JOIN_BYTES) ||
	    fl_ctx_load(ctx, fl_tcp_at(packet) + packet->tcp_bytes, reading->payload, bytes))
		return -1;
	__builtin_memset(reading->payload + bytes, 0, 4);
	reading->bytes = bytes;
	if (fl_read_head(reading, bytes, listen->index, settings, &key))
		return -1;
	lane = bpf_map_lookup_elem(&fl_heads, &key);
	return lane ? (int)*lane : -1;
}

/* Reads the header of the client's segment: timestamps in the usual place or none. Not 0: the engine
 * is to look, also where the checksum is lost, or the cookie speaks of a scale that is offered no
 * more. */
static __noinline int fl_begin_read(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen)
{
	__u32 zero = 0, bytes, cookie;
	struct fl_beginning *work = bpf_map_lookup_elem(&fl_beginnings, &zero);
	struct fl_syn *old;

	if (!packet || !listen || !work)
		return -1;
	old = &work->old;
	bytes = packet->tcp_bytes;
	__builtin_memset(old, 0, sizeof(*old));
	if (bytes == sizeof(old->tcp) + FL_TIMESTAMPS_BYTES) {
		if (fl_ctx_load(ctx, fl_tcp_at(packet), old, sizeof(old->tcp) + FL_TIMESTAMPS_BYTES) ||
		    old->options.words[0] != FL_LEAD_TIMESTAMPS)
			return -1;
	} else if (bytes != sizeof(old->tcp) ||
		   fl_ctx_load(ctx, fl_tcp_at(packet), old, sizeof(old->tcp))) {
		return -1;
	}
	if (fl_ctx_sum_is_lost(old->tcp.checksum, fl_checksum_fold(fl_pseudo_sum(packet))))
		return -1;
	cookie = packet->ack - 1;
	return (cookie >> 1 & 15) != FL_COOKIE_NO_SCALE &&
	       ((cookie >> 9 & 1) != !!(listen->flags & FL_OFFER_SCALE_PARITY) ||
		listen->window_scale == FL_NO_SCALE);
}

/* True when the checksum of the segment is right, or is yet to be made by a device. Its payload is in
 * the reading; its sum is in the work then. */
static __noinline int fl_begin_is_good(fl_ctx *ctx, struct fl_packet *packet)
{
	__u32 zero = 0;
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);
	struct fl_beginning *work = bpf_map_lookup_elem(&fl_beginnings, &zero);
	__u64 pseudo;

	if (!packet || !reading || !work)
		return 0;
	pseudo = fl_pseudo_sum(packet);
	work->payload_sum = fl_payload_sum(reading, reading->bytes);
	return fl_ctx_sum_is_open(ctx, work->old.tcp.checksum, fl_checksum_fold(pseudo)) ||
	       fl_checksum_fold(fl_words_sum(&work->old, FL_SYN_WORDS) + work->payload_sum +
				pseudo) == 0xffff;
}

/* Notes what the cookie and the segment say where the server's SYN-ACK finds it. */
static __always_inline void fl_begin_join(struct fl_join *join, const struct fl_packet *packet,
					  const struct fl_listen *listen, const struct fl_syn *old)
{
	__u32 cookie = packet->ack - 1, scale = cookie >> 1 & 15;
	int scales = scale != FL_COOKIE_NO_SCALE;

	join->offered_scale = scales ? listen->window_scale : FL_NO_SCALE;
	join->asked_scale = scales ? scale : FL_NO_SCALE;
	join->dseq = cookie;
	join->client_ts = bpf_ntohl(old->options.words[1]);
	join->our_ts = bpf_ntohl(old->options.words[2]);
	join->client_window = packet->window;
}

static __always_inline void fl_begin_record(struct fl_record *record,
					    const struct fl_packet *packet, __u16 listen,
					    __u32 now_ms)
{
	record->client_addr = packet->key.src;
	record->client_port = bpf_ntohs(packet->key.src_port);
	record->listen = listen;
	record->client_isn = packet->seq - 1;
	record->client_nxt = packet->seq;
	record->client_wraps = 0;
	fl_advance(&record->client_nxt, &record->client_wraps, packet->seq + packet->payload_bytes);
	record->last_active = now_ms;
}

/* The SYN with the client's own number and options; how many bytes its header takes. */
static __always_inline __u32 fl_begin_syn(struct fl_answer *syn, const struct fl_packet *packet,
					  const struct fl_join *join, const struct fl_edits *edits)
{
	__u32 cookie = packet->ack - 1, scale = cookie >> 1 & 15;
	__u32 mss = fl_mss_of_class(cookie >> 5 & 7), bytes;
	__u64 window = (__u64)packet->window << (scale == FL_COOKIE_NO_SCALE ? 0 : scale);
	struct fl_told told = {
		.mss = mss < join->syn_mss ? mss : join->syn_mss,
		.scale = scale == FL_COOKIE_NO_SCALE ? FL_NO_SCALE : scale,
		.sack = cookie & 1,
		.timestamps = packet->tcp_bytes > sizeof(syn->tcp),
		.ts_value = join->client_ts,
	};

	__builtin_memset(syn, 0, sizeof(*syn));
	bytes = sizeof(syn->tcp) + fl_syn_options((__u8 *)syn->options, &told);
	syn->tcp.src_port = edits->src.port;
	syn->tcp.dst_port = edits->dst.port;
	syn->tcp.seq = bpf_htonl(packet->seq - 1);
	syn->tcp.offset = bytes / 4 << 4;
	syn->tcp.flags = FL_TCP_SYN;
	syn->tcp.window = bpf_htons(window > 0xffff ? 0xffff : window);
	return bytes;
}

/* Makes the packet into that SYN. Not 0: the packet is spoilt. */
static __noinline int fl_begin_write(fl_ctx *ctx, struct fl_packet *packet,
				   struct fl_beginning *work)
{
	__u32 at = fl_tcp_at(packet), old_bytes = packet->tcp_bytes + packet->payload_bytes;
	__u32 bytes = work->bytes;
	__u64 changed = fl_syn_change(&work->old, &work->syn) + (__u16)~work->payload_sum;
	struct fl_delta pseudo = {};
	struct ethhdr *link;

	if (fl_ctx_resize(ctx, at + bytes))
		return -1;
	fl_delta_address(&pseudo, packet->key.src.bytes, work->edits.src.addr.bytes);
	fl_delta_address(&pseudo, packet->key.dst.bytes, work->edits.dst.addr.bytes);
	fl_delta_u16(&pseudo, bpf_htons(old_bytes), bpf_htons(bytes));
	if (fl_ctx_tcp_checksum(ctx, at + 16, fl_checksum_fold(pseudo.sum),
				fl_checksum_fold(changed)))
		return -1;
	if (fl_ctx_load(ctx, at + 16, &work->syn.tcp.checksum, sizeof(work->syn.tcp.checksum)))
		return -1;
	if (!fl_within(&bytes, sizeof(work->syn.tcp), sizeof(work->syn)) ||
	    fl_ctx_store(ctx, at, &work->syn, bytes))
		return -1;
	/* An answer goes from the destination to the source. */
	packet->key.dst = work->edits.src.addr;
	packet->key.src = work->edits.dst.addr;
	if (fl_answer_ip(ctx, packet, bytes))
		return -1;
	/* The payload went from the packet, and into the checksum. */
	fl_ctx_sum_changes(ctx, work->payload_sum);
	link = (void *)(long)ctx->data;
	if ((void *)(link + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(link->h_dest, work->way.dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, work->way.smac, ETH_ALEN);
	return 0;
}

/* The ticket at a place of a lane. */
static __always_inline __u32 fl_ticket_at(struct fl_lane *lane, __u32 place)
{
	return *(volatile __u32 *)&lane->lines[place & (FL_LANE_TICKETS - 1)];
}

/* The ticket at the head of a lane; FL_NO_FLOW: there is none. */
static __always_inline __u32 fl_ticket_of(struct fl_lane *lane, __u32 *head)
{
	*head = *(volatile __u32 *)&lane->head;
	if (*head == *(volatile __u32 *)&lane->tail)
		return FL_NO_FLOW;
	return fl_ticket_at(lane, *head);
}

/* Writes who has taken a ticket into its record and its place. Not 0: the packet is the engine's. */
static __noinline int fl_begin_fill(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
				    struct fl_settings *settings, __u32 line)
{
	__u32 zero = 0, place, bytes;
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);
	struct fl_beginning *work = bpf_map_lookup_elem(&fl_beginnings, &zero);
	struct fl_join *join;

	if (!record || !reading || !work)
		return -1;
	place = record->server_isn;
	join = bpf_map_lookup_elem(&fl_joins, &place);
	if (!join || join->line != line)
		return -1;
	bytes = reading->bytes;
	fl_begin_join(join, packet, listen, &work->old);
	join->begun_ms = (bpf_ktime_get_ns() - settings->origin_ns) / 1000000;
	fl_begin_record(record, packet, listen->index, join->begun_ms);
	join->payload_bytes = bytes;
	join->payload_sum = work->payload_sum;
	if (!fl_within(&bytes, 1, FL_JOIN_BYTES) ||
	    fl_ctx_load(ctx, fl_tcp_at(packet) + packet->tcp_bytes, join->payload, bytes))
		return -1;
	work->bytes = fl_begin_syn(&work->syn, packet, join, &work->edits);
	return 0;
}

/* Lets the engine, and the server's answer, have what was filled in; from then on nothing can be
 * taken back: if the SYN is lost, the engine sends another. */
static __noinline int fl_begin_send(fl_ctx *ctx, struct fl_packet *packet, __u32 line)
{
	union fl_phase ticket = { .word = 0 }, armed = { .word = 0 };
	__u32 zero = 0, reason = 0;
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	struct fl_beginning *work = bpf_map_lookup_elem(&fl_beginnings, &zero);

	if (!record || !work)
		return FL_DROP;
	fl_end(packet);
	ticket.state = FL_STATE_TICKET;
	armed.state = FL_STATE_SYN_SENT;
	if (packet->tcp_bytes > sizeof(work->syn.tcp))
		armed.flags = FL_FLAG_TIMESTAMPS;
	if (fl_begin_write(ctx, packet, work))
		reason = FL_REASON_TRANSMIT_FAILED;
	if (__sync_val_compare_and_swap(&record->phase.word, ticket.word, armed.word) !=
	    ticket.word)
		reason = FL_REASON_NO_CONNECTION;
	if (reason) {
		fl_count(FL_C_DROPS + reason, 1);
		return FL_DROP;
	}
	fl_count(FL_C_BEGUN, 1);
	fl_count(FL_C_MADE_BYTES, fl_tcp_at(packet) - FL_V4_AT + work->bytes);
	fl_capture_spliced(ctx, record, line, FL_SIDE_SERVER, FL_CAPTURE_AFTER, work->way.ifindex);
	return fl_leave(ctx, packet);
}

/* True where a ticket's server can be reached from here; the way is in the work then. */
static __noinline int fl_begin_route(fl_ctx *ctx, struct fl_packet *packet, __u32 line)
{
	__u32 zero = 0;
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	struct fl_beginning *work = bpf_map_lookup_elem(&fl_beginnings, &zero);
	struct fl_way *way;

	if (!record || !work || record->phase.state != FL_STATE_TICKET)
		return 0;
	work->edits.seq_add = 0;
	work->edits.ts_value_add = 0;
	if (fl_edits_of(record, FL_SIDE_CLIENT, &work->edits))
		return 0;
	/* The SYN has a header of its own, without the client's type of service (lib/synack.h). */
	packet->tos = 0;
	way = fl_route(ctx, packet, &work->edits);
	if (way)
		work->way = *way;
	return way != 0;
}

/* A client's first bytes: the program's verdict, or FL_NOT_BEGUN. `flow` is what its key leads to
 * still, a connection at rest, or FL_NO_FLOW. */
static __noinline int fl_begin(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
			       struct fl_settings *settings, fl_flow flow)
{
	__u32 number, head, line, seen, free = 0;
	struct fl_record *record;
	struct fl_lane *lane;

	if (!packet || !listen || !settings)
		return FL_NOT_BEGUN;
	if ((packet->flags & 0x3f & ~FL_TCP_PSH) != FL_TCP_ACK || !packet->payload_bytes ||
	    packet->payload_bytes > FL_JOIN_BYTES || packet->ttl <= 1)
		return FL_NOT_BEGUN;
	if (flow != FL_NO_FLOW) {
		line = flow >> 1;
		record = bpf_map_lookup_elem(&fl_records, &line);
		/* A late copy of the first bytes of the connection that is at rest. */
		if (!record || record->client_isn + 1 == packet->seq)
			return FL_NOT_BEGUN;
	}
	if (fl_same_address(&packet->key.src, &packet->key.dst) ||
	    fl_begin_read(ctx, packet, listen) || !fl_is_proven(packet, settings))
		return FL_NOT_BEGUN;
	number = fl_lane_of(ctx, packet, listen, settings);
	lane = bpf_map_lookup_elem(&fl_lanes, &number);
	if (!lane || !fl_begin_is_good(ctx, packet))
		return FL_NOT_BEGUN;
	seen = fl_ticket_of(lane, &head);
	if (seen == FL_NO_FLOW || !fl_begin_route(ctx, packet, seen) ||
	    __sync_val_compare_and_swap(&lane->head, head, head + 1) != head)
		return FL_NOT_BEGUN;
	/* Once more: a processor may have read it before it was written. */
	line = fl_ticket_at(lane, head);
	if (line != seen || fl_begin_fill(ctx, packet, listen, settings, line) ||
	    fl_tell(packet, settings, line << 1, flow)) {
		/* The engine finds a ticket that nobody has. */
		record = bpf_map_lookup_elem(&fl_records, &line);
		if (record)
			__sync_lock_test_and_set(&record->phase.word, free);
		return FL_NOT_BEGUN;
	}
	/* One that turns out to be the engine's is shown by it once more. */
	fl_capture_newcomer(ctx, packet, listen, FL_CAPTURE_BEFORE);
	return fl_begin_send(ctx, packet, line);
}

#else

static __always_inline int fl_begin(fl_ctx *ctx, struct fl_packet *packet,
				    struct fl_listen *listen, struct fl_settings *settings,
				    fl_flow flow)
{
	FL_OPAQUE(flow); /* a verifier wants every argument of a global function */
	return FL_NOT_BEGUN;
}

#endif

#endif
