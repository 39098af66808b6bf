/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What comes to a service's address and concerns no connection and no service: other ports, other
 * protocols, fragments, nonsense. All of it is the engine's, for the whole address is: it answers
 * pings, refuses SYNs and counts the rest. Only while packets that prove nothing keep the engine from
 * its work (settings->proven) they end here.
 */
#ifndef FAIRLEAD_STRAY_H
#define FAIRLEAD_STRAY_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "icmp.h"
#include "maps.h"
#include "parse.h"

/* Addresses that are listened on, and that no connection to a server comes from: answers to those may
 * be of connections that the engine alone knows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct fl_address);
	__type(value, __u32);
} fl_strays_at FL_MAP_PRIVATE;

/* RFC 4861: router and neighbour solicitations and advertisements, redirects. The stack may answer
 * them for others (proxy_ndp), and without them nobody finds the way here. */
static __always_inline int fl_is_of_neighbours(__u8 type)
{
	return type >= 133 && type <= 137;
}

/* Where a packet goes, and its bytes from the IP header on. Not 0: no IP packet, or one for the
 * stack. */
static __always_inline int fl_stray_to(fl_ctx *ctx, __be16 protocol, struct fl_address *to,
				       __u32 *bytes)
{
	struct ipv6hdr v6;
	struct iphdr v4;
	__u8 type;

	if (protocol == bpf_htons(ETH_P_IP)) {
		if (fl_ctx_load(ctx, FL_V4_AT, &v4, sizeof(v4)))
			return -1;
		fl_map_v4(to, v4.daddr);
		*bytes = bpf_ntohs(v4.tot_len);
		return 0;
	}
	if (protocol != bpf_htons(ETH_P_IPV6) || fl_ctx_load(ctx, FL_V4_AT, &v6, sizeof(v6)))
		return -1;
	if (v6.nexthdr == FL_PROTOCOL_ICMPV6 &&
	    (fl_ctx_load(ctx, FL_V6_TCP_AT, &type, sizeof(type)) || fl_is_of_neighbours(type)))
		return -1;
	/* Not to be taken for the IPv4 address that it maps. */
	if (!v6.daddr.in6_u.u6_addr32[0] && !v6.daddr.in6_u.u6_addr32[1])
		return -1;
	__builtin_memcpy(to->bytes, &v6.daddr, sizeof(to->bytes));
	*bytes = sizeof(v6) + bpf_ntohs(v6.payload_len);
	return 0;
}

/* The verdict on a packet that is neither of a connection nor for a service, while the engine is kept
 * from its work. Global, so that it is verified once. */
__noinline int fl_stray(fl_ctx *ctx, __u32 ifindex)
{
	struct ethhdr link;
	struct fl_address to = {};
	__u32 bytes = 0;

	FL_OPAQUE(ifindex); /* a verifier wants every argument of a global function */
	if (fl_ctx_is_tagged(ctx) || fl_ctx_load(ctx, 0, &link, sizeof(link)) ||
	    !fl_is_addressed(ctx, ifindex, &link) || fl_stray_to(ctx, link.h_proto, &to, &bytes) ||
	    !bpf_map_lookup_elem(&fl_strays_at, &to))
		return FL_PASS;
	fl_count(FL_C_ENDED_BYTES, bytes);
	fl_count(FL_C_DROPS + FL_REASON_OVERLOADED, 1);
	return FL_DROP;
}

#endif
