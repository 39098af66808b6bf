/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At the far end of a link from a server, for `fairlead content resolve`: packets of references become
 * the segments that they stand for, from blocks that were seen before. The server's end says what is
 * kept where (fairlead_refer); this one only stores, compares and copies.
 */
#define FL_TC
#include <bpf/bpf_core_read.h>
#include "lib/reference.h"

struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* A device has yet to complete the checksum. */
#define FL_SUM_PARTIAL 3

/* Of the store, one element; the rear is only there for the verifier, which adds what a place and a
 * length may be at most. */
#define FL_STORE_BLOCKS 256
#define FL_STORE_BYTES (FL_STORE_BLOCKS * FL_BLOCK_BYTES)
#define FL_RESOLVE_FLOWS 4096
/* Parts of segments: a super-packet of 64 KiB has 122 segments of 536 bytes, and 24 items. */
#define FL_RESOLVE_STEPS 160
/* On packets that pass here for the second time. */
#define FL_RESOLVE_MARK 0x464c5232

/* crates/bpf-loader/src/resolve.rs has the same structures. */
struct fl_resolve_settings {
	__be32 token[2];
};

struct fl_resolve_counts {
	__u64 lists;	  /* that came, of any kind */
	__u64 references; /* packets that were resolved */
	__u64 segments;	  /* that these became */
	__u64 bytes;	  /* of payload in them */
	__u64 stored;	  /* blocks, or parts of blocks */
	__u64 strange;	  /* lists of strangers, or damaged */
	__u64 invalid;	  /* lists that contradict themselves */
	__u64 unknown;	  /* references to what is not here: dropped, and the server's end informed */
	__u64 replaced;	  /* segments whose block was replaced meanwhile: dropped */
	__u64 damaged;	  /* parts of blocks whose checksum was wrong */
	__u64 busy;	  /* looks at a block that another processor held */
	__u64 failed;	  /* segments for which there was no memory */
	__u64 is_ordered; /* every packet of TCP goes the way of the segments, so that none overtakes */
};

struct fl_block {
	__u32 is_taken;
	__be32 epoch, generation;
	__u32 copied; /* bytes from the begin */
	__u32 held;   /* of these, bytes that were compared with their checksum */
};

struct fl_flow {
	__u32 from[4], to[4];
	__be16 ports[2];
};

/* What lies where in the next packets of a connection. */
struct fl_arm {
	__u32 seq;
	__u32 count;
	__be32 epoch;
	struct fl_item items[FL_LIST_ITEMS];
};

struct fl_resolve_room {
	struct fl_arm arm;
	struct fl_flow flow;
	struct fl_item reply[FL_LIST_ITEMS];
	__u32 replies;
	__u32 seq;
	__u32 total; /* of the lengths of items */
	/* Of a list that becomes segments: */
	__u32 item, used;     /* the next one, and bytes of it that were copied */
	__u32 rear;	      /* bytes that came with the list, and were copied */
	__u32 segment, done;  /* bytes of each segment; of the payload in segments that went on */
	__u32 length, filled; /* of the one at hand */
	__u32 number;
	__u32 is_partial;
	__u32 pseudo;
	__u8 flags;
	__u8 pad[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_resolve_settings);
} fl_resolve_settings FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_resolve_counts);
} fl_resolve_counts FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct fl_block);
} fl_resolve_blocks FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, FL_STORE_BYTES + FL_BLOCK_BYTES);
} fl_resolve_store FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FL_RESOLVE_FLOWS);
	__type(key, struct fl_flow);
	__type(value, struct fl_arm);
} fl_resolve_arms FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_resolve_room);
} fl_resolve_rooms FL_MAP_PRIVATE;

#define FL_COUNT(counts, name, more) __sync_fetch_and_add(&(counts)->name, more)

static __always_inline struct fl_resolve_room *fl_resolve_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_resolve_rooms, &zero);
}

static __always_inline struct fl_resolve_counts *fl_resolve_count(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_resolve_counts, &zero);
}

/* A block that a list names, if there is such a place. */
static __always_inline struct fl_block *fl_block_of(const struct fl_item *item)
{
	__u32 number = bpf_ntohl(item->block);

	return bpf_map_lookup_elem(&fl_resolve_blocks, &number);
}

static __always_inline __u8 *fl_store_of(const struct fl_item *item)
{
	__u32 block = bpf_ntohl(item->block), number = block / FL_STORE_BLOCKS;
	__u8 *store = bpf_map_lookup_elem(&fl_resolve_store, &number);

	return store ? store + block % FL_STORE_BLOCKS * FL_BLOCK_BYTES : 0;
}

/* True for an item that names a part of a block that there can be. */
static __always_inline int fl_item_is_part(const struct fl_item *item)
{
	__u32 from = bpf_ntohs(item->from), len = bpf_ntohs(item->len);

	return item->generation && len && from < FL_BLOCK_BYTES && from + len <= FL_BLOCK_BYTES;
}

static __always_inline int fl_block_is(const struct fl_block *block, const struct fl_item *item,
				       __be32 epoch)
{
	return *(volatile __be32 *)&block->epoch == epoch &&
	       *(volatile __be32 *)&block->generation == item->generation;
}

static __always_inline int fl_block_take(struct fl_block *block)
{
	struct fl_resolve_counts *counts;

	if (!__sync_val_compare_and_swap(&block->is_taken, 0, 1))
		return 0;
	counts = fl_resolve_count();
	if (counts)
		FL_COUNT(counts, busy, 1);
	return -1;
}

static __always_inline void fl_block_give(struct fl_block *block)
{
	__sync_lock_test_and_set(&block->is_taken, 0);
}

static __always_inline void fl_reply_add(struct fl_resolve_room *room, const struct fl_item *item,
					 __u32 held)
{
	__u32 at = room->replies;

	if (at >= FL_LIST_ITEMS)
		return;
	FL_OPAQUE(at);
	if (at >= FL_LIST_ITEMS)
		return;
	room->reply[at] = *item;
	room->reply[at].from = 0;
	room->reply[at].at = 0;
	room->reply[at].len = bpf_htons(held);
	room->replies = at + 1;
}

/* Says it to the server's end, by a copy of the packet that turns round. */
static __always_inline void fl_reply(struct __sk_buff *ctx, struct fl_work *work,
				     struct fl_resolve_room *room, __be32 epoch, __u8 kind)
{
	struct fl_resolve_settings *settings;
	__u32 zero = 0;

	settings = bpf_map_lookup_elem(&fl_resolve_settings, &zero);
	if (!settings || !room->replies)
		return;
	__builtin_memcpy(work->items, room->reply, sizeof(work->items));
	work->count = room->replies;
	work->inline_bytes = 0;
	work->head.epoch = epoch;
	work->head.token[0] = settings->token[0];
	work->head.token[1] = settings->token[1];
	work->head.payload = 0;
	work->head.segment = 0;
	work->task = kind;
	bpf_clone_redirect(ctx, ctx->ifindex, 0);
	work->task = 0;
}

/* A part of a block that this packet has, or has the begin or the rest of. Global, so that it is
 * verified once. */
__noinline int fl_learn_item(struct __sk_buff *ctx, __u32 at)
{
	struct fl_resolve_counts *counts = fl_resolve_count();
	struct fl_resolve_room *room = fl_resolve_room();
	struct fl_work *work = fl_work_room();
	__u32 from, len, copied, more, before;
	struct fl_block *block;
	struct fl_item *item;
	__u8 *store;

	if (!room || !work || !counts || at >= FL_LIST_ITEMS)
		return 0;
	item = &room->arm.items[at];
	block = fl_block_of(item);
	store = fl_store_of(item);
	if (!block || !store || !fl_item_is_part(item) || fl_block_take(block))
		return 0;
	from = bpf_ntohs(item->from);
	len = bpf_ntohs(item->len);
	copied = block->copied;
	if (!fl_block_is(block, item, room->arm.epoch) || copied < from || copied >= from + len)
		goto out;
	/* Where in this packet the next byte is. */
	before = room->arm.seq + bpf_ntohs(item->at) + (copied - from) - room->seq;
	if (before >= work->data_bytes)
		goto out;
	more = work->data_bytes - before;
	if (more > from + len - copied)
		more = from + len - copied;
	if (!fl_within(&more, 1, FL_BLOCK_BYTES))
		goto out;
	FL_OPAQUE(copied);
	if (copied >= FL_BLOCK_BYTES ||
	    bpf_skb_load_bytes(ctx, work->tcp_at + work->tcp_bytes + before, store + copied, more))
		goto out;
	copied += more;
	block->copied = copied;
	if (copied != from + len)
		goto out;
	if (from >= FL_BLOCK_BYTES || !fl_within(&len, 1, FL_BLOCK_BYTES) ||
	    bpf_probe_read_kernel(work->bytes, len, store + from))
		goto out;
	if ((__u16)fl_work_sum(len, 0) != item->sum) {
		block->generation = 0;
		FL_COUNT(counts, damaged, 1);
		goto out;
	}
	block->held = copied;
	FL_COUNT(counts, stored, 1);
	fl_reply_add(room, item, copied);
out:
	fl_block_give(block);
	return 0;
}

/* The connection, and the packet's sequence number. */
static __always_inline int fl_flow_of(struct __sk_buff *ctx, struct fl_work *work,
				      struct fl_resolve_room *room)
{
	struct tcphdr tcp;

	if (bpf_skb_load_bytes(ctx, work->tcp_at, &tcp, sizeof(tcp)))
		return -1;
	__builtin_memset(&room->flow, 0, sizeof(room->flow));
	room->flow.ports[0] = tcp.source;
	room->flow.ports[1] = tcp.dest;
	room->seq = bpf_ntohl(tcp.seq);
	room->flags = ((__u8 *)&tcp)[13];
	if (work->is_six)
		return bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK + 8, room->flow.from, 32);
	if (bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK + 12, room->flow.from, 4))
		return -1;
	return bpf_skb_load_bytes(ctx, FL_REFERENCE_LINK + 16, room->flow.to, 4);
}

/* Copies what was announced of this packet. */
static __always_inline void fl_learn(struct __sk_buff *ctx, struct fl_work *work,
				     struct fl_resolve_room *room)
{
	struct fl_arm *arm;

	if (!work->data_bytes || fl_flow_of(ctx, work, room))
		return;
	arm = bpf_map_lookup_elem(&fl_resolve_arms, &room->flow);
	if (!arm)
		return;
	room->arm = *arm;
	room->replies = 0;
	for (__u32 at = 0; at < FL_LIST_ITEMS; at++) {
		if (at >= room->arm.count)
			break;
		fl_learn_item(ctx, at);
	}
	fl_reply(ctx, work, room, room->arm.epoch, FL_LIST_HELD);
}

/* Makes room for a block that is about to come. Global, so that it is verified once. */
__noinline int fl_arm_item(__u32 at)
{
	struct fl_work *work = fl_work_room();
	struct fl_block *block;
	struct fl_item *item;

	if (!work || at >= FL_LIST_ITEMS)
		return 0;
	item = &work->items[at];
	if (item->from || !fl_item_is_part(item))
		return 0;
	block = fl_block_of(item);
	if (!block || fl_block_take(block))
		return 0;
	/* In this order: whoever copies from it compares the generation afterwards. */
	block->generation = 0;
	block->held = 0;
	block->copied = 0;
	block->epoch = work->head.epoch;
	__sync_lock_test_and_set(&block->generation, item->generation);
	fl_block_give(block);
	return 0;
}

static __always_inline void fl_arm(struct __sk_buff *ctx, struct fl_work *work,
				   struct fl_resolve_room *room)
{
	if (fl_flow_of(ctx, work, room))
		return;
	for (__u32 at = 0; at < FL_LIST_ITEMS; at++) {
		if (at >= work->count)
			break;
		fl_arm_item(at);
	}
	room->arm.seq = room->seq;
	room->arm.count = work->count;
	room->arm.epoch = work->head.epoch;
	__builtin_memcpy(room->arm.items, work->items, sizeof(work->items));
	bpf_map_update_elem(&fl_resolve_arms, &room->flow, &room->arm, BPF_ANY);
}

/* Whether what an item refers to is here. -1: the item contradicts the list. Global, so that it is
 * verified once. */
__noinline int fl_check_item(__u32 at)
{
	struct fl_resolve_room *room = fl_resolve_room();
	struct fl_work *work = fl_work_room();
	struct fl_block *block;
	struct fl_item *item;
	__u32 len;

	if (!room || !work || at >= FL_LIST_ITEMS)
		return -1;
	item = &work->items[at];
	len = bpf_ntohs(item->len);
	if (!len || bpf_ntohs(item->at) != room->total)
		return -1;
	room->total += len;
	if (item->block == FL_INLINE) {
		room->rear += len;
		return 0;
	}
	if (!fl_item_is_part(item))
		return -1;
	block = fl_block_of(item);
	if (!block || !fl_store_of(item) || !fl_block_is(block, item, work->head.epoch) ||
	    bpf_ntohs(item->from) + len > block->held)
		fl_reply_add(room, item, 0);
	return 0;
}

/* The checksum of the segment at hand. Not 0: it could not be written. */
static __always_inline int fl_segment_sum(struct __sk_buff *ctx, struct fl_work *work,
					  struct fl_resolve_room *room)
{
	__u32 bytes = work->tcp_bytes + room->length, sum;
	__be16 field;

	sum = fl_fold((__u64)room->pseudo + bpf_htons(bytes) + bpf_htons(IPPROTO_TCP));
	if (room->is_partial) {
		field = sum;
		return bpf_skb_store_bytes(ctx, work->tcp_at + 16, &field, 2, 0);
	}
	if (!fl_within(&bytes, sizeof(struct tcphdr), FL_TCP_HEADER_MAX + FL_REFERENCE_SEGMENT_BYTES) ||
	    bpf_skb_load_bytes(ctx, work->tcp_at, work->bytes, bytes))
		return -1;
	*(__be16 *)(work->bytes + 16) = 0;
	field = ~fl_work_sum(bytes, sum);
	return bpf_skb_store_bytes(ctx, work->tcp_at + 16, &field, 2, BPF_F_RECOMPUTE_CSUM);
}

/* A segment whose data are there gets its headers, and goes on as if it had come in. */
static __always_inline int fl_segment_send(struct __sk_buff *ctx, struct fl_work *work,
					   struct fl_resolve_room *room)
{
	__be32 seq = bpf_htonl(room->seq + room->done);
	__u8 flags = room->flags;

	if (room->done + room->length < room->total)
		flags &= ~0x09; /* FIN and PSH are of the last, */
	if (room->number)
		flags &= ~0x80; /* CWR of the first */
	if (fl_work_ip(ctx, work, work->tcp_bytes + room->length, IPPROTO_TCP, room->number ? 1 : 0) ||
	    bpf_skb_store_bytes(ctx, work->tcp_at + 4, &seq, 4, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(ctx, work->tcp_at + 13, &flags, 1, BPF_F_RECOMPUTE_CSUM) ||
	    fl_segment_sum(ctx, work, room))
		return -1;
	return bpf_clone_redirect(ctx, ctx->ifindex, BPF_F_INGRESS);
}

/* The length of the next segment, which the packet gets. */
static __always_inline int fl_segment_begin(struct __sk_buff *ctx, struct fl_work *work,
					    struct fl_resolve_room *room)
{
	__u32 left = room->total - room->done;

	room->filled = 0;
	room->length = left < room->segment ? left : room->segment;
	if (!room->length)
		return 0;
	return bpf_skb_change_tail(ctx, work->tcp_at + work->tcp_bytes + room->length, 0);
}

/* Copies what the segment at hand needs of the next item, and sends it on when it is full. Not 0:
 * that was all. Global, so that it is verified once. */
__noinline int fl_segment_step(struct __sk_buff *ctx)
{
	struct fl_resolve_counts *counts = fl_resolve_count();
	struct fl_resolve_room *room = fl_resolve_room();
	struct fl_work *work = fl_work_room();
	__u32 at, used, len, left, to;
	struct fl_block *block = 0;
	struct fl_item *item;
	__u8 *from;

	if (!room || !work || !counts || room->done >= room->total)
		return 1;
	at = room->item;
	if (at >= FL_LIST_ITEMS)
		return 1;
	item = &work->items[at];
	used = room->used;
	len = bpf_ntohs(item->len) - used;
	left = room->length - room->filled;
	to = work->tcp_at + work->tcp_bytes + room->filled;
	if (len > left)
		len = left;
	if (!fl_within(&len, 1, FL_BLOCK_BYTES))
		return 1;
	if (item->block == FL_INLINE) {
		__u32 rear = room->rear;

		if (len > FL_LIST_INLINE_BYTES || rear > FL_LIST_INLINE_BYTES ||
		    rear + len > FL_LIST_INLINE_BYTES)
			return 1;
		/* The bound of a sum tells the verifier nothing of its parts: by way of the work room. */
		FL_OPAQUE(rear);
		if (rear > FL_LIST_INLINE_BYTES ||
		    bpf_probe_read_kernel(work->bytes, len, work->rear + rear) ||
		    bpf_skb_store_bytes(ctx, to, work->bytes, len, BPF_F_RECOMPUTE_CSUM)) {
			FL_COUNT(counts, failed, 1);
			return 1;
		}
		room->rear = rear + len;
	} else {
		__u32 first = bpf_ntohs(item->from) + used;

		block = fl_block_of(item);
		from = fl_store_of(item);
		FL_OPAQUE(first);
		if (!block || !from || first >= FL_BLOCK_BYTES)
			return 1;
		if (bpf_skb_store_bytes(ctx, to, from + first, len, BPF_F_RECOMPUTE_CSUM)) {
			FL_COUNT(counts, failed, 1);
			return 1;
		}
		/* The paper's interlock: it may have been replaced while it was copied. */
		__sync_fetch_and_add(&room->number, 0);
		if (!fl_block_is(block, item, work->head.epoch)) {
			FL_COUNT(counts, replaced, 1);
			return 1;
		}
	}
	used += len;
	room->used = used;
	if (used >= bpf_ntohs(item->len)) {
		room->item = at + 1;
		room->used = 0;
	}
	room->filled += len;
	if (room->filled < room->length)
		return 0;
	if (fl_segment_send(ctx, work, room)) {
		FL_COUNT(counts, failed, 1);
		return 1;
	}
	FL_COUNT(counts, segments, 1);
	FL_COUNT(counts, bytes, room->length);
	room->done += room->length;
	room->number++;
	return fl_segment_begin(ctx, work, room);
}

/* What all segments have in common of their checksums' pseudo-headers. */
static __always_inline __u32 fl_pseudo(const struct fl_resolve_room *room)
{
	return fl_fold((__u64)(__u32)bpf_csum_diff(0, 0, (__be32 *)room->flow.from, 16, 0) +
		       (__u32)bpf_csum_diff(0, 0, (__be32 *)room->flow.to, 16, 0));
}

static __always_inline void fl_resolve(struct __sk_buff *ctx, struct fl_work *work,
				       struct fl_resolve_room *room, struct fl_resolve_counts *counts)
{
	struct sk_buff *packet = (void *)ctx;

	room->total = 0;
	room->rear = 0;
	room->replies = 0;
	for (__u32 at = 0; at < FL_LIST_ITEMS; at++) {
		if (at >= work->count)
			break;
		if (fl_check_item(at)) {
			FL_COUNT(counts, invalid, 1);
			return;
		}
	}
	room->segment = bpf_ntohs(work->head.segment);
	if (room->total != bpf_ntohs(work->head.payload) || room->rear != work->inline_bytes ||
	    room->segment < 64 || room->segment > FL_REFERENCE_SEGMENT_BYTES ||
	    fl_flow_of(ctx, work, room)) {
		FL_COUNT(counts, invalid, 1);
		return;
	}
	if (room->replies) {
		FL_COUNT(counts, unknown, 1);
		fl_reply(ctx, work, room, work->head.epoch, FL_LIST_UNKNOWN);
		return;
	}
	room->is_partial = BPF_CORE_READ_BITFIELD_PROBED(packet, ip_summed) == FL_SUM_PARTIAL;
	room->pseudo = fl_pseudo(room);
	room->item = 0;
	room->used = 0;
	room->rear = 0;
	room->done = 0;
	room->number = 0;
	ctx->mark = FL_RESOLVE_MARK;
	counts->is_ordered = 1;
	FL_COUNT(counts, references, 1);
	if (fl_segment_begin(ctx, work, room)) {
		FL_COUNT(counts, failed, 1);
		return;
	}
	for (__u32 step = 0; step < FL_RESOLVE_STEPS; step++)
		if (fl_segment_step(ctx))
			break;
}

/* At ingress from the server. */
SEC("classifier")
int fairlead_resolve(struct __sk_buff *ctx)
{
	struct fl_resolve_counts *counts = fl_resolve_count();
	struct fl_resolve_room *room = fl_resolve_room();
	struct fl_resolve_settings *settings;
	struct fl_work *work = fl_work_room();
	__u32 zero = 0;

	if (ctx->mark == FL_RESOLVE_MARK) {
		ctx->mark = 0;
		return TC_ACT_UNSPEC;
	}
	settings = bpf_map_lookup_elem(&fl_resolve_settings, &zero);
	if (!counts || !room || !settings || !work || fl_work_headers(ctx, work))
		return TC_ACT_UNSPEC;
	if (work->protocol == IPPROTO_TCP) {
		fl_learn(ctx, work, room);
		if (!counts->is_ordered)
			return TC_ACT_UNSPEC;
		ctx->mark = FL_RESOLVE_MARK;
		return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
	}
	FL_COUNT(counts, lists, 1);
	if (fl_list_read(ctx, work, settings->token))
		FL_COUNT(counts, strange, 1);
	else if (work->head.kind == FL_LIST_INSERTS)
		fl_arm(ctx, work, room);
	else if (work->head.kind == FL_LIST_REFERENCES)
		fl_resolve(ctx, work, room, counts);
	else
		FL_COUNT(counts, strange, 1);
	return TC_ACT_SHOT;
}

/* At egress to the server: copies of packets that came from there become answers. */
SEC("classifier")
int fairlead_resolve_out(struct __sk_buff *ctx)
{
	struct fl_work *work = fl_work_room();
	__u8 link[ETH_ALEN], other[ETH_ALEN], from[16], to[16];
	__u32 at;
	__u8 kind;

	if (!work || !work->task)
		return TC_ACT_UNSPEC;
	kind = work->task;
	work->task = 0;
	if (fl_work_headers(ctx, work) || fl_list_write(ctx, work, kind) ||
	    bpf_skb_load_bytes(ctx, 0, link, ETH_ALEN) ||
	    bpf_skb_load_bytes(ctx, ETH_ALEN, other, ETH_ALEN) ||
	    bpf_skb_store_bytes(ctx, 0, other, ETH_ALEN, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(ctx, ETH_ALEN, link, ETH_ALEN, BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	at = FL_REFERENCE_LINK + (work->is_six ? 8 : 12);
	/* The order of two addresses is nothing to a header's checksum. */
	if (work->is_six) {
		if (bpf_skb_load_bytes(ctx, at, from, 16) || bpf_skb_load_bytes(ctx, at + 16, to, 16) ||
		    bpf_skb_store_bytes(ctx, at, to, 16, BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(ctx, at + 16, from, 16, BPF_F_RECOMPUTE_CSUM))
			return TC_ACT_SHOT;
	} else {
		if (bpf_skb_load_bytes(ctx, at, from, 4) || bpf_skb_load_bytes(ctx, at + 4, to, 4) ||
		    bpf_skb_store_bytes(ctx, at, to, 4, BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(ctx, at + 4, from, 4, BPF_F_RECOMPUTE_CSUM))
			return TC_ACT_SHOT;
	}
	return bpf_redirect(ctx->ifindex, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
