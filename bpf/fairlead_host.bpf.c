/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Connections that become sockets of this machine (docs/handoff.md). `fairlead_host` stands at tc
 * ingress before the fast path and lets the stack have what belongs to a socket; `fairlead_give`
 * stands at the engine's device, where the engine sends the first segments of such a connection.
 * In an object of its own: it needs Linux 6.9, the others do not.
 */
#define FL_TC
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include "lib/hits.h"
#include "lib/host.h"
#include "lib/parse.h"
#include "lib/rest.h"
#include "lib/sleep.h"

/* What belongs to no socket. It must not reach the stack, which would answer with a RST. */
static __always_inline int fl_to_fast_path(struct __sk_buff *ctx, const struct fl_host *host)
{
	if (!host->leads || ctx->vlan_present || ctx->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	return (int)bpf_redirect(host->device, 0);
}

/* No verdict: nobody has the packet. */
#define FL_NO_SOCKET (-4)

/* A segment of a client that is a socket's, or may be. On its own, for the stack of what is answered
 * here. */
static __noinline int fl_to_socket(struct __sk_buff *ctx, struct fl_packet *packet,
				   struct fl_host *host)
{
	struct fl_rest rest = {};
	struct bpf_sock *sock;
	int syn, state, is_rest;

	if (!packet || !host)
		return TC_ACT_UNSPEC;
	if (host->kind == FL_HOST_WATCHED)
		fl_follow(ctx, packet);
	state = fl_hear_client(ctx, packet);
	if (host->kind == FL_HOST_WATCHED)
		/* The address is this machine's, so no route leads to the engine. */
		return state == FL_TO_ENGINE ? bpf_redirect(host->device, 0) :
		       state ? state : TC_ACT_UNSPEC;
	if (state)
		return state;
	sock = fl_sock_of(ctx, &packet->key, 0, packet->v4);
	if (!sock)
		return FL_NO_SOCKET;
	state = sock->state;
	syn = (packet->flags & (FL_TCP_SYN | FL_TCP_ACK | FL_TCP_RST)) == FL_TCP_SYN;
	is_rest = syn && fl_rest_of(sock, &rest);
	bpf_sk_release(sock);
	if (is_rest)
		return fl_settle(ctx, packet, &rest, host->kind == FL_HOST_FULL);
	if (state == BPF_TCP_LISTEN)
		return FL_NO_SOCKET;
	fl_host_count(syn ? FL_C_HOST_SYNS_PASSED : FL_C_HOST_PACKETS);
	return TC_ACT_OK;
}

SEC("classifier")
int fairlead_host(struct __sk_buff *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ifindex };
	struct fl_host *host;
	int verdict;

	if (ctx->mark == FL_SEEN_MARK) {
		ctx->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (fl_parse(ctx, &packet))
		return TC_ACT_UNSPEC;
	host = fl_host_of(&packet.key);
	if (!host)
		return TC_ACT_UNSPEC;
	if (host->hits) {
		verdict = fl_hit_first(ctx, &packet);
		if (verdict != FL_NO_HIT)
			return verdict;
	}
	verdict = fl_to_socket(ctx, &packet, host);
	if (verdict != FL_NO_SOCKET) {
		if (host->hits)
			fl_hit_taken(&packet);
		return verdict;
	}
	if (host->hits) {
		verdict = fl_hit_last(ctx, &packet);
		if (verdict != FL_NO_HIT)
			return verdict;
	}
	return fl_to_fast_path(ctx, host);
}

SEC("classifier")
int fairlead_give(struct __sk_buff *ctx)
{
	struct fl_segment segment = {};
	struct fl_give *give;
	struct bpf_sock *sock;
	__be32 stamps[3] = {};
	int state, is_first;

	if (fl_segment_of(ctx, &segment, 0) || !fl_host_of(&segment.key))
		return TC_ACT_UNSPEC;
	sock = fl_sock_of(ctx, &segment.key, 0, segment.v4);
	if (sock) {
		state = sock->state;
		bpf_sk_release(sock);
		if (state != BPF_TCP_LISTEN)
			return TC_ACT_OK;
	}
	give = bpf_map_lookup_elem(&fl_gives, &segment.key);
	if (!give)
		return TC_ACT_OK;
	/* The engine writes no other options. */
	if (segment.tcp.offset >> 4 == 8 &&
	    bpf_skb_load_bytes(ctx, segment.at - sizeof(stamps), stamps, sizeof(stamps)))
		return TC_ACT_OK;
	/* Nobody listened for the first segment, and somebody may by now: not from the middle. */
	is_first = bpf_ntohl(segment.tcp.seq) == give->first;
	if ((!is_first || fl_give_to(ctx, &segment.key, segment.v4, give, bpf_ntohl(stamps[1]),
				     bpf_ntohl(stamps[2]))) &&
	    give->wait_until_ns > bpf_ktime_get_ns()) {
		fl_host_count(FL_C_HOST_WAITED);
		if (is_first)
			fl_sleep_on(ctx, &segment.key);
		return TC_ACT_SHOT; /* the client sends it again, or it was kept */
	}
	return TC_ACT_OK;
}

/* At tc egress of the interfaces, where a route has `sleep`. */
SEC("classifier")
int fairlead_leave(struct __sk_buff *ctx)
{
	struct fl_segment segment = {};
	struct fl_flow_key client = {};

	/* What came in somewhere is forwarded, or the engine's own, and no socket's. */
	if (ctx->ingress_ifindex || fl_segment_of(ctx, &segment, FL_V4_AT))
		return TC_ACT_UNSPEC;
	client.src = segment.key.dst;
	client.dst = segment.key.src;
	client.src_port = segment.key.dst_port;
	client.dst_port = segment.key.src_port;
	if (!fl_host_of(&client))
		return TC_ACT_UNSPEC;
	return fl_hear_socket(ctx, &segment, &client);
}

/* Sends what a client has not acknowledged for long; user space runs it for a segment of that client. */
SEC("classifier")
int fairlead_again(struct __sk_buff *ctx)
{
	struct fl_packet packet = { .ifindex = ctx->ifindex };

	if (fl_parse(ctx, &packet))
		return TC_ACT_UNSPEC;
	return fl_hit_late(ctx, &packet);
}

/* Looks for connections that are over, or whose clients have lost something; user space runs it. */
SEC("classifier")
int fairlead_sweep(struct __sk_buff *ctx)
{
	return fl_hit_sweep();
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
