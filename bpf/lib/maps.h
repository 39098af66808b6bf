/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The maps. Sizes marked 1 are set by the loader. */
#ifndef FAIRLEAD_MAPS_H
#define FAIRLEAD_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_record);
} fl_records FL_MAP_REQUIRED;

/* The flow table in three kinds (docs/decisions/0010): the index of keys, and a hash map for those
 * that find no room there; FL_FLOWS_LRU, a map of which the kernel may evict a key; FL_FLOWS_TCB,
 * the TCB cache before the first kind. */
struct {
#if defined(FL_FLOWS_LRU)
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
#else
	__uint(type, BPF_MAP_TYPE_HASH);
#endif
	__uint(max_entries, 1);
	__type(key, struct fl_flow_key);
	__type(value, fl_flow);
} fl_flows FL_MAP_REQUIRED;

#if !defined(FL_FLOWS_LRU)
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_bucket);
} fl_index FL_MAP_REQUIRED;

/* Not 0 while fl_flows is known to hold no key; found out by each process. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} fl_flows_empty FL_MAP_PRIVATE;
#endif

#if defined(FL_FLOWS_TCB)
/* A cache may begin empty. Bank after bank. Mapped, so that a set begins
 * where one of the processor's cache lines does. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2); /* 1 */
	__type(key, __u32);
	__type(value, struct fl_tcb_set);
} fl_tcb_sets FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_tcb);
} fl_tcb FL_MAP_PRIVATE;
#endif

/* Connections that are not joined yet end with the engine, so a restart needs nothing of this. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_join);
} fl_joins FL_MAP_PRIVATE;

#if !defined(FL_FLOWS_LRU)
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FL_LANES);
	__type(key, __u32);
	__type(value, struct fl_lane);
} fl_lanes FL_MAP_PRIVATE;

/* The lane of heads that the engine has decided, by their keyed hash (lib/head.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} fl_heads FL_MAP_PRIVATE;
#endif

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* room for many, memory for those that there are */
	__uint(max_entries, 1024);
	__type(key, struct fl_endpoint);
	__type(value, struct fl_listen);
} fl_listens FL_MAP_REQUIRED;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_endpoint);
} fl_listen_at FL_MAP_REQUIRED;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_endpoint);
} fl_server_at FL_MAP_REQUIRED;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_address);
} fl_nat_at FL_MAP_REQUIRED;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_settings);
} fl_settings FL_MAP_REQUIRED;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FL_C_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} fl_counters FL_MAP_OPTIONAL;

static __always_inline void fl_count(__u32 which, __u64 by)
{
	__u64 *counter = bpf_map_lookup_elem(&fl_counters, &which);

	if (counter)
		*counter += by;
}

static __always_inline struct fl_settings *fl_settings_now(void)
{
	__u32 zero = 0;
	struct fl_settings *settings = bpf_map_lookup_elem(&fl_settings, &zero);

	return settings && settings->version == LAYOUT_VERSION ? settings : 0;
}

/* The time after the core's origin. */
static __always_inline __u64 fl_now_ns(const struct fl_settings *settings)
{
	return bpf_ktime_get_ns() - settings->origin_ns;
}

/* The same, as of the last tick of the kernel's clock, at most 10 ms ago: enough to tell who is idle,
 * and it costs next to nothing. */
static __always_inline __u32 fl_about_now_ms(const struct fl_settings *settings)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	return now_ns < settings->origin_ns ? 0 : (now_ns - settings->origin_ns) / 1000000;
}

/* A packet ends here, from its IP header on so long. */
static __always_inline void fl_end(const struct fl_packet *packet)
{
	fl_count(FL_C_ENDED_BYTES, fl_ip_bytes(packet));
}

/* It does, for a reason. */
static __always_inline int fl_drop(const struct fl_packet *packet, __u32 reason)
{
	fl_end(packet);
	fl_count(FL_C_DROPS + reason, 1);
	return FL_DROP;
}

/* A packet of ours that user space has to see: it takes the way it would take without us, or, where
 * it can, straight to where that way ends. */
static __always_inline int fl_to_engine(fl_ctx *ctx, const struct fl_settings *settings)
{
	fl_count(FL_C_TO_ENGINE, 1);
	return fl_ctx_hand_over(ctx, settings->engine);
}

#endif
