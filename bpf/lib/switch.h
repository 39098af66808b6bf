/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A packet's way: parse, look up, translate, emit; or answer a handshake; or leave it to the engine. */
#ifndef FAIRLEAD_SWITCH_H
#define FAIRLEAD_SWITCH_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "access.h"
#include "begin.h"
#include "capture.h"
#include "closing.h"
#include "emit.h"
#include "flows.h"
#include "icmp.h"
#include "join.h"
#include "maps.h"
#include "parse.h"
#include "second.h"
#include "stray.h"
#include "synack.h"
#include "tcb.h"
#include "translate.h"

/* The verdict for a SYN whose sender may not connect. On its own, because Linux 6.1 counts the stack
 * of fl_newcomer in steps of 32 bytes, and there is no room for another step. */
#define FL_NOT_DENIED (-2)
__noinline int fl_deny(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
		       struct fl_settings *settings)
{
	int access;

	if (!packet || !listen || !settings)
		return FL_PASS;
	access = fl_access_of(packet, listen);
	if (access == FL_DENIED_RESET)
		return fl_to_engine(ctx, settings);
	if (access != FL_DENIED)
		return FL_NOT_DENIED;
	fl_capture_newcomer(ctx, packet, listen, FL_CAPTURE_BEFORE);
	return fl_drop(packet, FL_REASON_ACCESS_DENIED);
}

/* A packet to a listening endpoint from a tuple that has no spliced connection; `flow` is one at
 * rest, or FL_NO_FLOW. Global, so that it is verified once. */
__noinline int fl_newcomer(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
			   struct fl_settings *settings, fl_flow flow)
{
	int verdict = FL_DROP, swallow, proven, answers, refused;

	if (!packet || !listen || !settings)
		return FL_PASS;
	if ((packet->flags & 0x3f) == FL_TCP_SYN) {
		/* In the service's own name: of no client. The engine would count why. */
		if (settings->proven && fl_same_address(&packet->key.src, &packet->key.dst))
			return fl_drop(packet, FL_REASON_OVERLOADED);
		/* While the switch drains, too, when each of them is answered by the engine. */
		refused = settings->refuse && bpf_get_prandom_u32() < settings->refuse;
		if (!refused && listen->flags & FL_OFFER_ACCESS) {
			int denied = fl_deny(ctx, packet, listen, settings);

			if (denied != FL_NOT_DENIED)
				return denied;
		}
		if (!refused && !(listen->flags & FL_OFFER_ANSWER))
			return fl_to_engine(ctx, settings);
		/* One that turns out to be the engine's is shown by it once more. */
		fl_capture_newcomer(ctx, packet, listen, FL_CAPTURE_BEFORE);
		if (refused)
			return fl_drop(packet, FL_REASON_OVERLOADED);
		if (fl_answer_syn(ctx, packet, listen, settings, &verdict))
			return fl_to_engine(ctx, settings);
		if (verdict != FL_DROP)
			fl_capture_newcomer(ctx, packet, listen, FL_CAPTURE_AFTER);
		return verdict;
	}
#if defined(FL_FLOWS_LRU)
	proven = 0; /* One whose key was evicted proves nothing in midstream, and is the engine's. */
#else
	/* On a tuple at rest it may be the client's question about a RST (RFC 5961, section 3.2). */
	proven = settings->proven && flow == FL_NO_FLOW;
#endif
	answers = listen->flags & FL_OFFER_ANSWER;
	if (answers && listen->flags & FL_OFFER_BEGIN && packet->payload_bytes) {
		verdict = fl_begin(ctx, packet, listen, settings, flow);
		if (verdict != FL_NOT_BEGUN)
			return verdict;
	}
	swallow = answers && (packet->flags & 0x3f) == FL_TCP_ACK && !packet->payload_bytes &&
		  (listen->flags & FL_OFFER_AWAIT_CLIENT);
	if (swallow || proven) {
		if (!fl_is_proven(packet, settings)) {
			if (proven)
				return fl_drop(packet, FL_REASON_OVERLOADED);
		} else if (swallow) {
			fl_count(FL_C_ACKS_SWALLOWED, 1);
			fl_end(packet);
			fl_capture_newcomer(ctx, packet, listen, FL_CAPTURE_BEFORE);
			return FL_DROP;
		}
	}
	return fl_to_engine(ctx, settings);
}

static __always_inline struct fl_listen *fl_listen_of(const struct fl_packet *packet)
{
	struct fl_endpoint to = {};

	to.addr = packet->key.dst;
	to.port = packet->key.dst_port;
	return bpf_map_lookup_elem(&fl_listens, &to);
}

/* No verdicts of either context: the packet is to be handled as a stranger's, or is the engine's,
 * or may be one that joins its connection. */
#define FL_STRANGER (-2)
#define FL_LEFT (-3)
#define FL_ARMED (-4)

/* A packet of a connection on record that cannot be followed. A client whose connection is at rest
 * may begin anew: it is answered like any other (a late copy of the old SYN is not), and its first
 * data tells the engine. */
static __always_inline int fl_not_followed(const struct fl_packet *packet,
					   const struct fl_record *record, union fl_phase phase,
					   int side)
{
	int rests = phase.state == FL_STATE_TIME_WAIT || phase.state == FL_STATE_RESET;

	if (!rests || side != FL_SIDE_CLIENT ||
	    phase.flags & ~(FL_FLAGS_OURS | FL_FLAG_RESET_BY_CLIENT) ||
	    (packet->flags & FL_TCP_SYN && packet->seq == record->client_isn))
		return FL_LEFT;
	return FL_STRANGER;
}

/* True when a packet may bring bytes, or a FIN, from behind the one request of a client: these are
 * the engine's. Global, so that it has a frame of its own: that of fl_splice is at its limit. */
__noinline int fl_is_behind_request(struct fl_packet *packet, fl_flow flow)
{
	__u32 line = flow >> 1, closed;
	struct fl_record *record;
	union fl_phase phase;

	if (!packet || (flow & 1) != FL_SIDE_CLIENT ||
	    packet->flags & (FL_TCP_SYN | FL_TCP_RST))
		return 0;
	record = bpf_map_lookup_elem(&fl_records, &line);
	if (!record)
		return 0;
	phase.word = *(volatile __u32 *)&record->phase.word;
	if (!(phase.flags & FL_FLAG_ONE_REQUEST) || phase.state == FL_STATE_RESET)
		return 0;
	closed = phase.flags & FL_FLAG_CLIENT_FIN ? 1 : 0;
	return packet->payload_bytes ||
	       (packet->flags & FL_TCP_FIN && packet->seq + closed != record->client_nxt);
}

/* A packet of a connection on record: the program's verdict, FL_STRANGER, FL_LEFT or FL_ARMED.
 * Global, so that it is verified once. */
__noinline int fl_splice(fl_ctx *ctx, struct fl_packet *packet, fl_flow flow,
			 struct fl_settings *settings)
{
	__u32 line = flow >> 1;
	int side = flow & 1, plain, verdict;
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);
	union fl_phase phase;
	struct fl_way *way;
	struct fl_edits edits = {};
	struct fl_rewrite rewrite = {};

	if (!packet || !record || !settings)
		return FL_LEFT;
	if (packet->ttl <= 1)
		return FL_PASS; /* the stack tells the sender */
	if (record->route == FL_ROUTE_PAIR && fl_pair(ctx, packet, &edits, line << 1 | side))
		return FL_LEFT;
	phase.word = *(volatile __u32 *)&record->phase.word;
	if (phase.state == FL_STATE_SYN_SENT && side == FL_SIDE_SERVER)
		return FL_ARMED;
	plain = fl_is_fast(record, phase, side, packet);
	if (!plain && !fl_may_follow(record, phase, side, packet))
		return fl_not_followed(packet, record, phase, side);
	if (!plain && fl_moves_state(record, phase, side, packet) &&
	    !fl_checksum_is_good(ctx, packet))
		return FL_LEFT;
	if (fl_edits_of(record, side, &edits))
		return FL_LEFT;
	if (!(packet->flags & FL_TCP_ACK))
		edits.ack_add = 0; /* nor do SACK blocks change, which belong to one */
	way = fl_route(ctx, packet, &edits);
	if (!way) {
		fl_count(FL_C_NO_NEIGHBOUR, 1);
		return FL_LEFT;
	}
	if (fl_prepare(ctx, packet, &edits, &rewrite))
		return FL_LEFT;
	if (plain)
		fl_track(record, side, packet, way->asked_ms);
	else if (fl_follow(record, phase.word, side, packet, fl_now_ns(settings) / 1000000))
		return FL_LEFT;
	fl_capture_spliced(ctx, record, line, side, FL_CAPTURE_BEFORE, packet->ifindex);
	if (fl_write_tcp(ctx, packet, &rewrite))
		return fl_drop(packet, FL_REASON_TRUNCATED);
	fl_count(FL_C_FAST_PACKETS, 1);
	fl_count(FL_C_FAST_BYTES, fl_ip_bytes(packet));
	if (packet->flags & FL_TCP_RST)
		fl_count(FL_C_RESETS, 1);
	else if (packet->flags & FL_TCP_FIN)
		fl_count(FL_C_FINS, 1);
	verdict = fl_emit(ctx, packet, &edits, way, rewrite.pseudo);
	fl_capture_spliced(ctx, record, line, !side, FL_CAPTURE_AFTER, way->ifindex);
	return verdict;
}

/* What is no segment that can be read: FL_LEFT, or the program's verdict. Global, so that it is
 * verified once. */
__noinline int fl_unread(fl_ctx *ctx, __u32 ifindex, struct fl_settings *settings)
{
	if (!settings)
		return FL_PASS;
	if (fl_is_our_error(ctx, ifindex, settings))
		return FL_LEFT;
	return settings->proven ? fl_stray(ctx, ifindex) : FL_PASS;
}

/* What the packet's key leads to, or FL_NO_FLOW. */
static __always_inline fl_flow fl_find(struct fl_packet *packet, struct fl_settings *settings)
{
#if defined(FL_FLOWS_TCB)
	return fl_tcb_find(packet, settings, fl_now_ns(settings));
#else
	return fl_flow_of(packet, settings);
#endif
}

/* The verdict on a packet; `packet` says by which interface it came in, and nothing else yet. */
static __always_inline int fl_process(fl_ctx *ctx, struct fl_packet *packet)
{
	struct fl_settings *settings;
	struct fl_listen *listen;
	fl_flow flow;

	settings = fl_settings_now();
	if (!settings)
		return FL_PASS;
	if (fl_parse(ctx, packet)) {
		int verdict = fl_unread(ctx, packet->ifindex, settings);

		return verdict == FL_LEFT ? fl_to_engine(ctx, settings) : verdict;
	}
	flow = fl_find(packet, settings);
	if (flow != FL_NO_FLOW) {
		int verdict = FL_LEFT;

		if (!fl_is_behind_request(packet, flow))
			verdict = fl_splice(ctx, packet, flow, settings);
		if (verdict == FL_ARMED || verdict == FL_LEFT || verdict == FL_STRANGER ||
		    verdict == FL_PASS)
			fl_count(FL_C_FLOW_OTHER, 1);
		if (verdict == FL_ARMED) {
			verdict = fl_join(ctx, packet, flow >> 1, fl_now_ns(settings));
			if (verdict == FL_NOT_JOINED)
				verdict = FL_LEFT;
		}
		if (verdict == FL_LEFT)
			return fl_to_engine(ctx, settings);
		if (verdict != FL_STRANGER)
			return verdict;
	}
	listen = fl_listen_of(packet);
#if defined(FL_XDP)
	/* Whether it belongs to a socket of this machine is known at tc (fairlead_host.bpf.c). */
	if (listen && listen->flags & FL_OFFER_HOST)
		return FL_PASS;
#endif
#if !defined(FL_FLOWS_LRU)
	/* It ends nothing, and would only be counted by the engine, too: whoever is answered a SYN
	 * that another sent in its name sends one. An LRU table may have lost the key. */
	if (listen && flow == FL_NO_FLOW && packet->flags & FL_TCP_RST)
		return fl_drop(packet, packet->flags & FL_TCP_SYN ? FL_REASON_BAD_TCP_FLAGS :
								   FL_REASON_NO_CONNECTION);
#endif
	if (listen)
		return fl_newcomer(ctx, packet, listen, settings, flow);
	if (settings->proven && fl_stray(ctx, packet->ifindex) == FL_DROP)
		return FL_DROP;
	fl_count(FL_C_NOT_OURS, 1);
	return FL_PASS;
}

#endif
