/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Idle connections of a socket of this machine that outlive the process that has it: the FIN that ends
 * an idle connection is withheld at tc egress, and the client's next request becomes a connection of
 * whoever listens then (docs/handoff.md). Which FIN ends an idle connection follows from where the last
 * response ends; user space reads that from the response's head (crates/bpf-loader/src/sleep.rs).
 */
#ifndef FAIRLEAD_SLEEP_H
#define FAIRLEAD_SLEEP_H

#include <bpf/bpf_core_read.h>
#include <fairlead/ctx.h>
#include <fairlead/layout.h>
#include <fairlead/map.h>
#include "host.h"
#include "parse.h"

#define FL_SHOWN_RING_BYTES (1 << 20)
/* Clients whose requests in flight are kept, at most: those that asked last. */
#define FL_UNREAD 4096
#define FL_CHUNKS_END_BYTES 7

/* By client. As many as the loader says. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_life);
} fl_lives FL_MAP_OPTIONAL;

/* Where the response at hand ends, as user space has read it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_response);
} fl_responses FL_MAP_OPTIONAL;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FL_SHOWN_RING_BYTES);
} fl_shown FL_MAP_OPTIONAL;

/* By client: requests that sockets have not answered yet. One that its socket leaves unread is given
 * to the next. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FL_UNREAD);
	__type(key, struct fl_flow_key);
	__type(value, struct fl_unread);
} fl_unreads FL_MAP_OPTIONAL;

/* Where a new entry of that map is made. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fl_unread);
} fl_unread_draft FL_MAP_PRIVATE;

/* As the kernel names it; where it lies is looked up when the program is loaded. */
struct tcp_options_received {
	__u16 tstamp_ok : 1;
	__u16 wscale_ok : 1;
	__u16 sack_ok : 3;
	__u16 snd_wscale : 4;
	__u16 rcv_wscale : 4;
	__u16 mss_clamp;
} __attribute__((preserve_access_index));
struct tcp_sock {
	__u32 copied_seq;
	__u32 rcv_nxt;
	__u32 snd_nxt;
	__u64 bytes_received;
	struct tcp_options_received rx_opt;
} __attribute__((preserve_access_index));

/* A segment. */
struct fl_segment {
	struct fl_flow_key key;
	struct fl_tcp_view tcp;
	__u32 at; /* of the payload */
	__u32 bytes; /* of payload */
	int v4;
};

/* 0 when `segment` describes what is in `ctx`, whose IP header begins at `link`. */
static __always_inline int fl_segment_of(struct __sk_buff *ctx, struct fl_segment *segment,
					 const __u32 link)
{
	__u32 tcp_at, total;

	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(ctx, link, &ip, sizeof(ip)) ||
		    ip.ihl != sizeof(ip) / 4 || ip.protocol != FL_PROTOCOL_TCP)
			return -1;
		fl_map_v4(&segment->key.src, ip.saddr);
		fl_map_v4(&segment->key.dst, ip.daddr);
		segment->v4 = 1;
		tcp_at = sizeof(ip);
		total = bpf_ntohs(ip.tot_len);
	} else if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(ctx, link, &ip, sizeof(ip)) ||
		    ip.nexthdr != FL_PROTOCOL_TCP)
			return -1;
		__builtin_memcpy(segment->key.src.bytes, &ip.saddr, 16);
		__builtin_memcpy(segment->key.dst.bytes, &ip.daddr, 16);
		segment->v4 = 0;
		tcp_at = sizeof(ip);
		total = sizeof(ip) + bpf_ntohs(ip.payload_len);
	} else {
		return -1;
	}
	if (bpf_skb_load_bytes(ctx, link + tcp_at, &segment->tcp, sizeof(segment->tcp)))
		return -1;
	segment->key.src_port = segment->tcp.src_port;
	segment->key.dst_port = segment->tcp.dst_port;
	tcp_at += (segment->tcp.offset >> 4) * 4;
	segment->at = link + tcp_at;
	segment->bytes = total > tcp_at ? total - tcp_at : 0;
	return 0;
}

static __always_inline int fl_is_after(__u32 one, __u32 other)
{
	return (__s32)(one - other) > 0;
}

/* Shows user space the beginning of a response, or without a segment what has happened. */
static __always_inline void fl_show(struct __sk_buff *ctx, const struct fl_flow_key *key,
				    struct fl_life *life, __u32 what,
				    const struct fl_segment *segment)
{
	struct fl_shown_head *shown = bpf_ringbuf_reserve(&fl_shown, sizeof(*shown), 0);
	__u32 bytes = segment ? segment->bytes : 0;

	if (!shown) {
		fl_host_count(FL_C_HOST_HEADS_LOST);
		return;
	}
	shown->key = *key;
	shown->number = segment ? life->begins_at : life->snd_nxt;
	shown->method = life->method;
	shown->what = what;
	if (bytes > sizeof(shown->head))
		bytes = sizeof(shown->head);
	shown->bytes = 0;
	if (fl_within(&bytes, 1, sizeof(shown->head)) &&
	    !bpf_skb_load_bytes(ctx, segment->at, shown->head, bytes))
		shown->bytes = bytes;
	bpf_ringbuf_submit(shown, 0);
}

/* The connection has nothing more to say: from now on it is known by these numbers alone. A request
 * that its socket has not read is one that is still to come. */
static __always_inline void fl_lie_down(struct __sk_buff *ctx, const struct fl_flow_key *key,
					struct fl_life *life, __u32 what)
{
	if (life->asked)
		life->rcv_nxt = life->asked_at;
	life->asked = 0;
	life->since_ns = bpf_ktime_get_ns();
	life->state = FL_LIFE_ASLEEP;
	fl_show(ctx, key, life, what, 0);
}

static __always_inline void fl_fall_asleep(struct __sk_buff *ctx, const struct fl_flow_key *key,
					   struct fl_life *life)
{
	fl_host_count(FL_C_HOST_SLEPT);
	fl_lie_down(ctx, key, life, FL_SHOWN_ASLEEP);
}

/* Its first segment found nobody who listens: the request waits, and its connection sleeps until then.
 * `key` is the client's. */
static __always_inline void fl_sleep_on(struct __sk_buff *ctx, const struct fl_flow_key *key)
{
	struct fl_life *life = bpf_map_lookup_elem(&fl_lives, key);

	if (life && life->state == FL_LIFE_AWAKE && life->begins_at == life->snd_nxt)
		fl_lie_down(ctx, key, life, FL_SHOWN_ALONE);
}

/* Keeps a request, lest its socket leave it unread. What is too long is not kept. */
static __always_inline void fl_keep(struct __sk_buff *ctx, const struct fl_packet *packet)
{
	struct fl_unread *unread = bpf_map_lookup_elem(&fl_unreads, &packet->key);
	__u32 zero = 0, bytes = fl_ip_bytes(packet);
	struct fl_unread *into = unread ? unread : bpf_map_lookup_elem(&fl_unread_draft, &zero);

	if (!into || !fl_within(&bytes, 1, sizeof(into->packet)) ||
	    bpf_skb_load_bytes(ctx, FL_V4_AT, into->packet, bytes))
		return;
	into->begins_at = packet->seq;
	into->ends_at = packet->seq + packet->payload_bytes;
	into->bytes = bytes;
	if (!unread)
		bpf_map_update_elem(&fl_unreads, &packet->key, into, BPF_ANY);
}

/* Whether the request that is not answered yet is kept. */
static __always_inline int fl_is_kept(const struct fl_flow_key *key, const struct fl_life *life)
{
	struct fl_unread *unread = bpf_map_lookup_elem(&fl_unreads, key);

	return unread && unread->begins_at == life->asked_at && unread->ends_at == life->rcv_nxt;
}

#define FL_NOT_KNOWN (-1)

/* Whether the response that was sent last is whole, or FL_NOT_KNOWN: its head has yet to be read. */
static __always_inline int fl_is_whole(const struct fl_flow_key *key, const struct fl_life *life)
{
	struct fl_response *response;

	if (life->begins_at == life->snd_nxt)
		return 1; /* its socket has said nothing */
	response = bpf_map_lookup_elem(&fl_responses, key);
	if (!response || response->begins_at != life->begins_at)
		return FL_NOT_KNOWN;
	if (response->kind == FL_RESPONSE_LENGTH)
		return response->ends_at == life->snd_nxt;
	return response->kind == FL_RESPONSE_CHUNKED && life->chunks_end == life->snd_nxt;
}

#define FL_DOUBT_NS 1000000000ull

/* The same for a connection in doubt, for which no more will be known after some time. */
static __always_inline int fl_is_whole_by_now(const struct fl_flow_key *key,
					      const struct fl_life *life)
{
	int whole = fl_is_whole(key, life);

	if (whole == FL_NOT_KNOWN && bpf_ktime_get_ns() - life->since_ns > FL_DOUBT_NS)
		return 0;
	return whole;
}

/* Begins to follow a connection that a listener of this machine has accepted by itself, at a request
 * of its client. */
static __always_inline void fl_follow(struct __sk_buff *ctx, const struct fl_packet *packet)
{
	struct fl_life life = {
		.since_ns = bpf_ktime_get_ns(),
		.rcv_nxt = packet->seq,
		.snd_nxt = packet->ack,
		.acked = packet->ack,
		.begins_at = packet->ack,
		.chunks_end = packet->ack - 1,
		.sleep_max_s = FL_WATCHED_SLEEP_S,
	};
	struct bpf_sock *sock;
	struct tcp_sock *tcp;

	if (!packet->payload_bytes || !(packet->flags & FL_TCP_ACK) ||
	    bpf_map_lookup_elem(&fl_lives, &packet->key))
		return;
	sock = fl_sock_of(ctx, &packet->key, 0, packet->v4);
	if (!sock)
		return;
	tcp = sock->state == BPF_TCP_ESTABLISHED ? bpf_skc_to_tcp_sock(sock) : 0;
	if (!tcp || tcp->rcv_nxt != packet->seq || tcp->snd_nxt != packet->ack) {
		bpf_sk_release(sock);
		return;
	}
	if (tcp->bytes_received)
		life.begins_at--; /* something was said before, of which nothing is known */
	life.give.listener.addr = packet->key.dst;
	life.give.listener.port = packet->key.dst_port;
	life.give.mss = tcp->rx_opt.mss_clamp;
	life.give.scales = BPF_CORE_READ_BITFIELD(tcp, rx_opt.wscale_ok);
	life.give.client_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale);
	life.give.our_scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale);
	life.give.sack = BPF_CORE_READ_BITFIELD(tcp, rx_opt.sack_ok) != 0;
	life.give.timestamps = BPF_CORE_READ_BITFIELD(tcp, rx_opt.tstamp_ok);
	life.give.first = packet->seq;
	bpf_sk_release(sock);
	if (bpf_map_update_elem(&fl_lives, &packet->key, &life, BPF_NOEXIST))
		fl_host_count(FL_C_HOST_UNFOLLOWED);
}

/* A segment of a client whose socket is about to end. Not 0 where the socket must not have it. */
static __always_inline int fl_hear_at_end(struct __sk_buff *ctx, const struct fl_packet *packet,
					  struct fl_life *life)
{
	int whole = 1;

	if (life->state == FL_LIFE_IN_DOUBT)
		whole = fl_is_whole_by_now(&packet->key, life);
	if (packet->flags & FL_TCP_ACK && packet->ack == life->snd_nxt) {
		life->acked = packet->ack;
		if (whole == 1) {
			fl_fall_asleep(ctx, &packet->key, life);
			return 0;
		}
	}
	if (whole != FL_NOT_KNOWN || !packet->payload_bytes)
		return 0;
	/* The socket would answer it with a RST. */
	if (packet->seq == life->rcv_nxt && !life->asked)
		fl_keep(ctx, packet);
	fl_host_count(FL_C_HOST_IN_DOUBT_HELD);
	return TC_ACT_SHOT;
}

/* What a client sends while its connection has a socket. */
static __always_inline void fl_hear_request(struct __sk_buff *ctx, const struct fl_packet *packet,
					    struct fl_life *life)
{
	__u32 end = packet->seq + packet->payload_bytes;
	__be32 method = 0;

	if (!packet->payload_bytes)
		return;
	if (packet->seq == (life->asked ? life->asked_at : life->rcv_nxt))
		fl_keep(ctx, packet); /* once more, where the first one came to grief */
	if (!fl_is_after(end, life->rcv_nxt))
		return;
	if (!life->asked) {
		life->asked_at = life->rcv_nxt;
		if (packet->seq == life->rcv_nxt &&
		    !bpf_skb_load_bytes(ctx, fl_tcp_at(packet) + packet->tcp_bytes, &method,
					sizeof(method)))
			life->method = method;
	}
	life->rcv_nxt = end;
	life->asked = 1;
}

#define FL_TO_ENGINE TC_ACT_UNSPEC

/* What a client's segment means for its connection: not 0 where the stack must not have it.
 * `key` is the client's. */
static __always_inline int fl_hear_client(struct __sk_buff *ctx, const struct fl_packet *packet)
{
	struct fl_life *life = bpf_map_lookup_elem(&fl_lives, &packet->key);

	if (!life)
		return 0;
	if (packet->flags & FL_TCP_SYN) {
		/* It begins anew. */
		bpf_map_delete_elem(&fl_lives, &packet->key);
		return 0;
	}
	if ((life->state == FL_LIFE_CLOSING || life->state == FL_LIFE_IN_DOUBT) &&
	    !(packet->flags & FL_TCP_RST) && fl_hear_at_end(ctx, packet, life))
		return TC_ACT_SHOT;
	if (life->state == FL_LIFE_ASLEEP || life->state == FL_LIFE_OVER) {
		if (life->state == FL_LIFE_ASLEEP && packet->flags & FL_TCP_RST &&
		    packet->seq == life->rcv_nxt) {
			bpf_map_delete_elem(&fl_lives, &packet->key);
			fl_host_count(FL_C_HOST_SLEEPERS_RESET);
			return TC_ACT_SHOT;
		}
		if (life->state == FL_LIFE_OVER || packet->flags & FL_TCP_RST ||
		    (!packet->payload_bytes && !(packet->flags & FL_TCP_FIN) &&
		     packet->seq == life->rcv_nxt))
			return TC_ACT_SHOT;
		return FL_TO_ENGINE; /* which wakes it, or answers */
	}
	if (packet->flags & FL_TCP_RST) {
		bpf_map_delete_elem(&fl_lives, &packet->key);
		return 0;
	}
	if (packet->flags & FL_TCP_ACK && fl_is_after(packet->ack, life->acked))
		life->acked = packet->ack;
	if (life->state == FL_LIFE_AWAKE) {
		life->since_ns = bpf_ktime_get_ns();
		fl_hear_request(ctx, packet, life);
	}
	return 0;
}

/* Notes where a chunked body may have ended, by its last bytes. */
static __always_inline void fl_note_chunks(struct __sk_buff *ctx, const struct fl_segment *segment,
					   struct fl_life *life, __u32 end)
{
	static const char last[FL_CHUNKS_END_BYTES] = "\r\n0\r\n\r\n";
	char seen[FL_CHUNKS_END_BYTES] = {};
	__u32 skip = 0;

	if (segment->bytes == FL_CHUNKS_END_BYTES - 2)
		skip = 2; /* a segment of its own */
	else if (segment->bytes < FL_CHUNKS_END_BYTES)
		return;
	if (skip) {
		if (bpf_skb_load_bytes(ctx, segment->at, seen + 2, FL_CHUNKS_END_BYTES - 2))
			return;
		seen[0] = last[0];
		seen[1] = last[1];
	} else if (bpf_skb_load_bytes(ctx, segment->at + segment->bytes - FL_CHUNKS_END_BYTES, seen,
				      FL_CHUNKS_END_BYTES)) {
		return;
	}
	for (int at = 0; at < FL_CHUNKS_END_BYTES; at++)
		if (seen[at] != last[at])
			return;
	life->chunks_end = end;
}

/* Whether a socket that sends a RST has read nothing of the last request. */
static __always_inline int fl_leaves_unread(struct __sk_buff *ctx, const struct fl_life *life)
{
	struct bpf_sock *sock = ctx->sk;
	struct tcp_sock *tcp;

	if (!life->asked || !sock)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sock);
	return tcp && tcp->copied_seq == life->asked_at;
}

/* What becomes of the segment that ends a socket: not withheld where the client must know. */
static __always_inline int fl_end_socket(struct __sk_buff *ctx, const struct fl_flow_key *client,
					 struct fl_life *life)
{
	if (life->acked == life->snd_nxt) {
		fl_fall_asleep(ctx, client, life);
	} else {
		/* The last bytes may have to be sent again, and only the old socket has them. */
		life->state = FL_LIFE_CLOSING;
	}
	return TC_ACT_SHOT;
}

static __always_inline int fl_hear_reset(struct __sk_buff *ctx, const struct fl_flow_key *client,
					 struct fl_life *life)
{
	int whole;

	if (life->state == FL_LIFE_CLOSING)
		return TC_ACT_SHOT;
	if (life->state == FL_LIFE_IN_DOUBT) {
		/* User space, which knows more by now, has ended the socket; or its client has. */
		whole = fl_is_whole_by_now(client, life);
		if (whole == 1 && life->acked == life->snd_nxt)
			fl_fall_asleep(ctx, client, life);
		if (whole)
			return TC_ACT_SHOT;
	} else if (fl_leaves_unread(ctx, life)) {
		/* It is not sent again: what is not known by now will not be. */
		if (fl_is_kept(client, life) && life->acked == life->snd_nxt &&
		    fl_is_whole(client, life) == 1) {
			fl_host_count(FL_C_HOST_UNREAD);
			fl_fall_asleep(ctx, client, life);
			return TC_ACT_SHOT;
		}
		fl_host_count(FL_C_HOST_UNREAD_LOST);
	}
	bpf_map_delete_elem(&fl_lives, client);
	return TC_ACT_UNSPEC;
}

/* A FIN, whose number is that of the last byte that was sent, or not. */
static __always_inline int fl_hear_fin(struct __sk_buff *ctx, const struct fl_segment *segment,
				       const struct fl_flow_key *client, struct fl_life *life)
{
	__u32 ack = bpf_ntohl(segment->tcp.ack);
	/* The socket has not heard a request that has reached the machine alone. */
	__u32 heard = life->asked ? life->asked_at : life->rcv_nxt;
	int whole = 0;

	if (!segment->bytes && bpf_ntohl(segment->tcp.seq) == life->snd_nxt && ack == heard)
		whole = fl_is_whole(client, life);
	if (whole == FL_NOT_KNOWN && life->state != FL_LIFE_IN_DOUBT) {
		life->state = FL_LIFE_IN_DOUBT;
		life->since_ns = bpf_ktime_get_ns();
		fl_host_count(FL_C_HOST_FINS_IN_DOUBT);
		fl_show(ctx, client, life, FL_SHOWN_IN_DOUBT, 0);
		return TC_ACT_SHOT; /* the socket sends it again */
	}
	if (whole == 1)
		return fl_end_socket(ctx, client, life);
	bpf_map_delete_elem(&fl_lives, client);
	bpf_map_delete_elem(&fl_responses, client);
	fl_host_count(FL_C_HOST_FINS_PASSED);
	return TC_ACT_UNSPEC;
}

/* What becomes of a socket's segment. `client` is the key of its client's segments. */
static __always_inline int fl_hear_socket(struct __sk_buff *ctx, const struct fl_segment *segment,
					  const struct fl_flow_key *client)
{
	struct fl_life *life = bpf_map_lookup_elem(&fl_lives, client);
	__u32 seq = bpf_ntohl(segment->tcp.seq), end = seq + segment->bytes;

	if (!life)
		return TC_ACT_UNSPEC;
	if (life->state == FL_LIFE_ASLEEP || life->state == FL_LIFE_OVER) {
		/* Of the old socket, which is ended now. */
		fl_host_count(FL_C_HOST_OLD_DROPPED);
		return TC_ACT_SHOT;
	}
	if (segment->tcp.flags & FL_TCP_RST)
		return fl_hear_reset(ctx, client, life);
	if (segment->bytes && fl_is_after(end, life->snd_nxt)) {
		if (life->asked && seq == life->snd_nxt) {
			life->asked = 0;
			life->begins_at = seq;
			fl_show(ctx, client, life, FL_SHOWN_RESPONSE, segment);
		}
		life->snd_nxt = end;
		fl_note_chunks(ctx, segment, life, end);
	}
	if (!(segment->tcp.flags & FL_TCP_FIN))
		return TC_ACT_UNSPEC;
	return fl_hear_fin(ctx, segment, client, life);
}

#endif
