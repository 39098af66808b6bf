/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Connections that are sockets of this machine, or are about to be (docs/handoff.md). Linux 6.9 can
 * make a connection of a listening socket from a segment whose SYN somebody else answered.
 */
#ifndef FAIRLEAD_HOST_H
#define FAIRLEAD_HOST_H

#include <linux/if_ether.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "parse.h"

#define FL_BOUND_LISTENS 1024
#define FL_GIVES 65536

/* Listening endpoints some of whose connections become sockets, or are watched. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_BOUND_LISTENS);
	__type(key, struct fl_endpoint);
	__type(value, struct fl_host);
} fl_hosts FL_MAP_PRIVATE;

/* By client: what the engine is about to send. An entry is used by the first segment. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FL_GIVES);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_give);
} fl_gives FL_MAP_OPTIONAL;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FL_C_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} fl_host_counters FL_MAP_PRIVATE;

static __always_inline void fl_host_count(__u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(&fl_host_counters, &which);

	if (counter)
		*counter += 1;
}

/* As the kernel has it: struct bpf_tcp_req_attrs. */
struct fl_request {
	__u32 rcv_tsval, rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale, snd_wscale, ecn_ok, wscale_ok, sack_ok, tstamp_ok, usec_ts_ok;
	__u8 reserved[3];
};

/* bpf_sk_assign_tcp_reqsk, a function of the kernel and no helper: it has no number. The loader
 * finds this call, and puts the number there that the function has in the running kernel. */
static long (*const fl_assign_request)(struct __sk_buff *, void *, struct fl_request *,
				       int) = (void *)FL_ASSIGN_REQUEST;

/* The socket for a key as seen by this machine; `listener` is asked for in the place of the key's
 * destination. The caller releases it. */
static __always_inline struct bpf_sock *fl_sock_of(struct __sk_buff *ctx,
						   const struct fl_flow_key *key,
						   const struct fl_endpoint *listener, int v4)
{
	const struct fl_address *dst = listener ? &listener->addr : &key->dst;
	__be16 dst_port = listener ? listener->port : key->dst_port;
	struct bpf_sock_tuple tuple = {};

	if (v4) {
		__builtin_memcpy(&tuple.ipv4.saddr, key->src.bytes + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, dst->bytes + 12, 4);
		tuple.ipv4.sport = key->src_port;
		tuple.ipv4.dport = dst_port;
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(tuple.ipv6.saddr, key->src.bytes, 16);
	__builtin_memcpy(tuple.ipv6.daddr, dst->bytes, 16);
	tuple.ipv6.sport = key->src_port;
	tuple.ipv6.dport = dst_port;
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

static __always_inline struct fl_host *fl_host_of(const struct fl_flow_key *key)
{
	struct fl_endpoint to = { .addr = key->dst, .port = key->dst_port };

	return bpf_map_lookup_elem(&fl_hosts, &to);
}

/* Makes a segment the first one of a connection of the listener that `give` names. Not 0 without one,
 * or where it does not take it: the stack would answer the segment with a RST. */
static __always_inline int fl_give_to(struct __sk_buff *ctx, const struct fl_flow_key *key, int v4,
				       const struct fl_give *give, __u32 ts_value, __u32 ts_echo)
{
	struct fl_request request = {
		.rcv_tsval = ts_value,
		.rcv_tsecr = ts_echo,
		.mss = give->mss,
		.rcv_wscale = give->our_scale,
		.snd_wscale = give->client_scale,
		.wscale_ok = give->scales,
		.sack_ok = give->sack,
		.tstamp_ok = give->timestamps,
	};
	struct bpf_sock *listener = fl_sock_of(ctx, key, &give->listener, v4);
	int refused = -1;
	void *sock;

	if (!listener)
		goto none;
	if (listener->state != BPF_TCP_LISTEN) {
		bpf_sk_release(listener);
		goto none;
	}
	sock = bpf_skc_to_tcp_sock(listener);
	if (sock)
		refused = fl_assign_request(ctx, sock, &request, sizeof(request));
	fl_host_count(refused ? FL_C_HOST_REFUSED : FL_C_HOST_ASSIGNED);
	bpf_sk_release(listener);
	return refused;
none:
	if (!give->wait_until_ns)
		fl_host_count(FL_C_HOST_NO_LISTENER);
	return -1;
}

#endif
