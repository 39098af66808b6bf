/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whether a request may be answered by the kernel: one plain head (lib/head.h), whole, with nothing
 * behind it and none of the fields that ask for more than the stored response as it is.
 * crates/wire/src/http/hit.rs is the same; tests hold the two together.
 */
#ifndef FAIRLEAD_HIT_H
#define FAIRLEAD_HIT_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "head.h"

/* What a head says besides what is hashed. */
struct fl_hit_reading {
	__u32 end; /* of the head; 0: it is not whole */
	__u8 in_connection;
	__u8 closes; /* not 0: the client wants no other request answered */
	struct fl_hit draft; /* where the record of a newcomer is made */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_hit_reading);
} fl_hit_readings FL_MAP_PRIVATE;

/* The last bytes of names, in lower case as `tail` is. Longer names are compared by their last eight
 * bytes: others that end so are refused, too. */
#define FL_NAME_RANGE (((__u64)'r' << 32) | FL_WORD('a', 'n', 'g', 'e'))
#define FL_NAME_EXPECT (((__u64)('e' << 8 | 'x') << 32) | FL_WORD('p', 'e', 'c', 't'))
#define FL_NAME_PRAGMA (((__u64)('p' << 8 | 'r') << 32) | FL_WORD('a', 'g', 'm', 'a'))
#define FL_NAME_UPGRADE (((__u64)('u' << 16 | 'p' << 8 | 'g') << 32) | FL_WORD('r', 'a', 'd', 'e'))
#define FL_NAME_CONTROL FL_WORD64('-', 'c', 'o', 'n', 't', 'r', 'o', 'l')
#define FL_NAME_AUTHORIZATION FL_WORD64('r', 'i', 'z', 'a', 't', 'i', 'o', 'n')
#define FL_NAME_CONNECTION FL_WORD64('n', 'n', 'e', 'c', 't', 'i', 'o', 'n')
#define FL_VALUE_KEEP FL_WORD64('e', 'p', '-', 'a', 'l', 'i', 'v', 'e')
#define FL_VALUE_CLOSE (((__u64)'c' << 32) | FL_WORD('l', 'o', 's', 'e'))

/* Whether a field asks for more than the response as it is. Its name is whole. */
static __always_inline int fl_hit_is_asked_more(__u32 length, __u64 tail)
{
	switch (length) {
	case 5:
		return tail == FL_NAME_RANGE;
	case 6:
		return tail == FL_NAME_EXPECT || tail == FL_NAME_PRAGMA;
	case 7:
		return tail == FL_NAME_UPGRADE;
	case 13:
		return tail == FL_NAME_CONTROL || tail == FL_NAME_AUTHORIZATION;
	case 19:
		return tail == FL_NAME_AUTHORIZATION; /* of a proxy */
	default:
		return 0;
	}
}

/* A byte was read, before which the head was at `before`. Not 0: the request is the front's. */
static __always_inline int fl_hit_look(struct fl_reading *reading, struct fl_hit_reading *hit,
				       __u8 before, __u8 byte)
{
	if (before == FL_AT_NAME && reading->place == FL_AT_NAME)
		return reading->length == 3 && reading->tail << 40 == (__u64)FL_WORD('i', 'f', '-', 0) << 32;
	if (before == FL_AT_NAME && reading->place == FL_AT_VALUE) {
		hit->in_connection = reading->length == 10 && reading->tail == FL_NAME_CONNECTION;
		if (fl_hit_is_asked_more(reading->length, reading->tail))
			return -1;
		reading->length = 0;
		reading->tail = 0;
		return 0;
	}
	if (before != FL_AT_VALUE || !hit->in_connection)
		return 0;
	if (reading->place == FL_AT_VALUE) {
		if (byte != ' ' || reading->length)
			fl_take_byte(reading, byte);
		return 0;
	}
	if (reading->length == 5 && reading->tail == FL_VALUE_CLOSE) {
		hit->closes = 1;
		return 0;
	}
	return reading->length != 10 || reading->tail != FL_VALUE_KEEP;
}

/* As fl_read_some. */
__noinline int fl_hit_read_some(__u32 at, __u32 end)
{
	__u32 zero = 0;
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);
	struct fl_hit_reading *hit = bpf_map_lookup_elem(&fl_hit_readings, &zero);

	if (!reading || !hit)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 count = 0; count < FL_READ_AT_ONCE; count++) {
		__u32 next = at + count;
		__u8 byte, before;
		int odd;

		FL_OPAQUE(next);
		if (next >= FL_JOIN_BYTES || next >= end)
			return 0;
		byte = reading->payload[next];
		before = reading->place;
		odd = before < FL_AT_LINE ? fl_read_line(reading, byte)
					  : fl_read_field(reading, byte);
		if (odd || fl_hit_look(reading, hit, before, byte))
			return 1;
		if (reading->place == FL_AT_END) {
			hit->end = next + 1;
			return 1;
		}
	}
	return 0;
}

/* Reads `bytes` of payload that are in the reading. 0: they are a request that may be answered, whose
 * hash for a listening endpoint is in `key`. */
static __always_inline int fl_hit_read(struct fl_reading *reading, struct fl_hit_reading *hit,
				       __u32 bytes, __u16 listen,
				       const struct fl_settings *settings, __u64 *key)
{
	fl_begin_head(reading, listen, settings);
	hit->end = 0;
	hit->in_connection = 0;
	hit->closes = 0;
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < FL_JOIN_BYTES; at += FL_READ_AT_ONCE)
		if (at >= bytes || fl_hit_read_some(at, bytes))
			break;
	if (hit->end != bytes || reading->hosts != 1)
		return -1;
	*key = fl_sip_end(reading);
	return 0;
}

#endif
