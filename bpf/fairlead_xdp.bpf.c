/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The fast path at XDP, native or generic. */
#define FL_XDP
#include "lib/switch.h"
#include "lib/vlan.h"

/* Packets may be longer than a page. */
SEC("xdp.frags")
int fairlead_xdp(struct xdp_md *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ingress_ifindex };
	__u32 tag = 0;
	int verdict;

	if (fl_untag(ctx, &packet, &tag))
		return FL_PASS;
	verdict = fl_process(ctx, &packet);
	if (verdict == XDP_REDIRECT)
		tag = packet.tag;
	if (!tag || verdict == FL_DROP || !fl_tag(ctx, tag))
		return verdict;
	fl_count(FL_C_DROPS + FL_REASON_TRANSMIT_FAILED, 1);
	return FL_DROP;
}

/* Attached to the far end of a veth, without which packets that XDP redirects there vanish. */
SEC("xdp")
int fairlead_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
