/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * ICMP errors about packets of connections on record. Those about what was sent under a client's own
 * address (a transparent server's router has no smaller MTU to tell anyone else) are on their way to
 * the client, which would not know what to make of them: they quote the server's address. The engine
 * translates them, as it does those that come to its own addresses.
 */
#ifndef FAIRLEAD_ICMP_H
#define FAIRLEAD_ICMP_H

#include <fairlead/ctx.h>
#include "flows.h"
#include "parse.h"

#define FL_PROTOCOL_ICMP 1
#define FL_PROTOCOL_ICMPV6 58
#define FL_ICMP_BYTES 8

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

/* Addresses that an answer to the quoted packet would have; gives where its ports are, or 0. */
static __always_inline __u32 fl_quote_v4(fl_ctx *ctx, struct fl_flow_key *key)
{
	struct {
		struct iphdr ip;
		__u8 icmp[FL_ICMP_BYTES];
		struct iphdr quoted;
	} head;

	if (fl_ctx_load(ctx, FL_V4_AT, &head, sizeof(head)))
		return 0;
	if (head.ip.ihl != 5 || head.ip.protocol != FL_PROTOCOL_ICMP ||
	    head.ip.frag_off & bpf_htons(0x3fff) || !fl_is_error_v4(head.icmp[0]) ||
	    head.quoted.version != 4 || head.quoted.ihl != 5 ||
	    head.quoted.protocol != FL_PROTOCOL_TCP)
		return 0;
	fl_map_v4(&key->src, head.quoted.daddr);
	fl_map_v4(&key->dst, head.quoted.saddr);
	return FL_V4_AT + sizeof(head);
}

static __always_inline __u32 fl_quote_v6(fl_ctx *ctx, struct fl_flow_key *key)
{
	struct ipv6hdr ip;
	__u8 type;
	__u32 at = FL_V4_AT + sizeof(ip);

	if (fl_ctx_load(ctx, FL_V4_AT, &ip, sizeof(ip)) || ip.nexthdr != FL_PROTOCOL_ICMPV6 ||
	    fl_ctx_load(ctx, at, &type, sizeof(type)) || !fl_is_error_v6(type))
		return 0;
	at += FL_ICMP_BYTES;
	if (fl_ctx_load(ctx, at, &ip, sizeof(ip)) || ip.version != 6 ||
	    ip.nexthdr != FL_PROTOCOL_TCP)
		return 0;
	__builtin_memcpy(key->src.bytes, &ip.daddr, 16);
	__builtin_memcpy(key->dst.bytes, &ip.saddr, 16);
	return at + sizeof(ip);
}

/* True for an error about a packet that this sent for a connection on record. */
static __always_inline int fl_is_our_error(fl_ctx *ctx, __u32 ifindex,
					   struct fl_settings *settings)
{
	struct fl_packet answer = {};
	struct ethhdr link;
	__be16 ports[2];
	__u32 at = 0;

	if (fl_ctx_is_tagged(ctx) || fl_ctx_load(ctx, 0, &link, sizeof(link)) ||
	    !fl_is_addressed(ctx, ifindex, &link))
		return 0;
	if (link.h_proto == bpf_htons(ETH_P_IP))
		at = fl_quote_v4(ctx, &answer.key);
	else if (link.h_proto == bpf_htons(ETH_P_IPV6))
		at = fl_quote_v6(ctx, &answer.key);
	if (!at || fl_ctx_load(ctx, at, ports, sizeof(ports)))
		return 0;
	answer.key.src_port = ports[1];
	answer.key.dst_port = ports[0];
	return fl_flow_of(&answer, settings) != FL_NO_FLOW;
}

#endif
