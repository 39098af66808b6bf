/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The headers of a packet that may be ours. What fairlead_wire::classify would refuse, and what is
 * rare (IP options, extension headers, fragments), is not parsed: it goes to the engine, which
 * counts and judges it.
 */
#ifndef FAIRLEAD_PARSE_H
#define FAIRLEAD_PARSE_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "addressed.h"
#include "checksum.h"

#define FL_AF_INET 2
#define FL_AF_INET6 10

#define FL_PROTOCOL_TCP 6

#define FL_TCP_FIN 1
#define FL_TCP_SYN 2
#define FL_TCP_RST 4
#define FL_TCP_PSH 8
#define FL_TCP_ACK 16

#define FL_V4_AT ((__u32)sizeof(struct ethhdr))
#define FL_V4_TCP_AT (FL_V4_AT + (__u32)sizeof(struct iphdr))
#define FL_V6_TCP_AT (FL_V4_AT + (__u32)sizeof(struct ipv6hdr))

/* Four bytes in the order in which they are sent. */
#define FL_WORD(a, b, c, d) ((__u32)(a) << 24 | (b) << 16 | (c) << 8 | (d))

struct fl_packet {
	struct fl_flow_key key;
	__u32 seq; /* host byte order */
	__u32 ack;
	__u16 window;
	__u16 payload_bytes;
	__u16 tcp_bytes; /* header with options */
	__u8 flags;
	__u8 ttl;
	__u8 v4;
	__u8 tos;
	__u8 asked;    /* not 0: its way is none that was remembered */
	__u8 open;     /* not 0: its TCP checksum may be one that a device has yet to complete */
	__u32 ifindex; /* that it came in by; of a tagged frame, the VLAN's */
	__u32 exit;    /* the device that sends it, once that is known */
	__u32 tag;     /* that is put on it then; 0: none. TPID, and above it TCI, as they lie in a frame */
};

struct fl_tcp_view {
	__be16 src_port;
	__be16 dst_port;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__be16 checksum;
	__be16 urgent;
};

static __always_inline void fl_map_v4(struct fl_address *to, __be32 v4)
{
	__u32 *words = (__u32 *)to->bytes;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

static __always_inline __u32 fl_tcp_at(const struct fl_packet *packet)
{
	return packet->v4 ? FL_V4_TCP_AT : FL_V6_TCP_AT;
}

/* The packet's bytes from the IP header on. */
static __always_inline __u32 fl_ip_bytes(const struct fl_packet *packet)
{
	return fl_tcp_at(packet) - FL_V4_AT + packet->tcp_bytes + packet->payload_bytes;
}

/* The sum of the pseudo-header, not folded. */
static __always_inline __u64 fl_pseudo_sum(const struct fl_packet *packet)
{
	return fl_address_sum(&packet->key.src) + fl_address_sum(&packet->key.dst) +
	       bpf_htons(FL_PROTOCOL_TCP) +
	       bpf_htons((__u32)packet->tcp_bytes + packet->payload_bytes);
}

/* Fills in what TCP says; `tcp` is inside the packet. */
static __always_inline int fl_parse_tcp(struct fl_packet *packet, const struct fl_tcp_view *tcp,
					__u32 bytes)
{
	__u32 header = (tcp->offset >> 4) * 4;

	if (header < sizeof(*tcp) || header > bytes)
		return -1;
	packet->key.src_port = tcp->src_port;
	packet->key.dst_port = tcp->dst_port;
	packet->seq = bpf_ntohl(tcp->seq);
	packet->ack = bpf_ntohl(tcp->ack);
	packet->flags = tcp->flags;
	packet->window = bpf_ntohs(tcp->window);
	packet->tcp_bytes = header;
	packet->payload_bytes = bytes - header;
	return 0;
}

/* True for addresses that no packet comes from: 0/8, 127/8, multicast, reserved. */
static __always_inline int fl_bad_v4_source(__be32 source)
{
	__u32 first = bpf_ntohl(source) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

static __always_inline int fl_parse_v4(fl_ctx *ctx, struct fl_packet *packet)
{
	void *start = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = start + FL_V4_AT;
	struct fl_tcp_view *tcp = start + FL_V4_TCP_AT;
	__u32 total;

	if ((void *)(tcp + 1) > end)
		return -1;
	total = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl != 5 || ip->protocol != FL_PROTOCOL_TCP ||
	    (ip->frag_off & bpf_htons(0x3fff)) || total < sizeof(*ip) + sizeof(*tcp) ||
	    total + FL_V4_AT > fl_ctx_len(ctx) || fl_bad_v4_source(ip->saddr))
		return -1;
	fl_map_v4(&packet->key.src, ip->saddr);
	fl_map_v4(&packet->key.dst, ip->daddr);
	packet->ttl = ip->ttl;
	packet->tos = ip->tos;
	packet->v4 = 1;
	return fl_parse_tcp(packet, tcp, total - sizeof(*ip));
}

static __always_inline int fl_parse_v6(fl_ctx *ctx, struct fl_packet *packet)
{
	void *start = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = start + FL_V4_AT;
	struct fl_tcp_view *tcp = start + FL_V6_TCP_AT;
	__u32 payload;

	if ((void *)(tcp + 1) > end)
		return -1;
	payload = bpf_ntohs(ip->payload_len);
	if (ip->version != 6 || ip->nexthdr != FL_PROTOCOL_TCP || payload < sizeof(*tcp) ||
	    payload + sizeof(*ip) + FL_V4_AT > fl_ctx_len(ctx))
		return -1;
	/* Multicast and IPv4-mapped sources, and mapped destinations, are the engine's to refuse. */
	if (ip->saddr.in6_u.u6_addr8[0] == 0xff)
		return -1;
	if (!ip->saddr.in6_u.u6_addr32[0] && !ip->saddr.in6_u.u6_addr32[1])
		return -1;
	if (!ip->daddr.in6_u.u6_addr32[0] && !ip->daddr.in6_u.u6_addr32[1])
		return -1;
	__builtin_memcpy(packet->key.src.bytes, &ip->saddr, 16);
	__builtin_memcpy(packet->key.dst.bytes, &ip->daddr, 16);
	packet->ttl = ip->hop_limit;
	packet->tos = 0;
	packet->v4 = 0;
	return fl_parse_tcp(packet, tcp, payload);
}

/* 0 when `packet` describes what is in `ctx`. */
static __always_inline int fl_parse(fl_ctx *ctx, struct fl_packet *packet)
{
	struct ethhdr *link;

	if (fl_ctx_is_tagged(ctx) || fl_ctx_pull(ctx, FL_V4_TCP_AT + sizeof(struct fl_tcp_view)))
		return -1;
	link = (void *)(long)ctx->data;
	if ((void *)(link + 1) > (void *)(long)ctx->data_end ||
	    !fl_is_addressed(ctx, packet->ifindex, link))
		return -1;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return fl_parse_v4(ctx, packet);
	if (link->h_proto != bpf_htons(ETH_P_IPV6))
		return -1;
	if (fl_ctx_pull(ctx, FL_V6_TCP_AT + sizeof(struct fl_tcp_view)))
		return -1;
	return fl_parse_v6(ctx, packet);
}

#endif
