/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Steering at a card of offloaded connections (`fairlead offload`), at tc in the card's network
 * namespace. The host and the card have the same addresses and the same hardware address. A segment for
 * which the card's own stack has a socket goes up there; everything else goes to the host. There is no
 * map of connections that could disagree with the sockets.
 *
 * A connection on its way between both is in `fl_offload_moving`: what comes in for it is held on a TUN
 * device and played again later; what would go out is dropped, so that no acknowledgement leaves for
 * bytes that the exported state lacks.
 *
 * A segment may be anywhere between these programs and a socket while that socket leaves, and the stack
 * answers what has no socket by a RST. So neither stack is heard about a connection that the other has.
 */
#define FL_TC
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <fairlead/map.h>
#include "lib/timewait.h"

#define FL_OFFLOAD_MOVING 4096
#define FL_OFFLOAD_REBORN 65536
#define FL_OFFLOAD_GIVEN 65536
/* A mover that died holds a connection's segments no longer than this. */
#define FL_OFFLOAD_LEASE_NS 1000000000ull
#define FL_OFFLOAD_COUNTS 16
#define FL_ARP_REPLY 2
#define FL_ICMP6_ADVERTISEMENT 136

/* crates/bpf-loader/src/offload.rs has the same structures and numbers. */
struct fl_offload_way { /* from the peer's point of view; IPv4 addresses are mapped */
	__u32 src[4];
	__u32 dst[4];
	__be16 src_port;
	__be16 dst_port;
};

struct fl_offload_devices {
	__u32 wire;
	__u32 host;
	__u32 hold;
	__u32 pad;
};

enum {
	FL_OFFLOAD_TO_CARD,
	FL_OFFLOAD_TO_HOST,
	FL_OFFLOAD_HELD,
	FL_OFFLOAD_NOT_SENT,
	FL_OFFLOAD_FROM_HOST,
	FL_OFFLOAD_FROM_CARD,
	FL_OFFLOAD_STALE,
	FL_OFFLOAD_REBORN_SYN,
	FL_OFFLOAD_OLD_SYN,
	FL_OFFLOAD_GIVEN_UP,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_OFFLOAD_MOVING);
	__type(key, struct fl_offload_way);
	__type(value, __u64);
} fl_offload_moving FL_MAP_PRIVATE;

/* Begun anew by a SYN while the card keeps the old connection in TIME_WAIT: the host's. The value is the
 * number that the old one would receive next: another one, later, in TIME_WAIT has another number. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FL_OFFLOAD_REBORN);
	__type(key, struct fl_offload_way);
	__type(value, __u32);
} fl_offload_reborn FL_MAP_PRIVATE;

/* Given back to the host, until handed off again: the card's stack has nothing to say any more. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FL_OFFLOAD_GIVEN);
	__type(key, struct fl_offload_way);
	__type(value, __u64);
} fl_offload_given FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_offload_devices);
} fl_offload_devices FL_MAP_PRIVATE;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FL_OFFLOAD_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} fl_offload_counts FL_MAP_PRIVATE;

static __always_inline void fl_count(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&fl_offload_counts, &what);

	if (count)
		*count += 1;
}

static __always_inline struct fl_offload_devices *fl_devices(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&fl_offload_devices, &zero);
}

static __always_inline int fl_is_moving(const struct fl_offload_way *way)
{
	__u64 *since = bpf_map_lookup_elem(&fl_offload_moving, way);

	return since && bpf_ktime_get_ns() - *since < FL_OFFLOAD_LEASE_NS;
}

/* What a SYN is judged by. */
struct fl_offload_tcp {
	__u32 seq;
	__u32 options; /* places in the packet: where they begin, and end */
	__u32 end;
	__u32 syn; /* not 0: it begins a connection */
};

/* Reads a TCP segment's way, as the peer has it; `outgoing`: of a segment to the peer. 4 or 6: the
 * version; 0: it is no TCP segment that could belong to an offloaded connection. */
static __always_inline int fl_read(struct __sk_buff *skb, int outgoing, struct fl_offload_way *way,
				   struct fl_offload_tcp *seen)
{
	void *packet, *end;
	struct ethhdr *eth;
	struct tcphdr *tcp;
	struct fl_offload_way there = {};
	int version;

	/* Shorter packets fail, and are short in the checks below. */
	bpf_skb_pull_data(skb, sizeof(*eth) + sizeof(struct ipv6hdr) + sizeof(*tcp));
	packet = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	eth = packet;
	if ((void *)(eth + 1) > end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl != 5 ||
		    ip->frag_off & bpf_htons(0x3fff))
			return 0;
		there.src[2] = there.dst[2] = bpf_htonl(0xffff);
		there.src[3] = ip->saddr;
		there.dst[3] = ip->daddr;
		tcp = (void *)(ip + 1);
		version = 4;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(there.src, &ip->saddr, sizeof(there.src));
		__builtin_memcpy(there.dst, &ip->daddr, sizeof(there.dst));
		tcp = (void *)(ip + 1);
		version = 6;
	} else {
		return 0;
	}
	if ((void *)(tcp + 1) > end)
		return 0;
	there.src_port = tcp->source;
	there.dst_port = tcp->dest;
	seen->syn = tcp->syn && !tcp->ack && !tcp->rst;
	seen->seq = bpf_ntohl(tcp->seq);
	seen->options = (__u32)((void *)(tcp + 1) - packet);
	seen->end = (__u32)((void *)tcp - packet) + tcp->doff * 4;
	if (outgoing) {
		__builtin_memcpy(way->src, there.dst, sizeof(way->src));
		__builtin_memcpy(way->dst, there.src, sizeof(way->dst));
		way->src_port = there.dst_port;
		way->dst_port = there.src_port;
	} else {
		*way = there;
	}
	return version;
}

/* The state of the card's socket; 0: it has none. `rest` is filled if it is in TIME_WAIT. */
static __always_inline __u32 fl_state(struct __sk_buff *skb, const struct fl_offload_way *way, int version,
				      struct fl_rest *rest)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 state;

	if (version == 4) {
		tuple.ipv4.saddr = way->src[3];
		tuple.ipv4.daddr = way->dst[3];
		tuple.ipv4.sport = way->src_port;
		tuple.ipv4.dport = way->dst_port;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, way->src, sizeof(way->src));
		__builtin_memcpy(tuple.ipv6.daddr, way->dst, sizeof(way->dst));
		tuple.ipv6.sport = way->src_port;
		tuple.ipv6.dport = way->dst_port;
		socket = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return 0;
	state = socket->state;
	if (state == BPF_TCP_TIME_WAIT)
		fl_rest_of(socket, rest);
	bpf_sk_release(socket);
	return state;
}

/* Whether a connection that the card has in TIME_WAIT has begun anew, at the host. */
static __always_inline int fl_is_reborn(const struct fl_offload_way *way, const struct fl_rest *rest)
{
	__u32 *rcv_nxt = bpf_map_lookup_elem(&fl_offload_reborn, way);

	return rcv_nxt && *rcv_nxt == rest->rcv_nxt;
}

/* It begins anew by this SYN. */
static __always_inline void fl_be_reborn(const struct fl_offload_way *way, const struct fl_rest *rest)
{
	__u32 rcv_nxt = rest->rcv_nxt;

	fl_count(FL_OFFLOAD_REBORN_SYN);
	bpf_map_update_elem(&fl_offload_reborn, way, &rcv_nxt, BPF_ANY);
}

/* Answers about neighbours teach both stacks; everything else that is not TCP is the host's. */
static __always_inline int fl_not_tcp(struct __sk_buff *skb, struct fl_offload_devices *devices)
{
	void *packet = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = packet;
	int teaches = 0;

	if ((void *)(eth + 1) > end)
		return bpf_redirect(devices->host, 0);
	if (eth->h_proto == bpf_htons(ETH_P_ARP)) {
		__be16 *arp = (void *)(eth + 1);

		teaches = (void *)(arp + 4) <= end && arp[3] == bpf_htons(FL_ARP_REPLY);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		__u8 *type = (void *)(ip + 1);

		teaches = (void *)(type + 1) <= end && ip->nexthdr == IPPROTO_ICMPV6 &&
			  *type == FL_ICMP6_ADVERTISEMENT;
	}
	if (!teaches)
		return bpf_redirect(devices->host, 0);
	bpf_clone_redirect(skb, devices->host, 0);
	return TC_ACT_OK;
}

/* At the wire's ingress. */
SEC("classifier") int fl_offload_in(struct __sk_buff *skb)
{
	struct fl_offload_devices *devices = fl_devices();
	struct fl_offload_way way = {};
	struct fl_offload_tcp seen = {};
	struct fl_rest rest = {};
	__u32 state;
	int version;

	if (!devices)
		return TC_ACT_SHOT;
	version = fl_read(skb, 0, &way, &seen);
	if (!version)
		return fl_not_tcp(skb, devices);
	if (fl_is_moving(&way)) {
		fl_count(FL_OFFLOAD_HELD);
		return bpf_redirect(devices->hold, 0);
	}
	state = fl_state(skb, &way, version, &rest);
	if (state == BPF_TCP_TIME_WAIT && !fl_is_reborn(&way, &rest)) {
		if (!seen.syn || !fl_ends_rest(skb, seen.seq, seen.options, seen.end, &rest)) {
			/* The card's stack answers what is old. */
			fl_count(seen.syn ? FL_OFFLOAD_OLD_SYN : FL_OFFLOAD_TO_CARD);
			return TC_ACT_OK;
		}
		fl_be_reborn(&way, &rest);
	} else if (state && state != BPF_TCP_TIME_WAIT && state != BPF_TCP_LISTEN) {
		fl_count(FL_OFFLOAD_TO_CARD);
		return TC_ACT_OK;
	}
	fl_count(FL_OFFLOAD_TO_HOST);
	return bpf_redirect(devices->host, 0);
}

/* At the ingress of the device that leads to the host. A segment may be on its way up when its socket
 * leaves; what the host's stack says to it, an acknowledgement or a RST, is stale. */
SEC("classifier") int fl_offload_host(struct __sk_buff *skb)
{
	struct fl_offload_devices *devices = fl_devices();
	struct fl_offload_way way = {};
	struct fl_offload_tcp seen = {};
	struct fl_rest rest = {};
	__u32 state;
	int version;

	if (!devices)
		return TC_ACT_SHOT;
	version = fl_read(skb, 1, &way, &seen);
	if (version) {
		state = fl_state(skb, &way, version, &rest);
		if (state && state != BPF_TCP_TIME_WAIT && state != BPF_TCP_LISTEN) {
			fl_count(FL_OFFLOAD_STALE);
			return TC_ACT_SHOT;
		}
		/* The host knows nothing of the ports that the card keeps for a while. */
		if (state == BPF_TCP_TIME_WAIT && seen.syn && !fl_is_reborn(&way, &rest))
			fl_be_reborn(&way, &rest);
		/* The host's half of a connection on its way is still, but for what was in its backlog. */
		if (fl_is_moving(&way)) {
			fl_count(FL_OFFLOAD_NOT_SENT);
			return TC_ACT_SHOT;
		}
	}
	fl_count(FL_OFFLOAD_FROM_HOST);
	return bpf_redirect(devices->wire, 0);
}

/* At the wire's egress. */
SEC("classifier") int fl_offload_out(struct __sk_buff *skb)
{
	struct fl_offload_way way = {};
	struct fl_offload_tcp seen = {};

	if (!fl_read(skb, 1, &way, &seen))
		return TC_ACT_OK;
	if (fl_is_moving(&way)) {
		fl_count(FL_OFFLOAD_NOT_SENT);
		return TC_ACT_SHOT;
	}
	/* What the host sends has come in by a device; what the card's own stack sends has not. */
	if (skb->ingress_ifindex)
		return TC_ACT_OK;
	if (bpf_map_lookup_elem(&fl_offload_given, &way)) {
		fl_count(FL_OFFLOAD_GIVEN_UP);
		return TC_ACT_SHOT;
	}
	fl_count(FL_OFFLOAD_FROM_CARD);
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
