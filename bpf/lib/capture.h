/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Packets for `fairlead capture`: as they arrived and as they were sent on. Off unless user space
 * switches it on: then `on` is one word that is tested, and nothing else.
 *
 * Only packets that end or leave here are shown; those that go on to the engine are shown by it.
 */
#ifndef FAIRLEAD_CAPTURE_H
#define FAIRLEAD_CAPTURE_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "parse.h"

#define FL_CAPTURE_BEFORE 1
#define FL_CAPTURE_AFTER 2
/* Not on record yet. */
#define FL_CAPTURE_NO_LINE 0xffffffff
#define FL_CAPTURE_LISTENS 1024

/* crates/bpf-loader/src/capture.rs has the same. */
struct fl_capture_settings {
	__u32 on;         /* FL_CAPTURE_BEFORE and FL_CAPTURE_AFTER */
	__u32 snap_bytes; /* of a packet, at most */
	__u32 client[4];  /* what clients' addresses are under the mask */
	__u32 mask[4];
	__u64 listens[FL_CAPTURE_LISTENS / 64]; /* a bit a listening endpoint */
	__u64 lost;       /* packets there was no room for; counted here, begun anew by user space */
};

/* Before the bytes of each packet, from its IP header on. */
struct fl_captured {
	__u64 at_ns; /* monotonic clock */
	__u32 line;
	__u32 ifindex;
	__u32 whole_bytes;
	__u32 bytes;
	__u16 listen;
	__u8 leg;  /* 0: the client's, 1: the server's */
	__u8 when; /* FL_CAPTURE_BEFORE or FL_CAPTURE_AFTER */
	__u32 pad;
};

_Static_assert(sizeof(struct fl_capture_settings) == 176, "layout");
_Static_assert(sizeof(struct fl_captured) == 32, "layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_capture_settings);
} fl_capture FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} fl_capture_ring FL_MAP_PRIVATE;

/* The settings while something is captured. */
static __always_inline struct fl_capture_settings *fl_capturing(void)
{
	__u32 zero = 0;
	struct fl_capture_settings *settings = bpf_map_lookup_elem(&fl_capture, &zero);

	return settings && settings->on ? settings : 0;
}

static __always_inline int fl_capture_wants(const struct fl_capture_settings *settings,
					    const struct fl_address *client, __u32 listen)
{
	const __u32 *words = (const __u32 *)client->bytes;

	if (listen >= FL_CAPTURE_LISTENS || !(settings->listens[listen / 64] >> listen % 64 & 1))
		return 0;
#pragma clang loop unroll(full)
	for (int at = 0; at < 4; at++)
		if ((words[at] & settings->mask[at]) != settings->client[at])
			return 0;
	return 1;
}

/* The ring gives room of lengths that are known beforehand only. */
#define FL_CAPTURE_ROOM(room)                                                                      \
	do {                                                                                       \
		event = bpf_ringbuf_reserve(&fl_capture_ring, sizeof(*event) + (room), 0);         \
		if (!event)                                                                        \
			goto lost;                                                                 \
		event->at_ns = bpf_ktime_get_ns();                                                 \
		event->line = line;                                                                \
		event->ifindex = ifindex;                                                          \
		event->whole_bytes = whole;                                                        \
		event->bytes = bytes;                                                              \
		event->listen = what >> 16;                                                        \
		event->leg = what & 1;                                                             \
		event->when = what >> 1 & 3;                                                       \
		event->pad = 0;                                                                    \
		if (fl_within(&bytes, 1, room) &&                                                  \
		    !fl_ctx_load(ctx, FL_V4_AT, event + 1, bytes))                                 \
			bpf_ringbuf_submit(event, 0);                                              \
		else                                                                               \
			bpf_ringbuf_discard(event, 0);                                             \
		return 0;                                                                          \
	} while (0)

/* Shows the packet as it is. `what`: the leg in the lowest bit, FL_CAPTURE_* above it, the listening
 * endpoint in the upper half. Global, so that it is verified once. */
__noinline int fl_capture_packet(fl_ctx *ctx, __u32 what, __u32 line, __u32 ifindex)
{
	struct fl_capture_settings *settings = fl_capturing();
	struct fl_captured *event;
	__u32 whole = fl_ctx_len(ctx), bytes;

	if (!settings || whole <= FL_V4_AT || !(settings->on & what >> 1 & 3))
		return 0;
	whole -= FL_V4_AT;
	bytes = whole < settings->snap_bytes ? whole : settings->snap_bytes;
	if (bytes <= 224)
		FL_CAPTURE_ROOM(224);
	if (bytes <= 2016)
		FL_CAPTURE_ROOM(2016);
	FL_CAPTURE_ROOM(65536);
lost:
	__sync_fetch_and_add(&settings->lost, 1);
	return 0;
}

/* A packet of a connection on record. */
static __always_inline void fl_capture_spliced(fl_ctx *ctx, const struct fl_record *record,
					       __u32 line, __u32 leg, __u32 when, __u32 ifindex)
{
	const struct fl_capture_settings *settings = fl_capturing();

	if (settings && fl_capture_wants(settings, &record->client_addr, record->listen))
		fl_capture_packet(ctx, (__u32)record->listen << 16 | when << 1 | leg, line, ifindex);
}

/* A packet between a client without a record and a listening endpoint. */
static __always_inline void fl_capture_newcomer(fl_ctx *ctx, const struct fl_packet *packet,
						const struct fl_listen *listen, __u32 when)
{
	const struct fl_capture_settings *settings = fl_capturing();

	if (settings && fl_capture_wants(settings, &packet->key.src, listen->index))
		fl_capture_packet(ctx, (__u32)listen->index << 16 | when << 1, FL_CAPTURE_NO_LINE,
				  packet->ifindex);
}

#endif
