/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Changes gathered for RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). Words as they lie in memory. */
#ifndef FAIRLEAD_CHECKSUM_H
#define FAIRLEAD_CHECKSUM_H

#include <linux/types.h>
#include <fairlead/layout.h>

struct fl_delta {
	__u64 sum;
};

static __always_inline void fl_delta_u16(struct fl_delta *delta, __u16 old, __u16 new)
{
	delta->sum += (__u64)(__u16)~old + new;
}

static __always_inline void fl_delta_u32(struct fl_delta *delta, __u32 old, __u32 new)
{
	delta->sum += (__u64)(__u32)~old + new;
}

static __always_inline void fl_delta_address(struct fl_delta *delta, const __u8 *old, const __u8 *new)
{
	const __u32 *from = (const __u32 *)old, *to = (const __u32 *)new;

	fl_delta_u32(delta, from[0], to[0]);
	fl_delta_u32(delta, from[1], to[1]);
	fl_delta_u32(delta, from[2], to[2]);
	fl_delta_u32(delta, from[3], to[3]);
}

static __always_inline __u16 fl_checksum_fold(__u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (__u16)sum;
}

static __always_inline __u64 fl_address_sum(const struct fl_address *address)
{
	const __u32 *words = (const __u32 *)address->bytes;

	return (__u64)words[0] + words[1] + words[2] + words[3];
}

static __always_inline __u16 fl_delta_apply(struct fl_delta delta, __u16 field)
{
	return ~fl_checksum_fold((__u64)(__u16)~field + fl_checksum_fold(delta.sum));
}

#endif
