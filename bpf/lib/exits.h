/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How packets leave. XDP may not send out of every interface: the kernel drops without a word what a
 * driver does not take from XDP (no such function, a veth whose peer is not ready for it), so only what
 * user space has found able is used; packets for all others go to the engine. At tc every interface
 * sends, and a veth can do more (docs/decisions/0020).
 */
#ifndef FAIRLEAD_EXITS_H
#define FAIRLEAD_EXITS_H

#include <fairlead/ctx.h>
#include <fairlead/map.h>
#include "parse.h"
#include "way.h"

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
} fl_exits FL_MAP_PRIVATE;

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

/* Sends a packet out of the interface that was noted: the program's verdict. */
static __always_inline int fl_leave(fl_ctx *ctx, const struct fl_packet *packet)
{
	return bpf_redirect(packet->exit, 0);
}

/* XDP has no way to have a neighbour asked. */
static __always_inline int fl_leave_by(fl_ctx *ctx, const struct fl_packet *packet,
				       const struct fl_way *way)
{
	return fl_leave(ctx, packet);
}

#else

#define FL_STRAIGHT 1024

/* By the low bits of an interface's index, the index of one whose other end takes packets straight:
 * of two veths that share a place, one does. An array is read without a call; a hash table's look-up
 * would be a part of what is saved. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FL_STRAIGHT);
	__type(key, __u32);
	__type(value, __u32);
} fl_straight FL_MAP_PRIVATE;

/* At tc every interface takes what is sent, and one of a VLAN tags it. */
static __always_inline int fl_may_leave(fl_ctx *ctx, struct fl_packet *packet, __u32 ifindex)
{
	packet->exit = ifindex;
	return 1;
}

static __always_inline int fl_is_straight(const struct fl_packet *packet)
{
	__u32 place = packet->exit % FL_STRAIGHT;
	const __u32 *straight = bpf_map_lookup_elem(&fl_straight, &place);

	return straight && *straight == packet->exit;
}

/* Sends a packet out of the interface that was noted, or has its other end receive it here and now:
 * the program's verdict. */
static __always_inline int fl_leave(fl_ctx *ctx, const struct fl_packet *packet)
{
	fl_ctx_own(ctx);
	if (fl_is_straight(packet))
		return bpf_redirect_peer(packet->exit, 0);
	return bpf_redirect(packet->exit, 0);
}

/* The same for one whose way the routing table has just named: the kernel writes the link addresses
 * once more, and asks a neighbour of which it has not heard for long (docs/decisions/0021). */
static __noinline int fl_leave_by(fl_ctx *ctx, const struct fl_packet *packet,
				  const struct fl_way *way)
{
	struct bpf_redir_neigh next = { .nh_family = way->family };

	if (fl_is_straight(packet))
		return fl_leave(ctx, packet);
	fl_ctx_own(ctx);
	__builtin_memcpy(next.ipv6_nh, way->next, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(packet->exit, &next, sizeof(next), 0);
}

#endif

#endif
