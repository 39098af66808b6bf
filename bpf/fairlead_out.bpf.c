/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At tc ingress of the engine's TUN device: what the engine sends leaves at once by the interface that
 * the routing table names, as what the fast path forwards does. What the table does not forward (an
 * address of this host, a packet that is too long) goes on to the stack, which has an answer.
 */
#define FL_TC
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include "lib/parse.h"

/* Fills in what the packet says; where its TCP header or other payload begins, or 0: to the stack. */
static __always_inline __u32 fl_ask_v4(struct __sk_buff *ctx, struct bpf_fib_lookup *fib)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(ctx, 0, &ip, sizeof(ip)) || ip.ihl != sizeof(ip) / 4)
		return 0;
	fib->family = FL_AF_INET;
	fib->tos = ip.tos;
	fib->l4_protocol = ip.protocol;
	fib->ipv4_src = ip.saddr;
	fib->ipv4_dst = ip.daddr;
	return sizeof(ip);
}

static __always_inline __u32 fl_ask_v6(struct __sk_buff *ctx, struct bpf_fib_lookup *fib)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(ctx, 0, &ip, sizeof(ip)))
		return 0;
	fib->family = FL_AF_INET6;
	fib->l4_protocol = ip.nexthdr;
	__builtin_memcpy(fib->ipv6_src, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(fib->ipv6_dst, &ip.daddr, sizeof(ip.daddr));
	return sizeof(ip);
}

/* The longest packet that this one becomes on the wire, and its ports. */
static __always_inline int fl_ask_tcp(struct __sk_buff *ctx, struct bpf_fib_lookup *fib, __u32 at)
{
	struct fl_tcp_view tcp;

	fib->tot_len = ctx->len;
	if (fib->l4_protocol != FL_PROTOCOL_TCP)
		return 0;
	if (bpf_skb_load_bytes(ctx, at, &tcp, sizeof(tcp)))
		return -1;
	fib->sport = tcp.src_port;
	fib->dport = tcp.dst_port;
	if (ctx->gso_size)
		fib->tot_len = at + (tcp.offset >> 4) * 4 + ctx->gso_size;
	return 0;
}

SEC("classifier")
int fairlead_out(struct __sk_buff *ctx)
{
	struct bpf_fib_lookup fib = { .ifindex = ctx->ifindex };
	struct bpf_redir_neigh next = {};
	__u32 at = 0;

	if (ctx->protocol == bpf_htons(ETH_P_IP))
		at = fl_ask_v4(ctx, &fib);
	else if (ctx->protocol == bpf_htons(ETH_P_IPV6))
		at = fl_ask_v6(ctx, &fib);
	if (!at || fl_ask_tcp(ctx, &fib, at))
		return FL_PASS;
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), BPF_FIB_LOOKUP_SKIP_NEIGH) !=
	    BPF_FIB_LKUP_RET_SUCCESS)
		return FL_PASS;
	/* Room for a link header, without which the kernel redirects nothing; it writes its own there. */
	if (bpf_skb_change_head(ctx, sizeof(struct ethhdr), 0))
		return FL_PASS;
	next.nh_family = fib.family;
	__builtin_memcpy(next.ipv6_nh, fib.ipv6_dst, sizeof(next.ipv6_nh)); /* or the IPv4 one there */
	return bpf_redirect_neigh(fib.ifindex, &next, sizeof(next), 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
