/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* SYN cookies as crates/tcp/src/cookie.rs makes them: SipHash-2-4 over 48 bytes. */
#ifndef FAIRLEAD_COOKIE_H
#define FAIRLEAD_COOKIE_H

#include <bpf/bpf_endian.h>
#include <fairlead/layout.h>

#define FL_COOKIE_INTERVAL_NS (64ull * 1000000000ull)
#define FL_COOKIE_INTERVAL_BIT (1u << 8)
#define FL_COOKIE_NO_SCALE 15
#define FL_COOKIE_NUMBER_GIVEN (1u << 15)

struct fl_cookie_message {
	struct fl_address src;
	struct fl_address dst;
	__be16 src_port;
	__be16 dst_port;
	__be32 number;
	__u8 interval[6];
	__u8 bits[2];
};
_Static_assert(sizeof(struct fl_cookie_message) == 48, "six words");

static __always_inline __u64 fl_rotl(__u64 word, int by)
{
	return word << by | word >> (64 - by);
}

#define FL_SIP_ROUND                       \
	do {                               \
		v0 += v1;                  \
		v1 = fl_rotl(v1, 13) ^ v0; \
		v0 = fl_rotl(v0, 32);      \
		v2 += v3;                  \
		v3 = fl_rotl(v3, 16) ^ v2; \
		v0 += v3;                  \
		v3 = fl_rotl(v3, 21) ^ v0; \
		v2 += v1;                  \
		v1 = fl_rotl(v1, 17) ^ v2; \
		v2 = fl_rotl(v2, 32);      \
	} while (0)

static __always_inline __u64 fl_siphash48(const __u64 *words, __u64 k0, __u64 k1)
{
	__u64 v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull;
	__u64 v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull;
	__u64 last = 48ull << 56;

#pragma unroll
	for (int at = 0; at < 6; at++) {
		v3 ^= words[at];
		FL_SIP_ROUND;
		FL_SIP_ROUND;
		v0 ^= words[at];
	}
	v3 ^= last;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	v0 ^= last;
	v2 ^= 0xff;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	FL_SIP_ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The high half of the hash over the tuple, the interval and the bits, and over the client's number
 * when it is given. */
static __always_inline __u32 fl_cookie_mac(const struct fl_settings *settings,
					   const struct fl_flow_key *key, int with_number,
					   __u32 number, __u64 interval, __u32 bits)
{
	struct fl_cookie_message message = {};

	message.src = key->src;
	message.dst = key->dst;
	message.src_port = key->src_port;
	message.dst_port = key->dst_port;
	if (with_number) {
		message.number = bpf_htonl(number);
		bits |= FL_COOKIE_NUMBER_GIVEN;
	}
	message.interval[0] = interval;
	message.interval[1] = interval >> 8;
	message.interval[2] = interval >> 16;
	message.interval[3] = interval >> 24;
	message.interval[4] = interval >> 32;
	message.interval[5] = interval >> 40;
	message.bits[0] = bits >> 8;
	message.bits[1] = bits;
	return fl_siphash48((const __u64 *)&message, settings->cookie_k0, settings->cookie_k1) >> 32;
}

/* The initial sequence number of a SYN-ACK; `bits` says what was promised. */
static __always_inline __u32 fl_cookie_make(const struct fl_settings *settings,
					    const struct fl_flow_key *key, __u32 client_isn,
					    __u64 now_ns, __u32 bits)
{
	__u64 interval = now_ns / FL_COOKIE_INTERVAL_NS;
	__u32 tuple, number;

	if (interval & 1)
		bits |= FL_COOKIE_INTERVAL_BIT;
	tuple = fl_cookie_mac(settings, key, 0, 0, interval, bits) >> 26 << 26;
	number = fl_cookie_mac(settings, key, 1, client_isn, interval, bits) >> 16 << 10;
	return tuple | number | bits;
}

/* True for a cookie of this flow and number, made in this interval or the last. */
static __always_inline int fl_cookie_check(const struct fl_settings *settings,
					   const struct fl_flow_key *key, __u32 client_isn,
					   __u64 now_ns, __u32 cookie)
{
	__u64 interval = now_ns / FL_COOKIE_INTERVAL_NS;
	__u32 bits = cookie & 0x3ff;

	if (!!(bits & FL_COOKIE_INTERVAL_BIT) != (interval & 1)) {
		if (!interval)
			return 0;
		interval -= 1;
	}
	if (fl_cookie_mac(settings, key, 1, client_isn, interval, bits) >> 16 !=
	    (cookie >> 10 & 0xffff))
		return 0;
	return fl_cookie_mac(settings, key, 0, 0, interval, bits) >> 26 == cookie >> 26;
}

/* fairlead_tcp::MSS_CLASSES */
static __always_inline __u16 fl_mss_of_class(__u32 class)
{
	switch (class) {
	case 0:
		return 216;
	case 1:
		return 536;
	case 2:
		return 1220;
	case 3:
		return 1340;
	case 4:
		return 1400;
	case 5:
		return 1440;
	case 6:
		return 1460;
	default:
		return 8960;
	}
}

#endif
