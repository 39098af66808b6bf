/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The fast path at tc ingress: for interfaces that carry super-packets (veth, virtio). */
#define FL_TC
#include "lib/switch.h"

SEC("classifier")
int fairlead_tc(struct __sk_buff *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ifindex };
	int verdict = fl_process(ctx, &packet);

	/* As if we were not here: programs and filters behind this one have their turn. */
	return verdict == FL_PASS ? TC_ACT_UNSPEC : verdict;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
