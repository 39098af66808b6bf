/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Frames for this host. Others come by where a card is promiscuous or a bridge floods: the stack drops
 * them, so that a second switch with the same services stays silent, and so must this.
 */
#ifndef FAIRLEAD_ADDRESSED_H
#define FAIRLEAD_ADDRESSED_H

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <fairlead/ctx.h>
#include <fairlead/map.h>

#if defined(FL_XDP)

#define FL_ADDRESSES 1024

/* By index of the interface: its Ethernet address in the six lower bytes, as it lies in memory.
 * crates/bpf-loader/src/addresses.rs fills it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_ADDRESSES);
	__type(key, __u32);
	__type(value, __u64);
} fl_addresses FL_MAP_OPTIONAL;

static __always_inline int fl_is_addressed(fl_ctx *ctx, __u32 ifindex, const struct ethhdr *link)
{
	__u64 *own = bpf_map_lookup_elem(&fl_addresses, &ifindex), to = 0;

	__builtin_memcpy(&to, link->h_dest, ETH_ALEN);
	return own && *own == to;
}

#else

/* The stack has compared by then. */
static __always_inline int fl_is_addressed(fl_ctx *ctx, __u32 ifindex, const struct ethhdr *link)
{
	return ctx->pkt_type == PACKET_HOST;
}

#endif

#endif
