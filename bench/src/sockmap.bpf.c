/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A proxy's copying as the kernel's socket maps do it: what one socket receives is sent by the
 * other. For comparison with handed-off pairs.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define SOCKETS 65536

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, SOCKETS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* By a socket's cookie: the place of the other one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SOCKETS);
	__type(key, __u64);
	__type(value, __u32);
} others SEC(".maps");

/* Nothing is a message: all is passed on as it comes. */
SEC("sk_skb/stream_parser")
int as_it_comes(struct __sk_buff *skb)
{
	return skb->len;
}

SEC("sk_skb/stream_verdict")
int to_the_other(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	__u32 *at = bpf_map_lookup_elem(&others, &cookie);

	return at ? bpf_sk_redirect_map(skb, &sockets, *at, 0) : SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
