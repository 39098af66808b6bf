/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Interfaces that XDP may send packets out of. The kernel drops without a word what a driver does not
 * take from XDP (no such function, a veth whose peer is not ready for it), so only what user space has
 * found able is used; packets for all others go to the engine.
 */
#ifndef FAIRLEAD_EXITS_H
#define FAIRLEAD_EXITS_H

#include <fairlead/ctx.h>

#if defined(FL_XDP)

/* It takes packets that lie in several buffers. */
#define FL_EXIT_BUFFERS 1
#define FL_EXITS 1024

/* By index of the interface: FL_EXIT_*. crates/bpf-loader/src/exits.rs fills it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_EXITS);
	__type(key, __u32);
	__type(value, __u32);
} fl_exits SEC(".maps");

static __always_inline int fl_may_leave(fl_ctx *ctx, __u32 ifindex)
{
	__u32 *exit = bpf_map_lookup_elem(&fl_exits, &ifindex);

	return exit && (*exit & FL_EXIT_BUFFERS || !fl_ctx_has_buffers(ctx));
}

#else

/* At tc every interface takes what is sent. */
static __always_inline int fl_may_leave(fl_ctx *ctx, __u32 ifindex)
{
	return 1;
}

#endif

#endif
