/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Which record a packet belongs to, by the index of keys and the map behind it. An entry of the
 * index holds a part of its key's hash alone, and keys of connections that are over stay in the map
 * for a while, to lead to lines that may be in use again: so nothing is believed before the record was
 * compared with the packet.
 */
#ifndef FAIRLEAD_FLOWS_H
#define FAIRLEAD_FLOWS_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "maps.h"
#include "parse.h"
#include "translate.h"

/* What a line is to a packet. */
#define FL_UNUSED 0 /* without a record: one in set-up, or none */
#define FL_OWN 1    /* of the packet's connection */
#define FL_OTHERS 2 /* of another connection */

static __always_inline int fl_same_address(const struct fl_address *a, const struct fl_address *b)
{
	const __u32 *x = (const __u32 *)a->bytes, *y = (const __u32 *)b->bytes;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]));
}

/* True when this is a packet of that leg of the record. */
static __always_inline int fl_is_of_leg(const struct fl_packet *packet,
					const struct fl_record *record, __u32 side)
{
	struct fl_endpoint *far;
	struct fl_address *nat;
	__u32 index;

	if (side == FL_SIDE_CLIENT) {
		index = record->listen;
		far = bpf_map_lookup_elem(&fl_listen_at, &index);
		return far && far->port == packet->key.dst_port &&
		       packet->key.src_port == bpf_htons(record->client_port) &&
		       fl_same_address(&record->client_addr, &packet->key.src) &&
		       fl_same_address(&far->addr, &packet->key.dst);
	}
	index = record->server;
	far = bpf_map_lookup_elem(&fl_server_at, &index);
	if (!far || far->port != packet->key.src_port ||
	    !fl_same_address(&far->addr, &packet->key.src))
		return 0;
	index = record->nat_addr;
	if (index == FL_NAT_TRANSPARENT)
		return packet->key.dst_port == bpf_htons(record->client_port) &&
		       fl_same_address(&record->client_addr, &packet->key.dst);
	nat = bpf_map_lookup_elem(&fl_nat_at, &index);
	return nat && packet->key.dst_port == bpf_htons(record->nat_port) &&
	       fl_same_address(nat, &packet->key.dst);
}

/* FL_UNUSED, FL_OWN or FL_OTHERS. Global, so that it is verified once. */
__noinline int fl_relation(struct fl_packet *packet, __u32 line, __u32 side)
{
	struct fl_record *record = bpf_map_lookup_elem(&fl_records, &line);

	if (!packet || !record || !(record->phase.state & ~FL_STATE_ENGINE_HAS))
		return FL_UNUSED;
	return fl_is_of_leg(packet, record, side) ? FL_OWN : FL_OTHERS;
}

#if !defined(FL_FLOWS_LRU)
/* The keyed hash of a flow key: crates/bpf-loader/src/index.rs has the same. */
static __always_inline __u64 fl_key_hash(const struct fl_flow_key *key, __u64 hash_key)
{
	const __u32 *words = (const __u32 *)key;
	__u64 hash = hash_key;

#pragma clang loop unroll(full)
	for (int at = 0; at < 9; at++) {
		hash = (hash ^ words[at]) * 0x9e3779b97f4a7c15;
		hash ^= hash >> 29;
	}
	return hash;
}

/* What the index has for the packet's key, or FL_NO_FLOW. */
static __always_inline fl_flow fl_flow_of_index(struct fl_packet *packet,
						const struct fl_settings *settings)
{
	__u64 hash = fl_key_hash(&packet->key, settings->hash_key);
	__u32 tag = hash >> 32, number = (__u32)hash & (settings->buckets - 1);
	struct fl_bucket *bucket = bpf_map_lookup_elem(&fl_index, &number);

	if (!bucket)
		return FL_NO_FLOW;
	for (int at = 0; at < FL_BUCKET_ENTRIES; at++) {
		__u64 entry = *(volatile __u64 *)&bucket->entries[at];
		__u32 flow = (__u32)entry - 1;

		if (entry >> 32 == tag && (__u32)entry &&
		    fl_relation(packet, flow >> 1, flow & 1) != FL_OTHERS)
			return flow;
	}
	return FL_NO_FLOW;
}
#endif

#if !defined(FL_FLOWS_LRU)
/* Has the packet's key lead to `flow`, where it led to `old`, or nowhere. Not 0: its bucket is full,
 * or it leads elsewhere by now. That is looked for last, as another copy of the packet may be on its
 * way on another processor, or in the engine: of two that write, one at least sees the other. */
static __noinline int fl_tell(struct fl_packet *packet, struct fl_settings *settings, fl_flow flow,
			      fl_flow old)
{
	__u64 hash, tag, before, after;
	struct fl_bucket *bucket;
	__u32 number;
	int told = 0;

	if (!packet || !settings)
		return -1;
	hash = fl_key_hash(&packet->key, settings->hash_key);
	number = (__u32)hash & (settings->buckets - 1);
	bucket = bpf_map_lookup_elem(&fl_index, &number);
	if (!bucket)
		return -1;
	tag = hash >> 32 << 32;
	before = old == FL_NO_FLOW ? 0 : tag | (old + 1);
	after = tag | (flow + 1);
	for (int at = 0; at < FL_BUCKET_ENTRIES && !told; at++)
		told = __sync_val_compare_and_swap(&bucket->entries[at], before, after) == before;
	if (!told)
		return -1;
	for (int at = 0; at < FL_BUCKET_ENTRIES; at++) {
		__u64 entry = *(volatile __u64 *)&bucket->entries[at];

		if (entry != after && entry >> 32 == tag >> 32 && (__u32)entry)
			told = 0;
	}
	if (told)
		return 0;
	for (int at = 0; at < FL_BUCKET_ENTRIES; at++)
		__sync_val_compare_and_swap(&bucket->entries[at], after, 0);
	return -1;
}
#endif

#if !defined(FL_FLOWS_LRU)
/* True where no bucket of the index has been full: as a rule. Strangers' packets, and those of others
 * that only pass by, then need no look into cold memory. */
static __always_inline int fl_is_all_in_index(void)
{
	__u32 zero = 0, *empty = bpf_map_lookup_elem(&fl_flows_empty, &zero);

	return empty && *(volatile __u32 *)empty;
}
#endif

/* What fl_flows has for the packet's key, or FL_NO_FLOW. Global, so that it is verified once. */
__noinline fl_flow fl_flow_of_map(struct fl_packet *packet)
{
	struct fl_flow_key key;
	fl_flow *flow;

	if (!packet)
		return FL_NO_FLOW;
	/* A copy: what a global function is given is no place for a key to verifiers as old as that of
	 * Linux 6.1. */
	key = packet->key;
	flow = bpf_map_lookup_elem(&fl_flows, &key);
	if (!flow || fl_relation(packet, *flow >> 1, *flow & 1) == FL_OTHERS)
		return FL_NO_FLOW;
	return *flow;
}

/* What the packet's key leads to, or FL_NO_FLOW. */
static __always_inline fl_flow fl_flow_of(struct fl_packet *packet,
					  const struct fl_settings *settings)
{
#if !defined(FL_FLOWS_LRU)
	fl_flow found = fl_flow_of_index(packet, settings);

	if (found != FL_NO_FLOW || fl_is_all_in_index())
		return found;
#endif
	return fl_flow_of_map(packet);
}

#endif
