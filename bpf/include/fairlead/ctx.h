/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * One source, two contexts. The entry file defines FL_TC or FL_XDP before it includes this; the rest
 * of the program only uses the names below.
 *
 * FL_PASS  the packet goes on as if we were not here: to the stack, and by its routes to the engine
 * FL_DROP  it ends here, and was counted
 */
#ifndef FAIRLEAD_CTX_H
#define FAIRLEAD_CTX_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* Keeps the compiler from merging the checks of a length into arithmetic that the verifier cannot
 * follow. */
#define FL_OPAQUE(number) asm volatile("" : "+r"(number))

/* True when `*number` is low..=high, both constants, in a form that verifiers from Linux 6.1 on can
 * follow. Of comparisons in C the compiler merges two into one, or makes it with a copy while what
 * counts is on the stack, and "not zero" tells an old verifier nothing. Here the register itself says
 * whether it was out of bounds, so that no path has to be followed twice. */
static __always_inline int fl_within(__u32 *number, const __u32 low, const __u32 high)
{
	__u64 above = (__u32)(*number - low);

	asm volatile("if %0 <= %1 goto +1\n\t%0 = -1" : "+r"(above) : "i"(high - low));
	if (above == -1ULL)
		return 0;
	*number = above + low;
	return 1;
}

#if defined(FL_TC)

typedef struct __sk_buff fl_ctx;
#define FL_PASS TC_ACT_OK
#define FL_DROP TC_ACT_SHOT

/* Headers that are not in the first buffer are brought there. */
static __always_inline int fl_ctx_pull(fl_ctx *ctx, __u32 bytes)
{
	if ((void *)(long)ctx->data + bytes <= (void *)(long)ctx->data_end)
		return 0;
	if (bytes > ctx->len)
		bytes = ctx->len;
	return bpf_skb_pull_data(ctx, bytes);
}

static __always_inline __u32 fl_ctx_len(fl_ctx *ctx)
{
	return ctx->len;
}

/* True for a tagged frame, whose outer tag is beside the packet. It belongs to a VLAN interface on
 * this one: there it comes by again, one tag less, with the interface that routes and answers mean. */
static __always_inline int fl_ctx_is_tagged(fl_ctx *ctx)
{
	return ctx->vlan_present;
}

/* Updates the TCP checksum by the change of the pseudo-header and by that of everything else: a
 * checksum that a device has yet to complete takes only the first. Where such a one is known to become
 * `open` by that, what the second would do is known then, too; 0: it is not. Packet pointers are stale
 * afterwards. */
static __always_inline int fl_ctx_open_checksum(fl_ctx *ctx, __u32 at, __u32 pseudo, __u32 rest,
						__u16 open)
{
	const __u16 *field;

	if (bpf_l4_csum_replace(ctx, at, 0, pseudo, BPF_F_PSEUDO_HDR))
		return -1;
	field = (void *)(long)ctx->data + at;
	if (open && (void *)(field + 1) <= (void *)(long)ctx->data_end && *field == open)
		return 0;
	return rest ? bpf_l4_csum_replace(ctx, at, 0, rest, 0) : 0;
}

static __always_inline int fl_ctx_tcp_checksum(fl_ctx *ctx, __u32 at, __u32 pseudo, __u32 rest)
{
	return fl_ctx_open_checksum(ctx, at, pseudo, rest, 0);
}

/* What a device has told of a packet is the sum over all of it, from the IP header on. It changes by
 * what was written without a helper; the checksum's helper takes the pseudo-header for that, which is
 * right in IPv4 alone, whose own checksum balances the header. */
static __always_inline void fl_ctx_sum_changes(fl_ctx *ctx, __u32 change)
{
	bpf_csum_update(ctx, change); /* Of a packet whose sum is not told: an error, and nothing. */
}

static __always_inline int fl_ctx_load(fl_ctx *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_skb_load_bytes(ctx, at, to, bytes);
}

static __always_inline int fl_ctx_store(fl_ctx *ctx, __u32 at, const void *from, __u32 bytes)
{
	return bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

/* True for a checksum field that a device has yet to complete: it has the pseudo-header's sum. */
static __always_inline int fl_ctx_sum_is_open(fl_ctx *ctx, __u16 field, __u16 pseudo)
{
	return field == pseudo;
}

/* False for one that is complete for certain, and can be written as such. Of a super-packet nobody
 * says what is in the field; and 0 is the sum 0xffff, too. */
static __always_inline int fl_ctx_sum_may_be_open(fl_ctx *ctx, __u16 field, __u16 pseudo)
{
	return ctx->gso_size || !field || field == pseudo;
}

/* The stack knows which checksums are open, and keeps them so. */
static __always_inline int fl_ctx_sum_is_lost(__u16 field, __u16 pseudo)
{
	return 0;
}

/* The longest packet that this one becomes on the wire, from the IP header on: of a super-packet, a
 * segment. `headers`: IP and TCP. */
static __always_inline __u32 fl_ctx_wire_bytes(fl_ctx *ctx, __u32 link, __u32 headers)
{
	return ctx->gso_size ? headers + ctx->gso_size : ctx->len - link;
}

static __always_inline int fl_ctx_resize(fl_ctx *ctx, __u32 bytes)
{
	return bpf_skb_change_tail(ctx, bytes, 0);
}

/* Gives a super-packet headers that nobody else holds, as forwarding by the stack does. A sender on
 * this machine holds those it sent until they are acknowledged, and a receiver joins what it gets to
 * what is yet to be read only where nobody does: it would acknowledge more often. Without memory for
 * it the packet stays as it is. Packet pointers are stale afterwards. */
static __always_inline void fl_ctx_own(fl_ctx *ctx)
{
	if (ctx->gso_segs > 1)
		bpf_skb_change_head(ctx, 0, 0);
}

/* Gives a packet to an interface without Ethernet headers; 0: to the stack. */
static __always_inline int fl_ctx_hand_over(fl_ctx *ctx, __u32 ifindex)
{
	return ifindex ? bpf_redirect(ifindex, 0) : FL_PASS;
}

#elif defined(FL_XDP)

typedef struct xdp_md fl_ctx;
#define FL_PASS XDP_PASS
#define FL_DROP XDP_DROP

static __always_inline int fl_ctx_pull(fl_ctx *ctx, __u32 bytes)
{
	return (void *)(long)ctx->data + bytes <= (void *)(long)ctx->data_end ? 0 : -1;
}

static __always_inline __u32 fl_ctx_len(fl_ctx *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

/* Here tags are in the packet, which is none of IP until they are taken off (lib/vlan.h). */
static __always_inline int fl_ctx_is_tagged(fl_ctx *ctx)
{
	return 0;
}

static __always_inline int fl_ctx_load(fl_ctx *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_xdp_load_bytes(ctx, at, to, bytes);
}

static __always_inline int fl_ctx_store(fl_ctx *ctx, __u32 at, const void *from, __u32 bytes)
{
	return bpf_xdp_store_bytes(ctx, at, (void *)from, bytes);
}

/* Nobody has told it one. */
static __always_inline void fl_ctx_sum_changes(fl_ctx *ctx, __u32 change)
{
}

/* Every checksum that comes here is complete: RFC 1624, equation 3. */
static __always_inline int fl_ctx_tcp_checksum(fl_ctx *ctx, __u32 at, __u32 pseudo, __u32 rest)
{
	__u16 field;
	__u64 sum;

	if (fl_ctx_load(ctx, at, &field, sizeof(field)))
		return -1;
	sum = (__u64)(__u16)~field + pseudo + rest;
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	field = ~(__u16)sum;
	return fl_ctx_store(ctx, at, &field, sizeof(field));
}

static __always_inline int fl_ctx_sum_is_open(fl_ctx *ctx, __u16 field, __u16 pseudo)
{
	return 0;
}

static __always_inline int fl_ctx_sum_may_be_open(fl_ctx *ctx, __u16 field, __u16 pseudo)
{
	return 0;
}

static __always_inline int fl_ctx_open_checksum(fl_ctx *ctx, __u32 at, __u32 pseudo, __u32 rest,
						__u16 open)
{
	return -1; /* there are none */
}

/* True for a checksum that a device has yet to complete, which XDP could not tell it: a veth or a
 * virtual machine's interface gives such packets. One of 65,536 complete ones looks the same, and
 * takes the longer way, too. */
static __always_inline int fl_ctx_sum_is_lost(__u16 field, __u16 pseudo)
{
	return field == pseudo;
}

static __always_inline __u32 fl_ctx_wire_bytes(fl_ctx *ctx, __u32 link, __u32 headers)
{
	return fl_ctx_len(ctx) - link;
}

static __always_inline int fl_ctx_has_buffers(fl_ctx *ctx)
{
	return fl_ctx_len(ctx) > (__u32)(ctx->data_end - ctx->data);
}

static __always_inline int fl_ctx_resize(fl_ctx *ctx, __u32 bytes)
{
	return bpf_xdp_adjust_tail(ctx, (int)bytes - (int)fl_ctx_len(ctx));
}

/* Here a packet has no form that such an interface takes: always to the stack. */
static __always_inline int fl_ctx_hand_over(fl_ctx *ctx, __u32 ifindex)
{
	return FL_PASS;
}

#else
#error "define FL_TC or FL_XDP"
#endif

#endif
