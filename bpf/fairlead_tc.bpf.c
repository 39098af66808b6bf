/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The fast path at tc ingress: for interfaces that carry super-packets (veth, virtio). */
#define FL_TC
#include "lib/switch.h"

SEC("classifier")
int fairlead_tc(struct __sk_buff *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ifindex };

	return fl_process(ctx, &packet);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
