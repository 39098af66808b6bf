/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Interfaces that XDP may send packets out of. The kernel drops without a word what a driver does not
 * take from XDP (no such function, a veth whose peer is not ready for it), so only what user space has
 * found able is used; packets for all others go to the engine.
 */
#ifndef FAIRLEAD_EXITS_H
#define FAIRLEAD_EXITS_H

#include <fairlead/ctx.h>
#include "parse.h"

#if defined(FL_XDP)

/* It takes packets that lie in several buffers. */
#define FL_EXIT_BUFFERS 1
#define FL_EXITS 1024

/* crates/bpf-loader/src/exits.rs has the same. */
struct fl_exit {
	__u32 flags;  /* FL_EXIT_* */
	__u32 device; /* the interface itself, or the one that this VLAN's stands on */
	__u32 tag;    /* of the VLAN, as in struct fl_packet */
};

_Static_assert(sizeof(struct fl_exit) == 12, "layout");

/* By index of the interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_EXITS);
	__type(key, __u32);
	__type(value, struct fl_exit);
} fl_exits SEC(".maps");

/* Whether the packet can be sent out of an interface; notes how. */
static __always_inline int fl_may_leave(fl_ctx *ctx, struct fl_packet *packet, __u32 ifindex)
{
	const struct fl_exit *exit = bpf_map_lookup_elem(&fl_exits, &ifindex);

	if (!exit || (!(exit->flags & FL_EXIT_BUFFERS) && fl_ctx_has_buffers(ctx)))
		return 0;
	packet->exit = exit->device;
	packet->tag = exit->tag;
	return 1;
}

#else

/* At tc every interface takes what is sent, and one of a VLAN tags it. */
static __always_inline int fl_may_leave(fl_ctx *ctx, struct fl_packet *packet, __u32 ifindex)
{
	packet->exit = ifindex;
	return 1;
}

#endif

#endif
