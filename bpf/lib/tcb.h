/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The TCB cache in front of the flow table: two banks of four ways, universal hashing, lines ON or
 * OFF by the time of their last use, replaced and moved as the policy `spec` of crates/cache does
 * it. Differential tests hold the two together, set by set. After "A New TCB Cache to Efficiently
 * Manage TCP Sessions for Web Servers" (ANCS 2010).
 *
 * A session identifier is an address and a port: where a packet to a port that is listened on comes
 * from, and where any other is going. So both directions of a transparent splice share a line; with
 * source NAT, the address that the server sees has a line of its own. A packet to a client whose own
 * port is one that is listened on is asked of fl_flows every time.
 */
#ifndef FAIRLEAD_TCB_H
#define FAIRLEAD_TCB_H

#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "flows.h"
#include "maps.h"
#include "parse.h"
#include "translate.h"

#if defined(FL_FLOWS_TCB)

/* Above the 48 bits of an IPv4 identifier and the 62 of an IPv6 one: no tag is 0. */
#define FL_TCB_TAG_V4 (1ull << 62)
#define FL_TCB_TAG_V6 (2ull << 62)

/* What a packet asks. */
struct fl_asked_tcb {
	__u64 tag;
	__u64 limbs[3]; /* the identifier, its lowest bits first */
	__u32 first[FL_TCB_BANKS];
	__u32 second[FL_TCB_BANKS];
	__u32 v4;
};

/* The sum of `pieces` pieces of a limb. */
static __always_inline __u64 fl_h3_limb(const __u64 table[][16], __u64 limb, __u32 pieces)
{
	__u64 sum = 0;

#pragma clang loop unroll(full)
	for (__u32 at = 0; at < pieces; at++)
		sum ^= table[at][limb >> at * 4 & 15];
	return sum;
}

#define FL_H3_FIRST 0
#define FL_H3_SECOND 1
#define FL_H3_TAG 2

/* The sums of one of the three families for what is asked. Global, as those below that are, so that
 * each is verified once. */
__noinline __u64 fl_tcb_h3(struct fl_asked_tcb *asked, __u32 family)
{
	__u32 zero = 0;
	const struct fl_tcb *tcb = bpf_map_lookup_elem(&fl_tcb, &zero);
	const __u64 (*table)[16];

	if (!tcb || !asked)
		return 0;
	table = family == FL_H3_FIRST ? tcb->first : family == FL_H3_SECOND ? tcb->second : tcb->tag;
	if (asked->v4)
		return fl_h3_limb(table, asked->limbs[0], 12);
	return fl_h3_limb(table, asked->limbs[0], 16) ^
	       fl_h3_limb(table + 16, asked->limbs[1], 16) ^
	       fl_h3_limb(table + 32, asked->limbs[2], 4);
}

static __always_inline void fl_tcb_sets_of(const struct fl_tcb *tcb, __u64 sums, __u32 *sets)
{
	sets[0] = (__u32)sums & tcb->mask;
	sets[1] = (__u32)(sums >> 32 & tcb->mask) + tcb->mask + 1;
}

static __always_inline __u64 fl_host_limb(const struct fl_address *address, int word)
{
	const __be32 *words = (const __be32 *)address->bytes;

	return (__u64)bpf_ntohl(words[word]) << 32 | bpf_ntohl(words[word + 1]);
}

/* What is asked, but for the sets by the second functions. */
static __always_inline void fl_tcb_ask(const struct fl_tcb *tcb, const struct fl_packet *packet,
				       int side, struct fl_asked_tcb *asked)
{
	const struct fl_address *address = side == FL_SIDE_CLIENT ? &packet->key.src :
								    &packet->key.dst;
	__u64 port = bpf_ntohs(side == FL_SIDE_CLIENT ? packet->key.src_port : packet->key.dst_port);

	asked->v4 = packet->v4;
	if (packet->v4) {
		asked->limbs[0] = (fl_host_limb(address, 2) & 0xffffffff) << 16 | port;
		asked->tag = FL_TCB_TAG_V4 | asked->limbs[0];
	} else {
		__u64 high = fl_host_limb(address, 0), low = fl_host_limb(address, 2);

		asked->limbs[0] = low << 16 | port;
		asked->limbs[1] = high << 16 | low >> 48;
		asked->limbs[2] = high >> 48;
		asked->tag = FL_TCB_TAG_V6 | fl_tcb_h3(asked, FL_H3_TAG);
	}
	fl_tcb_sets_of(tcb, fl_tcb_h3(asked, FL_H3_FIRST), asked->first);
}

static __always_inline struct fl_tcb_set *fl_tcb_set_at(__u32 number)
{
	return bpf_map_lookup_elem(&fl_tcb_sets, &number);
}

static __always_inline int fl_tcb_way(const struct fl_tcb_set *set, __u64 tag)
{
#pragma clang loop unroll(full)
	for (int way = 0; way < FL_TCB_WAYS; way++)
		if (set->tags[way] == tag)
			return way;
	return -1;
}

/* Lines used at this time or later are ON; no empty one is. */
static __always_inline __u64 fl_tcb_on_since(const struct fl_tcb *tcb, __u64 now_ns)
{
	__u64 tick = tcb->tick_ns ? now_ns / tcb->tick_ns : 0;

	if (tick < tcb->on_ticks)
		return 1;
	return (tick - tcb->on_ticks + 1) * tcb->tick_ns;
}

static __always_inline __u32 fl_tcb_on_count(const struct fl_tcb_set *set, __u64 on_since)
{
	__u32 on = 0;

#pragma clang loop unroll(full)
	for (int way = 0; way < FL_TCB_WAYS; way++)
		on += set->used_at[way] >= on_since;
	return on;
}

/* The least recent line of a set, the first empty one before all. */
static __always_inline __u32 fl_tcb_oldest(const struct fl_tcb_set *set)
{
	__u64 least = set->used_at[0];
	__u32 oldest = 0;

#pragma clang loop unroll(full)
	for (__u32 way = 1; way < FL_TCB_WAYS; way++) {
		if (set->used_at[way] < least) {
			least = set->used_at[way];
			oldest = way;
		}
	}
	return oldest;
}

/* A number below `bound`, as fairlead_base::Rng draws it. */
static __always_inline __u32 fl_tcb_draw(struct fl_tcb *tcb, __u32 bound)
{
	__u64 word = tcb->chance + 0x9e3779b97f4a7c15;

	tcb->chance = word;
	word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
	word = (word ^ word >> 27) * 0x94d049bb133111eb;
	word ^= word >> 31;
	return (__u64)bound * (word >> 32) >> 32;
}

/* Where the tag of `way` may move to: the least recent line of its second sets, set and way in one
 * number, the earlier set on a tie. Not 0: that is ON. */
static __always_inline int fl_tcb_target(const struct fl_tcb_set *set, __u32 way, __u64 on_since,
					 __u32 *target)
{
	__u32 left = set->second[way][0], right = set->second[way][1], at, other;
	struct fl_tcb_set *a = fl_tcb_set_at(left), *b = fl_tcb_set_at(right);
	__u64 used_at;

	*target = 0;
	if (!a || !b)
		return -1;
	at = fl_tcb_oldest(a) & (FL_TCB_WAYS - 1);
	other = fl_tcb_oldest(b) & (FL_TCB_WAYS - 1);
	used_at = a->used_at[at];
	*target = left * FL_TCB_WAYS + at;
	if (b->used_at[other] < used_at) {
		used_at = b->used_at[other];
		*target = right * FL_TCB_WAYS + other;
	}
	return used_at >= on_since ? -1 : 0;
}

static __always_inline void fl_tcb_evict(const struct fl_tcb_set *set, __u32 way, __u64 on_since)
{
	if (!set->used_at[way])
		return;
	fl_count(FL_C_TCB_EVICTIONS, 1);
	if (set->used_at[way] >= on_since)
		fl_count(FL_C_TCB_EVICTED_ON, 1);
}

/* All lines of the set with this number are ON: one that has an OFF or empty line in its second sets
 * is drawn and moved there. The way that a newcomer takes: its, or the least recent where none can
 * be moved. */
__noinline int fl_tcb_make_room(__u32 number, __u64 on_since)
{
	struct fl_tcb_set *set = fl_tcb_set_at(number), *there;
	__u32 targets[FL_TCB_WAYS], zero = 0, can = 0, count = 0, drawn, from, to = 0;
	struct fl_tcb *tcb = bpf_map_lookup_elem(&fl_tcb, &zero);

	if (!tcb || !set)
		return 0;
#pragma clang loop unroll(full)
	for (__u32 way = 0; way < FL_TCB_WAYS; way++) {
		__u32 moves = !fl_tcb_target(set, way, on_since, &targets[way]);

		can |= moves << way;
		count += moves;
	}
	from = fl_tcb_oldest(set) & (FL_TCB_WAYS - 1);
	if (!count) {
		fl_tcb_evict(set, from, on_since);
		return from;
	}
	drawn = fl_tcb_draw(tcb, count);
#pragma clang loop unroll(full)
	for (__u32 way = 0; way < FL_TCB_WAYS; way++) {
		if (!(can >> way & 1))
			continue;
		if (!drawn--) {
			from = way;
			to = targets[way];
		}
	}
	there = fl_tcb_set_at(to / FL_TCB_WAYS);
	if (!there)
		return 0;
	from &= FL_TCB_WAYS - 1;
	to &= FL_TCB_WAYS - 1;
	fl_tcb_evict(there, to, on_since);
	there->tags[to] = set->tags[from];
	there->used_at[to] = set->used_at[from];
	there->lines[to] = set->lines[from];
	there->second[to][0] = set->second[from][0];
	there->second[to][1] = set->second[from][1];
	fl_count(FL_C_TCB_MIGRATIONS, 1);
	return from;
}

/* Gives a newcomer a line in the set with fewer ON lines, the left one on a tie. */
__noinline int fl_tcb_fill(struct fl_asked_tcb *asked, __u32 line, __u64 now_ns)
{
	struct fl_tcb_set *set, *right;
	__u32 zero = 0, number, way;
	struct fl_tcb *tcb = bpf_map_lookup_elem(&fl_tcb, &zero);
	__u64 on_since;

	if (!tcb || !asked)
		return 0;
	number = asked->first[0];
	set = fl_tcb_set_at(number);
	right = fl_tcb_set_at(asked->first[1]);
	if (!set || !right)
		return 0;
	on_since = fl_tcb_on_since(tcb, now_ns);
	if (fl_tcb_on_count(right, on_since) < fl_tcb_on_count(set, on_since)) {
		number = asked->first[1];
		set = right;
	}
	way = fl_tcb_oldest(set) & (FL_TCB_WAYS - 1);
	if (set->used_at[way] < on_since)
		fl_tcb_evict(set, way, on_since);
	else
		way = fl_tcb_make_room(number, on_since) & (FL_TCB_WAYS - 1);
	set->tags[way] = asked->tag;
	set->used_at[way] = now_ns;
	set->lines[way] = line;
	set->second[way][0] = asked->second[0];
	set->second[way][1] = asked->second[1];
	return 0;
}

/* The set of a tag's line, and its way; the sets by the second functions when it has come to them. */
static __always_inline struct fl_tcb_set *fl_tcb_hit(const struct fl_tcb *tcb,
						     struct fl_asked_tcb *asked, int *way)
{
	struct fl_tcb_set *set;

	for (int bank = 0; bank < FL_TCB_BANKS; bank++) {
		set = fl_tcb_set_at(asked->first[bank]);
		if (set && (*way = fl_tcb_way(set, asked->tag)) >= 0)
			return set;
	}
	fl_tcb_sets_of(tcb, fl_tcb_h3(asked, FL_H3_SECOND), asked->second);
	for (int bank = 0; bank < FL_TCB_BANKS; bank++) {
		set = fl_tcb_set_at(asked->second[bank]);
		if (set && (*way = fl_tcb_way(set, asked->tag)) >= 0) {
			fl_count(FL_C_TCB_SECOND_HITS, 1);
			return set;
		}
	}
	return 0;
}

/* What the packet's key leads to: by the cache, else by fl_flows, and then it takes its place in the
 * cache. Who asks for a connection does not go through it. */
__noinline fl_flow fl_tcb_find(struct fl_packet *packet, struct fl_settings *settings,
				 __u64 now_ns)
{
	struct fl_asked_tcb asked = {};
	struct fl_tcb_set *set;
	struct fl_tcb *tcb;
	__u32 zero = 0, port, line;
	fl_flow flow;
	int side, way = 0;

	if (!packet || !settings)
		return FL_NO_FLOW;
	tcb = bpf_map_lookup_elem(&fl_tcb, &zero);
	if (!tcb || (packet->flags & (FL_TCP_SYN | FL_TCP_ACK)) == FL_TCP_SYN) {
		flow = fl_flow_of(packet, settings);
		if (flow != FL_NO_FLOW)
			fl_count(FL_C_FLOW_MISSES, 1);
		return flow;
	}
	port = bpf_ntohs(packet->key.dst_port);
	side = tcb->ports[port / 64 & 1023] >> (port & 63) & 1 ? FL_SIDE_CLIENT : FL_SIDE_SERVER;
	fl_tcb_ask(tcb, packet, side, &asked);
	set = fl_tcb_hit(tcb, &asked, &way);
	if (!set) {
		flow = fl_flow_of(packet, settings);
		if (flow == FL_NO_FLOW)
			return flow;
		fl_count(FL_C_FLOW_MISSES, 1);
		if ((flow & 1) == (__u32)side)
			fl_tcb_fill(&asked, flow >> 1, now_ns);
		return flow;
	}
	way &= FL_TCB_WAYS - 1;
	set->used_at[way] = now_ns;
	line = set->lines[way];
	if (fl_relation(packet, line, side) == FL_OWN)
		return line << 1 | side;
	fl_count(FL_C_TCB_MISMATCHES, 1);
	flow = fl_flow_of(packet, settings);
	if (flow != FL_NO_FLOW && (flow & 1) == (__u32)side)
		set->lines[way] = flow >> 1;
	return flow;
}

#endif
#endif
