/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The head of a plain HTTP/1.1 request, reduced to a number: what the engine decides by, method,
 * target and Host, hashed with a secret. crates/wire/src/http/plain.rs is the same, and says what is
 * plain; tests hold the two together. The engine reads every other head.
 */
#ifndef FAIRLEAD_HEAD_H
#define FAIRLEAD_HEAD_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "cookie.h"
#include "parse.h"

/* The space behind it counted. */
#define FL_HEAD_METHOD_MAX 16
#define FL_HEAD_FIELDS_MAX 100

/* Where in the head the next byte stands. */
enum fl_place {
	FL_AT_METHOD,
	FL_AT_PATH, /* at the target's first byte */
	FL_AT_TARGET,
	FL_AT_VERSION,
	FL_AT_LINE,
	FL_AT_NAME,
	FL_AT_VALUE,
	FL_AT_VALUE_LF,
	FL_AT_END_LF,
	FL_AT_END,
};

/* A reading, and the first bytes that it is about. */
struct fl_reading {
	__u64 v0, v1, v2, v3; /* of SipHash-1-3 */
	__u64 word;           /* bytes that wait to be hashed */
	__u64 tail;           /* the last eight bytes, lower case */
	__u32 hashed;         /* bytes, those that wait counted */
	__u32 length;         /* of the name, or of the version */
	__u32 bytes;
	__u8 place;
	__u8 hosts;
	__u8 in_host;
	__u8 fields;
	__u32 host_bytes;
	__u8 payload[FL_JOIN_BYTES + 32];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_reading);
} fl_readings FL_MAP_PRIVATE;

static __always_inline void fl_sip_word(struct fl_reading *reading, __u64 word)
{
	__u64 v0 = reading->v0, v1 = reading->v1, v2 = reading->v2, v3 = reading->v3 ^ word;

	FL_SIP_ROUND;
	reading->v0 = v0 ^ word;
	reading->v1 = v1;
	reading->v2 = v2;
	reading->v3 = v3;
}

static __always_inline void fl_sip_byte(struct fl_reading *reading, __u8 byte)
{
	__u32 at = reading->hashed & 7;

	reading->word |= (__u64)byte << (at * 8);
	reading->hashed += 1;
	if (at == 7) {
		fl_sip_word(reading, reading->word);
		reading->word = 0;
	}
}

static __always_inline __u64 fl_sip_end(struct fl_reading *reading)
{
	__u64 v0, v1, v2, v3;

	fl_sip_word(reading, reading->word | (__u64)reading->hashed << 56);
	v0 = reading->v0;
	v1 = reading->v1;
	v2 = reading->v2 ^ 0xff;
	v3 = reading->v3;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* A byte of a token (RFC 9110, section 5.6.2): a bit for each below 128. */
static __always_inline int fl_is_token(__u8 byte)
{
	__u64 low = 0x03ff6cfa00000000ull, high = 0x57ffffffc7fffffeull;

	return byte < 64 ? low >> byte & 1 : byte < 128 && high >> (byte - 64) & 1;
}

static __always_inline int fl_is_printable(__u8 byte)
{
	return byte > ' ' && byte <= '~';
}

#define FL_WORD64(a, b, c, d, e, f, g, h) ((__u64)FL_WORD(a, b, c, d) << 32 | FL_WORD(e, f, g, h))
#define FL_NAME_HOST FL_WORD('h', 'o', 's', 't')
/* The ends of Content-Length and Transfer-Encoding, and their lengths. */
#define FL_NAME_LENGTH FL_WORD64('t', '-', 'l', 'e', 'n', 'g', 't', 'h')
#define FL_NAME_CODING FL_WORD64('e', 'n', 'c', 'o', 'd', 'i', 'n', 'g')
/* In lower case, as `tail` is. */
#define FL_VERSION FL_WORD64('h', 't', 't', 'p', '/', '1', '.', '1')

static __always_inline void fl_take_byte(struct fl_reading *reading, __u8 byte)
{
	reading->tail = reading->tail << 8 | (byte >= 'A' && byte <= 'Z' ? byte + 32 : byte);
	reading->length += 1;
}

/* A byte of the request line. Not 0: this is no plain head. */
static __always_inline int fl_read_line(struct fl_reading *reading, __u8 byte)
{
	switch (reading->place) {
	case FL_AT_METHOD:
		fl_sip_byte(reading, byte);
		reading->length += 1;
		if (reading->length > FL_HEAD_METHOD_MAX)
			return -1;
		if (byte == ' ' && reading->length > 1)
			reading->place = FL_AT_PATH;
		else if (byte < 'A' || byte > 'Z')
			return -1;
		return 0;
	case FL_AT_PATH:
		fl_sip_byte(reading, byte);
		reading->place = FL_AT_TARGET;
		return byte != '/';
	case FL_AT_TARGET:
		fl_sip_byte(reading, byte);
		if (byte == ' ') {
			reading->place = FL_AT_VERSION;
			reading->length = 0;
			return 0;
		}
		return !fl_is_printable(byte);
	default:
		/* HTTP/1.1, in upper case, CR, LF */
		if (reading->length == 8) {
			reading->length += 1;
			return byte != '\r' || reading->tail != FL_VERSION;
		}
		if (reading->length == 9) {
			reading->place = FL_AT_LINE;
			return byte != '\n';
		}
		fl_take_byte(reading, byte);
		return byte >= 'a' && byte <= 'z';
	}
}

/* The name of a field is whole. */
static __always_inline int fl_read_name(struct fl_reading *reading)
{
	__u64 tail = reading->tail;

	reading->place = FL_AT_VALUE;
	reading->in_host = reading->length == 4 && (__u32)tail == FL_NAME_HOST;
	reading->hosts += reading->in_host;
	/* A body may follow: how long it is has rules of its own. */
	return (reading->length == 14 && tail == FL_NAME_LENGTH) ||
	       (reading->length == 17 && tail == FL_NAME_CODING) || reading->hosts > 1;
}

static __always_inline int fl_read_value(struct fl_reading *reading, __u8 byte)
{
	if (byte == '\r') {
		reading->place = FL_AT_VALUE_LF;
		return 0;
	}
	if (!reading->in_host)
		return !fl_is_printable(byte) && byte != ' ' && byte != '\t';
	if (byte == ' ' && !reading->host_bytes)
		return 0;
	reading->host_bytes += 1;
	fl_sip_byte(reading, byte);
	return !fl_is_printable(byte);
}

/* A byte of the fields. Not 0: this is no plain head. */
static __always_inline int fl_read_field(struct fl_reading *reading, __u8 byte)
{
	switch (reading->place) {
	case FL_AT_LINE:
		if (byte == '\r') {
			reading->place = FL_AT_END_LF;
			return 0;
		}
		reading->place = FL_AT_NAME;
		reading->tail = 0;
		reading->length = 0;
		fl_take_byte(reading, byte);
		return !fl_is_token(byte) || reading->fields++ == FL_HEAD_FIELDS_MAX;
	case FL_AT_NAME:
		if (byte == ':')
			return fl_read_name(reading);
		fl_take_byte(reading, byte);
		return !fl_is_token(byte);
	case FL_AT_VALUE:
		return fl_read_value(reading, byte);
	case FL_AT_VALUE_LF:
		reading->place = FL_AT_LINE;
		return byte != '\n';
	default:
		reading->place = FL_AT_END;
		return byte != '\n';
	}
}

/* Bytes that are read at once: so many are verified one by one, in a function of their own. */
#define FL_READ_AT_ONCE 32

/* Reads bytes of the payload from `at` on, up to `end`. Not 0: the head is read, or is no plain one,
 * and then at its first place again. Global, so that it is verified once: Linux 5.15 has no loop that
 * is (bpf_loop came with 5.17). */
__noinline int fl_read_some(__u32 at, __u32 end)
{
	__u32 zero = 0;
	struct fl_reading *reading = bpf_map_lookup_elem(&fl_readings, &zero);

	if (!reading)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 count = 0; count < FL_READ_AT_ONCE; count++) {
		__u32 next = at + count;
		__u8 byte;
		int odd;

		FL_OPAQUE(next);
		if (next >= FL_JOIN_BYTES || next >= end)
			return 0;
		byte = reading->payload[next];
		odd = reading->place < FL_AT_LINE ? fl_read_line(reading, byte)
						  : fl_read_field(reading, byte);
		if (odd)
			reading->place = FL_AT_METHOD;
		if (odd || reading->place == FL_AT_END)
			return 1;
	}
	return 0;
}

/* Begins to read a head for a listening endpoint. */
static __always_inline void fl_begin_head(struct fl_reading *reading, __u16 listen,
					  const struct fl_settings *settings)
{
	__u64 k0 = settings->cookie_k0, k1 = settings->cookie_k1;

	reading->v0 = k0 ^ 0x736f6d6570736575ull;
	reading->v1 = k1 ^ 0x646f72616e646f6dull;
	reading->v2 = k0 ^ 0x6c7967656e657261ull;
	reading->v3 = k1 ^ 0x7465646279746573ull;
	reading->word = 0;
	reading->tail = 0;
	reading->hashed = 0;
	reading->length = 0;
	reading->host_bytes = 0;
	reading->place = FL_AT_METHOD;
	reading->hosts = 0;
	reading->in_host = 0;
	reading->fields = 0;
	fl_sip_byte(reading, listen);
	fl_sip_byte(reading, listen >> 8);
}

/* Reads `bytes` of payload that are in `reading`. 0: they begin with a plain head, whose hash for a
 * listening endpoint is in `key`. */
static __always_inline int fl_read_head(struct fl_reading *reading, __u32 bytes, __u16 listen,
					const struct fl_settings *settings, __u64 *key)
{
	fl_begin_head(reading, listen, settings);
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < FL_JOIN_BYTES; at += FL_READ_AT_ONCE)
		if (at >= bytes || fl_read_some(at, bytes))
			break;
	if (reading->place != FL_AT_END || reading->hosts != 1)
		return -1;
	*key = fl_sip_end(reading);
	return 0;
}

#endif
