/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Whether a segment's checksum is right. */
#ifndef FAIRLEAD_VERIFY_H
#define FAIRLEAD_VERIFY_H

#include <fairlead/ctx.h>
#include "checksum.h"
#include "parse.h"

/* A segment up to here is summed; longer ones whose sum nobody vouches for are the engine's. */
#define FL_SUM_PIECE 32
#define FL_SUM_PIECES 50

/* True when the TCP checksum is right, or is yet to be made by a device: then it is the sum of the
 * pseudo-header. Global, so that it is verified once. */
__noinline int fl_checksum_is_good(fl_ctx *ctx, struct fl_packet *packet)
{
	__u32 at, left;
	__u64 pseudo;
	__s64 sum;
	__be16 field;
	__u8 piece[FL_SUM_PIECE];

	if (!packet)
		return 0;
	at = fl_tcp_at(packet);
	left = (__u32)packet->tcp_bytes + packet->payload_bytes;
	if (fl_ctx_load(ctx, at + 16, &field, sizeof(field)))
		return 0;
	pseudo = fl_pseudo_sum(packet);
	if (fl_ctx_sum_is_open(ctx, field, fl_checksum_fold(pseudo)))
		return 1;
	if (left > FL_SUM_PIECE * FL_SUM_PIECES)
		return 0;
	sum = fl_checksum_fold(pseudo);
#pragma clang loop unroll(disable)
	for (int number = 0; number < FL_SUM_PIECES; number++) {
		if (left < FL_SUM_PIECE)
			break;
		if (fl_ctx_load(ctx, at, piece, FL_SUM_PIECE))
			return 0;
		sum = bpf_csum_diff(0, 0, (__be32 *)piece, FL_SUM_PIECE, (__u32)sum);
		if (sum < 0)
			return 0;
		at += FL_SUM_PIECE;
		left -= FL_SUM_PIECE;
	}
	if (left) {
		__builtin_memset(piece, 0, sizeof(piece));
		if (!fl_within(&left, 1, FL_SUM_PIECE - 1) || fl_ctx_load(ctx, at, piece, left))
			return 0;
		sum = bpf_csum_diff(0, 0, (__be32 *)piece, FL_SUM_PIECE, (__u32)sum);
	}
	return sum >= 0 && fl_checksum_fold((__u32)sum) == 0xffff;
}

#endif
