/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Segments that the kernel sends for a cache: the packet that is answered becomes them, one by one.
 * BPF makes no super-packets, so there are two at most.
 */
#ifndef FAIRLEAD_ANSWER_H
#define FAIRLEAD_ANSWER_H

#include <linux/if_ether.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "checksum.h"
#include "host.h"
#include "own.h"
#include "parse.h"

#define FL_OBJECTS 1024
#define FL_STAMPS_BYTES 12
#define FL_STAMPS_LEAD bpf_htonl(FL_WORD(1, 1, 8, 10))
#define FL_HIT_SUM_AT_ONCE 512

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_OBJECTS);
	__type(key, __u64);
	__type(value, struct fl_object);
} fl_objects FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_hit_settings);
} fl_hit_settings FL_MAP_PRIVATE;

/* No verdict: the packet is not for a client that is answered here, and nothing was changed. */
#define FL_NO_HIT (-3)

/* Timestamps, as they lie in a header. */
struct fl_stamps {
	__be32 lead;
	__be32 value;
	__be32 echo;
};

/* A header as it is sent here. */
struct fl_answer_header {
	struct fl_tcp_view tcp;
	struct fl_stamps stamps;
};
_Static_assert(sizeof(struct fl_answer_header) == 32, "eight words");

/* What is being sent: too much for the stack. */
struct fl_sending {
	struct fl_answer_header header;
	__be32 fields[6]; /* the two fields of an answer, each of ten bytes and zeros */
	__u64 sum;        /* of what the packet is now, its checksum and the pseudo-header apart */
	__u32 bytes;      /* and its length, TCP header included */
	__u32 clock;      /* of our timestamps */
	__u32 at;         /* where the payload begins */
	__u64 number;     /* of the object */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_sending);
} fl_sendings FL_MAP_PRIVATE;

static __always_inline void fl_host_add(__u32 which, __u64 by)
{
	__u64 *counter = bpf_map_lookup_elem(&fl_host_counters, &which);

	if (counter)
		*counter += by;
}

/* The timestamps of a segment, where stacks in use have them. Not 0: it has none there. */
static __always_inline int fl_stamps_of(struct __sk_buff *ctx, const struct fl_packet *packet,
					struct fl_stamps *stamps)
{
	if (packet->tcp_bytes < sizeof(struct fl_tcp_view) + FL_STAMPS_BYTES ||
	    bpf_skb_load_bytes(ctx, fl_tcp_at(packet) + sizeof(struct fl_tcp_view), stamps,
			       sizeof(*stamps)))
		return -1;
	return stamps->lead != FL_STAMPS_LEAD;
}

static __always_inline void fl_link_of(struct __sk_buff *ctx, struct fl_hit *hit)
{
	bpf_skb_load_bytes(ctx, 0, hit->link, sizeof(hit->link));
}

/* Folded, and as a number that can be added. */
static __always_inline __u64 fl_sum_words(const __be32 *words, int count)
{
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (int at = 0; at < count; at++)
		sum += words[at];
	return sum;
}

/* What the words of the packet sum up to by its own checksum, which is right: complete, it makes the
 * whole 0xffff. An open one says nothing, and nothing is added to it either. */
static __always_inline __u16 fl_sum_by_checksum(__u16 field, __u16 pseudo)
{
	return fl_checksum_fold((__u64)(__u16)~field + (__u16)~pseudo);
}

/* The clock of our timestamps: that of SYN-ACKs (lib/synack.h). */
static __always_inline __u32 fl_hit_clock(void)
{
	__u32 zero = 0;
	struct fl_hit_settings *settings = bpf_map_lookup_elem(&fl_hit_settings, &zero);

	return settings ? (bpf_ktime_get_ns() - settings->base.origin_ns) / 1000000 : 0;
}

/* Gets ready to make packets of the one at hand. */
static __always_inline int fl_begin_sending(struct __sk_buff *ctx, struct fl_packet *packet,
					    struct fl_sending *sending)
{
	__u16 field;

	if (bpf_skb_load_bytes(ctx, fl_tcp_at(packet) + 16, &field, sizeof(field)))
		return -1;
	sending->sum = fl_sum_by_checksum(field, fl_checksum_fold(fl_pseudo_sum(packet)));
	sending->bytes = (__u32)packet->tcp_bytes + packet->payload_bytes;
	return fl_answer_link(ctx);
}

/* The header of a segment of `hit`; how long it is. */
static __always_inline __u32 fl_write_header(struct fl_sending *sending,
					     const struct fl_packet *packet,
					     const struct fl_hit *hit, __u32 seq, __u8 flags)
{
	struct fl_answer_header *header = &sending->header;
	__u32 bytes = hit->timestamps ? sizeof(*header) : sizeof(header->tcp);

	__builtin_memset(header, 0, sizeof(*header));
	header->tcp.src_port = packet->key.dst_port;
	header->tcp.dst_port = packet->key.src_port;
	header->tcp.seq = bpf_htonl(seq);
	header->tcp.ack = bpf_htonl(hit->rcv_nxt);
	header->tcp.offset = bytes / 4 << 4;
	header->tcp.flags = flags;
	header->tcp.window = bpf_htons(hit->our_scale > 9 ? 64 : 0xffff >> hit->our_scale);
	if (hit->timestamps) {
		header->stamps.lead = FL_STAMPS_LEAD;
		header->stamps.value = bpf_htonl(sending->clock);
		header->stamps.echo = hit->stamp;
	}
	return bytes;
}

/* Makes the packet, which has its length and its payload, a segment with this header. `sum` is that
 * of its payload. */
static __noinline int fl_write_segment(struct __sk_buff *ctx, struct fl_packet *packet,
				       struct fl_sending *sending, __u32 payload, __u64 sum)
{
	__u32 at, bytes;
	__u64 all;
	__u16 pseudo;

	if (!packet || !sending)
		return -1;
	at = fl_tcp_at(packet);
	bytes = sending->header.tcp.offset >> 4 == 8 ? sizeof(sending->header)
						     : sizeof(sending->header.tcp);
	all = fl_sum_words((const __be32 *)&sending->header, sizeof(sending->header) / 4) + sum;
	pseudo = fl_checksum_fold((__u64)(__u16)~bpf_htons(sending->bytes) +
				  bpf_htons(bytes + payload));
	if (fl_ctx_tcp_checksum(ctx, at + 16, pseudo,
				fl_checksum_fold(all + (__u16)~fl_checksum_fold(sending->sum))))
		return -1;
	sending->sum = fl_checksum_fold(all);
	sending->bytes = bytes + payload;
	if (bpf_skb_load_bytes(ctx, at + 16, &sending->header.tcp.checksum, 2) ||
	    !fl_within(&bytes, sizeof(sending->header.tcp), sizeof(sending->header)) ||
	    bpf_skb_store_bytes(ctx, at, &sending->header, bytes, 0))
		return -1;
	return fl_answer_ip(ctx, packet, bytes + payload);
}

/* Sends the packet back where it came from; of several, or where nobody acts on a verdict, a copy. */
static __always_inline int fl_send_back(struct __sk_buff *ctx, const struct fl_hit *hit, int copy)
{
	if (!copy)
		return (int)bpf_redirect(hit->ifindex, 0);
	bpf_clone_redirect(ctx, hit->ifindex, 0);
	return TC_ACT_SHOT;
}

/* Sends a segment without payload, with these flags of TCP; FL_SEND_COPY: where nobody acts on a
 * verdict. */
#define FL_SEND_COPY 0x100
static __noinline int fl_send_bare(struct __sk_buff *ctx, struct fl_packet *packet,
				   struct fl_hit *hit, __u32 seq, __u32 flags)
{
	__u32 zero = 0, bytes;
	struct fl_sending *sending = bpf_map_lookup_elem(&fl_sendings, &zero);

	if (!packet || !hit || !sending || fl_begin_sending(ctx, packet, sending))
		return TC_ACT_SHOT;
	sending->clock = fl_hit_clock();
	bytes = fl_write_header(sending, packet, hit, seq, flags);
	if (fl_ctx_resize(ctx, fl_tcp_at(packet) + bytes) ||
	    fl_write_segment(ctx, packet, sending, 0, 0))
		return TC_ACT_SHOT;
	return fl_send_back(ctx, hit, flags & FL_SEND_COPY);
}

/* The values of the two fields of an answer. */
static __always_inline void fl_write_fields(struct fl_sending *sending, const struct fl_hit *hit)
{
	__u8 *age = (__u8 *)sending->fields, *keep = (__u8 *)(sending->fields + 3);
	__u32 left = hit->age;

	__builtin_memset(sending->fields, 0, sizeof(sending->fields));
#pragma clang loop unroll(full)
	for (int at = FL_HIT_FIELD - 1; at >= 0; at--) {
		age[at] = '0' + left % 10;
		left /= 10;
	}
	if (hit->flags & FL_HIT_CLOSES)
		__builtin_memcpy(keep, "close     ", FL_HIT_FIELD);
	else
		__builtin_memcpy(keep, "keep-alive", FL_HIT_FIELD);
}

/* Puts `bytes` of an object from `from` on behind the header, and in the first segment the fields.
 * Their sum, or -1: the packet is spoilt. */
static __noinline __s64 fl_write_payload(struct __sk_buff *ctx, struct fl_object *object,
					 struct fl_sending *sending, __u32 from, __u32 bytes)
{
	__u32 at;
	__s64 sum = 0;

	if (!object || !sending || from > FL_HIT_SEGMENT)
		return -1;
	at = sending->at;
	if (!fl_within(&bytes, 1, FL_HIT_SEGMENT) || !fl_within(&from, 0, FL_HIT_SEGMENT) ||
	    bpf_skb_store_bytes(ctx, at, object->data + from, bytes, 0))
		return -1;
#pragma clang loop unroll(full)
	for (__u32 done = 0; done < FL_HIT_SEGMENT; done += FL_HIT_SUM_AT_ONCE) {
		__u32 left = done < bytes ? (bytes - done + 3) & ~3u : 0;
		const __u32 most = FL_HIT_SEGMENT - done < FL_HIT_SUM_AT_ONCE
					   ? FL_HIT_SEGMENT - done
					   : FL_HIT_SUM_AT_ONCE;

		if (left > most)
			left = most;
		if (!fl_within(&left, 1, most))
			break;
		sum = bpf_csum_diff(0, 0, (__be32 *)(object->data + from + done), left, (__u32)sum);
		if (sum < 0)
			return -1;
	}
	if (from)
		return (__u32)sum;
	if (bpf_skb_store_bytes(ctx, at + object->age_at, sending->fields, FL_HIT_FIELD, 0) ||
	    bpf_skb_store_bytes(ctx, at + object->keep_at, sending->fields + 3, FL_HIT_FIELD, 0))
		return -1;
	return (__u32)sum + fl_sum_words(sending->fields, 6);
}

/* Sends one segment of an answer. FL_NO_HIT: the object was written anew meanwhile. */
static __noinline int fl_answer_segment(struct __sk_buff *ctx, struct fl_packet *packet,
					struct fl_hit *hit, struct fl_object *object, __u32 from)
{
	__u32 zero = 0, bytes, payload, total;
	struct fl_sending *sending = bpf_map_lookup_elem(&fl_sendings, &zero);
	__u8 flags = FL_TCP_ACK;
	__s64 sum;

	if (!packet || !hit || !object || !sending)
		return -1;
	total = object->bytes;
	if (from >= total)
		return -1;
	payload = total - from;
	if (payload > hit->segment)
		payload = hit->segment;
	else
		flags |= FL_TCP_PSH | (hit->flags & FL_HIT_CLOSES ? FL_TCP_FIN : 0);
	bytes = fl_write_header(sending, packet, hit, hit->answer_at + from, flags);
	if (fl_ctx_resize(ctx, fl_tcp_at(packet) + bytes + payload))
		return -1;
	sending->at = fl_tcp_at(packet) + bytes;
	sum = fl_write_payload(ctx, object, sending, from, payload);
	if (sum < 0 || *(volatile __u64 *)&object->number != sending->number)
		return -1;
	return fl_write_segment(ctx, packet, sending, payload, sum);
}

/* Sends the last answer of `hit` from `from` on, which is its begin or that of its second segment.
 * FL_NO_HIT: it is there no more, and nothing was changed. */
static __noinline int fl_answer(struct __sk_buff *ctx, struct fl_packet *packet,
				struct fl_hit *hit, __u32 from, int copy)
{
	__u32 zero = 0;
	struct fl_sending *sending = bpf_map_lookup_elem(&fl_sendings, &zero);
	struct fl_object *object;
	__u64 number;

	if (!packet || !hit || !sending)
		return TC_ACT_SHOT;
	number = hit->object;
	object = bpf_map_lookup_elem(&fl_objects, &number);
	if (!object || object->number != number || object->bytes > 2u * hit->segment)
		return FL_NO_HIT;
	if (fl_begin_sending(ctx, packet, sending))
		return TC_ACT_SHOT;
	/* Only the FIN behind a first segment that is full is missing. */
	if (from >= object->bytes)
		from = 0;
	sending->number = number;
	sending->clock = fl_hit_clock();
	fl_write_fields(sending, hit);
	hit->sent_ns = bpf_ktime_get_ns();
	if (fl_answer_segment(ctx, packet, hit, object, from))
		return TC_ACT_SHOT;
	if (!from && object->bytes > hit->segment) {
		bpf_clone_redirect(ctx, hit->ifindex, 0);
		if (fl_answer_segment(ctx, packet, hit, object, hit->segment))
			return TC_ACT_SHOT;
	}
	return fl_send_back(ctx, hit, copy);
}

#endif
