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

/* On the copy of a SYN that comes in a second time. */
#define FL_SEEN_MARK 0x0fa1ead5

/* As the kernel names them; where they lie is looked up when the program is loaded. */
struct sock_common {
	__u32 skc_tw_rcv_nxt;
} __attribute__((preserve_access_index));
struct inet_timewait_sock {
	struct sock_common __tw_common;
	volatile unsigned char tw_substate;
} __attribute__((preserve_access_index));
struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
	__u32 tw_ts_recent;
	int tw_ts_recent_stamp;
} __attribute__((preserve_access_index));

/* What a connection in TIME_WAIT remembers. */
struct fl_rest {
	__u32 rcv_nxt;
	__u32 ts_recent;
	__u8 stamped;
	__u8 substate;
};

#define FL_SYN_OPTION_WORDS 10

/* The timestamp of a SYN, at a place where stacks in use have it; 0: it has none there. */
static __always_inline int fl_syn_stamp(struct __sk_buff *ctx, const struct fl_packet *packet,
					__u32 *value)
{
	__u32 at = fl_tcp_at(packet) + sizeof(struct fl_tcp_view);
	__u32 end = fl_tcp_at(packet) + packet->tcp_bytes;

	for (int word = 0; word < FL_SYN_OPTION_WORDS; word++, at += 4) {
		__be32 option, stamp;

		if (at + 8 > end || bpf_skb_load_bytes(ctx, at, &option, sizeof(option)))
			return 0;
		if (option != bpf_htonl(FL_WORD(4, 2, 8, 10)) &&
		    option != bpf_htonl(FL_WORD(1, 1, 8, 10)))
			continue;
		if (bpf_skb_load_bytes(ctx, at + 4, &stamp, sizeof(stamp)))
			return 0;
		*value = bpf_ntohl(stamp);
		return 1;
	}
	return 0;
}

/* Whether the kernel would let this SYN end the connection (tcp_timewait_state_process). */
static __always_inline int fl_ends_rest(struct __sk_buff *ctx, const struct fl_packet *packet,
					const struct fl_rest *rest)
{
	__u32 value = 0;
	int after = (__s32)(rest->rcv_nxt - packet->seq) < 0;
	int newer = 0;

	if (rest->substate != BPF_TCP_TIME_WAIT)
		return 0;
	if (rest->stamped && fl_syn_stamp(ctx, packet, &value)) {
		__s32 older = (__s32)(rest->ts_recent - value);

		if (older > 0)
			return 0;
		newer = older < 0;
	}
	return after || newer;
}

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
	__u32 mark = ctx->mark;

	if (!fl_ends_rest(ctx, packet, rest)) {
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
