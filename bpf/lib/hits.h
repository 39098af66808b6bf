/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Connections whose requests are answered from a cache in the kernel (docs/kernel-hits.md): what is
 * known of each, and what a client's segment means for it. At the first request that is no hit the
 * connection becomes a socket of the front, with its own numbers.
 */
#ifndef FAIRLEAD_HITS_H
#define FAIRLEAD_HITS_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "answer.h"
#include "cookie.h"
#include "hit.h"
#include "host.h"
#include "parse.h"
#include "verify.h"

#define FL_HIT_CONNECTIONS 65536
/* The kernel makes no socket of a connection with a smaller MSS (crates/splice/src/engine/host.rs). */
#define FL_HIT_MSS_MIN_V4 536
#define FL_HIT_MSS_MIN_V6 1220

/* By client. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_HIT_CONNECTIONS);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_hit);
} fl_hits FL_MAP_OPTIONAL;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_OBJECTS);
	__type(key, __u64);
	__type(value, struct fl_offer);
} fl_offers FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_BOUND_LISTENS);
	__type(key, struct fl_endpoint);
	__type(value, struct fl_hit_listen);
} fl_hit_listens FL_MAP_PRIVATE;

#define FL_HIT_RING_BYTES (1 << 22)

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FL_HIT_RING_BYTES);
} fl_hit_events FL_MAP_PRIVATE;

static __always_inline struct fl_hit_listen *fl_hit_listen_of(const struct fl_flow_key *key)
{
	struct fl_endpoint to = { .addr = key->dst, .port = key->dst_port };

	return bpf_map_lookup_elem(&fl_hit_listens, &to);
}

/* Makes a segment the first one that the front hears of its connection. What it sends next is
 * numbered by what the segment acknowledges: all that was sent. */
static __noinline int fl_hit_give(struct __sk_buff *ctx, struct fl_packet *packet,
				  struct fl_hit *hit, struct fl_hit_listen *listen)
{
	struct fl_give give = { .wait_until_ns = 1 };
	struct fl_stamps stamps = {};

	if (!packet || !hit || !listen)
		return TC_ACT_SHOT;
	give.listener = listen->front;
	give.mss = hit->mss;
	give.scales = hit->scales;
	give.client_scale = hit->client_scale;
	give.our_scale = hit->our_scale;
	give.sack = hit->sack;
	give.timestamps = hit->timestamps;
	if (hit->timestamps && fl_stamps_of(ctx, packet, &stamps)) {
		fl_host_count(FL_C_HITS_UNREADY);
		return TC_ACT_SHOT;
	}
	if (fl_give_to(ctx, &packet->key, packet->v4, &give, bpf_ntohl(stamps.value),
		       bpf_ntohl(stamps.echo))) {
		fl_host_count(FL_C_HITS_UNREADY);
		return TC_ACT_SHOT; /* the client sends it again */
	}
	if (!(hit->flags & FL_HIT_GIVEN))
		fl_host_count(FL_C_HITS_GIVEN);
	hit->flags |= FL_HIT_GIVEN;
	return TC_ACT_OK;
}

/* Shows user space a hit. */
static __always_inline void fl_hit_log(const struct fl_packet *packet, __u64 object, __u32 bytes)
{
	struct fl_hit_event *event = bpf_ringbuf_reserve(&fl_hit_events, sizeof(*event), 0);

	if (!event) {
		fl_host_count(FL_C_HITS_UNLOGGED);
		return;
	}
	event->client = packet->key;
	event->bytes_in = packet->payload_bytes;
	event->object = object;
	event->bytes_out = bytes;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* The offer for a request whose fields have been read; 0 if no valid offer matches it. */
static __noinline struct fl_offer *fl_hit_offer(struct __sk_buff *ctx, struct fl_packet *packet,
						struct fl_hit_listen *listen, __u64 now_ns)
{
	__u32 zero = 0, bytes;
	struct fl_hit_settings *settings = bpf_map_lookup_elem(&fl_hit_settings, &zero);
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);
	struct fl_hit_reading *more = bpf_map_lookup_elem(&fl_hit_readings, &zero);
	struct fl_offer *offer;
	__u64 key;

	if (!packet || !listen || !settings || !reading || !more)
		return 0;
	if ((packet->flags & 0x3f & ~FL_TCP_PSH) != FL_TCP_ACK)
		return 0;
	bytes = packet->payload_bytes;
	if (!fl_within(&bytes, 1, FL_JOIN_BYTES) ||
	    bpf_skb_load_bytes(ctx, fl_tcp_at(packet) + packet->tcp_bytes, reading->payload, bytes))
		return 0;
	if (fl_hit_read(reading, more, bytes, listen->listen.index, &settings->base, &key))
		return 0;
	offer = bpf_map_lookup_elem(&fl_offers, &key);
	if (!offer || offer->epoch != settings->epoch || offer->fresh_until_ns <= now_ns)
		return 0;
	return offer;
}

/* Answers the request that was read. FL_NO_HIT: it cannot be, and nothing was changed. */
static __noinline int fl_hit_answer(struct __sk_buff *ctx, struct fl_packet *packet,
				    struct fl_hit *hit, struct fl_offer *offer, __u64 now_ns)
{
	__u32 zero = 0, bytes, closes;
	struct fl_hit_settings *settings = bpf_map_lookup_elem(&fl_hit_settings, &zero);
	struct fl_hit_reading *more = bpf_map_lookup_elem(&fl_hit_readings, &zero);
	struct fl_object *object;
	__u64 number;

	if (!packet || !hit || !offer || !settings || !more)
		return FL_NO_HIT;
	number = offer->object;
	object = bpf_map_lookup_elem(&fl_objects, &number);
	if (!object)
		return FL_NO_HIT;
	bytes = object->bytes;
	if (bytes > 2u * hit->segment ||
	    bytes > (__u64)packet->window << (hit->scales ? hit->client_scale : 0))
		return FL_NO_HIT;
	closes = more->closes;
	hit->since_ns = now_ns;
	hit->object = number;
	hit->asked_at = packet->seq;
	hit->rcv_nxt = packet->seq + packet->payload_bytes;
	hit->answer_at = packet->ack;
	hit->snd_nxt = packet->ack + bytes + (closes ? 1 : 0);
	hit->acked = packet->ack;
	hit->age = (now_ns - object->born_ns) / 1000000000;
	hit->flags = closes ? FL_HIT_CLOSES | FL_HIT_FIN_SENT : 0;
	hit->ifindex = ctx->ifindex;
	__sync_fetch_and_add(&offer->hits, 1);
	__sync_fetch_and_add(&offer->bytes, bytes);
	fl_host_count(FL_C_HITS);
	fl_host_add(FL_C_HIT_BYTES, bytes);
	if (settings->logs)
		fl_hit_log(packet, number, bytes);
	return fl_answer(ctx, packet, hit, 0, 0);
}

/* Ends a connection that cannot go on. */
static __always_inline int fl_hit_reset(struct __sk_buff *ctx, struct fl_packet *packet,
					struct fl_hit *hit, __u32 seq, int copies)
{
	int verdict;

	fl_host_count(FL_C_HITS_RESET);
	verdict = fl_send_bare(ctx, packet, hit, seq,
			       FL_TCP_RST | FL_TCP_ACK | (copies ? FL_SEND_COPY : 0));
	bpf_map_delete_elem(&fl_hits, &packet->key);
	return verdict;
}

/* Sends what a client has not acknowledged once more. */
static __noinline int fl_hit_again(struct __sk_buff *ctx, struct fl_packet *packet,
				   struct fl_hit *hit, __u32 from, int copies)
{
	int verdict;

	if (!packet || !hit)
		return TC_ACT_SHOT;
	verdict = fl_answer(ctx, packet, hit, from, copies);
	/* What it would be made of is gone: nothing else may be sent under its numbers. */
	if (verdict == FL_NO_HIT)
		return fl_hit_reset(ctx, packet, hit, hit->acked, copies);
	fl_host_count(FL_C_HITS_REPEATED);
	return verdict;
}

/* Where the segment of the answer begins that a client acknowledges up to. */
static __always_inline __u32 fl_hit_from(const struct fl_hit *hit, __u32 ack)
{
	return ack - hit->answer_at >= hit->segment ? hit->segment : 0;
}

/* A FIN of a client without data behind all that was sent and acknowledged. */
static __noinline int fl_hit_fin(struct __sk_buff *ctx, struct fl_packet *packet,
				 struct fl_hit *hit)
{
	if (!packet || !hit)
		return TC_ACT_SHOT;
	hit->flags |= FL_HIT_FIN_HEARD;
	hit->since_ns = bpf_ktime_get_ns();
	hit->sent_ns = hit->since_ns;
	hit->rcv_nxt += 1;
	hit->object = 0;
	hit->answer_at = hit->snd_nxt;
	if (hit->flags & FL_HIT_FIN_SENT)
		return fl_send_bare(ctx, packet, hit, hit->snd_nxt, FL_TCP_ACK);
	hit->flags |= FL_HIT_FIN_SENT;
	hit->snd_nxt += 1;
	return fl_send_bare(ctx, packet, hit, hit->snd_nxt - 1, FL_TCP_FIN | FL_TCP_ACK);
}

/* A segment that repeats old bytes or leaves a gap: an ACK tells which byte is expected. */
static __noinline int fl_hit_repeated(struct __sk_buff *ctx, struct fl_packet *packet,
				      struct fl_hit *hit)
{
	if (!packet || !hit)
		return TC_ACT_SHOT;
	if (hit->flags & FL_HIT_FIN_HEARD && packet->flags & FL_TCP_FIN) {
		if (hit->acked == hit->snd_nxt || hit->flags & FL_HIT_CLOSES)
			return fl_send_bare(ctx, packet, hit, hit->snd_nxt, FL_TCP_ACK);
		return fl_send_bare(ctx, packet, hit, hit->snd_nxt - 1, FL_TCP_FIN | FL_TCP_ACK);
	}
	if (hit->object && packet->payload_bytes && packet->seq == hit->asked_at &&
	    hit->acked != hit->snd_nxt)
		return fl_hit_again(ctx, packet, hit, fl_hit_from(hit, hit->acked), 0);
	return fl_send_bare(ctx, packet, hit, hit->snd_nxt, FL_TCP_ACK);
}

/* A segment without data of a client that is where its record is. */
static __noinline int fl_hit_heard(struct __sk_buff *ctx, struct fl_packet *packet,
				   struct fl_hit *hit, __u32 before)
{
	__u32 ack, known = FL_HIT_FIN_SENT | FL_HIT_FIN_HEARD | FL_HIT_CLOSES;

	if (!packet || !hit)
		return TC_ACT_SHOT;
	ack = packet->ack;
	if (packet->flags & FL_TCP_FIN) {
		if (ack == hit->snd_nxt && !(hit->flags & FL_HIT_FIN_HEARD))
			return fl_hit_fin(ctx, packet, hit);
		if (hit->object)
			return fl_hit_again(ctx, packet, hit, fl_hit_from(hit, ack), 0);
		return TC_ACT_SHOT;
	}
	if (ack == hit->snd_nxt) {
		/* A client that has closed first keeps the connection at rest by itself. */
		if ((hit->flags & known) == (FL_HIT_FIN_SENT | FL_HIT_FIN_HEARD))
			bpf_map_delete_elem(&fl_hits, &packet->key);
		return TC_ACT_SHOT;
	}
	/* The same number again, and something of the answer behind it: that is what is missing. */
	if (ack == before && hit->object)
		return fl_hit_again(ctx, packet, hit, fl_hit_from(hit, ack), 0);
	return TC_ACT_SHOT;
}

/* The next request of a client on record. */
static __noinline int fl_hit_next(struct __sk_buff *ctx, struct fl_packet *packet,
				  struct fl_hit *hit, struct fl_hit_listen *listen)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct fl_offer *offer;
	int verdict;

	if (!packet || !hit || !listen)
		return TC_ACT_SHOT;
	if (hit->flags & FL_HIT_FIN_SENT) {
		/* Nothing is answered behind the end. */
		bpf_map_delete_elem(&fl_hits, &packet->key);
		return fl_send_bare(ctx, packet, hit, packet->ack, FL_TCP_RST | FL_TCP_ACK);
	}
	if (packet->ack != hit->snd_nxt) {
		if (hit->object)
			return fl_hit_again(ctx, packet, hit, fl_hit_from(hit, packet->ack), 0);
		return TC_ACT_SHOT;
	}
	hit->since_ns = now_ns;
	offer = fl_hit_offer(ctx, packet, listen, now_ns);
	if (offer) {
		verdict = fl_hit_answer(ctx, packet, hit, offer, now_ns);
		if (verdict != FL_NO_HIT)
			return verdict;
	}
	hit->object = 0;
	return fl_hit_give(ctx, packet, hit, listen);
}

/* Whether the number is one that the record's client may acknowledge. */
static __always_inline int fl_hit_acks(const struct fl_hit *hit, __u32 ack)
{
	return ack - hit->answer_at <= hit->snd_nxt - hit->answer_at;
}

/* A segment of a client on record: a verdict, or FL_NO_HIT where it is of another connection, or
 * where a socket has this one. */
static __noinline int fl_hit_segment(struct __sk_buff *ctx, struct fl_packet *packet,
				     struct fl_hit *hit, struct fl_hit_listen *listen)
{
	struct fl_stamps stamps = {};
	__u32 ack, before;
	__s32 behind;

	if (!packet || !hit || !listen)
		return FL_NO_HIT;
	behind = (__s32)(packet->seq - hit->rcv_nxt);
	if (packet->flags & FL_TCP_SYN)
		return FL_NO_HIT;
	if (packet->flags & FL_TCP_RST) {
		if (!behind)
			bpf_map_delete_elem(&fl_hits, &packet->key);
		return TC_ACT_SHOT;
	}
	ack = packet->ack;
	if (!(packet->flags & FL_TCP_ACK) || !fl_hit_acks(hit, ack) || behind > 65535 ||
	    behind < -65535)
		return FL_NO_HIT;
	if (!fl_checksum_is_good(ctx, packet)) {
		fl_host_count(FL_C_HITS_UNREADY);
		return TC_ACT_SHOT;
	}
	if (hit->timestamps && !fl_stamps_of(ctx, packet, &stamps) && behind >= 0)
		hit->stamp = stamps.value;
	if (behind)
		return fl_hit_repeated(ctx, packet, hit);
	before = hit->acked;
	if ((__s32)(ack - before) > 0)
		hit->acked = ack;
	if (hit->flags & FL_HIT_GIVEN)
		return packet->payload_bytes ? fl_hit_give(ctx, packet, hit, listen) : TC_ACT_SHOT;
	if (packet->payload_bytes)
		return fl_hit_next(ctx, packet, hit, listen);
	return fl_hit_heard(ctx, packet, hit, before);
}

/* What a client's cookie says of its connection. Not 0 if it cannot be answered here. */
static __noinline int fl_hit_begin(struct fl_packet *packet, struct fl_hit_listen *listen,
				   struct fl_hit *hit)
{
	__u32 cookie, scale, segment;

	if (!packet || !listen || !hit)
		return -1;
	cookie = packet->ack - 1;
	scale = cookie >> 1 & 15;
	hit->timestamps = packet->tcp_bytes == sizeof(struct fl_tcp_view) + FL_STAMPS_BYTES;
	if (!hit->timestamps && packet->tcp_bytes != sizeof(struct fl_tcp_view))
		return -1;
	hit->scales = scale != FL_COOKIE_NO_SCALE;
	if (hit->scales && ((cookie >> 9 & 1) != !!(listen->listen.flags & FL_OFFER_SCALE_PARITY) ||
			    listen->listen.window_scale == FL_NO_SCALE))
		return -1;
	hit->client_scale = hit->scales ? scale : 0;
	hit->our_scale = hit->scales ? listen->listen.window_scale : 0;
	hit->sack = cookie & 1;
	hit->mss = fl_mss_of_class(cookie >> 5 & 7);
	if (hit->mss < (packet->v4 ? FL_HIT_MSS_MIN_V4 : FL_HIT_MSS_MIN_V6))
		return -1;
	segment = hit->mss < listen->listen.mss ? hit->mss : listen->listen.mss;
	if (segment > FL_HIT_SEGMENT)
		segment = FL_HIT_SEGMENT;
	if (hit->timestamps)
		segment -= FL_STAMPS_BYTES;
	hit->segment = segment & ~3u;
	hit->client_isn = packet->seq - 1;
	return 0;
}

/* Whether the switch has sent the cookie that the client acknowledges. */
static __noinline int fl_hit_is_proven(struct fl_packet *packet)
{
	__u32 zero = 0;
	struct fl_hit_settings *settings = bpf_map_lookup_elem(&fl_hit_settings, &zero);

	if (!packet || !settings)
		return 0;
	return fl_cookie_check(&settings->base, &packet->key, packet->seq - 1,
			       bpf_ktime_get_ns() - settings->base.origin_ns, packet->ack - 1);
}

/* The first request of a client: a verdict, or FL_NO_HIT. */
static __noinline int fl_hit_newcomer(struct __sk_buff *ctx, struct fl_packet *packet,
				      struct fl_hit_listen *listen)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 zero = 0;
	struct fl_hit_reading *more = bpf_map_lookup_elem(&fl_hit_readings, &zero);
	struct fl_hit *kept, *hit;
	struct fl_stamps stamps = {};
	struct fl_offer *offer;
	struct fl_give *give;
	int verdict;

	if (!packet || !listen || !more || !packet->payload_bytes)
		return FL_NO_HIT;
	kept = bpf_map_lookup_elem(&fl_hits, &packet->key);
	if (kept && kept->client_isn + 1 == packet->seq)
		return TC_ACT_SHOT; /* a late copy of the first one */
	hit = &more->draft;
	__builtin_memset(hit, 0, sizeof(*hit));
	/* Cheapest first: most requests of strangers are no hits. */
	offer = fl_hit_offer(ctx, packet, listen, now_ns);
	if (!offer || fl_hit_begin(packet, listen, hit) ||
	    !fl_hit_is_proven(packet) || !fl_checksum_is_good(ctx, packet))
		return FL_NO_HIT;
	/* The engine has it, and is about to give it to the front. */
	give = bpf_map_lookup_elem(&fl_gives, &packet->key);
	if (give && give->first == packet->seq)
		return FL_NO_HIT;
	if (hit->timestamps) {
		if (fl_stamps_of(ctx, packet, &stamps))
			return FL_NO_HIT;
		hit->stamp = stamps.value;
	}
	fl_link_of(ctx, hit);
	hit->since_ns = now_ns;
	hit->rcv_nxt = packet->seq;
	hit->answer_at = packet->ack;
	hit->snd_nxt = packet->ack;
	hit->acked = packet->ack;
	if (bpf_map_update_elem(&fl_hits, &packet->key, hit, BPF_ANY)) {
		fl_host_count(FL_C_HITS_FULL);
		return FL_NO_HIT;
	}
	kept = bpf_map_lookup_elem(&fl_hits, &packet->key);
	if (!kept)
		return FL_NO_HIT;
	verdict = fl_hit_answer(ctx, packet, kept, offer, now_ns);
	if (verdict == FL_NO_HIT)
		bpf_map_delete_elem(&fl_hits, &packet->key);
	else
		fl_host_count(FL_C_HIT_CONNECTIONS);
	return verdict;
}

/* A client's segment, before a socket is asked for: a verdict, or FL_NO_HIT. */
static __noinline int fl_hit_first(struct __sk_buff *ctx, struct fl_packet *packet)
{
	struct fl_hit_listen *listen;
	struct fl_hit *hit;

	if (!packet)
		return FL_NO_HIT;
	hit = bpf_map_lookup_elem(&fl_hits, &packet->key);
	if (!hit || hit->flags & FL_HIT_GIVEN)
		return FL_NO_HIT;
	listen = fl_hit_listen_of(&packet->key);
	return listen ? fl_hit_segment(ctx, packet, hit, listen) : FL_NO_HIT;
}

/* One that no socket has. */
static __noinline int fl_hit_last(struct __sk_buff *ctx, struct fl_packet *packet)
{
	struct fl_hit_listen *listen;
	struct fl_hit *hit;
	int verdict;

	if (!packet)
		return FL_NO_HIT;
	listen = fl_hit_listen_of(&packet->key);
	if (!listen)
		return FL_NO_HIT;
	hit = bpf_map_lookup_elem(&fl_hits, &packet->key);
	if (hit && hit->flags & FL_HIT_GIVEN) {
		/* The front had no room for it when it was given. */
		verdict = fl_hit_segment(ctx, packet, hit, listen);
		if (verdict != FL_NO_HIT)
			return verdict;
	}
	return fl_hit_newcomer(ctx, packet, listen);
}

/* A socket has the client's connection. */
static __always_inline void fl_hit_taken(struct fl_packet *packet)
{
	if (bpf_map_lookup_elem(&fl_hits, &packet->key))
		bpf_map_delete_elem(&fl_hits, &packet->key);
}

/* Connections for which something is to be sent: as many as user space takes at a time. */
#define FL_HITS_LATE 1024

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, FL_HITS_LATE);
	__type(value, struct fl_flow_key);
} fl_hits_late FL_MAP_PRIVATE;

#define FL_HIT_RTO_NS 200000000ull
/* So long what is missing is sent once more. */
#define FL_HIT_PATIENCE_NS 10000000000ull
/* A connection that was closed stays for segments that are late. */
#define FL_HIT_REST_NS 1000000000ull
/* One without a request is closed after this; without an answer to that it is forgotten. */
#define FL_HIT_IDLE_NS 60000000000ull

static __always_inline int fl_is_longer(__u64 now_ns, __u64 since_ns, __u64 most_ns)
{
	return (__s64)(now_ns - since_ns) > (__s64)most_ns;
}

static __always_inline int fl_hit_is_late(const struct fl_hit *hit, __u64 now_ns)
{
	return (hit->object || hit->flags & FL_HIT_FIN_SENT) && hit->acked != hit->snd_nxt &&
	       fl_is_longer(now_ns, hit->sent_ns, FL_HIT_RTO_NS) &&
	       !fl_is_longer(now_ns, hit->since_ns, FL_HIT_PATIENCE_NS);
}

static __always_inline int fl_hit_is_idle(const struct fl_hit *hit, __u64 now_ns)
{
	return !(hit->flags & (FL_HIT_FIN_SENT | FL_HIT_GIVEN)) && hit->acked == hit->snd_nxt &&
	       fl_is_longer(now_ns, hit->since_ns, FL_HIT_IDLE_NS);
}

/* What a connection's client is missing: a segment of its last answer, or that it is idle. `packet`
 * is made for this. */
static __noinline int fl_hit_late(struct __sk_buff *ctx, struct fl_packet *packet)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct fl_hit *hit;

	if (!packet)
		return TC_ACT_SHOT;
	hit = bpf_map_lookup_elem(&fl_hits, &packet->key);
	if (!hit)
		return TC_ACT_SHOT;
	/* Most likely the client has all that was sent, and has not been able to say so. */
	if (hit->flags & FL_HIT_ENDS)
		return fl_hit_reset(ctx, packet, hit, hit->snd_nxt, 1);
	if (fl_hit_is_late(hit, now_ns) && hit->object)
		return fl_hit_again(ctx, packet, hit, fl_hit_from(hit, hit->acked), 1);
	if (fl_hit_is_late(hit, now_ns)) {
		hit->sent_ns = now_ns;
		return fl_send_bare(ctx, packet, hit, hit->snd_nxt - 1,
				    FL_TCP_FIN | FL_TCP_ACK | FL_SEND_COPY);
	}
	if (!fl_hit_is_idle(hit, now_ns))
		return TC_ACT_SHOT;
	hit->object = 0;
	hit->answer_at = hit->snd_nxt;
	hit->snd_nxt += 1;
	hit->since_ns = now_ns;
	hit->sent_ns = now_ns;
	hit->flags |= FL_HIT_FIN_SENT | FL_HIT_CLOSES;
	return fl_send_bare(ctx, packet, hit, hit->answer_at, FL_TCP_FIN | FL_TCP_ACK | FL_SEND_COPY);
}

static long fl_hit_look_at(void *map, const void *key, struct fl_hit *hit, __u64 *now)
{
	int is_over = hit->flags & FL_HIT_FIN_HEARD && hit->acked == hit->snd_nxt;
	__u64 most = is_over ? FL_HIT_REST_NS : FL_HIT_IDLE_NS;

	if (fl_hit_is_late(hit, *now) || fl_hit_is_idle(hit, *now))
		bpf_map_push_elem(&fl_hits_late, key, 0);
	else if (fl_is_longer(*now, hit->since_ns, most))
		bpf_map_delete_elem(&fl_hits, key);
	return 0;
}

static __noinline int fl_hit_sweep(void)
{
	__u64 now_ns = bpf_ktime_get_ns();

	return bpf_for_each_map_elem(&fl_hits, fl_hit_look_at, &now_ns, 0);
}

#endif
