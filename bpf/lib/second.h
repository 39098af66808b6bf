/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Pairs: records made of two connections that a proxy has handed off. On the server's leg their numbers
 * are changed at the boundary, the same as crates/tcp/src/second.rs, and what is seen of both ends is
 * noted, because sockets are made of it when the proxy takes its connections back. Differential tests
 * hold the two together.
 */
#ifndef FAIRLEAD_SECOND_H
#define FAIRLEAD_SECOND_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "parse.h"
#include "translate.h"

/* By line. Room for many, memory for those that there are. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_PAIRS);
	__type(key, __u32);
	__type(value, struct fl_second);
} fl_seconds FL_MAP_REQUIRED;

/* A window as the other leg must see it, and never more than its receiver offered. */
static __always_inline __u16 fl_rescale_within(__u16 window, int shift)
{
	return shift >= 0 ? fl_rescale(window, shift) : (__u32)window >> (-shift & 31);
}

/* What does not change is not written, so that the other direction's processor keeps the line. */
static __always_inline void fl_see(fl_ctx *ctx, const struct fl_packet *packet, struct fl_seen *seen,
				   __u32 ack)
{
	__be32 option[2];

	if (seen->ack != ack)
		seen->ack = ack;
	if (seen->window != packet->window)
		seen->window = packet->window;
	if (!seen->known)
		seen->known = 1;
	if (packet->tcp_bytes < 32 ||
	    fl_ctx_load(ctx, fl_tcp_at(packet) + 20, option, sizeof(option)) ||
	    option[0] != FL_LEAD_TIMESTAMPS) {
		if (seen->stamped)
			seen->stamped = seen->stamp = 0;
		return;
	}
	option[1] = bpf_ntohl(option[1]);
	if (seen->stamp != option[1])
		seen->stamp = option[1];
	if (!seen->stamped)
		seen->stamped = 1;
}

/* Puts a packet of a pair into the numbers of its record, as far as the rest of the program looks at
 * it, and begins `edits`, which are zeros, with the second constants. Not 0: it is the engine's. Global,
 * so that it has a frame of its own: that of fl_splice is at its limit. */
__noinline int fl_pair(fl_ctx *ctx, struct fl_packet *packet, struct fl_edits *edits, fl_flow flow)
{
	__u32 line = flow >> 1, ack;
	struct fl_record *record;
	struct fl_second *second;
	struct fl_seen *seen;
	union fl_phase phase;

	if (!packet || !edits)
		return -1;
	second = bpf_map_lookup_elem(&fl_seconds, &line);
	if (!second)
		return -1;
	record = bpf_map_lookup_elem(&fl_records, &line);
	if (!record)
		return -1;
	if (flow & 1) {
		edits->ack_add = -second->seq;
		edits->ts_echo_add = -second->ts;
		if (packet->flags & FL_TCP_ACK)
			packet->ack -= second->seq;
		packet->window = fl_rescale_within(packet->window, second->server_shift);
		ack = packet->ack;
		seen = &second->server;
	} else {
		edits->seq_add = second->seq;
		edits->ts_value_add = second->ts;
		ack = packet->ack - record->seq_delta; /* in the server's own numbers */
		seen = &second->client;
	}
	phase.word = *(volatile __u32 *)&record->phase.word;
	if (packet->flags & FL_TCP_ACK && fl_is_fast(record, phase, flow & 1, packet))
		fl_see(ctx, packet, seen, ack);
	if (!(flow & 1))
		packet->window = fl_rescale_within(packet->window, second->client_shift);
	return 0;
}

#endif
