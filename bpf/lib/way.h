/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Ways that the routing table gave a moment ago. Packets come in trains, and to ask for each is a good
 * part of what forwarding one costs. A way is used again for packets of the same ends alone, as rules
 * and several next hops may go by all of these, and only for FL_WAY_TICKS (docs/decisions/0021).
 */
#ifndef FAIRLEAD_WAY_H
#define FAIRLEAD_WAY_H

#include <fairlead/map.h>
#include "maps.h"
#include "parse.h"
#include "translate.h"

/* Ways that a processor remembers. */
#define FL_WAYS 256
/* Ticks of the kernel's clock, of 1 to 10 ms each. */
#define FL_WAY_TICKS 2

struct fl_way {
	struct fl_endpoint src; /* of packets as they leave */
	struct fl_endpoint dst;
	__u64 asked;      /* when, in ticks */
	__u32 asked_ms;   /* and in milliseconds, after the core's origin */
	__u32 from;       /* the interface by which they came in */
	__u32 ifindex;    /* by which they leave; 0: nothing is remembered here */
	__u32 next[4];    /* the next hop, of */
	__u32 family;
	__u16 mtu;
	__u8 tos;
	__u8 pad;
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FL_WAYS);
	__type(key, __u32);
	__type(value, struct fl_way);
} fl_ways FL_MAP_PRIVATE;

static __always_inline struct fl_way *fl_way_at(const struct fl_edits *edits)
{
	__u32 ports = edits->src.port ^ edits->dst.port;
	__u32 place = (ports ^ ports >> 8) % FL_WAYS;

	return bpf_map_lookup_elem(&fl_ways, &place);
}

static __always_inline __u32 fl_ends_differ(const struct fl_endpoint *one,
					    const struct fl_endpoint *other)
{
	__u32 differ = one->port ^ other->port;

#pragma clang loop unroll(full)
	for (int at = 0; at < 16; at += 4)
		differ |= *(const __u32 *)(one->addr.bytes + at) ^
			  *(const __u32 *)(other->addr.bytes + at);
	return differ;
}

/* True where this is the way of a packet of so many bytes, and still fresh. */
static __always_inline int fl_way_again(const struct fl_way *way, const struct fl_packet *packet,
					const struct fl_edits *edits, __u32 bytes)
{
	if (!way->ifindex || bpf_jiffies64() - way->asked >= FL_WAY_TICKS)
		return 0;
	return way->from == packet->ifindex && way->tos == packet->tos && bytes <= way->mtu &&
	       !fl_ends_differ(&way->src, &edits->src) && !fl_ends_differ(&way->dst, &edits->dst);
}

/* Asks the routing table for the way of a packet of so many bytes, and remembers it. Not 0: there is
 * none. */
static __noinline int fl_way_ask(fl_ctx *ctx, const struct fl_packet *packet,
				 const struct fl_edits *edits, __u32 bytes, struct fl_way *way)
{
	struct fl_settings *settings = fl_settings_now();
	struct bpf_fib_lookup fib = {
		.ifindex = packet->ifindex,
		.l4_protocol = FL_PROTOCOL_TCP,
		.sport = edits->src.port,
		.dport = edits->dst.port,
		.tot_len = bytes,
	};

	if (packet->v4) {
		fib.family = FL_AF_INET;
		fib.tos = packet->tos;
		fib.ipv4_src = *(__be32 *)(edits->src.addr.bytes + 12);
		fib.ipv4_dst = *(__be32 *)(edits->dst.addr.bytes + 12);
	} else {
		fib.family = FL_AF_INET6;
		__builtin_memcpy(fib.ipv6_src, edits->src.addr.bytes, 16);
		__builtin_memcpy(fib.ipv6_dst, edits->dst.addr.bytes, 16);
	}
	if (!settings || bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	way->src = edits->src;
	way->dst = edits->dst;
	way->asked = bpf_jiffies64();
	way->asked_ms = fl_about_now_ms(settings);
	way->from = packet->ifindex;
	way->ifindex = fib.ifindex;
	__builtin_memcpy(way->next, fib.ipv6_dst, sizeof(way->next)); /* or the IPv4 one there */
	way->family = fib.family;
	way->mtu = fib.mtu_result;
	way->tos = packet->tos;
	__builtin_memcpy(way->smac, fib.smac, ETH_ALEN);
	__builtin_memcpy(way->dmac, fib.dmac, ETH_ALEN);
	return 0;
}

#endif
