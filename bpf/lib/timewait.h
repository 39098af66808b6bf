/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the kernel's TCP remembers of a connection in TIME_WAIT, and whether a SYN on its ports begins a
 * new one (RFC 6191).
 */
#ifndef FAIRLEAD_TIMEWAIT_H
#define FAIRLEAD_TIMEWAIT_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

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

/* Fills `rest` from a socket that may be in TIME_WAIT. 0: it is not. */
static __always_inline int fl_rest_of(struct bpf_sock *sock, struct fl_rest *rest)
{
	struct tcp_timewait_sock *timewait = bpf_skc_to_tcp_timewait_sock(sock);

	if (!timewait)
		return 0;
	rest->rcv_nxt = timewait->tw_sk.__tw_common.skc_tw_rcv_nxt;
	rest->substate = timewait->tw_sk.tw_substate;
	rest->ts_recent = timewait->tw_ts_recent;
	rest->stamped = timewait->tw_ts_recent_stamp != 0;
	return 1;
}

/* The timestamp of a SYN whose options lie from `at` to `end`, at a place where stacks in use have it;
 * 0: it has none there. */
static __always_inline int fl_syn_stamp(struct __sk_buff *ctx, __u32 at, __u32 end, __u32 *value)
{
	for (int word = 0; word < FL_SYN_OPTION_WORDS; word++, at += 4) {
		__be32 option, stamp;

		if (at + 8 > end || bpf_skb_load_bytes(ctx, at, &option, sizeof(option)))
			return 0;
		/* Behind SACK-permitted, or two times no operation. */
		if (option != bpf_htonl(0x0402080a) && option != bpf_htonl(0x0101080a))
			continue;
		if (bpf_skb_load_bytes(ctx, at + 4, &stamp, sizeof(stamp)))
			return 0;
		*value = bpf_ntohl(stamp);
		return 1;
	}
	return 0;
}

/* Whether the kernel would let this SYN end the connection (tcp_timewait_state_process). Its options
 * lie from `at` to `end`. */
static __always_inline int fl_ends_rest(struct __sk_buff *ctx, __u32 seq, __u32 at, __u32 end,
					const struct fl_rest *rest)
{
	__u32 value = 0;
	int after = (__s32)(rest->rcv_nxt - seq) < 0;
	int newer = 0;

	if (rest->substate != BPF_TCP_TIME_WAIT)
		return 0;
	if (rest->stamped && fl_syn_stamp(ctx, at, end, &value)) {
		__s32 older = (__s32)(rest->ts_recent - value);

		if (older > 0)
			return 0;
		newer = older < 0;
	}
	return after || newer;
}

#endif
