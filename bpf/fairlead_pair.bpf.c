/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * At tc ingress of the host's interfaces: the gate of connections that a proxy hands off. `fairlead_pair`
 * comes before the fast path: while a connection is handed off its packets are held up, so that nothing
 * changes while its state is read. A hold-up ends by itself when its time is over. `fairlead_lead` comes
 * behind the fast path: what that leaves of connections that were handed off goes to the engine's device.
 */
#define FL_TC
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "lib/parse.h"

#define FL_GATES 131072

/* What a gate does with packets of its key. */
#define FL_GATE_ACKS 1	 /* passes segments without data, SYN and FIN, drops the others */
#define FL_GATE_SHUT 2	 /* drops all */
#define FL_GATE_ENGINE 3 /* gives all to the engine */

struct fl_gate {
	__u32 mode;
	__u32 device;	/* the engine's */
	__u64 until_ns; /* of the first two modes, on the monotonic clock */
	__u32 stamp;	/* the last timestamp that the sender put on a segment with this number */
	__u32 seq;
	__u32 stamped; /* not 0: there was one */
	__u32 dropped;
	__u32 ack; /* the furthest that the sender has acknowledged, and the window beside it, unscaled */
	__u32 ack_seq; /* the number of the segment that did */
	__u32 window;
	__u32 acked; /* not 0: there was one */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FL_GATES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_gate);
} fl_gates FL_MAP_PRIVATE;

/* How many gates hold packets up: mostly none, and then nothing has to be looked at. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} fl_locks FL_MAP_PRIVATE;

/* From the IP header on, wherever a packet's data begins. */
static __always_inline int fl_gate_load(struct __sk_buff *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_skb_load_bytes_relative(ctx, at, to, bytes, BPF_HDR_START_NET);
}

/* The addresses, and where the TCP header begins; 0: it is no segment that can be read. `bytes` becomes
 * the length of the segment. */
static __always_inline __u32 fl_gate_addresses(struct __sk_buff *ctx, struct fl_flow_key *key,
					       __u32 *bytes)
{
	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (fl_gate_load(ctx, 0, &ip, sizeof(ip)) || ip.ihl != sizeof(ip) / 4 ||
		    ip.protocol != FL_PROTOCOL_TCP || ip.frag_off & bpf_htons(0x3fff))
			return 0;
		fl_map_v4(&key->src, ip.saddr);
		fl_map_v4(&key->dst, ip.daddr);
		*bytes = bpf_ntohs(ip.tot_len) - sizeof(ip);
		return sizeof(ip);
	}
	if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (fl_gate_load(ctx, 0, &ip, sizeof(ip)) || ip.nexthdr != FL_PROTOCOL_TCP)
			return 0;
		__builtin_memcpy(key->src.bytes, &ip.saddr, 16);
		__builtin_memcpy(key->dst.bytes, &ip.daddr, 16);
		*bytes = bpf_ntohs(ip.payload_len);
		return sizeof(ip);
	}
	return 0;
}

/* Remembers what the sender has received. A segment that is dropped may be the only one to say so. */
static __always_inline void fl_gate_hear(struct fl_gate *gate, const struct fl_tcp_view *tcp)
{
	__u32 ack = bpf_ntohl(tcp->ack);

	if (!(tcp->flags & FL_TCP_ACK) || (gate->acked && (__s32)(ack - gate->ack) < 0))
		return;
	gate->ack = ack;
	gate->ack_seq = bpf_ntohl(tcp->seq);
	gate->window = bpf_ntohs(tcp->window);
	gate->acked = 1;
}

/* Remembers the sender's clock, where it is sent as every usual stack sends it. */
static __always_inline void fl_gate_note(struct __sk_buff *ctx, struct fl_gate *gate, __u32 at,
					 const struct fl_tcp_view *tcp)
{
	__be32 option[2];

	if (tcp->offset >> 4 < 8 || fl_gate_load(ctx, at + sizeof(*tcp), option, sizeof(option)))
		return;
	if (option[0] != bpf_htonl(0x0101080a))
		return;
	gate->stamp = bpf_ntohl(option[1]);
	gate->seq = bpf_ntohl(tcp->seq);
	gate->stamped = 1;
}

/* The gate of a packet's key, or 0; where the TCP header is, and what it says. */
static __always_inline struct fl_gate *fl_gate_of(struct __sk_buff *ctx, struct fl_tcp_view *tcp,
						  __u32 *at, __u32 *bytes)
{
	struct fl_flow_key key = {};

	if (ctx->vlan_present)
		return 0;
	*at = fl_gate_addresses(ctx, &key, bytes);
	if (!*at || fl_gate_load(ctx, *at, tcp, sizeof(*tcp)))
		return 0;
	key.src_port = tcp->src_port;
	key.dst_port = tcp->dst_port;
	return bpf_map_lookup_elem(&fl_gates, &key);
}

SEC("classifier")
int fairlead_pair(struct __sk_buff *ctx)
{
	__u32 bytes = 0, at = 0, zero = 0, *locks = bpf_map_lookup_elem(&fl_locks, &zero);
	struct fl_tcp_view tcp;
	struct fl_gate *gate;

	if (!locks || !*(volatile __u32 *)locks)
		return TC_ACT_UNSPEC;
	gate = fl_gate_of(ctx, &tcp, &at, &bytes);
	if (!gate || gate->mode == FL_GATE_ENGINE || bpf_ktime_get_ns() >= gate->until_ns)
		return TC_ACT_UNSPEC;
	fl_gate_note(ctx, gate, at, &tcp);
	fl_gate_hear(gate, &tcp);
	if (gate->mode == FL_GATE_ACKS && !(tcp.flags & (FL_TCP_SYN | FL_TCP_FIN)) &&
	    bytes == (__u32)(tcp.offset >> 4) * 4)
		return TC_ACT_UNSPEC;
	gate->dropped++;
	return TC_ACT_SHOT;
}

#define FL_PROTOCOL_ICMP 1
#define FL_PROTOCOL_ICMPV6 58
#define FL_ICMP_BYTES 8

/* The key of an answer to the packet that an ICMP error quotes. Not 0 where that is not about TCP. */
static __always_inline int fl_gate_quoted(struct __sk_buff *ctx, struct fl_flow_key *key)
{
	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			struct iphdr ip;
			__u8 icmp[FL_ICMP_BYTES];
			struct iphdr quoted;
			__be16 ports[2];
		} head;
		__u8 type;

		if (fl_gate_load(ctx, 0, &head, sizeof(head)))
			return -1;
		type = head.icmp[0]; /* RFC 792: unreachable, time exceeded, parameter problem */
		if (head.ip.ihl != 5 || head.ip.protocol != FL_PROTOCOL_ICMP ||
		    (type != 3 && type != 11 && type != 12) || head.quoted.ihl != 5 ||
		    head.quoted.protocol != FL_PROTOCOL_TCP)
			return -1;
		fl_map_v4(&key->src, head.quoted.daddr);
		fl_map_v4(&key->dst, head.quoted.saddr);
		key->src_port = head.ports[1];
		key->dst_port = head.ports[0];
		return 0;
	}
	if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct {
			struct ipv6hdr ip;
			__u8 icmp[FL_ICMP_BYTES];
			struct ipv6hdr quoted;
			__be16 ports[2];
		} head;

		if (fl_gate_load(ctx, 0, &head, sizeof(head)))
			return -1;
		/* RFC 4443: errors are 1 to 4. */
		if (head.ip.nexthdr != FL_PROTOCOL_ICMPV6 || !head.icmp[0] || head.icmp[0] > 4 ||
		    head.quoted.nexthdr != FL_PROTOCOL_TCP)
			return -1;
		__builtin_memcpy(key->src.bytes, &head.quoted.daddr, 16);
		__builtin_memcpy(key->dst.bytes, &head.quoted.saddr, 16);
		key->src_port = head.ports[1];
		key->dst_port = head.ports[0];
		return 0;
	}
	return -1;
}

SEC("classifier")
int fairlead_lead(struct __sk_buff *ctx)
{
	struct fl_flow_key key = {};
	struct fl_tcp_view tcp;
	struct fl_gate *gate;
	__u32 bytes = 0, at = 0;

	gate = fl_gate_of(ctx, &tcp, &at, &bytes);
	/* The kernel has no such socket, or one that only keeps the port. */
	if (!at && !ctx->vlan_present && !fl_gate_quoted(ctx, &key))
		gate = bpf_map_lookup_elem(&fl_gates, &key);
	if (!gate || gate->mode != FL_GATE_ENGINE)
		return TC_ACT_UNSPEC;
	return bpf_redirect(gate->device, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
