/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The fast path at XDP, native or generic. */
#define FL_XDP
#include "lib/switch.h"

/* Packets may be longer than a page. */
SEC("xdp.frags")
int fairlead_xdp(struct xdp_md *ctx)
{
	return fl_process(ctx);
}

/* Attached to the far end of a veth, without which packets that XDP redirects there vanish. */
SEC("xdp")
int fairlead_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
