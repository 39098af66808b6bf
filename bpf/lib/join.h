/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The server's SYN-ACK to a connection that the engine has armed: it is answered with the client's
 * first bytes, and from then on the two connections are one. The same as crates/splice/src/engine/
 * connect.rs and fairlead_tcp::join; differential tests hold the two together.
 */
#ifndef FAIRLEAD_JOIN_H
#define FAIRLEAD_JOIN_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "capture.h"
#include "closing.h"
#include "exits.h"
#include "flows.h"
#include "maps.h"
#include "parse.h"
#include "synack.h"
#include "translate.h"

#define FL_TIMESTAMPS_BYTES 12

/* No verdict of either context: the packet is the engine's, and nothing was changed. */
#define FL_NOT_JOINED (-1)

/* Reads a SYN-ACK into `syn` and `told`. Not 0: it is not one that is answered here. */
static __always_inline int fl_join_read(fl_ctx *ctx, struct fl_packet *packet,
					const struct fl_record *record, const struct fl_join *join,
					struct fl_syn *syn, struct fl_asked *told)
{
	__u32 bytes = packet->tcp_bytes, room;
	int stamps = record->phase.flags & FL_FLAG_TIMESTAMPS;

	if ((packet->flags & 0x3f) != (FL_TCP_SYN | FL_TCP_ACK) || packet->payload_bytes ||
	    packet->ack != record->client_isn + 1 || !fl_may_leave(ctx, packet, packet->ifindex))
		return -1;
	if (!fl_within(&bytes, sizeof(syn->tcp), FL_SYN_BYTES) ||
	    fl_ctx_load(ctx, fl_tcp_at(packet), syn, bytes))
		return -1;
	if (fl_ctx_sum_is_lost(syn->tcp.checksum, fl_checksum_fold(fl_pseudo_sum(packet))) ||
	    fl_read_syn_options(&syn->options, (bytes - sizeof(syn->tcp)) / 4, told))
		return -1;
	if (!told->mss || !stamps != !told->timestamps)
		return -1;
	room = told->mss < join->device_mss ? told->mss : join->device_mss;
	if (join->payload_bytes + (stamps ? FL_TIMESTAMPS_BYTES : 0) > room ||
	    join->payload_bytes > packet->window)
		return -1;
	return fl_syn_is_good(ctx, packet, syn) ? 0 : -1;
}

/* Fills in what the SYN-ACK settles: fairlead_tcp::Terms::join. Gives the phase that it leads to. */
static __always_inline union fl_phase fl_join_record(struct fl_record *record,
						     const struct fl_join *join, __u32 isn,
						     const struct fl_asked *told, __u32 now_ms)
{
	union fl_phase phase = { .word = 0 };
	int asked = join->asked_scale != FL_NO_SCALE;
	int scales = asked && told->scale != FL_NO_SCALE;

	record->server_isn = isn;
	record->server_nxt = isn + 1;
	record->seq_delta = join->dseq - isn;
	record->ts_delta = told->timestamps ? join->our_ts - told->ts_value : 0;
	record->last_active = now_ms;
	phase.state = FL_STATE_SPLICED;
	phase.flags = record->phase.flags;
	phase.client_shift = asked && !scales ? join->asked_scale : 0;
	phase.server_shift = (scales ? told->scale : 0) -
			     (join->offered_scale != FL_NO_SCALE ? join->offered_scale : 0);
	return phase;
}

/* The header of the segment with the client's first bytes, `bytes` long. */
static __always_inline void fl_join_header(struct fl_answer *answer, const struct fl_packet *packet,
					   const struct fl_join *join,
					   const struct fl_asked *told, __u32 bytes, __s8 shift)
{
	if (told->timestamps) {
		answer->options[0] = FL_LEAD_TIMESTAMPS;
		answer->options[1] = bpf_htonl(join->client_ts);
		answer->options[2] = bpf_htonl(told->ts_value);
	}
	answer->tcp.src_port = packet->key.dst_port;
	answer->tcp.dst_port = packet->key.src_port;
	answer->tcp.seq = bpf_htonl(packet->ack);
	answer->tcp.ack = bpf_htonl(packet->seq + 1);
	answer->tcp.offset = bytes / 4 << 4;
	answer->tcp.flags = FL_TCP_ACK | FL_TCP_PSH;
	answer->tcp.window = bpf_htons(fl_rescale(join->client_window, shift));
}

/* Makes the SYN-ACK into that segment. Not 0: the packet is spoilt. */
static __always_inline int fl_join_write(fl_ctx *ctx, const struct fl_packet *packet,
					 const struct fl_join *join, const struct fl_syn *syn,
					 struct fl_answer *answer, __u32 bytes)
{
	__u32 asked_bytes = packet->tcp_bytes, payload_bytes = join->payload_bytes;
	__u64 changed = fl_syn_change(syn, answer);

	if (fl_answer_write(ctx, packet, answer, asked_bytes, bytes, payload_bytes,
			    changed + join->payload_sum) ||
	    !fl_within(&payload_bytes, 1, FL_JOIN_BYTES))
		return -1;
	return fl_ctx_store(ctx, fl_tcp_at(packet) + bytes, join->payload, payload_bytes);
}

/* True when the record, which is nobody else's now, is still the one that the packet was compared
 * with, and its place in fl_joins too: before that, the engine may have given both to another
 * connection, whose phase is the same word. */
static __always_inline int fl_is_still(struct fl_packet *packet, const struct fl_record *record,
				       const struct fl_join *join, __u32 line, __u32 place,
				       __u32 payload_bytes)
{
	return record->server_isn == place && join->line == line &&
	       join->payload_bytes == payload_bytes && packet->ack == record->client_isn + 1 &&
	       fl_relation(packet, line, FL_SIDE_SERVER) == FL_OWN;
}

/* A packet from the server of an armed connection: the program's verdict, or
 * FL_NOT_JOINED. Global, so that it is verified once. */
__noinline int fl_join(fl_ctx *ctx, struct fl_packet *packet, __u32 line, __u64 now_ns)
{
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	struct fl_syn syn = {};
	struct fl_answer answer = {};
	struct fl_asked told = {};
	union fl_phase armed, joining, joined;
	struct fl_join *join;
	__u32 place, bytes, payload_bytes;
	int spoilt;

	if (!packet || !record)
		return FL_NOT_JOINED;
	armed.word = *(volatile __u32 *)&record->phase.word;
	place = *(volatile __u32 *)&record->server_isn;
	join = bpf_map_lookup_elem(&fl_joins, &place);
	if (!join || join->line != line || armed.state != FL_STATE_SYN_SENT ||
	    fl_join_read(ctx, packet, record, join, &syn, &told))
		return FL_NOT_JOINED;
	/* One that turns out to be the engine's is shown by it once more. */
	fl_capture_spliced(ctx, record, line, FL_SIDE_SERVER, FL_CAPTURE_BEFORE, packet->ifindex);
	/* XDP may have no room behind a packet: so this comes before anything is decided. */
	bytes = sizeof(answer.tcp) + (told.timestamps ? FL_TIMESTAMPS_BYTES : 0);
	payload_bytes = join->payload_bytes;
	/* A packet that was made shorter cannot be given back: its last options would be gone. */
	if (bytes + payload_bytes < packet->tcp_bytes)
		return FL_NOT_JOINED;
	if (fl_ctx_resize(ctx, fl_tcp_at(packet) + bytes + payload_bytes))
		return FL_NOT_JOINED;
	joining = armed;
	joining.state = FL_STATE_JOINING;
	if (__sync_val_compare_and_swap(&record->phase.word, armed.word, joining.word) !=
	    armed.word) {
		fl_ctx_resize(ctx, fl_tcp_at(packet) + packet->tcp_bytes);
		return FL_NOT_JOINED;
	}
	if (!fl_is_still(packet, record, join, line, place, payload_bytes)) {
		__sync_val_compare_and_swap(&record->phase.word, joining.word, armed.word);
		fl_ctx_resize(ctx, fl_tcp_at(packet) + packet->tcp_bytes);
		return FL_NOT_JOINED;
	}
	joined = fl_join_record(record, join, packet->seq, &told, now_ns / 1000000);
	fl_join_header(&answer, packet, join, &told, bytes, joined.client_shift);
	spoilt = fl_join_write(ctx, packet, join, &syn, &answer, bytes);
	/* Last: the engine may now use the place for another. */
	if (__sync_val_compare_and_swap(&record->phase.word, joining.word, joined.word) !=
	    joining.word)
		return fl_drop(packet, FL_REASON_NO_CONNECTION);
	fl_count(FL_C_JOINS, 1);
	/* The client has the bytes still, and will send them again. */
	if (spoilt)
		return fl_drop(packet, FL_REASON_TRANSMIT_FAILED);
	fl_end(packet);
	fl_count(FL_C_MADE_BYTES, fl_tcp_at(packet) - FL_V4_AT + bytes + payload_bytes);
	fl_capture_spliced(ctx, record, line, FL_SIDE_SERVER, FL_CAPTURE_AFTER, packet->ifindex);
	return fl_leave(ctx, packet);
}

#endif
