/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A client begins anew on a port whose last connection this machine's TCP still has in TIME_WAIT. A new
 * socket cannot be made beside that one, so the SYN ends it (RFC 6191), by what the kernel would do.
 */
#ifndef FAIRLEAD_REST_H
#define FAIRLEAD_REST_H

#include <linux/bpf.h>
#include <fairlead/ctx.h>
#include "host.h"
#include "parse.h"
#include "timewait.h"

/* On the copy of a SYN that comes in a second time. */
#define FL_SEEN_MARK 0x0fa1ead5

/* Makes the SYN the RST that ends the connection. Not 0: it is spoilt. */
static __always_inline int fl_become_reset(struct __sk_buff *ctx, const struct fl_packet *packet,
					   __u32 rcv_nxt)
{
	__u32 at = fl_tcp_at(packet);
	struct fl_tcp_view tcp;
	__be32 seq = bpf_htonl(rcv_nxt), none = 0;
	__u8 flags[2] = { 0, FL_TCP_RST };
	__be16 was, is;

	if (bpf_skb_load_bytes(ctx, at, &tcp, sizeof(tcp)))
		return -1;
	flags[0] = tcp.offset;
	__builtin_memcpy(&was, &tcp.offset, sizeof(was));
	__builtin_memcpy(&is, flags, sizeof(is));
	return bpf_l4_csum_replace(ctx, at + 16, tcp.seq, seq, 4) ||
	       bpf_l4_csum_replace(ctx, at + 16, tcp.ack, none, 4) ||
	       bpf_l4_csum_replace(ctx, at + 16, was, is, 2) ||
	       bpf_skb_store_bytes(ctx, at + 4, &seq, sizeof(seq), 0) ||
	       bpf_skb_store_bytes(ctx, at + 8, &none, sizeof(none), 0) ||
	       bpf_skb_store_bytes(ctx, at + 12, flags, sizeof(flags), 0);
}

/* The verdict for a SYN that meets a connection at rest. A copy of it comes in once more, behind this
 * one, and finds no connection any more. With net.ipv4.tcp_rfc1337 the kernel ends TIME_WAIT by no RST,
 * but by a SYN for which a socket listens: that is `full`, so it is dropped then. */
static __always_inline int fl_settle(struct __sk_buff *ctx, const struct fl_packet *packet,
				     const struct fl_rest *rest, int full)
{
	__u32 options = fl_tcp_at(packet) + sizeof(struct fl_tcp_view);
	__u32 end = fl_tcp_at(packet) + packet->tcp_bytes;
	__u32 mark = ctx->mark;

	if (!fl_ends_rest(ctx, packet->seq, options, end, rest)) {
		fl_host_count(FL_C_HOST_SYNS_PASSED);
		return TC_ACT_OK;
	}
	ctx->mark = FL_SEEN_MARK;
	if (bpf_clone_redirect(ctx, ctx->ifindex, BPF_F_INGRESS)) {
		ctx->mark = mark;
		return TC_ACT_OK;
	}
	ctx->mark = mark;
	fl_host_count(FL_C_HOST_RESTS_ENDED);
	if (full)
		return TC_ACT_OK;
	return fl_become_reset(ctx, packet, rest->rcv_nxt) ? TC_ACT_SHOT : TC_ACT_OK;
}

#endif
