/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Where a translated packet leaves, and the writing of it. */
#ifndef FAIRLEAD_EMIT_H
#define FAIRLEAD_EMIT_H

#include <fairlead/ctx.h>
#include "checksum.h"
#include "exits.h"
#include "parse.h"
#include "translate.h"
#include "way.h"

/* Finds the way to `edits->dst`, by the routing table. 0: `fib` has interface and link addresses, the
 * packet its exit, and it fits through, or its segments do. */
static __noinline int fl_route(fl_ctx *ctx, struct fl_packet *packet,
				    const struct fl_edits *edits, struct bpf_fib_lookup *fib)
{
	__u32 headers = fl_tcp_at(packet) - FL_V4_AT + packet->tcp_bytes;
	__u32 bytes = fl_ctx_wire_bytes(ctx, FL_V4_AT, headers);
	struct fl_way *way = fl_way_at(edits);

	packet->asked = 0;
	if (way && fl_way_again(way, packet, edits, bytes, fib))
		return fl_may_leave(ctx, packet, fib->ifindex) ? 0 : -1;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = packet->ifindex;
	fib->l4_protocol = FL_PROTOCOL_TCP;
	fib->sport = edits->src.port;
	fib->dport = edits->dst.port;
	if (packet->v4) {
		fib->family = FL_AF_INET;
		fib->tos = packet->tos;
		fib->ipv4_src = *(__be32 *)(edits->src.addr.bytes + 12);
		fib->ipv4_dst = *(__be32 *)(edits->dst.addr.bytes + 12);
	} else {
		fib->family = FL_AF_INET6;
		__builtin_memcpy(fib->ipv6_src, edits->src.addr.bytes, 16);
		__builtin_memcpy(fib->ipv6_dst, edits->dst.addr.bytes, 16);
	}
	fib->tot_len = bytes;
	if (bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return -1;
	packet->asked = 1;
	if (way)
		fl_way_note(way, packet, edits, fib);
	return fl_may_leave(ctx, packet, fib->ifindex) ? 0 : -1;
}

static __always_inline int fl_write_v4(fl_ctx *ctx, const struct fl_edits *edits,
				       const struct bpf_fib_lookup *fib)
{
	void *start = (void *)(long)ctx->data;
	struct ethhdr *link = start;
	struct iphdr *ip = start + FL_V4_AT;
	__be32 src = *(__be32 *)(edits->src.addr.bytes + 12);
	__be32 dst = *(__be32 *)(edits->dst.addr.bytes + 12);
	struct fl_delta delta = {};

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	fl_delta_u32(&delta, ip->saddr, src);
	fl_delta_u32(&delta, ip->daddr, dst);
	fl_delta_u16(&delta, ip->ttl, (__u8)(ip->ttl - 1));
	ip->check = fl_delta_apply(delta, ip->check);
	ip->ttl -= 1;
	ip->saddr = src;
	ip->daddr = dst;
	__builtin_memcpy(link->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, fib->smac, ETH_ALEN);
	return 0;
}

/* `pseudo`: what changes in the addresses. */
static __always_inline int fl_write_v6(fl_ctx *ctx, const struct fl_edits *edits,
				       const struct bpf_fib_lookup *fib, __u16 pseudo)
{
	void *start = (void *)(long)ctx->data;
	struct ethhdr *link = start;
	struct ipv6hdr *ip = start + FL_V4_AT;
	struct fl_delta delta = { .sum = pseudo };

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	/* With the byte beside it that makes a word. */
	fl_delta_u16(&delta, bpf_htons(ip->hop_limit), bpf_htons((__u8)(ip->hop_limit - 1)));
	ip->hop_limit -= 1;
	__builtin_memcpy(&ip->saddr, edits->src.addr.bytes, 16);
	__builtin_memcpy(&ip->daddr, edits->dst.addr.bytes, 16);
	__builtin_memcpy(link->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, fib->smac, ETH_ALEN);
	fl_ctx_sum_changes(ctx, fl_checksum_fold(delta.sum));
	return 0;
}

/* The fixed part of the TCP header as it will be, and what changes in the checksum. */
static __always_inline void fl_edit_tcp(const struct fl_packet *packet,
					const struct fl_edits *edits, struct fl_tcp_view *tcp,
					struct fl_delta *delta)
{
	__be32 seq = fl_add_be32(tcp->seq, edits->seq_add);
	__be16 window = bpf_htons(fl_rescale(packet->window, edits->window_shift));

	fl_delta_u16(delta, tcp->src_port, edits->src.port);
	fl_delta_u16(delta, tcp->dst_port, edits->dst.port);
	fl_delta_u32(delta, tcp->seq, seq);
	tcp->src_port = edits->src.port;
	tcp->dst_port = edits->dst.port;
	tcp->seq = seq;
	if (packet->flags & FL_TCP_ACK) {
		__be32 ack = fl_add_be32(tcp->ack, edits->ack_add);

		fl_delta_u32(delta, tcp->ack, ack);
		tcp->ack = ack;
	}
	fl_delta_u16(delta, tcp->window, window);
	tcp->window = window;
}

/* A TCP header as it will be, on the stack. */
struct fl_rewrite {
	struct fl_tcp_view tcp;
	struct fl_options options;
	__u16 pseudo; /* change of the pseudo-header, and of the rest */
	__u16 rest;
};

/* Reads and edits the TCP header and its options. Not 0: this is the engine's. The packet is as it
 * was either way. */
static __always_inline int fl_prepare(fl_ctx *ctx, const struct fl_packet *packet,
				      const struct fl_edits *edits, struct fl_rewrite *rewrite)
{
	__u32 at = fl_tcp_at(packet);
	__u32 bytes = packet->tcp_bytes - sizeof(rewrite->tcp);
	struct fl_delta pseudo = {}, rest = {};

	if (fl_ctx_load(ctx, at, &rewrite->tcp, sizeof(rewrite->tcp)))
		return -1;
	if (fl_ctx_sum_is_lost(rewrite->tcp.checksum, fl_checksum_fold(fl_pseudo_sum(packet))))
		return -1;
	if (bytes) {
		if (!fl_within(&bytes, 4, sizeof(rewrite->options)) ||
		    fl_ctx_load(ctx, at + sizeof(rewrite->tcp), &rewrite->options, bytes))
			return -1;
		if (fl_edit_options(&rewrite->options, bytes, edits, &rest))
			return -1;
	}
	fl_delta_address(&pseudo, packet->key.src.bytes, edits->src.addr.bytes);
	fl_delta_address(&pseudo, packet->key.dst.bytes, edits->dst.addr.bytes);
	fl_edit_tcp(packet, edits, &rewrite->tcp, &rest);
	rewrite->pseudo = fl_checksum_fold(pseudo.sum);
	rewrite->rest = fl_checksum_fold(rest.sum);
	return 0;
}

/* Writes what was prepared. Not 0: the packet is spoilt. */
static __always_inline int fl_write_tcp(fl_ctx *ctx, const struct fl_packet *packet,
					struct fl_rewrite *rewrite)
{
	__u32 at = fl_tcp_at(packet);
	__u32 bytes = packet->tcp_bytes;

	if (fl_ctx_tcp_checksum(ctx, at + 16, rewrite->pseudo, rewrite->rest))
		return -1;
	if (fl_ctx_load(ctx, at + 16, &rewrite->tcp.checksum, sizeof(rewrite->tcp.checksum)))
		return -1;
	if (!fl_within(&bytes, sizeof(rewrite->tcp), sizeof(rewrite->tcp) + sizeof(rewrite->options)))
		return -1;
	return fl_ctx_store(ctx, at, rewrite, bytes);
}

/* Rewrites IP and link headers and sends the packet on its way: the program's verdict. `pseudo` as of
 * `fl_rewrite`. */
static __always_inline int fl_emit(fl_ctx *ctx, struct fl_packet *packet, struct fl_edits *edits,
				   struct bpf_fib_lookup *fib, __u16 pseudo)
{
	if (packet->v4 ? fl_write_v4(ctx, edits, fib) : fl_write_v6(ctx, edits, fib, pseudo))
		return fl_drop(packet, FL_REASON_TRUNCATED);
	return packet->asked ? fl_leave_by(ctx, packet, fib) : fl_leave(ctx, packet);
}

#endif
