/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At tc egress: what a packet of a server consists of. Its payload as pieces, each either a range of a
 * file (pages of the page cache, as sendfile and splice queue them) or other memory.
 *
 * Structures of the kernel are read by CO-RE, so that one object fits Linux 6.1 and later. No function of
 * the kernel is called for it: at tc, `ctx` is the address of the packet's `struct sk_buff`.
 */
#ifndef FAIRLEAD_PIECES_H
#define FAIRLEAD_PIECES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_core_read.h>
#include <fairlead/ctx.h>
#include <fairlead/map.h>

/* Of the kernel's types, the fields that are read. `___` and what follows it is no part of a name. */
#define FL_OF_THE_KERNEL __attribute__((preserve_access_index))

struct sk_buff {
	__u16 network_header;
	unsigned int end;
	unsigned char *head, *data;
} FL_OF_THE_KERNEL;

struct bio_vec { /* a fragment before Linux 6.9 */
	struct page *bv_page;
	unsigned int bv_len, bv_offset;
} FL_OF_THE_KERNEL;

struct skb_frag {
	unsigned long netmem;
	unsigned int len, offset;
} FL_OF_THE_KERNEL;

struct skb_shared_info {
	__u8 nr_frags;
	struct skb_frag frags[1];
} FL_OF_THE_KERNEL;

struct page {
	unsigned long compound_head;
} FL_OF_THE_KERNEL;

struct folio {
	unsigned long flags; /* before Linux 6.18 */
	struct address_space *mapping;
	unsigned long index;
} FL_OF_THE_KERNEL;

struct fl_memdesc_flags {
	unsigned long f;
} FL_OF_THE_KERNEL;

struct folio___memdesc {
	struct fl_memdesc_flags flags;
} FL_OF_THE_KERNEL;

enum pageflags { PG_dirty = 3 };

struct fl_counter {
	int counter;
} FL_OF_THE_KERNEL;

struct fl_counter64 {
	long long counter;
} FL_OF_THE_KERNEL;

struct address_space {
	struct inode *host;
	struct fl_counter i_mmap_writable;
} FL_OF_THE_KERNEL;

struct super_block {
	unsigned int s_dev;
	unsigned long s_magic;
} FL_OF_THE_KERNEL;

struct inode {
	unsigned long i_ino;
	long long i_size;
	struct fl_counter64 i_version;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	long long i_ctime_sec; /* from Linux 6.11 on */
	unsigned int i_ctime_nsec;
} FL_OF_THE_KERNEL;

struct timespec64 {
	long long tv_sec;
	long tv_nsec;
} FL_OF_THE_KERNEL;

struct inode___ctime { /* before Linux 6.6 */
	struct timespec64 i_ctime;
} FL_OF_THE_KERNEL;

struct inode___private {
	struct timespec64 __i_ctime;
} FL_OF_THE_KERNEL;

/* File systems without write-back: a page is dirty from its first byte on, whatever happens to it. */
#define FL_TMPFS_MAGIC 0x01021994
#define FL_RAMFS_MAGIC 0x858458f6

#define FL_PIECES_PORTS 16
/* More than a packet has fragments (CONFIG_MAX_SKB_FRAGS is at most 45). */
#define FL_PIECES_FRAGS 45
#define FL_PIECES_MAX 64
#define FL_PIECES_HEAD_BYTES 1024
/* The bytes of structures that are read at once, each by one call instead of one a field. Where a kernel
 * has another order of fields, the verifier finds an access that is out of bounds, and the program is
 * not loaded. */
#define FL_SKB_SPAN 56
#define FL_PAGE_SPAN 48
#define FL_SUPER_SPAN 128
#define FL_INODE_SPAN 192
#define FL_FRAG_BYTES 16
/* An offset beyond it is no link header. */
#define FL_LINK_BYTES_MAX 256

#define FL_PIECE_MEMORY 0
#define FL_PIECE_FILE 1
#define FL_PIECE_DIRTY 2

/* crates/bpf-loader/src/meter.rs has these structures, too. */
struct fl_pieces_settings {
	__u32 page_bytes;
	__u32 ports; /* of `port` in use; 0: all packets */
	__u16 port[FL_PIECES_PORTS];
};

struct fl_pieces_packet {
	__u32 bytes;	    /* from the link header on */
	__u32 header_bytes; /* of link, IP and TCP; 0: no TCP */
	__u32 flow;	    /* the same for all packets of a connection */
	__u32 ifindex;
	__u16 segment_bytes; /* payload of each packet that it becomes; 0: it is one */
	__u16 head_bytes;    /* bytes behind the pieces: the begin of the payload, where it is a response */
	__u32 pieces;
};

struct fl_piece {
	__u64 inode;
	__u64 offset;
	__u64 file_bytes;
	__u64 version;
	__u64 changed_ns;
	__u32 device;
	__u32 len;
	__u32 kind;
	__u32 is_dirty; /* its pages, whatever that says of them */
};

/* Where a message is built. */
struct fl_pieces_room {
	__u64 mapping; /* of the last piece */
	__u64 folio;   /* the first page of the last folio, and its structure below */
	__u8 skb[FL_SKB_SPAN]; /* from `network_header` on, or a little before */
	__u8 page[FL_PAGE_SPAN];
	__u8 inode[FL_INODE_SPAN];
	__u8 super[FL_SUPER_SPAN];
	__u8 frags[FL_PIECES_FRAGS * FL_FRAG_BYTES];
	__u32 seen; /* bytes of pieces */
	__u32 pad;
	struct fl_pieces_packet packet;
	struct fl_piece pieces[FL_PIECES_MAX];
	__u8 head[FL_PIECES_HEAD_BYTES];
};

_Static_assert(sizeof(struct fl_pieces_settings) == 40, "layout");
_Static_assert(sizeof(struct fl_pieces_packet) == 24, "layout");
_Static_assert(sizeof(struct fl_piece) == 56, "layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_pieces_settings);
} fl_pieces_settings FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_pieces_room);
} fl_pieces_rooms FL_MAP_PRIVATE;

static __always_inline struct fl_pieces_room *fl_pieces_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_pieces_rooms, &zero);
}

/* The last piece; the first, as long as there is no other. */
static __always_inline struct fl_piece *fl_pieces_last(struct fl_pieces_room *room)
{
	return &room->pieces[(room->packet.pieces - 1) & (FL_PIECES_MAX - 1)];
}

static __always_inline struct fl_piece *fl_pieces_next(struct fl_pieces_room *room)
{
	__u32 at = room->packet.pieces;

	if (at >= FL_PIECES_MAX)
		return 0;
	room->packet.pieces = at + 1;
	FL_OPAQUE(at); /* or the bound is checked of one copy, and another is used */
	return &room->pieces[at & (FL_PIECES_MAX - 1)];
}

/* Bytes of other memory. */
static __always_inline void fl_pieces_memory(struct fl_pieces_room *room, __u32 len)
{
	struct fl_piece *piece = fl_pieces_last(room);

	if (!len)
		return;
	room->mapping = 0;
	room->seen += len;
	if (room->packet.pieces && piece->kind == FL_PIECE_MEMORY) {
		piece->len += len;
		return;
	}
	piece = fl_pieces_next(room);
	if (!piece)
		return;
	piece->kind = FL_PIECE_MEMORY;
	piece->len = len;
}

/* A field of a structure that was read to `at`. */
#define FL_READ(type, at, structure, field) (*(type *)((at) + bpf_core_field_offset(structure, field)))

/* When the file was last changed, nanoseconds. */
static __always_inline __u64 fl_pieces_changed(const __u8 *inode)
{
	__u64 second, nano;

	if (bpf_core_field_exists(struct inode, i_ctime_sec)) {
		second = FL_READ(__u64, inode, struct inode, i_ctime_sec);
		nano = FL_READ(__u32, inode, struct inode, i_ctime_nsec);
	} else if (bpf_core_field_exists(struct inode___private, __i_ctime)) {
		second = FL_READ(__u64, inode, struct inode___private, __i_ctime.tv_sec);
		nano = FL_READ(__u64, inode, struct inode___private, __i_ctime.tv_nsec);
	} else {
		second = FL_READ(__u64, inode, struct inode___ctime, i_ctime.tv_sec);
		nano = FL_READ(__u64, inode, struct inode___ctime, i_ctime.tv_nsec);
	}
	/* The highest bit of the second half may be a mark (Linux 6.6 and 6.13). */
	return second * 1000000000 + (nano & 0x3fffffff);
}

/* Describes the file of a page. Not 0: the page belongs to no file. */
static __always_inline int fl_pieces_file(struct fl_pieces_room *room, struct fl_piece *piece,
					 __u64 mapping, __u32 is_dirty)
{
	struct address_space *from = (void *)mapping;
	struct inode *inode = BPF_CORE_READ(from, host);
	__u64 super, magic;

	/* Pages of other uses have something else in this place. */
	if (!inode || bpf_probe_read_kernel(room->inode, sizeof(room->inode), inode) ||
	    FL_READ(__u64, room->inode, struct inode, i_mapping) != mapping)
		return -1;
	super = FL_READ(__u64, room->inode, struct inode, i_sb);
	if (bpf_probe_read_kernel(room->super, sizeof(room->super), (void *)super))
		return -1;
	magic = FL_READ(__u64, room->super, struct super_block, s_magic);
	if (magic == FL_TMPFS_MAGIC || magic == FL_RAMFS_MAGIC)
		is_dirty = BPF_CORE_READ(from, i_mmap_writable.counter) > 0;
	piece->inode = FL_READ(__u64, room->inode, struct inode, i_ino);
	piece->file_bytes = FL_READ(__u64, room->inode, struct inode, i_size);
	piece->version = BPF_CORE_READ(inode, i_version.counter);
	piece->changed_ns = fl_pieces_changed(room->inode);
	piece->device = FL_READ(__u32, room->super, struct super_block, s_dev);
	piece->kind = is_dirty ? FL_PIECE_DIRTY : FL_PIECE_FILE;
	return 0;
}

/* A range of a page, `before` pages behind the first of its folio, whose structure was read. */
static __always_inline void fl_pieces_page(struct fl_pieces_room *room, __u64 before, __u32 offset,
					  __u32 len, __u32 page_bytes)
{
	struct fl_piece *piece = fl_pieces_last(room);
	__u64 mapping = FL_READ(__u64, room->page, struct folio, mapping);
	__u64 index = FL_READ(__u64, room->page, struct folio, index);
	__u64 flags, at = (index + before) * page_bytes + offset;
	__u32 is_dirty;

	if (bpf_core_field_exists(struct folio___memdesc, flags.f))
		flags = FL_READ(__u64, room->page, struct folio___memdesc, flags.f);
	else
		flags = FL_READ(__u64, room->page, struct folio, flags);
	is_dirty = flags >> bpf_core_enum_value(enum pageflags, PG_dirty) & 1;
	if (!mapping || mapping & 3) { /* of no file */
		fl_pieces_memory(room, len);
		return;
	}
	if (room->packet.pieces && room->mapping == mapping && piece->offset + piece->len == at &&
	    piece->is_dirty == is_dirty) {
		piece->len += len;
		room->seen += len;
		return;
	}
	piece = fl_pieces_next(room);
	if (!piece)
		return;
	if (fl_pieces_file(room, piece, mapping, is_dirty)) {
		room->packet.pieces--;
		fl_pieces_memory(room, len);
		return;
	}
	piece->offset = at;
	piece->len = len;
	piece->is_dirty = is_dirty;
	room->seen += len;
	room->mapping = mapping;
}

/* The structure of a page's folio, and how many pages of it come before. Not 0: it cannot be read. */
static __always_inline int fl_pieces_folio(struct fl_pieces_room *room, __u64 page, __u64 *before)
{
	struct page *it = (void *)page;
	__u64 first;

	*before = 0;
	if (page == room->folio)
		return 0;
	first = BPF_CORE_READ(it, compound_head);
	if (first & 1) {
		first--;
		*before = (page - first) / bpf_core_type_size(struct page);
		if (first == room->folio)
			return 0;
	} else {
		first = page;
	}
	room->folio = 0;
	if (bpf_probe_read_kernel(room->page, sizeof(room->page), (void *)first))
		return -1;
	room->folio = first;
	return 0;
}

/* A fragment, by its number. Global, so that it is verified once. */
__noinline int fl_pieces_fragment(__u32 number, __u32 page_bytes)
{
	struct fl_pieces_room *room = fl_pieces_room();
	__u64 page, before;
	__u32 len, offset;
	const __u8 *frag;

	if (!room || number >= FL_PIECES_FRAGS)
		return 0;
	frag = room->frags + number * FL_FRAG_BYTES;
	if (bpf_core_field_exists(struct skb_frag, netmem)) {
		page = FL_READ(__u64, frag, struct skb_frag, netmem);
		len = FL_READ(__u32, frag, struct skb_frag, len);
		offset = FL_READ(__u32, frag, struct skb_frag, offset);
	} else {
		page = FL_READ(__u64, frag, struct bio_vec, bv_page);
		len = FL_READ(__u32, frag, struct bio_vec, bv_len);
		offset = FL_READ(__u32, frag, struct bio_vec, bv_offset);
	}
	/* An odd address: memory of a device. */
	if (page & 1 || fl_pieces_folio(room, page, &before))
		fl_pieces_memory(room, len);
	else
		fl_pieces_page(room, before, offset, len, page_bytes);
	return 0;
}

/* Where the TCP header begins, in bytes from the IP header on; 0: no TCP. */
static __always_inline __u32 fl_pieces_ip(struct __sk_buff *ctx, __u32 *flow)
{
	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes_relative(ctx, 0, &ip, sizeof(ip), BPF_HDR_START_NET) ||
		    ip.protocol != IPPROTO_TCP || ip.ihl < 5 || ip.frag_off & bpf_htons(0x1fff))
			return 0;
		*flow = ip.daddr;
		return ip.ihl * 4;
	}
	if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes_relative(ctx, 0, &ip, sizeof(ip), BPF_HDR_START_NET) ||
		    ip.nexthdr != IPPROTO_TCP)
			return 0;
		*flow = ip.daddr.s6_addr32[0] ^ ip.daddr.s6_addr32[1] ^ ip.daddr.s6_addr32[2] ^
			ip.daddr.s6_addr32[3];
		return sizeof(ip);
	}
	return 0;
}

static __always_inline int fl_pieces_wants(const struct fl_pieces_settings *settings, __u16 port)
{
	if (!settings->ports)
		return 1;
#pragma clang loop unroll(full)
	for (__u32 at = 0; at < FL_PIECES_PORTS; at++)
		if (at < settings->ports && settings->port[at] == port)
			return 1;
	return 0;
}

/* The headers. Not 0: this packet is not wanted. */
static __always_inline int fl_pieces_headers(struct __sk_buff *ctx, struct fl_pieces_packet *packet,
					    const struct fl_pieces_settings *settings, __u32 link)
{
	__be16 tcp[10]; /* ports, ..., offset and flags in the seventh */
	__u32 at = fl_pieces_ip(ctx, &packet->flow);

	packet->header_bytes = 0;
	if (!at || link >= FL_LINK_BYTES_MAX ||
	    bpf_skb_load_bytes_relative(ctx, at, tcp, sizeof(tcp), BPF_HDR_START_NET))
		return settings->ports != 0;
	if (!fl_pieces_wants(settings, bpf_ntohs(tcp[0])))
		return -1;
	packet->flow = (packet->flow ^ (__u32)tcp[1] << 16 ^ tcp[0]) * 0x9e3779b1;
	packet->header_bytes = link + at + (bpf_ntohs(tcp[6]) >> 12) * 4;
	if (packet->header_bytes > packet->bytes)
		packet->header_bytes = packet->bytes;
	return 0;
}

/* Reads the list of fragments, and says how many there are. */
static __always_inline __u32 fl_pieces_fragments(struct fl_pieces_room *room, __u64 shared_at)
{
	struct skb_shared_info *shared = (void *)shared_at;
	__u32 number = BPF_CORE_READ(shared, nr_frags);
	__u64 from = shared_at + bpf_core_field_offset(struct skb_shared_info, frags);

	if (!number)
		return 0;
	if (number > FL_PIECES_FRAGS)
		number = FL_PIECES_FRAGS;
	if (!fl_within(&number, 1, FL_PIECES_FRAGS) ||
	    bpf_probe_read_kernel(room->frags, number * FL_FRAG_BYTES, (void *)from))
		return 0;
	return number;
}

#define FL_SKB_FROM (bpf_core_field_offset(struct sk_buff, network_header) & ~7U)

/* Describes a packet. Not 0: it is not wanted, or cannot be read. */
static __always_inline int fl_pieces_of(struct __sk_buff *ctx, struct fl_pieces_room *room,
					const struct fl_pieces_settings *settings)
{
	__u32 linear, fragments;
	__u64 head, link;

	if (bpf_probe_read_kernel(room->skb, sizeof(room->skb), (void *)ctx + FL_SKB_FROM))
		return -1;
	room->mapping = 0;
	room->folio = 0;
	room->seen = 0;
	room->packet.pieces = 0;
	room->packet.bytes = ctx->len;
	room->packet.ifindex = ctx->ifindex;
	room->packet.segment_bytes = ctx->gso_size;
	room->packet.flow = 0;
	head = FL_READ(__u64, room->skb - FL_SKB_FROM, struct sk_buff, head);
	link = head + FL_READ(__u16, room->skb - FL_SKB_FROM, struct sk_buff, network_header) -
	       FL_READ(__u64, room->skb - FL_SKB_FROM, struct sk_buff, data);
	if (fl_pieces_headers(ctx, &room->packet, settings, link))
		return -1;
	linear = ctx->data_end - ctx->data;
	if (linear > room->packet.header_bytes)
		fl_pieces_memory(room, linear - room->packet.header_bytes);
	head += FL_READ(__u32, room->skb - FL_SKB_FROM, struct sk_buff, end);
	fragments = fl_pieces_fragments(room, head);
	for (__u32 number = 0; number < FL_PIECES_FRAGS; number++) {
		if (number >= fragments)
			break;
		fl_pieces_fragment(number, settings->page_bytes);
	}
	/* What is in other packets' memory, linked to this one. */
	linear = room->packet.header_bytes + room->seen;
	if (room->packet.bytes > linear)
		fl_pieces_memory(room, room->packet.bytes - linear);
	return 0;
}

#endif
