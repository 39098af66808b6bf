/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * FINs and RSTs on the record of a joined connection: the same as crates/splice/src/closing.rs.
 * Differential tests hold the two together, packets and records.
 */
#ifndef FAIRLEAD_CLOSING_H
#define FAIRLEAD_CLOSING_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "checksum.h"
#include "parse.h"
#include "translate.h"
#include "verify.h"

/* Numbers that are not farther apart than this are near each other. */
#define FL_NEAR (1 << 24)

/* Others can move a phase so often while one packet is handled: two FINs, their acknowledgements, a
 * RST, and the engine that takes the record. */
#define FL_PHASE_TRIES 8

static __always_inline int fl_is_live(__u8 state)
{
	return state >= FL_STATE_SPLICED && state <= FL_STATE_FIN_RELAYED2;
}

static __always_inline int fl_is_near(__u32 a, __u32 b)
{
	return a - b + FL_NEAR <= 2 * FL_NEAR;
}

static __always_inline __u32 fl_nxt(const struct fl_record *record, int side)
{
	return side == FL_SIDE_CLIENT ? record->client_nxt : record->server_nxt;
}

/* What the packet acknowledges less what its sender was sent, in the receiver's own numbering. */
static __always_inline __u32 fl_ack_ahead(const struct fl_record *record, int side,
					  const struct fl_packet *packet)
{
	return side == FL_SIDE_CLIENT ? packet->ack - record->seq_delta - record->server_nxt :
					packet->ack - record->client_nxt;
}

static __always_inline __u32 fl_segment_end(const struct fl_packet *packet)
{
	return packet->seq + packet->payload_bytes + (packet->flags & FL_TCP_FIN ? 1 : 0);
}

/* True when a packet that is not plainly translated needs no more than to be followed besides. */
static __always_inline int fl_may_follow(const struct fl_record *record, union fl_phase phase,
					 int side, const struct fl_packet *packet)
{
	if (phase.flags & ~FL_FLAGS_OURS || packet->flags & FL_TCP_SYN)
		return 0;
	if (packet->flags & FL_TCP_RST)
		return fl_is_live(phase.state) && packet->seq == fl_nxt(record, side) &&
		       !packet->payload_bytes;
	if (!(packet->flags & FL_TCP_ACK) || !fl_is_in_step(record, side, packet) ||
	    fl_is_near_start(record, packet))
		return 0;
	if (phase.state == FL_STATE_TIME_WAIT)
		return side == FL_SIDE_SERVER ||
		       (!fl_ack_ahead(record, side, packet) &&
			fl_segment_end(packet) == record->client_nxt);
	return fl_is_live(phase.state);
}

/* True for a packet that begins, or ends, exactly where the last one seen of its sender ended. */
static __always_inline int fl_is_next(const struct fl_record *record, int side,
				      const struct fl_packet *packet)
{
	__u32 nxt = fl_nxt(record, side);

	return packet->seq == nxt || packet->seq + packet->payload_bytes == nxt;
}

/* The bit to set when the packet acknowledges the other side's FIN for the first time. */
static __always_inline __u8 fl_acks_fin(const struct fl_record *record, union fl_phase phase,
					int side, const struct fl_packet *packet)
{
	__u8 fin = side == FL_SIDE_CLIENT ? FL_FLAG_SERVER_FIN : FL_FLAG_CLIENT_FIN;
	__u8 acked = side == FL_SIDE_CLIENT ? FL_FLAG_SERVER_FIN_ACKED : FL_FLAG_CLIENT_FIN_ACKED;

	if (fl_ack_ahead(record, side, packet) || (phase.flags & (fin | acked)) != fin)
		return 0;
	return acked;
}

static __always_inline int fl_moves_state(const struct fl_record *record, union fl_phase phase,
					  int side, const struct fl_packet *packet)
{
	return packet->flags & (FL_TCP_FIN | FL_TCP_RST) ||
	       fl_acks_fin(record, phase, side, packet);
}

/* Moves a tracked number to `end`, forwards or back. Not 0: that is before the first byte. */
static __always_inline int fl_settle(__u32 *nxt, __u16 *wraps, __u32 isn, __u32 end)
{
	__s32 ahead = end - *nxt;

	if (ahead > 0) {
		if (end < *nxt)
			*wraps += 1;
	} else {
		__u64 all = ((__u64)*wraps << 32) + *nxt, first = (__u32)(isn + 1);
		__u64 bytes = all > first ? all - first : 0;

		if ((__u64)-(__s64)ahead >= bytes)
			return -1;
		if (end > *nxt)
			*wraps -= 1;
	}
	*nxt = end;
	return 0;
}

/* The state that flags speak of. */
static __always_inline __u8 fl_state_of(__u8 flags)
{
	int fins = !!(flags & FL_FLAG_CLIENT_FIN) + !!(flags & FL_FLAG_SERVER_FIN);
	int acked = !!(flags & FL_FLAG_CLIENT_FIN_ACKED) + !!(flags & FL_FLAG_SERVER_FIN_ACKED);

	if (!fins)
		return FL_STATE_SPLICED;
	if (fins == 1)
		return acked ? FL_STATE_ACK_RELAYED1 : FL_STATE_FIN_RELAYED1;
	return acked == 2 ? FL_STATE_TIME_WAIT : FL_STATE_FIN_RELAYED2;
}

/* Where the packet leads from `phase`. Its sender's number is written on the way. `is_next`: see
 * above, before that number has moved. */
static __always_inline union fl_phase fl_next_phase(struct fl_record *record, union fl_phase phase,
						    int side, const struct fl_packet *packet,
						    int is_next)
{
	__u8 fin = side == FL_SIDE_CLIENT ? FL_FLAG_CLIENT_FIN : FL_FLAG_SERVER_FIN;
	__u8 acked = side == FL_SIDE_CLIENT ? FL_FLAG_CLIENT_FIN_ACKED : FL_FLAG_SERVER_FIN_ACKED;
	__u32 end = fl_segment_end(packet);

	if (packet->flags & FL_TCP_RST) {
		phase.state = FL_STATE_RESET;
		phase.flags &= ~FL_FLAG_RESET_BY_CLIENT;
		if (side == FL_SIDE_CLIENT)
			phase.flags |= FL_FLAG_RESET_BY_CLIENT;
		return phase;
	}
	if (packet->flags & FL_TCP_FIN && phase.state != FL_STATE_TIME_WAIT &&
	    !(phase.flags & acked) &&
	    (is_next || fl_is_near(fl_ack_ahead(record, side, packet), 0)) &&
	    fl_is_near(end, fl_nxt(record, side))) {
		int refused = side == FL_SIDE_CLIENT ?
				      fl_settle(&record->client_nxt, &record->client_wraps,
						record->client_isn, end) :
				      fl_settle(&record->server_nxt, &record->server_wraps,
						record->server_isn, end);

		if (!refused)
			phase.flags |= fin;
	}
	phase.flags |= fl_acks_fin(record, phase, side, packet);
	if (fl_is_live(phase.state))
		phase.state = fl_state_of(phase.flags);
	return phase;
}

/* Follows a connection, as of the phase `word`, by a packet that may be followed. Not 0: the engine
 * has taken it. Global, so that it is verified once. */
__noinline int fl_follow(struct fl_record *record, __u32 word, __u32 side,
			 struct fl_packet *packet, __u32 now_ms)
{
	__u8 fin = side == FL_SIDE_CLIENT ? FL_FLAG_CLIENT_FIN : FL_FLAG_SERVER_FIN;
	union fl_phase phase = { .word = word };
	int is_next;

	if (!record || !packet)
		return -1;
	is_next = fl_is_next(record, side, packet);
	if (packet->payload_bytes && !(phase.flags & fin)) {
		__u32 end = packet->seq + packet->payload_bytes;

		if (side == FL_SIDE_CLIENT)
			fl_advance(&record->client_nxt, &record->client_wraps, end);
		else
			fl_advance(&record->server_nxt, &record->server_wraps, end);
	}
	if (phase.state != FL_STATE_TIME_WAIT)
		record->last_active = now_ms;
#pragma clang loop unroll(disable)
	for (int tries = 0; tries < FL_PHASE_TRIES; tries++) {
		union fl_phase next = fl_next_phase(record, phase, side, packet, is_next), seen;

		if (next.word == phase.word)
			return 0;
		seen.word = __sync_val_compare_and_swap(&record->phase.word, phase.word, next.word);
		if (seen.word == phase.word)
			return 0;
		phase = seen;
		if (!fl_may_follow(record, phase, side, packet))
			return -1;
	}
	return -1;
}

#endif
