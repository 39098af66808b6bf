/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Access lists: whether the sender of a SYN may connect. The same as crates/splice/src/access.rs and
 * Switch::deny; differential tests hold the two together. The maps are filled before the program is
 * attached, and each process makes its own, so that a restart changes all of a list at once. Orders
 * of the operator change single prefixes while it runs.
 */
#ifndef FAIRLEAD_ACCESS_H
#define FAIRLEAD_ACCESS_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "maps.h"
#include "parse.h"

/* Room for several lists of a million prefixes; memory for those that there are. */
#define FL_ACCESS_PREFIXES (1 << 23)
/* Services times lists of each: crates/fairlead/src/config has the limits. */
#define FL_ACCESS_COUNTERS 2048

struct fl_access_key {
	__u32 bits; /* of the prefix, the list's number included */
	struct fl_access_prefix prefix;
};

/* Whether a prefix is allowed. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FL_ACCESS_PREFIXES);
	__type(key, struct fl_access_key);
	__type(value, __u32);
} fl_access FL_MAP_PRIVATE;

/* By index of the listening endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct fl_access_rule);
} fl_access_rules FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FL_ACCESS_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} fl_access_denied FL_MAP_PRIVATE;

#define FL_ALLOWED 0
#define FL_DENIED 1
#define FL_DENIED_RESET 2

/* What the access lists of a listening endpoint say about the sender of a SYN. One that is dropped is
 * counted here, the others by the engine. Global, so that it is verified once. */
__noinline int fl_access_of(struct fl_packet *packet, struct fl_listen *listen)
{
	struct fl_access_key key = { .bits = 8 * sizeof(key.prefix) };
	struct fl_access_rule *rule;
	__u32 index, counter, found, *allow;
	__u64 *denied;

	if (!packet || !listen)
		return FL_ALLOWED;
	index = listen->index;
	rule = bpf_map_lookup_elem(&fl_access_rules, &index);
	if (!rule)
		return FL_ALLOWED;
	if (packet->v4)
		__builtin_memcpy(key.prefix.address, packet->key.src.bytes + 12, 4);
	else
		__builtin_memcpy(key.prefix.address, packet->key.src.bytes, 16);
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < FL_ACCESS_LISTS; at++) {
		if (at >= rule->count)
			break;
		key.prefix.list = rule->lists[at] << 1 | !!packet->v4;
		allow = bpf_map_lookup_elem(&fl_access, &key);
		found = allow ? *allow : rule->allow >> at & 1;
		if (found)
			continue;
		if (rule->reset)
			return FL_DENIED_RESET;
		counter = rule->counter + at;
		denied = bpf_map_lookup_elem(&fl_access_denied, &counter);
		if (denied)
			*denied += 1;
		return FL_DENIED;
	}
	return FL_ALLOWED;
}

#endif
