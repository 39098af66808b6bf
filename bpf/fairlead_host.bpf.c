/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Connections that become sockets of this machine (docs/handoff.md). `fairlead_host` stands at tc
 * ingress before the fast path and lets the stack have what belongs to a socket; `fairlead_give`
 * stands at the engine's device, where the engine sends the first segments of such a connection.
 * In an object of its own: it needs Linux 6.9, the others do not.
 */
#define FL_TC
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "lib/host.h"
#include "lib/parse.h"
#include "lib/rest.h"

SEC("classifier")
int fairlead_host(struct __sk_buff *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ifindex };
	struct fl_rest rest = {};
	struct tcp_timewait_sock *timewait;
	struct bpf_sock *sock;
	int syn, state;

	if (ctx->mark == FL_SEEN_MARK) {
		ctx->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (fl_parse(ctx, &packet) || !fl_is_host(&packet.key))
		return TC_ACT_UNSPEC;
	sock = fl_sock_of(ctx, &packet.key, 0, packet.v4);
	if (!sock)
		return TC_ACT_UNSPEC;
	state = sock->state;
	syn = (packet.flags & (FL_TCP_SYN | FL_TCP_ACK | FL_TCP_RST)) == FL_TCP_SYN;
	timewait = syn ? bpf_skc_to_tcp_timewait_sock(sock) : 0;
	if (timewait) {
		rest.rcv_nxt = timewait->tw_sk.__tw_common.skc_tw_rcv_nxt;
		rest.substate = timewait->tw_sk.tw_substate;
		rest.ts_recent = timewait->tw_ts_recent;
		rest.stamped = timewait->tw_ts_recent_stamp != 0;
	}
	bpf_sk_release(sock);
	if (timewait)
		return fl_settle(ctx, &packet, &rest);
	if (state == BPF_TCP_LISTEN)
		return TC_ACT_UNSPEC;
	fl_host_count(syn ? FL_C_HOST_SYNS_PASSED : FL_C_HOST_PACKETS);
	return TC_ACT_OK;
}

/* Reads the addresses; where the TCP header begins, or 0: none of ours. */
static __always_inline __u32 fl_give_ends(struct __sk_buff *ctx, struct fl_flow_key *key, int *v4)
{
	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(ctx, 0, &ip, sizeof(ip)) || ip.ihl != sizeof(ip) / 4 ||
		    ip.protocol != FL_PROTOCOL_TCP)
			return 0;
		fl_map_v4(&key->src, ip.saddr);
		fl_map_v4(&key->dst, ip.daddr);
		*v4 = 1;
		return sizeof(ip);
	}
	if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(ctx, 0, &ip, sizeof(ip)) || ip.nexthdr != FL_PROTOCOL_TCP)
			return 0;
		__builtin_memcpy(key->src.bytes, &ip.saddr, 16);
		__builtin_memcpy(key->dst.bytes, &ip.daddr, 16);
		*v4 = 0;
		return sizeof(ip);
	}
	return 0;
}

SEC("classifier")
int fairlead_give(struct __sk_buff *ctx)
{
	struct fl_flow_key key = {};
	struct fl_tcp_view tcp;
	struct fl_give *give;
	struct bpf_sock *sock;
	__be32 stamps[3] = {};
	int v4 = 0, state;
	__u32 at = fl_give_ends(ctx, &key, &v4);

	if (!at || bpf_skb_load_bytes(ctx, at, &tcp, sizeof(tcp)))
		return TC_ACT_UNSPEC;
	key.src_port = tcp.src_port;
	key.dst_port = tcp.dst_port;
	if (!fl_is_host(&key))
		return TC_ACT_UNSPEC;
	sock = fl_sock_of(ctx, &key, 0, v4);
	if (sock) {
		state = sock->state;
		bpf_sk_release(sock);
		if (state != BPF_TCP_LISTEN)
			return TC_ACT_OK;
	}
	give = bpf_map_lookup_elem(&fl_gives, &key);
	if (!give)
		return TC_ACT_OK;
	/* The engine writes no other options. */
	if (tcp.offset >> 4 == 8 && bpf_skb_load_bytes(ctx, at + sizeof(tcp), stamps, sizeof(stamps)))
		return TC_ACT_OK;
	fl_give_to(ctx, &key, v4, give, bpf_ntohl(stamps[1]), bpf_ntohl(stamps[2]));
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
