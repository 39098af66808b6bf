/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * On a server's machine, for `fairlead content refer`: blocks of files that the other end of a link has
 * go over it as references (the paper's nic_pkt_append_cache). The directory is here: it says which
 * block lies at which place of the other end's store, and only what that end has confirmed is referred
 * to. TCP is the kernel's, retransmission too.
 */
#define FL_TC
#include "lib/pieces.h"
#include "lib/reference.h"

/* With this number of places, the least recently used block of a set is nearly that of all sets. A
 * block that loses its place apart from its file makes packets mixed, which go as bytes. */
#define FL_WAYS 32
#define FL_REFER_STEPS 64
/* An insert that is not confirmed by then, in units of 1.05 ms, is made anew. */
#define FL_REFER_PATIENCE 1000
/* Without an answer to this number of packets of inserts, the next ones are this far apart, in units
 * of 1.05 ms. */
#define FL_REFER_UNHEARD 256
#define FL_REFER_RARE 100

/* crates/bpf-loader/src/refer.rs has the same structures. */
struct fl_refer_settings {
	__be32 token[2];
	__be32 epoch;
	__u32 sets; /* a power of two */
	__u64 cache_bytes;
};

struct fl_refer_counts {
	__u64 packets;	  /* that were looked at */
	__u64 content;	  /* bytes of files in them */
	__u64 referred;	  /* of these, bytes that went as references */
	__u64 references; /* packets that became lists */
	__u64 list_bytes; /* of all lists, with their headers */
	__u64 inserts;	  /* blocks, or parts of blocks */
	__u64 replaced;	  /* blocks that lost their place */
	__u64 held;	  /* parts of blocks that the other end confirmed */
	__u64 unknown;	  /* references that the other end could not resolve */
	__u64 dirty;	  /* bytes of pages that may change without notice */
	__u64 strange;	  /* lists of strangers, or damaged */
	__u64 busy;	  /* looks at a set that another processor held */
	__u64 failed;	  /* packets that could not be changed, and were dropped */
	__u64 unheard;	  /* packets of inserts since the other end last said something */
	__u64 tried;	  /* when the last of these was sent, in units of 1.05 ms */
	__u64 generation; /* the last one given */
};

struct fl_way {
	__u64 inode, changed, version;
	__u32 device, index;
	__u32 generation; /* 0: nothing lies here */
	__u32 used;
	__u32 since;	/* when it was inserted */
	__u16 held;	/* bytes from the begin that the other end has */
	__u16 inserted; /* that were sent to it */
};

struct fl_set {
	__u32 is_taken;
	__u32 pad;
	struct fl_way ways[FL_WAYS];
};

/* Where the list of the packet at hand is built. */
struct fl_refer_room {
	__u32 piece;  /* the next one, */
	__u32 within; /* and bytes of it that were looked at */
	__u32 at;     /* bytes of the payload */
	__u32 plain;  /* of these, bytes that have to go as they are */
	__u32 files;  /* of these, bytes of files that are referred to */
	__u32 now;
	__u32 may_insert;
	__u32 found, oldest; /* a place of the set at hand, and how long ago it was used */
	__u32 inserts;
	struct fl_item insert[FL_LIST_ITEMS];
};

_Static_assert(sizeof(struct fl_refer_settings) == 24, "layout");
_Static_assert(sizeof(struct fl_way) == 48, "layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_refer_settings);
} fl_refer_settings FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_refer_counts);
} fl_refer_counts FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 128);
	__type(key, __u32);
	__type(value, struct fl_set);
} fl_refer_sets FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_refer_room);
} fl_refer_rooms FL_MAP_PRIVATE;

#define FL_COUNT(counts, name, more) __sync_fetch_and_add(&(counts)->name, more)

static __always_inline struct fl_refer_settings *fl_refer_setting(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_refer_settings, &zero);
}

static __always_inline struct fl_refer_counts *fl_refer_count(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_refer_counts, &zero);
}

/* The processor's time, in units of 1.05 ms. */
static __always_inline __u32 fl_refer_now(void)
{
	return bpf_ktime_get_ns() >> 20;
}

static __always_inline __u32 fl_refer_hash(const struct fl_piece *piece, __u32 index)
{
	__u64 hash = (piece->inode ^ (__u64)piece->device << 40) * 0x9e3779b97f4a7c15ULL;

	hash = (hash ^ index) * 0xff51afd7ed558ccdULL;
	return hash >> 32;
}

/* The other processor that holds a set needs it for a moment only, and the next packet is as good. */
static __always_inline int fl_set_take(struct fl_set *set, struct fl_refer_counts *counts)
{
	if (!__sync_val_compare_and_swap(&set->is_taken, 0, 1))
		return 0;
	FL_COUNT(counts, busy, 1);
	return -1;
}

static __always_inline void fl_set_give(struct fl_set *set)
{
	__sync_lock_test_and_set(&set->is_taken, 0);
}

/* Where a block lies or may lie: the place of its earlier content, an empty one, the least recently
 * used. What was found is kept in memory, where it does not double the verifier's states. */
static __always_inline __u32 fl_set_find(struct fl_set *set, const struct fl_piece *piece,
					 __u32 index, struct fl_refer_room *room)
{
	volatile __u32 *found = &room->found, *oldest = &room->oldest;

	*found = 0;
	*oldest = 0;
	for (__u32 at = 0; at < FL_WAYS; at++) {
		struct fl_way *way = &set->ways[at];
		__u32 age = way->generation ? ((room->now - way->used) >> 2) + 1 : 0x80000000;

		if (way->generation && way->inode == piece->inode && way->index == index &&
		    way->device == piece->device)
			age = 0xffffffff;
		if (age > *oldest) {
			*oldest = age;
			*found = at;
		}
	}
	return *found;
}

/* Whether the other end has this part of a block: 1. Else 0, and the part may have been written into
 * `item` as an insert: 2. */
static __always_inline int fl_way_use(struct fl_way *way, const struct fl_piece *piece, __u32 index,
				      __u32 from, __u32 len, struct fl_refer_room *room,
				      struct fl_refer_counts *counts)
{
	int is_it = way->generation && way->inode == piece->inode && way->index == index &&
		    way->device == piece->device && way->changed == piece->changed_ns &&
		    way->version == piece->version;

	if (is_it && way->held >= from + len) {
		way->used = room->now;
		return 1;
	}
	if (!room->may_insert)
		return 0;
	if (is_it) {
		way->used = room->now;
		if (from && way->inserted == from) {
			way->inserted += len; /* the rest of a block that two packets share */
			way->since = room->now;
			return 2;
		}
		if (way->held != way->inserted && room->now - way->since <= FL_REFER_PATIENCE)
			return 0;
	} else if (!from && way->generation) {
		FL_COUNT(counts, replaced, 1);
	}
	if (from)
		return 0;
	way->inode = piece->inode;
	way->changed = piece->changed_ns;
	way->version = piece->version;
	way->device = piece->device;
	way->index = index;
	way->generation = FL_COUNT(counts, generation, 1) + 1;
	way->used = room->now;
	way->since = room->now;
	way->held = 0;
	way->inserted = len;
	return 2;
}

/* A part of a file's block. */
static __always_inline int fl_refer_file(struct __sk_buff *ctx, const struct fl_piece *piece,
					 __u64 offset, __u32 len, struct fl_work *work,
					 struct fl_refer_room *room)
{
	struct fl_refer_settings *settings = fl_refer_setting();
	struct fl_refer_counts *counts = fl_refer_count();
	__u32 index = offset / FL_BLOCK_BYTES, from = offset % FL_BLOCK_BYTES, number, at, count, way;
	__u32 generation = 0;
	struct fl_set *set;
	struct fl_item *item;
	int use = 0;

	if (!settings || !counts)
		return -1;
	number = fl_refer_hash(piece, index) & (settings->sets - 1);
	set = bpf_map_lookup_elem(&fl_refer_sets, &number);
	if (!set || fl_set_take(set, counts))
		return 0;
	way = fl_set_find(set, piece, index, room) & (FL_WAYS - 1);
	use = fl_way_use(&set->ways[way], piece, index, from, len, room, counts);
	generation = set->ways[way].generation;
	fl_set_give(set);
	if (!use)
		return 0;
	count = use == 1 ? work->count : room->inserts;
	if (count >= FL_LIST_ITEMS)
		return 0;
	FL_OPAQUE(count);
	if (count >= FL_LIST_ITEMS)
		return 0;
	item = use == 1 ? &work->items[count] : &room->insert[count];
	item->block = bpf_htonl(number * FL_WAYS + way);
	item->generation = bpf_htonl(generation);
	item->from = bpf_htons(from);
	item->len = bpf_htons(len);
	item->at = bpf_htons(room->at);
	item->sum = 0;
	if (use == 1) {
		work->count = count + 1;
		room->files += len;
		return 1;
	}
	at = work->tcp_at + work->tcp_bytes + room->at;
	if (!fl_within(&len, 1, FL_BLOCK_BYTES) || bpf_skb_load_bytes(ctx, at, work->bytes, len))
		return 0;
	item->sum = fl_work_sum(len, 0);
	room->inserts = count + 1;
	FL_COUNT(counts, inserts, 1);
	return 0;
}

/* Bytes of other memory, which go with the list. */
static __always_inline int fl_refer_memory(struct __sk_buff *ctx, __u32 len, struct fl_work *work,
					   struct fl_refer_room *room)
{
	__u32 rear = work->inline_bytes, count = work->count;
	struct fl_item *item;

	if (rear + len > FL_LIST_INLINE_BYTES || rear >= FL_LIST_INLINE_BYTES || count >= FL_LIST_ITEMS)
		return 0;
	FL_OPAQUE(count);
	if (count >= FL_LIST_ITEMS || !fl_within(&len, 1, FL_LIST_INLINE_BYTES))
		return 0;
	FL_OPAQUE(rear);
	if (rear >= FL_LIST_INLINE_BYTES || rear + len > FL_LIST_INLINE_BYTES)
		return 0;
	/* The bound of a sum tells the verifier nothing of its parts. */
	if (bpf_skb_load_bytes(ctx, work->tcp_at + work->tcp_bytes + room->at, work->bytes, len) ||
	    bpf_probe_read_kernel(work->bytes + 1024 + rear, len, work->bytes))
		return 0;
	item = &work->items[count];
	item->block = FL_INLINE;
	item->generation = 0;
	item->from = 0;
	item->len = bpf_htons(len);
	item->at = bpf_htons(room->at);
	item->sum = 0;
	work->count = count + 1;
	work->inline_bytes = rear + len;
	return 1;
}

/* Looks at the next part of the payload: of one block, or of one piece of other memory. Not 0: that
 * was all. Global, so that it is verified once. */
__noinline int fl_refer_step(struct __sk_buff *ctx)
{
	struct fl_refer_settings *settings = fl_refer_setting();
	struct fl_refer_counts *counts = fl_refer_count();
	struct fl_pieces_room *pieces = fl_pieces_room();
	struct fl_work *work = fl_work_room();
	__u32 zero = 0, number, len;
	struct fl_refer_room *room = bpf_map_lookup_elem(&fl_refer_rooms, &zero);
	const struct fl_piece *piece;
	int is_known = 0;

	if (!pieces || !work || !room || !settings || !counts)
		return 1;
	number = room->piece;
	if (number >= pieces->packet.pieces)
		return 1;
	piece = &pieces->pieces[number & (FL_PIECES_MAX - 1)];
	len = piece->len - room->within;
	if (piece->kind == FL_PIECE_FILE) {
		__u64 offset = piece->offset + room->within;
		__u32 left = FL_BLOCK_BYTES - offset % FL_BLOCK_BYTES;

		if (len > left)
			len = left;
		FL_COUNT(counts, content, len);
		if (piece->file_bytes <= settings->cache_bytes)
			is_known = fl_refer_file(ctx, piece, offset, len, work, room);
	} else if (piece->kind == FL_PIECE_DIRTY) {
		FL_COUNT(counts, content, len);
		FL_COUNT(counts, dirty, len);
	} else {
		is_known = fl_refer_memory(ctx, len, work, room);
	}
	if (!is_known)
		room->plain += len;
	room->at += len;
	room->within += len;
	if (room->within >= piece->len) {
		room->piece = number + 1;
		room->within = 0;
	}
	return 0;
}

/* Makes this packet a list; it leaves by the same interface, and a queue there gets its true length. */
static __always_inline int fl_refer_become(struct __sk_buff *ctx, struct fl_work *work, __u8 kind)
{
	struct fl_refer_counts *counts = fl_refer_count();

	if (!counts)
		return TC_ACT_UNSPEC;
	if (fl_list_write(ctx, work, kind)) {
		FL_COUNT(counts, failed, 1);
		return TC_ACT_SHOT; /* TCP sends it again */
	}
	FL_COUNT(counts, list_bytes, ctx->len);
	return bpf_redirect(ctx->ifindex, 0);
}

/* A copy that goes ahead of the packet says what lies where in it. */
static __always_inline void fl_refer_insert(struct __sk_buff *ctx, struct fl_work *work,
					    struct fl_refer_room *room)
{
	__builtin_memcpy(work->items, room->insert, sizeof(work->items));
	work->count = room->inserts;
	work->inline_bytes = 0;
	work->task = FL_LIST_INSERTS;
	bpf_clone_redirect(ctx, ctx->ifindex, 0);
	work->task = 0;
}

/* True when all of the payload can be in a list, and this is shorter. */
static __always_inline int fl_refer_pays(const struct fl_work *work, const struct fl_refer_room *room)
{
	return !room->plain && room->files >= 512 && work->count &&
	       room->at == work->data_bytes && room->at <= 0xffff;
}

SEC("classifier")
int fairlead_refer(struct __sk_buff *ctx)
{
	struct fl_refer_settings *settings = fl_refer_setting();
	struct fl_refer_counts *counts = fl_refer_count();
	struct fl_pieces_settings *wanted;
	struct fl_pieces_room *pieces = fl_pieces_room();
	struct fl_work *work = fl_work_room();
	__u32 zero = 0, segment, task;
	struct fl_refer_room *room = bpf_map_lookup_elem(&fl_refer_rooms, &zero);
	__u8 flags;

	wanted = bpf_map_lookup_elem(&fl_pieces_settings, &zero);
	if (!settings || !counts || !wanted || !pieces || !work || !room)
		return TC_ACT_UNSPEC;
	task = work->task;
	if (task) {
		work->task = 0;
		return fl_refer_become(ctx, work, FL_LIST_INSERTS);
	}
	if (fl_work_headers(ctx, work) || work->protocol != IPPROTO_TCP || !work->data_bytes)
		return TC_ACT_UNSPEC;
	segment = ctx->gso_size ? ctx->gso_size : work->data_bytes;
	if (segment > FL_REFERENCE_SEGMENT_BYTES || ctx->vlan_present ||
	    bpf_skb_load_bytes(ctx, work->tcp_at + 13, &flags, 1) || flags & 0x26 /* URG, RST, SYN */)
		return TC_ACT_UNSPEC;
	if (fl_pieces_of(ctx, pieces, wanted) || pieces->packet.pieces < 1)
		return TC_ACT_UNSPEC;
	FL_COUNT(counts, packets, 1);
	room->piece = 0;
	room->within = 0;
	room->at = 0;
	room->plain = 0;
	room->files = 0;
	room->inserts = 0;
	room->now = fl_refer_now();
	room->may_insert = counts->unheard < FL_REFER_UNHEARD ||
			   room->now - (__u32)counts->tried > FL_REFER_RARE;
	work->count = 0;
	work->inline_bytes = 0;
	for (__u32 step = 0; step < FL_REFER_STEPS; step++)
		if (fl_refer_step(ctx))
			break;
	work->head.epoch = settings->epoch;
	work->head.token[0] = settings->token[0];
	work->head.token[1] = settings->token[1];
	work->head.payload = bpf_htons(work->data_bytes);
	work->head.segment = bpf_htons(segment);
	if (fl_refer_pays(work, room)) {
		__u32 rear = work->inline_bytes;

		/* It was gathered in the work room, where the list is built now. */
		if (rear && (!fl_within(&rear, 1, FL_LIST_INLINE_BYTES) ||
			     bpf_probe_read_kernel(work->rear, rear, work->bytes + 1024)))
			return TC_ACT_UNSPEC;
		FL_COUNT(counts, referred, room->files);
		FL_COUNT(counts, references, 1);
		return fl_refer_become(ctx, work, FL_LIST_REFERENCES);
	}
	if (room->inserts) {
		FL_COUNT(counts, unheard, 1);
		counts->tried = room->now;
		fl_refer_insert(ctx, work, room);
	}
	return TC_ACT_UNSPEC;
}

/* What the other end says of a part of a block. Global, so that it is verified once. */
__noinline int fl_refer_answer(__u32 at)
{
	struct fl_refer_counts *counts = fl_refer_count();
	struct fl_work *work = fl_work_room();
	__u32 block, number, generation;
	struct fl_way *way;
	struct fl_set *set;

	if (!work || !counts || at >= FL_LIST_ITEMS)
		return 0;
	block = bpf_ntohl(work->items[at].block);
	generation = bpf_ntohl(work->items[at].generation);
	number = block / FL_WAYS;
	set = bpf_map_lookup_elem(&fl_refer_sets, &number);
	if (!set || !generation || fl_set_take(set, counts))
		return 0;
	way = &set->ways[block % FL_WAYS];
	if (way->generation == generation) {
		__u16 len = bpf_ntohs(work->items[at].len);

		if (work->head.kind == FL_LIST_UNKNOWN) {
			way->held = 0;
			way->since = fl_refer_now() - 2 * FL_REFER_PATIENCE;
			FL_COUNT(counts, unknown, 1);
		} else if (len > way->held && len <= way->inserted) {
			way->held = len;
			FL_COUNT(counts, held, 1);
		}
	}
	fl_set_give(set);
	return 0;
}

/* At ingress: what the other end says. It is for nobody else. */
SEC("classifier")
int fairlead_refer_in(struct __sk_buff *ctx)
{
	struct fl_refer_settings *settings = fl_refer_setting();
	struct fl_refer_counts *counts = fl_refer_count();
	struct fl_work *work = fl_work_room();

	if (!settings || !counts || !work || fl_work_headers(ctx, work) ||
	    work->protocol != FL_REFERENCE_PROTOCOL)
		return TC_ACT_UNSPEC;
	if (fl_list_read(ctx, work, settings->token) || work->head.epoch != settings->epoch ||
	    (work->head.kind != FL_LIST_HELD && work->head.kind != FL_LIST_UNKNOWN)) {
		FL_COUNT(counts, strange, 1);
		return TC_ACT_SHOT;
	}
	counts->unheard = 0;
	for (__u32 at = 0; at < FL_LIST_ITEMS; at++) {
		if (at >= work->count)
			break;
		fl_refer_answer(at);
	}
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
