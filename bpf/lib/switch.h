/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A packet's way: parse, look up, translate, emit; or answer a handshake; or leave it to the engine. */
#ifndef FAIRLEAD_SWITCH_H
#define FAIRLEAD_SWITCH_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "emit.h"
#include "maps.h"
#include "parse.h"
#include "synack.h"
#include "translate.h"

static __always_inline struct fl_settings *fl_settings_now(void)
{
	__u32 zero = 0;
	struct fl_settings *settings = bpf_map_lookup_elem(&fl_settings, &zero);

	return settings && settings->version == LAYOUT_VERSION ? settings : 0;
}

static __noinline int fl_splice(fl_ctx *ctx, struct fl_packet *packet, fl_flow flow,
				     struct fl_settings *settings)
{
	__u32 line = flow >> 1;
	int side = flow & 1;
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	struct bpf_fib_lookup fib;
	struct fl_edits edits = {};

	if (!record || packet->ttl <= 1 || !fl_is_fast(record, side, packet))
		return fl_to_engine();
	if (fl_edits_of(record, side, &edits))
		return fl_to_engine();
	if (fl_route(ctx, packet, &edits, &fib)) {
		fl_count(FL_C_NO_NEIGHBOUR, 1);
		return fl_to_engine();
	}
	if (fl_translate(ctx, packet, &edits))
		return fl_to_engine();
	fl_track(record, side, packet, (bpf_ktime_get_ns() - settings->origin_ns) / 1000000);
	fl_count(FL_C_FAST_PACKETS, 1);
	fl_count(FL_C_FAST_BYTES, fl_ctx_len(ctx) - FL_V4_AT);
	return fl_emit(ctx, packet, &edits, &fib);
}

/* A packet to a listening endpoint from a tuple that has no spliced connection. */
static __always_inline int fl_newcomer(fl_ctx *ctx, struct fl_packet *packet,
				       struct fl_listen *listen, struct fl_settings *settings)
{
	int verdict = FL_DROP;

	if (!(listen->flags & FL_OFFER_ANSWER))
		return fl_to_engine();
	if ((packet->flags & 0x3f) == FL_TCP_SYN)
		return fl_answer_syn(ctx, packet, listen, settings, &verdict) ? fl_to_engine() :
										verdict;
	if ((packet->flags & 0x3f) == FL_TCP_ACK && !packet->payload_bytes &&
	    (listen->flags & FL_OFFER_AWAIT_CLIENT)) {
		__u64 now_ns = bpf_ktime_get_ns() - settings->origin_ns;

		if (fl_cookie_check(settings, &packet->key, packet->seq - 1, now_ns,
				    packet->ack - 1)) {
			fl_count(FL_C_ACKS_SWALLOWED, 1);
			return FL_DROP;
		}
	}
	return fl_to_engine();
}

static __always_inline int fl_process(fl_ctx *ctx)
{
	struct fl_packet packet = {};
	struct fl_endpoint to = {};
	struct fl_settings *settings;
	struct fl_listen *listen;
	fl_flow *flow;

	if (fl_parse(ctx, &packet))
		return FL_PASS;
	settings = fl_settings_now();
	if (!settings)
		return FL_PASS;
	flow = bpf_map_lookup_elem(&fl_flows, &packet.key);
	if (flow)
		return fl_splice(ctx, &packet, *flow, settings);
	to.addr = packet.key.dst;
	to.port = packet.key.dst_port;
	listen = bpf_map_lookup_elem(&fl_listens, &to);
	if (listen)
		return fl_newcomer(ctx, &packet, listen, settings);
	fl_count(FL_C_NOT_OURS, 1);
	return FL_PASS;
}

#endif
