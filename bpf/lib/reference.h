/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets between the two ends of a link with a content cache: `fairlead content refer` on the server's
 * machine, `fairlead content resolve` on the other. Each is a TCP packet of the server, or of the way
 * back, with another protocol number and a list in place of its payload. docs/content-references.md
 * describes them.
 */
#ifndef FAIRLEAD_REFERENCE_H
#define FAIRLEAD_REFERENCE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <fairlead/ctx.h>
#include <fairlead/map.h>

/* For experiments: RFC 3692. */
#define FL_REFERENCE_PROTOCOL 253
#define FL_REFERENCE_MAGIC 0x464c5231

/* Kinds of lists. */
#define FL_LIST_REFERENCES 1 /* of a payload, whose bytes the other end has */
#define FL_LIST_INSERTS 2    /* of a payload that follows in packets of its own */
#define FL_LIST_HELD 3	     /* back: how many bytes of these blocks are held, from the first on */
#define FL_LIST_UNKNOWN 4    /* back: references that could not be resolved */

#define FL_BLOCK_BYTES 4096
#define FL_LIST_ITEMS 24
#define FL_LIST_INLINE_BYTES 900
/* A longer segment does not fit the memory in which its checksum is calculated. */
#define FL_REFERENCE_SEGMENT_BYTES 4000
#define FL_TCP_HEADER_MAX 60
/* Ethernet without tags. */
#define FL_REFERENCE_LINK sizeof(struct ethhdr)
/* Of an item whose bytes are in the list's rear. */
#define FL_INLINE 0xffffffff

struct fl_list_head {
	__be32 magic;
	__u8 kind;
	__u8 items;
	__be16 inline_bytes;
	__be16 payload;	 /* bytes of the packet that it stands for */
	__be16 segment;	 /* bytes of each segment of that */
	__be16 sum;	 /* Internet checksum from the TCP header on; its own checksum counts as 0 */
	__be16 reserved;
	__be32 epoch;	 /* of the referring end: a number that no other run of it has */
	__be32 token[2]; /* of the secret that both ends share */
	__be32 zero;
};

struct fl_item {
	__be32 block;	   /* place in the other end's store */
	__be32 generation; /* of what lies there */
	__be16 from;	   /* first byte of the block */
	__be16 len;
	__be16 at; /* first byte of the payload */
	__be16 sum; /* Internet checksum of these bytes; of inserts */
};

_Static_assert(sizeof(struct fl_list_head) == 32, "layout");
_Static_assert(sizeof(struct fl_item) == 16, "layout");

#define FL_LIST_BYTES_MAX (sizeof(struct fl_list_head) + FL_LIST_ITEMS * sizeof(struct fl_item) + \
			   FL_LIST_INLINE_BYTES)
/* A block, or the headers and the data of a segment; and the zeros behind them that a sum needs. */
#define FL_WORK_BYTES 4608

/* Where lists are built and read, and sums are calculated. A processor has one for each program. */
struct fl_work {
	__u8 bytes[FL_WORK_BYTES];
	struct fl_list_head head;
	struct fl_item items[FL_LIST_ITEMS];
	__u32 count;	    /* of items */
	__u32 inline_bytes; /* of bytes that follow the items */
	__u8 rear[FL_LIST_INLINE_BYTES + 124];
	__u32 task; /* what a copy of the packet becomes that passes the program at egress next: a kind */
	/* Of the packet at hand. */
	__u32 is_six;
	__u32 tcp_at;	  /* where its TCP header begins, from the link header on */
	__u32 tcp_bytes;  /* of that */
	__u32 data_bytes; /* behind it */
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_work);
} fl_work FL_MAP_PRIVATE;

static __always_inline struct fl_work *fl_work_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_work, &zero);
}

static __always_inline __u16 fl_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The sum of the first bytes of the work room and of `seed`, not inverted. Global, so that it is
 * verified once. */
__noinline __u32 fl_work_sum(__u32 bytes, __u32 seed)
{
	struct fl_work *work = fl_work_room();
	__u64 sum = seed;

	if (!work || bytes > FL_WORK_BYTES - 512)
		return 0;
	*(__u32 *)(work->bytes + bytes) = 0;
	bytes = (bytes + 3) & ~3U;
	for (__u32 at = 0; at < FL_WORK_BYTES - 512; at += 512) {
		__u32 more = bytes - at;

		if (at >= bytes)
			break;
		if (more > 512)
			more = 512;
		sum = bpf_csum_diff(0, 0, (__be32 *)(work->bytes + at), more & 0x3fc ? more & 0x3fc : 0,
				    sum);
	}
	return fl_fold(sum);
}

/* Reads where the packet's headers are. Not 0: it is neither TCP nor a list. */
static __always_inline int fl_work_headers(struct __sk_buff *ctx, struct fl_work *work)
{
	__u32 bytes, ip;
	__u8 offset;

	work->is_six = ctx->protocol == bpf_htons(ETH_P_IPV6);
	if (work->is_six) {
		struct ipv6hdr six;

		if (bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK, &six, sizeof(six)))
			return -1;
		ip = sizeof(six);
		work->protocol = six.nexthdr;
		bytes = ip + bpf_ntohs(six.payload_len);
	} else {
		struct iphdr four;

		if (ctx->protocol != bpf_htons(ETH_P_IP) ||
		    bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK, &four, sizeof(four)) || four.ihl != 5 ||
		    four.frag_off & bpf_htons(0x3fff))
			return -1;
		ip = sizeof(four);
		work->protocol = four.protocol;
		bytes = bpf_ntohs(four.tot_len);
	}
	if (work->protocol != IPPROTO_TCP && work->protocol != FL_REFERENCE_PROTOCOL)
		return -1;
	work->tcp_at = FL_REFERENCE_LINK + ip;
	if (bpf_skb_load_bytes(ctx, work->tcp_at + 12, &offset, 1))
		return -1;
	work->tcp_bytes = (offset >> 4) * 4;
	if (work->tcp_bytes < sizeof(struct tcphdr))
		return -1;
	/* Of a super-packet the header's length may be 0; of a short one the link pads. */
	if (ctx->gso_size || bytes > ctx->len - FL_REFERENCE_LINK)
		bytes = ctx->len - FL_REFERENCE_LINK;
	if (bytes < ip + work->tcp_bytes)
		return -1;
	work->data_bytes = bytes - ip - work->tcp_bytes;
	return 0;
}

/* Gives a packet whose length has been set the IP header that belongs to it. */
static __always_inline int fl_work_ip(struct __sk_buff *ctx, struct fl_work *work, __u32 payload,
				      __u8 protocol, __u32 number)
{
	__be16 length;

	if (work->is_six) {
		length = bpf_htons(payload);
		if (bpf_skb_store_bytes(ctx, FL_REFERENCE_LINK + 4, &length, 2, BPF_F_RECOMPUTE_CSUM))
			return -1;
		return bpf_skb_store_bytes(ctx, FL_REFERENCE_LINK + 6, &protocol, 1,
					   BPF_F_RECOMPUTE_CSUM);
	}
	struct iphdr four;

	if (bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK, &four, sizeof(four)))
		return -1;
	four.tot_len = bpf_htons(payload + sizeof(four));
	four.protocol = protocol;
	four.id = bpf_htons(bpf_ntohs(four.id) + number);
	four.check = 0;
	four.check = ~fl_fold(bpf_csum_diff(0, 0, (__be32 *)&four, sizeof(four), 0));
	return bpf_skb_store_bytes(ctx, FL_REFERENCE_LINK, &four, sizeof(four), BPF_F_RECOMPUTE_CSUM);
}

/* Makes the packet one with the list that the work room has: head, items, rear. Not 0: it could not
 * be, and is not what it was. */
static __always_inline int fl_list_write(struct __sk_buff *ctx, struct fl_work *work, __u8 kind)
{
	__u32 items = work->count * sizeof(struct fl_item), rear = work->inline_bytes, bytes;
	__u32 header = work->tcp_bytes, at = work->tcp_at;

	if (!fl_within(&items, sizeof(struct fl_item), FL_LIST_ITEMS * sizeof(struct fl_item)) ||
	    rear > FL_LIST_INLINE_BYTES ||
	    !fl_within(&header, sizeof(struct tcphdr), FL_TCP_HEADER_MAX))
		return -1;
	work->head.magic = bpf_htonl(FL_REFERENCE_MAGIC);
	work->head.kind = kind;
	work->head.items = work->count;
	work->head.inline_bytes = bpf_htons(rear);
	work->head.sum = 0;
	work->head.reserved = 0;
	work->head.zero = 0;
	/* The TCP header's own checksum is left to the device, and does not count. */
	if (bpf_skb_load_bytes(ctx, at, work->bytes, header))
		return -1;
	*(__be16 *)(work->bytes + 16) = 0;
	__builtin_memcpy(work->bytes + header, &work->head, sizeof(work->head));
	bytes = header + sizeof(work->head);
	__builtin_memcpy(work->bytes + bytes, work->items, sizeof(work->items));
	bytes += items;
	if (rear) {
		if (!fl_within(&rear, 1, FL_LIST_INLINE_BYTES) ||
		    bpf_probe_read_kernel(work->bytes + bytes, rear, work->rear))
			return -1;
		bytes += rear;
	}
	work->head.sum = ~fl_work_sum(bytes, 0);
	__builtin_memcpy(work->bytes + header, &work->head, sizeof(work->head));
	if (bpf_skb_change_tail(ctx, at + bytes, 0))
		return -1;
	bytes -= header;
	if (!fl_within(&bytes, sizeof(work->head), FL_LIST_BYTES_MAX) ||
	    bpf_skb_store_bytes(ctx, at + header, work->bytes + header, bytes, BPF_F_RECOMPUTE_CSUM))
		return -1;
	return fl_work_ip(ctx, work, header + bytes, FL_REFERENCE_PROTOCOL, 0);
}

/* Reads a packet's list into the work room. Not 0: it is damaged, or of a stranger. */
static __always_inline int fl_list_read(struct __sk_buff *ctx, struct fl_work *work,
					const __be32 *token)
{
	__u32 bytes = work->tcp_bytes + work->data_bytes, header = work->tcp_bytes, rear;

	if (bytes > FL_TCP_HEADER_MAX + FL_LIST_BYTES_MAX ||
	    !fl_within(&header, sizeof(struct tcphdr), FL_TCP_HEADER_MAX) ||
	    bytes < header + sizeof(work->head) ||
	    !fl_within(&bytes, sizeof(struct tcphdr) + sizeof(work->head),
		       FL_TCP_HEADER_MAX + FL_LIST_BYTES_MAX) ||
	    bpf_skb_load_bytes(ctx, work->tcp_at, work->bytes, bytes))
		return -1;
	__builtin_memcpy(&work->head, work->bytes + header, sizeof(work->head));
	if (work->head.magic != bpf_htonl(FL_REFERENCE_MAGIC) || work->head.token[0] != token[0] ||
	    work->head.token[1] != token[1])
		return -1;
	*(__be16 *)(work->bytes + 16) = 0;
	if ((__u16)fl_work_sum(bytes, 0) != 0xffff)
		return -1;
	work->count = work->head.items;
	rear = bpf_ntohs(work->head.inline_bytes);
	if (!work->count || work->count > FL_LIST_ITEMS || rear > FL_LIST_INLINE_BYTES ||
	    work->data_bytes != sizeof(work->head) + work->count * sizeof(struct fl_item) + rear)
		return -1;
	header += sizeof(work->head);
	__builtin_memcpy(work->items, work->bytes + header, sizeof(work->items));
	work->inline_bytes = rear;
	if (!rear)
		return 0;
	header += (work->count & 31) * sizeof(struct fl_item);
	if (!fl_within(&rear, 1, FL_LIST_INLINE_BYTES) ||
	    bpf_probe_read_kernel(work->rear, rear, work->bytes + header))
		return -1;
	return 0;
}

#endif
