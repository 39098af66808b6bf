/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At tc ingress beside the program at XDP, where listening addresses are addresses of this host too, as
 * a VRRP daemon assigns them: what XDP passed on would be the stack's, which has no such connection. So
 * it goes to the engine's device, as routes bring it there for all other addresses.
 */
#define FL_TC
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "lib/parse.h"

#define FL_LOCALS 1024
#define FL_PROTOCOL_ICMP 1
#define FL_PROTOCOL_ICMPV6 58

/* RFC 792: destination unreachable, time exceeded, parameter problem. */
static __always_inline int fl_is_error_v4(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

/* RFC 4443: destination unreachable, packet too big, time exceeded, parameter problem. */
static __always_inline int fl_is_error_v6(__u8 type)
{
	return type >= 1 && type <= 4;
}

/* Listening addresses that this host has; the value is the index of the engine's device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_LOCALS);
	__type(key, struct fl_address);
	__type(value, __u32);
} fl_locals FL_MAP_PRIVATE;

/* From the IP header on: behind generic XDP a packet's data begins there, elsewhere with the Ethernet
 * header. */
static __always_inline int fl_in_load(struct __sk_buff *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_skb_load_bytes_relative(ctx, at, to, bytes, BPF_HDR_START_NET);
}

/* Where a TCP segment or an ICMP error goes. Not 0: something else, which is the stack's. */
static __always_inline int fl_in_to(struct __sk_buff *ctx, struct fl_address *to)
{
	__u8 type = 0;

	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (fl_in_load(ctx, 0, &ip, sizeof(ip)) || ip.ihl < 5)
			return -1;
		if (ip.protocol == FL_PROTOCOL_ICMP &&
		    (fl_in_load(ctx, ip.ihl * 4, &type, 1) ||
		     !fl_is_error_v4(type)))
			return -1;
		if (ip.protocol != FL_PROTOCOL_ICMP && ip.protocol != FL_PROTOCOL_TCP)
			return -1;
		fl_map_v4(to, ip.daddr);
		return 0;
	}
	if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (fl_in_load(ctx, 0, &ip, sizeof(ip)))
			return -1;
		if (ip.nexthdr == FL_PROTOCOL_ICMPV6 &&
		    (fl_in_load(ctx, sizeof(ip), &type, 1) ||
		     !fl_is_error_v6(type)))
			return -1;
		if (ip.nexthdr != FL_PROTOCOL_ICMPV6 && ip.nexthdr != FL_PROTOCOL_TCP)
			return -1;
		__builtin_memcpy(to->bytes, &ip.daddr, sizeof(to->bytes));
		return 0;
	}
	return -1;
}

SEC("classifier")
int fairlead_in(struct __sk_buff *ctx)
{
	struct fl_address to = {};
	__u32 *device;

	if (ctx->pkt_type != PACKET_HOST || ctx->vlan_present || fl_in_to(ctx, &to))
		return TC_ACT_UNSPEC;
	device = bpf_map_lookup_elem(&fl_locals, &to);
	return device ? (int)bpf_redirect(*device, 0) : TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
