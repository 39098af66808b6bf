/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Headers of packets that are made here, in the place of those that they answer. */
#ifndef FAIRLEAD_OWN_H
#define FAIRLEAD_OWN_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include "checksum.h"
#include "parse.h"

#define FL_OWN_TTL 64

/* The sum of an IPv6 header. */
static __always_inline __u16 fl_v6_sum(const struct ipv6hdr *ip)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < sizeof(*ip) / 4; at++)
		sum += words[at];
	return fl_checksum_fold(sum);
}

/* The IP header of an answer of `tcp_bytes`: IPv4 with DF and identification 0. The sum over a packet
 * that its card told stays right: IPv4's own checksum sees to that, for IPv6 it is done here. */
static __always_inline int fl_answer_ip(fl_ctx *ctx, const struct fl_packet *packet, __u32 tcp_bytes)
{
	void *start = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (packet->v4) {
		struct iphdr *ip = start + FL_V4_AT;
		__be32 src = *(__be32 *)(packet->key.dst.bytes + 12);
		__be32 dst = *(__be32 *)(packet->key.src.bytes + 12);
		__u32 total = sizeof(*ip) + tcp_bytes;
		__u64 sum;

		if ((void *)(ip + 1) > end)
			return -1;
		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version = 4;
		ip->ihl = 5;
		ip->tot_len = bpf_htons(total);
		ip->frag_off = bpf_htons(0x4000);
		ip->ttl = FL_OWN_TTL;
		ip->protocol = FL_PROTOCOL_TCP;
		ip->saddr = src;
		ip->daddr = dst;
		sum = bpf_htons(0x4500) + ip->tot_len + ip->frag_off;
		sum += bpf_htons(FL_OWN_TTL << 8 | FL_PROTOCOL_TCP);
		sum += (__u64)src + dst;
		ip->check = ~fl_checksum_fold(sum);
	} else {
		struct ipv6hdr *ip = start + FL_V4_AT;
		__u16 before;

		if ((void *)(ip + 1) > end)
			return -1;
		before = fl_v6_sum(ip);
		*(__be32 *)ip = bpf_htonl(0x60000000);
		ip->payload_len = bpf_htons(tcp_bytes);
		ip->nexthdr = FL_PROTOCOL_TCP;
		ip->hop_limit = FL_OWN_TTL;
		__builtin_memcpy(&ip->saddr, packet->key.dst.bytes, 16);
		__builtin_memcpy(&ip->daddr, packet->key.src.bytes, 16);
		fl_ctx_sum_changes(ctx, fl_checksum_fold((__u64)fl_v6_sum(ip) + (__u16)~before));
	}
	return 0;
}

static __always_inline int fl_answer_link(fl_ctx *ctx)
{
	struct ethhdr *link = (void *)(long)ctx->data;
	__u8 mac[ETH_ALEN];

	if ((void *)(link + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(mac, link->h_dest, ETH_ALEN);
	__builtin_memcpy(link->h_dest, link->h_source, ETH_ALEN);
	__builtin_memcpy(link->h_source, mac, ETH_ALEN);
	return 0;
}

#endif
