/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Handshakes without memory, as crates/splice/src/engine/handshake.rs answers them: a SYN gets its
 * SYN-ACK with a cookie, on the way it came; the last ACK of a handshake ends here.
 */
#ifndef FAIRLEAD_SYNACK_H
#define FAIRLEAD_SYNACK_H

#include <fairlead/ctx.h>
#include "checksum.h"
#include "cookie.h"
#include "exits.h"
#include "flows.h"
#include "maps.h"
#include "own.h"
#include "parse.h"
#include "translate.h"

#define FL_KIND_MSS 2
#define FL_KIND_WINDOW_SCALE 3
#define FL_KIND_SACK_PERMITTED 4
#define FL_WINDOW_SCALE_MAX 14
#define FL_MSS_UNSAID 536
#define FL_SYN_OPTIONS_MAX 20

#define FL_SYN_BYTES 60

/* What a SYN asked for. */
struct fl_asked {
	__u32 ts_value;
	__u16 mss;
	__u8 scale; /* FL_NO_SCALE: none */
	__u8 sack;
	__u8 timestamps;
};

/* 0 when the list is made of the groups of four bytes that stacks in use send; the engine reads all
 * others. `asked` says what an MSS is that is not said, or said to be 0. Global, as those below that
 * are, so that each is verified once. */
__noinline int fl_read_syn_options(struct fl_options *options, __u32 words, struct fl_asked *asked)
{
	__u32 skip = 0;
	__u16 unsaid;

	if (!options || !asked)
		return -1;
	unsaid = asked->mss;
	asked->scale = FL_NO_SCALE;
#pragma clang loop unroll(disable)
	for (__u32 at = 0; at < FL_OPTIONS_MAX / 4; at++) {
		__u32 word;

		if (at >= words)
			break;
		if (skip) {
			skip -= 1;
			continue;
		}
		word = bpf_ntohl(options->words[at]);
		if (word == FL_WORD(FL_KIND_SACK_PERMITTED, 2, FL_KIND_TIMESTAMPS, 10) ||
		    word == FL_WORD(FL_KIND_NOP, FL_KIND_NOP, FL_KIND_TIMESTAMPS, 10)) {
			if (at + 2 >= words || at + 2 >= FL_OPTIONS_MAX / 4)
				return -1;
			asked->sack |= word >> 24 == FL_KIND_SACK_PERMITTED;
			asked->timestamps = 1;
			asked->ts_value = bpf_ntohl(options->words[at + 1]);
			skip = 2;
		} else if (word == FL_WORD(FL_KIND_NOP, FL_KIND_NOP, FL_KIND_SACK_PERMITTED, 2)) {
			asked->sack = 1;
		} else if (word == FL_WORD(FL_KIND_SACK_PERMITTED, 2, FL_KIND_END, FL_KIND_END)) {
			asked->sack = 1;
			break;
		} else if (word >> 16 == (FL_KIND_MSS << 8 | 4)) {
			asked->mss = (__u16)word ? word : unsaid;
		} else if (word >> 8 == (FL_KIND_NOP << 16 | FL_KIND_WINDOW_SCALE << 8 | 3)) {
			asked->scale = (__u8)word > FL_WINDOW_SCALE_MAX ? FL_WINDOW_SCALE_MAX : word;
		} else {
			return -1;
		}
	}
	return skip ? -1 : 0;
}

/* The class of an MSS that a cookie remembers: fairlead_tcp::MSS_CLASSES. */
static __always_inline __u32 fl_mss_class(__u16 mss)
{
	if (mss >= 8960)
		return 7;
	if (mss >= 1460)
		return 6;
	if (mss >= 1440)
		return 5;
	if (mss >= 1400)
		return 4;
	if (mss >= 1340)
		return 3;
	if (mss >= 1220)
		return 2;
	return mss >= 536 ? 1 : 0;
}

/* A TCP header with room for the options of a SYN. */
struct fl_syn {
	struct fl_tcp_view tcp;
	struct fl_options options;
};

/* One with room for those that are sent here. */
struct fl_answer {
	struct fl_tcp_view tcp;
	__be32 options[FL_SYN_OPTIONS_MAX / 4];
};

#define FL_SYN_WORDS (FL_SYN_BYTES / 4)

/* The sum of words as they lie in memory, not folded. In this order and from there, as the compiler
 * is told: all of them at once are more than there are registers, and room on the stack is scarce. */
static __always_inline __u64 fl_words_sum(const void *from, int count)
{
	const __u32 *words = from;
	__u64 sum = 0;

	FL_OPAQUE(words);
#pragma clang loop unroll(full)
	for (int at = 0; at < count; at++) {
		sum += words[at];
		FL_OPAQUE(sum);
	}
	return sum;
}

/* As fl_checksum_is_good says it, of a segment without payload whose header is at hand. */
static __always_inline int fl_syn_is_good(fl_ctx *ctx, const struct fl_packet *packet,
					  const struct fl_syn *syn)
{
	__u64 pseudo = fl_pseudo_sum(packet);

	return fl_ctx_sum_is_open(ctx, syn->tcp.checksum, fl_checksum_fold(pseudo)) ||
	       fl_checksum_fold(fl_words_sum(syn, FL_SYN_WORDS) + pseudo) == 0xffff;
}

/* What changes in the checksum when `answer` takes the place of `syn`, the pseudo-header apart. */
static __always_inline __u64 fl_syn_change(const struct fl_syn *syn, const struct fl_answer *answer)
{
	__u64 old = fl_words_sum(syn, FL_SYN_WORDS), all = FL_SYN_WORDS * 0xffffffffull;

	return fl_words_sum(answer, sizeof(*answer) / 4) + (all - old) + syn->tcp.checksum;
}

/* What a SYN or SYN-ACK of ours says. */
struct fl_told {
	__u32 ts_value;
	__u32 ts_echo;
	__u16 mss;
	__u8 scale; /* FL_NO_SCALE: none */
	__u8 sack;
	__u8 timestamps;
};

/* Its options; how many bytes they take. */
static __always_inline __u32 fl_syn_options(__u8 *out, const struct fl_told *told)
{
	__u8 *next = out + 4;

	out[0] = FL_KIND_MSS;
	out[1] = 4;
	out[2] = told->mss >> 8;
	out[3] = told->mss;
	if (told->timestamps) {
		/* The permission fits where the padding of the timestamps would be. */
		out[4] = told->sack ? FL_KIND_SACK_PERMITTED : FL_KIND_NOP;
		out[5] = told->sack ? 2 : FL_KIND_NOP;
		out[6] = FL_KIND_TIMESTAMPS;
		out[7] = 10;
		*(__be32 *)(out + 8) = bpf_htonl(told->ts_value);
		*(__be32 *)(out + 12) = bpf_htonl(told->ts_echo);
		next = out + 16;
	} else if (told->sack) {
		out[4] = FL_KIND_NOP;
		out[5] = FL_KIND_NOP;
		out[6] = FL_KIND_SACK_PERMITTED;
		out[7] = 2;
		next = out + 8;
	}
	if (told->scale != FL_NO_SCALE) {
		next[0] = FL_KIND_NOP;
		next[1] = FL_KIND_WINDOW_SCALE;
		next[2] = 3;
		next[3] = told->scale;
		next += 4;
	}
	return next - out;
}

/* What a SYN is answered with. */
static __always_inline void fl_tell_syn_ack(struct fl_told *told, const struct fl_asked *asked,
					    const struct fl_listen *listen, __u32 now_ms)
{
	told->mss = listen->mss;
	told->sack = asked->sack && (listen->flags & FL_OFFER_SACK);
	told->timestamps = asked->timestamps && (listen->flags & FL_OFFER_TIMESTAMPS);
	told->ts_value = now_ms;
	told->ts_echo = asked->ts_value;
	told->scale = asked->scale != FL_NO_SCALE ? listen->window_scale : FL_NO_SCALE;
}

/* What the cookie has to remember: fairlead_tcp::Promise. */
static __always_inline __u32 fl_promise(const struct fl_asked *asked, const struct fl_listen *listen)
{
	int scale = asked->scale != FL_NO_SCALE && listen->window_scale != FL_NO_SCALE;
	__u32 bits = (scale ? asked->scale : FL_COOKIE_NO_SCALE) << 1;

	bits |= fl_mss_class(asked->mss) << 5;
	if (asked->sack && (listen->flags & FL_OFFER_SACK))
		bits |= 1;
	if (listen->flags & FL_OFFER_SCALE_PARITY)
		bits |= 1 << 9;
	return bits;
}

/* Makes the packet of a SYN of `asked_bytes`, which has its new length already, into one with the
 * header `answer` of `bytes` and `payload_bytes` behind it, back to where it came from. The checksum
 * changes by `changed`. */
static __always_inline int fl_answer_write(fl_ctx *ctx, const struct fl_packet *packet,
					   struct fl_answer *answer, __u32 asked_bytes, __u32 bytes,
					   __u32 payload_bytes, __u64 changed)
{
	__u32 at = fl_tcp_at(packet);
	struct fl_delta pseudo = {};

	fl_delta_u16(&pseudo, bpf_htons(asked_bytes), bpf_htons(bytes + payload_bytes));
	if (fl_ctx_tcp_checksum(ctx, at + 16, fl_checksum_fold(pseudo.sum),
				fl_checksum_fold(changed)))
		return -1;
	if (fl_ctx_load(ctx, at + 16, &answer->tcp.checksum, sizeof(answer->tcp.checksum)))
		return -1;
	if (!fl_within(&bytes, sizeof(answer->tcp), sizeof(*answer)))
		return -1;
	if (fl_ctx_store(ctx, at, answer, bytes))
		return -1;
	return fl_answer_ip(ctx, packet, bytes + payload_bytes) || fl_answer_link(ctx) ? -1 : 0;
}

/* True for a segment that acknowledges a cookie which its sender was sent. Global, so that it is
 * verified once. */
__noinline int fl_is_proven(struct fl_packet *packet, struct fl_settings *settings)
{
	if (!packet || !settings)
		return 0;
	return fl_cookie_check(settings, &packet->key, packet->seq - 1,
			       bpf_ktime_get_ns() - settings->origin_ns, packet->ack - 1);
}

/* Answers a SYN in its own packet and sends it back where it came from. Not 0: nothing was changed,
 * the engine is to do it. `verdict` is the program's otherwise. */
static __noinline int fl_answer_syn(fl_ctx *ctx, struct fl_packet *packet, struct fl_listen *listen,
				    struct fl_settings *settings, int *verdict)
{
	struct fl_syn syn = {};
	struct fl_answer answer = {};
	struct fl_asked asked = { .mss = FL_MSS_UNSAID };
	struct fl_told told = {};
	__u64 now_ns;
	__u32 at, asked_bytes, bytes, bits, options;

	if (!packet || !listen || !settings || !verdict)
		return -1;
	now_ns = bpf_ktime_get_ns() - settings->origin_ns;
	at = fl_tcp_at(packet);
	asked_bytes = packet->tcp_bytes;
	if (packet->payload_bytes || !fl_may_leave(ctx, packet, packet->ifindex))
		return -1;
	/* In the service's own name: the engine refuses it, and counts why. */
	if (fl_same_address(&packet->key.src, &packet->key.dst))
		return -1;
	if (!fl_within(&asked_bytes, sizeof(syn.tcp), FL_SYN_BYTES))
		return -1;
	if (fl_ctx_load(ctx, at, &syn, asked_bytes))
		return -1;
	if (fl_ctx_sum_is_lost(syn.tcp.checksum, fl_checksum_fold(fl_pseudo_sum(packet))))
		return -1;
	if (fl_read_syn_options(&syn.options, (asked_bytes - sizeof(syn.tcp)) / 4, &asked))
		return -1;
	if (!fl_syn_is_good(ctx, packet, &syn)) {
		*verdict = fl_drop(packet, FL_REASON_BAD_TCP_CHECKSUM);
		return 0;
	}
	fl_tell_syn_ack(&told, &asked, listen, now_ns / 1000000);
	options = fl_syn_options((__u8 *)answer.options, &told);
	bits = fl_promise(&asked, listen);
	bytes = sizeof(answer.tcp) + options;
	answer.tcp.src_port = packet->key.dst_port;
	answer.tcp.dst_port = packet->key.src_port;
	answer.tcp.seq = bpf_htonl(fl_cookie_make(settings, &packet->key, packet->seq, now_ns, bits));
	answer.tcp.ack = bpf_htonl(packet->seq + 1);
	answer.tcp.offset = bytes / 4 << 4;
	answer.tcp.flags = FL_TCP_SYN | FL_TCP_ACK;
	answer.tcp.window = bpf_htons(listen->window);
	if (fl_ctx_resize(ctx, at + bytes))
		return -1;
	/* From here on the packet is not what it was: what fails is lost, and counted. */
	*verdict = FL_DROP;
	if (fl_answer_write(ctx, packet, &answer, asked_bytes, bytes, 0,
			    fl_syn_change(&syn, &answer))) {
		fl_drop(packet, FL_REASON_TRANSMIT_FAILED);
		return 0;
	}
	fl_end(packet);
	fl_count(FL_C_MADE_BYTES, at - FL_V4_AT + bytes);
	fl_count(FL_C_SYNS, 1);
	fl_count(FL_C_SYN_ACKS, 1);
	*verdict = fl_leave(ctx, packet);
	return 0;
}

#endif
