/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Frames of VLANs (IEEE 802.1Q, 802.1ad) at XDP, where the tag is in the packet. Between taking it off
 * and putting one on, a packet is one that came in by the VLAN's interface, as it would be one layer
 * up: that is the interface that routes and neighbours mean (docs/decisions/0019).
 */
#ifndef FAIRLEAD_VLAN_H
#define FAIRLEAD_VLAN_H

#include <linux/if_ether.h>
#include <fairlead/ctx.h>
#include <fairlead/map.h>
#include "maps.h"
#include "parse.h"

#define FL_VLANS 1024
#define FL_TAG_BYTES 4
/* What of a tag names the VLAN; the rest is its priority. */
#define FL_TCI_VLAN 0x0fff

/* crates/bpf-loader/src/vlans.rs has the same. */
struct fl_vlan {
	__u32 device; /* the index of the interface that it stands on */
	__u32 tag;    /* as in struct fl_packet */
};

_Static_assert(sizeof(struct fl_vlan) == 8, "layout");

/* The index of the VLAN's own interface. User space names those that the fast path is to serve. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_VLANS);
	__type(key, struct fl_vlan);
	__type(value, __u32);
} fl_vlans FL_MAP_PRIVATE;

/* The first octets of a tagged frame. */
struct fl_tagged {
	__u8 addresses[2 * ETH_ALEN];
	__be16 tpid;
	__be16 tci;
};

/* Takes the tag off a frame of a VLAN that is served, and notes by which interface that came in. Not
 * 0: the frame is the stack's, and as it was. */
static __always_inline int fl_untag(fl_ctx *ctx, struct fl_packet *packet, __u32 *tag)
{
	struct fl_tagged *link = (void *)(long)ctx->data;
	struct fl_vlan vlan = { .device = packet->ifindex };
	__u8 addresses[2 * ETH_ALEN];
	__u32 *ifindex;

	if ((void *)(link + 1) > (void *)(long)ctx->data_end)
		return -1;
	if (link->tpid != bpf_htons(ETH_P_8021Q) && link->tpid != bpf_htons(ETH_P_8021AD))
		return 0;
	vlan.tag = link->tpid | (__u32)(link->tci & bpf_htons(FL_TCI_VLAN)) << 16;
	ifindex = bpf_map_lookup_elem(&fl_vlans, &vlan);
	if (!ifindex)
		return -1;
	*tag = link->tpid | (__u32)link->tci << 16;
	__builtin_memcpy(addresses, link->addresses, sizeof(addresses));
	if (bpf_xdp_adjust_head(ctx, FL_TAG_BYTES))
		return -1;
	packet->ifindex = *ifindex;
	/* That there is as much was looked at above, but only the new bounds are known to hold. */
	return fl_ctx_store(ctx, 0, addresses, sizeof(addresses));
}

/* Puts a tag on. Not 0: the packet cannot be sent. */
static __always_inline int fl_tag(fl_ctx *ctx, __u32 tag)
{
	struct fl_tagged link;

	link.tpid = tag;
	link.tci = tag >> 16;
	return fl_ctx_load(ctx, 0, link.addresses, sizeof(link.addresses)) ||
	       bpf_xdp_adjust_head(ctx, -FL_TAG_BYTES) || fl_ctx_store(ctx, 0, &link, sizeof(link));
}

#endif
