/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The translation step, the same as crates/splice/src/translate.rs, to the byte: addresses, ports,
 * hop limit; the server's sequence numbers and the client's acknowledgements; SACK edges;
 * timestamps; windows. Differential tests hold the two together.
 */
#ifndef FAIRLEAD_TRANSLATE_H
#define FAIRLEAD_TRANSLATE_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "checksum.h"
#include "maps.h"
#include "parse.h"

#define FL_SIDE_CLIENT 0
#define FL_SIDE_SERVER 1

#define FL_JUMP_MAX (1 << 20)
#define FL_PREAMBLE_BYTES_MAX 512
#define FL_ADVANCE_MAX (1u << 30)
#define FL_WINDOW_MAX (1u << 30)

#define FL_OPTIONS_MAX 40
#define FL_KIND_END 0
#define FL_KIND_NOP 1
#define FL_KIND_SACK 5
#define FL_KIND_TIMESTAMPS 8

struct fl_edits {
	struct fl_endpoint src;
	struct fl_endpoint dst;
	__u32 seq_add;
	__u32 ack_add;
	__u32 ts_value_add;
	__u32 ts_echo_add;
	int window_shift;
};

/* True when both numbers of a packet are such as its sender may use: it is not far ahead, and
 * acknowledges nothing that was not sent to it. */
static __always_inline int fl_is_in_step(const struct fl_record *record, int side,
					 const struct fl_packet *packet)
{
	__u32 nxt, sent, ack = packet->ack;

	if (side == FL_SIDE_CLIENT) {
		nxt = record->client_nxt;
		sent = record->server_nxt;
		ack -= record->seq_delta;
	} else {
		nxt = record->server_nxt;
		sent = record->client_nxt;
	}
	return (__s32)(packet->seq - nxt) <= FL_JUMP_MAX && sent - ack <= FL_WINDOW_MAX;
}

/* True when the acknowledgement lies where the preamble of a young connection did. */
static __always_inline int fl_is_near_start(const struct fl_record *record,
					    const struct fl_packet *packet)
{
	return record->client_isn - packet->ack < FL_PREAMBLE_BYTES_MAX;
}

/* True when a packet needs nothing but translation. */
static __always_inline int fl_is_fast(const struct fl_record *record, union fl_phase phase, int side,
				      const struct fl_packet *packet)
{
	return phase.state == FL_STATE_SPLICED &&
	       !(phase.flags & ~(FL_FLAG_TIMESTAMPS | FL_FLAG_ONE_REQUEST)) &&
	       !(packet->flags & (FL_TCP_SYN | FL_TCP_FIN | FL_TCP_RST)) &&
	       (packet->flags & 0x3f) && fl_is_in_step(record, side, packet) &&
	       !fl_is_near_start(record, packet);
}

static __always_inline void fl_advance(__u32 *nxt, __u16 *wraps, __u32 end)
{
	if (end - *nxt - 1 < FL_ADVANCE_MAX) {
		if (end < *nxt)
			*wraps += 1;
		*nxt = end;
	}
}

/* Both directions may run on two CPUs at once: each writes its own side's numbers only, and
 * last_active, where the loser's value is a moment old. */
static __always_inline void fl_track(struct fl_record *record, int side,
				     const struct fl_packet *packet, __u32 now_ms)
{
	__u32 end = packet->seq + packet->payload_bytes;

	if (side != FL_SIDE_CLIENT)
		fl_advance(&record->server_nxt, &record->server_wraps, end);
	else if (!(record->phase.flags & FL_FLAG_ONE_REQUEST))
		/* The one request ends where it has been seen to; acknowledgements may stand behind. */
		fl_advance(&record->client_nxt, &record->client_wraps, end);
	/* Left alone in between, so that who only acknowledges does not take the line from the other
	 * CPU's cache. */
	if (record->last_active != now_ms)
		record->last_active = now_ms;
}

/* To `edits` as they begin: zeros, or what a pair has besides (lib/second.h). */
static __always_inline int fl_edits_of(const struct fl_record *record, int side,
				       struct fl_edits *edits)
{
	__u32 index = side == FL_SIDE_CLIENT ? record->server : record->listen;
	struct fl_endpoint *at, *client_leg, *server_leg;
	struct fl_address *nat_address;

	if (side == FL_SIDE_CLIENT) {
		client_leg = &edits->src;
		server_leg = &edits->dst;
	} else {
		client_leg = &edits->dst;
		server_leg = &edits->src;
	}
	if (side == FL_SIDE_CLIENT) {
		at = bpf_map_lookup_elem(&fl_server_at, &index);
		if (!at)
			return -1;
		*server_leg = *at;
		index = record->nat_addr;
		if (index == FL_NAT_TRANSPARENT) {
			client_leg->addr = record->client_addr;
			client_leg->port = bpf_htons(record->client_port);
		} else {
			nat_address = bpf_map_lookup_elem(&fl_nat_at, &index);
			if (!nat_address)
				return -1;
			client_leg->addr = *nat_address;
			client_leg->port = bpf_htons(record->nat_port);
		}
		edits->ack_add = -record->seq_delta;
		edits->window_shift = record->phase.client_shift;
		edits->ts_echo_add = -record->ts_delta;
	} else {
		at = bpf_map_lookup_elem(&fl_listen_at, &index);
		if (!at)
			return -1;
		*server_leg = *at;
		client_leg->addr = record->client_addr;
		client_leg->port = bpf_htons(record->client_port);
		edits->seq_add = record->seq_delta;
		edits->window_shift = record->phase.server_shift;
		edits->ts_value_add = record->ts_delta;
	}
	return 0;
}

/* A window as the other leg must see it: an open one is never closed by rounding. */
static __always_inline __u16 fl_rescale(__u16 window, int shift)
{
	if (shift >= 0) {
		__u64 wide = (__u64)window << (shift & 31);

		return wide > 0xffff ? 0xffff : wide;
	}
	shift = -shift;
	__u32 narrow = (__u32)window >> (shift & 31);

	return narrow == 0 && window != 0 ? 1 : narrow;
}

static __always_inline __be32 fl_add_be32(__be32 field, __u32 add)
{
	return bpf_htonl(bpf_ntohl(field) + add);
}

/* The option list of a segment in a copy on the stack: what every usual stack sends, timestamps,
 * SACK blocks, or both, each behind two NOPs. */
struct fl_options {
	__be32 words[FL_OPTIONS_MAX / 4];
};

#define FL_LEAD_TIMESTAMPS bpf_htonl(FL_KIND_NOP << 24 | FL_KIND_NOP << 16 | FL_KIND_TIMESTAMPS << 8 | 10)
#define FL_LEAD_SACK(size) bpf_htonl(FL_KIND_NOP << 24 | FL_KIND_NOP << 16 | FL_KIND_SACK << 8 | (size))

static __always_inline void fl_edit_word(__be32 *word, __u32 add, struct fl_delta *delta)
{
	__be32 new = fl_add_be32(*word, add);

	fl_delta_u32(delta, *word, new);
	*word = new;
}

/* SACK blocks that begin with word `from` and fill the list to its end, `words`. 0: that is how it
 * is. */
static __always_inline int fl_edit_sack(struct fl_options *options, __u32 from, __u32 words, __u32 add,
					struct fl_delta *delta)
{
	__u32 edges = words - from - 1;

	if (edges < 2 || edges & 1 || options->words[from] != FL_LEAD_SACK(2 + edges * 4))
		return -1;
	if (!add)
		return 0;
#pragma unroll
	for (__u32 edge = 0; edge < 8; edge++) {
		if (from + 1 + edge >= FL_OPTIONS_MAX / 4 || edge >= edges)
			break;
		fl_edit_word(&options->words[from + 1 + edge], add, delta);
	}
	return 0;
}

/* Edits a list of `bytes`, which are 4 to 40. Not 0: the list is of another shape, and nothing of
 * the packet was changed; the engine can read it. */
static __always_inline int fl_edit_options(struct fl_options *options, __u32 bytes,
					   const struct fl_edits *edits, struct fl_delta *delta)
{
	__u32 words = bytes / 4;

	if (options->words[0] != FL_LEAD_TIMESTAMPS)
		return fl_edit_sack(options, 0, words, edits->ack_add, delta);
	if (words < 3)
		return -1;
	if (edits->ts_value_add | edits->ts_echo_add) {
		fl_edit_word(&options->words[1], edits->ts_value_add, delta);
		fl_edit_word(&options->words[2], edits->ts_echo_add, delta);
	}
	return words == 3 ? 0 : fl_edit_sack(options, 3, words, edits->ack_add, delta);
}

#endif
