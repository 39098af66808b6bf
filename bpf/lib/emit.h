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

/* The way to `edits->dst`, or 0; the packet has its exit then, and it fits through, or its segments
 * do. */
static __always_inline struct fl_way *fl_route(fl_ctx *ctx, struct fl_packet *packet,
					       const struct fl_edits *edits)
{
	__u32 headers = fl_tcp_at(packet) - FL_V4_AT + packet->tcp_bytes;
	__u32 bytes = fl_ctx_wire_bytes(ctx, FL_V4_AT, headers);
	struct fl_way *way = fl_way_at(edits);

	if (!way)
		return 0;
	packet->asked = !fl_way_again(way, packet, edits, bytes);
	if (packet->asked && fl_way_ask(ctx, packet, edits, bytes, way))
		return 0;
	return fl_may_leave(ctx, packet, way->ifindex) ? way : 0;
}

static __always_inline int fl_write_v4(fl_ctx *ctx, const struct fl_edits *edits,
				       const struct fl_way *way)
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
	__builtin_memcpy(link->h_dest, way->dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, way->smac, ETH_ALEN);
	return 0;
}

static __always_inline int fl_write_v6(fl_ctx *ctx, const struct fl_edits *edits,
				       const struct fl_way *way, __u64 told)
{
	void *start = (void *)(long)ctx->data;
	struct ethhdr *link = start;
	struct ipv6hdr *ip = start + FL_V4_AT;
	struct fl_delta delta = { .sum = told };

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	/* With the byte beside it that makes a word. */
	fl_delta_u16(&delta, bpf_htons(ip->hop_limit), bpf_htons((__u8)(ip->hop_limit - 1)));
	ip->hop_limit -= 1;
	__builtin_memcpy(&ip->saddr, edits->src.addr.bytes, 16);
	__builtin_memcpy(&ip->daddr, edits->dst.addr.bytes, 16);
	__builtin_memcpy(link->h_dest, way->dmac, ETH_ALEN);
	__builtin_memcpy(link->h_source, way->smac, ETH_ALEN);
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
	__u16 open; /* what an open checksum becomes by the first; 0: it is not known to be one */
};

/* Headers as nearly all are, without options and with timestamps alone, are read and written where
 * they lie: each call of a helper costs as much as all else that is done to the header. */
struct fl_bare_header {
	__u32 words[5];
};

struct fl_usual_header {
	__u32 words[8];
};

static __always_inline int fl_load_tcp(fl_ctx *ctx, __u32 at, __u32 bytes, struct fl_rewrite *rewrite)
{
	void *from = (void *)(long)ctx->data + at, *end = (void *)(long)ctx->data_end;

	if (bytes == sizeof(struct fl_usual_header) && from + sizeof(struct fl_usual_header) <= end) {
		*(struct fl_usual_header *)rewrite = *(struct fl_usual_header *)from;
		return 0;
	}
	if (bytes == sizeof(struct fl_bare_header) && from + sizeof(struct fl_bare_header) <= end) {
		*(struct fl_bare_header *)rewrite = *(struct fl_bare_header *)from;
		return 0;
	}
	if (!fl_within(&bytes, sizeof(rewrite->tcp), sizeof(rewrite->tcp) + sizeof(rewrite->options)))
		return -1;
	return fl_ctx_load(ctx, at, rewrite, bytes);
}

static __always_inline int fl_store_tcp(fl_ctx *ctx, __u32 at, __u32 bytes,
					const struct fl_rewrite *rewrite)
{
	void *to = (void *)(long)ctx->data + at, *end = (void *)(long)ctx->data_end;

	if (bytes == sizeof(struct fl_usual_header) && to + sizeof(struct fl_usual_header) <= end) {
		*(struct fl_usual_header *)to = *(struct fl_usual_header *)rewrite;
		return 0;
	}
	if (bytes == sizeof(struct fl_bare_header) && to + sizeof(struct fl_bare_header) <= end) {
		*(struct fl_bare_header *)to = *(struct fl_bare_header *)rewrite;
		return 0;
	}
	if (!fl_within(&bytes, sizeof(rewrite->tcp), sizeof(rewrite->tcp) + sizeof(rewrite->options)))
		return -1;
	return fl_ctx_store(ctx, at, rewrite, bytes);
}

/* Reads and edits the TCP header and its options. Not 0: this is the engine's. The packet is as it
 * was either way. */
static __always_inline int fl_prepare(fl_ctx *ctx, struct fl_packet *packet,
				      const struct fl_edits *edits, struct fl_rewrite *rewrite)
{
	__u32 bytes = packet->tcp_bytes - sizeof(rewrite->tcp);
	__u16 sum = fl_checksum_fold(fl_pseudo_sum(packet));
	struct fl_delta pseudo = {}, rest = {};

	if (fl_load_tcp(ctx, fl_tcp_at(packet), packet->tcp_bytes, rewrite))
		return -1;
	if (fl_ctx_sum_is_lost(rewrite->tcp.checksum, sum))
		return -1;
	if (bytes) {
		if (!fl_within(&bytes, 4, sizeof(rewrite->options)))
			return -1;
		if (fl_edit_options(&rewrite->options, bytes, edits, &rest))
			return -1;
	}
	fl_delta_address(&pseudo, packet->key.src.bytes, edits->src.addr.bytes);
	fl_delta_address(&pseudo, packet->key.dst.bytes, edits->dst.addr.bytes);
	fl_edit_tcp(packet, edits, &rewrite->tcp, &rest);
	rewrite->pseudo = fl_checksum_fold(pseudo.sum);
	rewrite->rest = fl_checksum_fold(rest.sum);
	packet->open = fl_ctx_sum_may_be_open(ctx, rewrite->tcp.checksum, sum);
	/* Changed by nothing, it would look the same, open or complete. */
	rewrite->open = rewrite->tcp.checksum == sum && (__u16)(rewrite->pseudo + 1) > 1 ?
				fl_checksum_fold((__u64)sum + rewrite->pseudo) :
				0;
	if (!packet->open) {
		rest.sum += pseudo.sum;
		rewrite->tcp.checksum = fl_delta_apply(rest, rewrite->tcp.checksum);
	}
	return 0;
}

/* Writes what was prepared. Not 0: the packet is spoilt. */
static __always_inline int fl_write_tcp(fl_ctx *ctx, const struct fl_packet *packet,
					struct fl_rewrite *rewrite)
{
	__u32 at = fl_tcp_at(packet);

	if (fl_store_tcp(ctx, at, packet->tcp_bytes, rewrite))
		return -1;
	if (packet->open)
		return fl_ctx_open_checksum(ctx, at + 16, rewrite->pseudo, rewrite->rest,
					    rewrite->open);
	return 0;
}

/* Rewrites IP and link headers and sends the packet on its way: the program's verdict. What was told
 * of a checksum's sum the helper has changed by the pseudo-header, or nobody has. In IPv4 the header's
 * own checksum balances the addresses, in IPv6 they balance the TCP checksum. `pseudo` as of
 * `fl_rewrite`. */
static __always_inline int fl_emit(fl_ctx *ctx, struct fl_packet *packet, struct fl_edits *edits,
				   const struct fl_way *way, __u16 pseudo)
{
	if (packet->v4 ? fl_write_v4(ctx, edits, way) :
			 fl_write_v6(ctx, edits, way, packet->open ? pseudo : 0))
		return fl_drop(packet, FL_REASON_TRUNCATED);
	if (packet->v4 && !packet->open)
		fl_ctx_sum_changes(ctx, (__u16)~pseudo);
	return packet->asked ? fl_leave_by(ctx, packet, way) : fl_leave(ctx, packet);
}

#endif
