/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the kernel program and user space share in maps. The sizes and offsets are asserted here and
 * in crates/bpf-loader/src/layout.rs. LAYOUT_VERSION goes up with every change of a map that a restart
 * takes over (FL_MAP_REQUIRED in map.h), and a program never touches maps of another version.
 */
#ifndef FAIRLEAD_LAYOUT_H
#define FAIRLEAD_LAYOUT_H

#include <linux/types.h>

#include <fairlead/counters.h>

#define LAYOUT_VERSION 9

/* Of the maps of fairlead_host that outlive a process. It is a part of their files' names, and goes
 * up with every change of what they hold. */
#define FL_HOST_LAYOUT 2

/* An address as everywhere in Fairlead: 16 bytes, IPv4 as ::ffff:a.b.c.d. */
struct fl_address {
	__u8 bytes[16];
};

/* Which packets: from whom to whom. Ports in network byte order. */
struct fl_flow_key {
	struct fl_address src;
	struct fl_address dst;
	__be16 src_port;
	__be16 dst_port;
};

/* What a flow key leads to: the record's line, and the leg in the lowest bit (1: the server's). */
typedef __u32 fl_flow;

/* Leads nowhere: there are never so many lines. */
#define FL_NO_FLOW 0xffffffff

/*
 * The index of keys: buckets of one cache line of the processor, found by a keyed hash of the flow
 * key. An entry is a tag, the hash's upper half, above a flow plus one; 0 is none. Both sides write
 * it, by compare and swap. Keys that find no room in their bucket are in fl_flows.
 */
#define FL_BUCKET_ENTRIES 8

struct fl_bucket {
	__u64 entries[FL_BUCKET_ENTRIES];
};

/* An address and a port (network byte order). */
struct fl_endpoint {
	struct fl_address addr;
	__be16 port;
	__u16 pad;
};

/*
 * Where a connection is: one word, so that packets of both directions, on two CPUs at once, and the
 * engine, which takes the connection back, all move it by compare and swap.
 */
union fl_phase {
	struct {
		__u8 state;
		__u8 flags;
		__s8 client_shift;
		__s8 server_shift;
	};
	__u32 word;
};

/*
 * One spliced connection: fairlead_tcp::Record. Who writes what, while the engine has given the
 * record away: packets from the client write client_nxt and client_wraps, packets from the server
 * server_nxt and server_wraps; both write last_active, where the loser's value is a moment old, and
 * before all the phase, last and as a whole. Nothing else is written here. Packets of one direction
 * come in order on one CPU; where steering moves a flow to another CPU in midstream, the worst is
 * a number that is set back by what one packet carried, until the next packet.
 */
struct fl_record {
	struct fl_address client_addr;
	__u16 client_port; /* host byte order, as all numbers below */
	__u16 listen;
	__u16 server;
	__u16 nat_addr;
	__u16 nat_port;
	__u16 route;
	__u32 seq_delta;
	__u32 ts_delta;
	__u32 client_isn;
	__u32 server_isn;
	__u32 client_nxt;
	__u32 server_nxt;
	__u16 client_wraps;
	__u16 server_wraps;
	__u32 last_active;
	union fl_phase phase;
};

/* fairlead_tcp::State */
#define FL_STATE_SYN_SENT 2 /* armed: see struct fl_join; server_isn is the place there */
#define FL_STATE_SPLICED 3
#define FL_STATE_FIN_RELAYED1 4
#define FL_STATE_ACK_RELAYED1 5
#define FL_STATE_FIN_RELAYED2 6
#define FL_STATE_TIME_WAIT 7
#define FL_STATE_RESET 8
/* Set beside the state while the engine has the connection: the record is kept for a later start. */
#define FL_STATE_ENGINE_HAS 0x80
/* Beside FL_STATE_SYN_SENT: a packet is being answered. Nobody else touches the record or its place
 * in fl_joins until that is done. */
#define FL_STATE_JOINING (0x40 | FL_STATE_SYN_SENT)
/* A ticket: server, source and route are chosen, the client is not there yet. Also while the program
 * fills in who took it; then it is armed, or free if that failed. */
#define FL_STATE_TICKET 0x41

/* fairlead_tcp::record::flag */
#define FL_FLAG_TIMESTAMPS 1
#define FL_FLAG_CLIENT_FIN 4
#define FL_FLAG_SERVER_FIN 8
#define FL_FLAG_CLIENT_FIN_ACKED 16
#define FL_FLAG_SERVER_FIN_ACKED 32
#define FL_FLAG_RESET_BY_CLIENT 128
/* The same bit in states before RESET: the client's stream ends at client_nxt, and packets that may
 * lie behind it are the engine's. */
#define FL_FLAG_ONE_REQUEST FL_FLAG_RESET_BY_CLIENT
/* Under others every packet is the engine's. */
#define FL_FLAGS_OURS 0xbd

#define FL_NAT_TRANSPARENT 0xffff

/* fairlead_tcp::PAIR_ROUTE: the record was made of two connections. All bits of its flags are taken, so
 * its route says so. */
#define FL_ROUTE_PAIR 0xffff
#define FL_PAIRS 65536

/* What was last seen of one end of a pair: fairlead_tcp::Seen. */
struct fl_seen {
	__u32 ack;
	__u32 stamp;
	__u16 window;
	__u8 known;   /* not 0: something was */
	__u8 stamped; /* not 0: with a timestamp */
};

/* What a pair's record lacks: fairlead_tcp::Second. Packets write what is seen of their own side. */
#define FL_PAIR_KEPT 220
struct fl_second {
	__u32 seq;
	__u32 ts;
	__s8 client_shift;
	__s8 server_shift;
	__u8 pad[2];
	struct fl_seen client;
	struct fl_seen server;
	__u8 kept[FL_PAIR_KEPT]; /* for a later start; the program does not read it */
};

/* What is offered to clients of one listening endpoint. */
struct fl_listen {
	__u16 index;         /* of the endpoint, as records name it */
	__u16 mss;           /* told to clients */
	__u16 window;        /* of SYN-ACKs */
	__u8 window_scale;   /* FL_NO_SCALE: none is offered */
	__u8 flags;          /* FL_OFFER_* */
};

#define FL_NO_SCALE 0xff
#define FL_OFFER_SACK 1
#define FL_OFFER_TIMESTAMPS 2
#define FL_OFFER_SCALE_PARITY 4
/* SYNs are answered here; without it they go to the engine. */
#define FL_OFFER_ANSWER 8
/* A handshake's last ACK without data is swallowed here: the server speaks second. */
#define FL_OFFER_AWAIT_CLIENT 16
/* Connections may be begun here, by tickets. */
#define FL_OFFER_BEGIN 32
/* SYNs are compared with access lists: struct fl_access_rule. */
#define FL_OFFER_ACCESS 64

/* Some connections become sockets of this machine: XDP leaves newcomers to tc. */
#define FL_OFFER_HOST 128

/* What is known of a listening endpoint some of whose connections become sockets. */
#define FL_HOST_PLAIN 1
#define FL_HOST_FULL 2 /* a socket listens there that accepts nothing: SYNs may reach the stack */
#define FL_HOST_WATCHED 3 /* a process listens there: what does not sleep is the stack's */
struct fl_host {
	__u32 kind; /* FL_HOST_* */
	__u32 device; /* the engine's, by its index */
	/* What belongs to no socket goes there: the fast path would leave it to the stack, as XDP does. */
	__u32 leads;
	__u32 hits; /* not 0: some requests are answered by the kernel (lib/hits.h) */
};
/* How long connections may sleep that are watched, seconds. */
#define FL_WATCHED_SLEEP_S 3600

/* Stands where the call of bpf_sk_assign_tcp_reqsk is, whose number differs from kernel to kernel. */
#define FL_ASSIGN_REQUEST 0x0fa1ead1

/* The terms of a connection that the engine gives to a listener: fairlead_tcp::HostTerms. */
struct fl_give {
	struct fl_endpoint listener;
	__u16 mss; /* the client's */
	__u8 scales; /* not 0: windows are scaled, by these */
	__u8 client_scale;
	__u8 our_scale;
	__u8 sack;
	__u8 timestamps;
	__u8 pad;
	__u32 first; /* the number of the first segment: no other begins a connection */
	__u64 wait_until_ns; /* so long segments are dropped where nobody listens; 0: they are not */
};

/* How a connection that may sleep is. */
#define FL_LIFE_AWAKE 0   /* a socket has it */
#define FL_LIFE_IN_DOUBT 1 /* its FIN was withheld, and the head of its response is not read yet */
#define FL_LIFE_CLOSING 2 /* its FIN was withheld, and its last bytes are not acknowledged yet */
#define FL_LIFE_ASLEEP 3
#define FL_LIFE_OVER 4    /* it was ended while it slept */

/* A connection that may sleep. Numbers are those of the client's side. */
struct fl_life {
	__u64 since_ns;   /* the state, or the last segment while it is awake */
	__u32 rcv_nxt;    /* the client's next number */
	__u32 snd_nxt;    /* the server's */
	__u32 acked;      /* by the client */
	__u32 begins_at;  /* the response that was sent last */
	__u32 chunks_end; /* behind the last bytes that look like the end of a chunked body */
	__u32 method;     /* the first four bytes of the last request */
	__u32 state;      /* FL_LIFE_* */
	__u32 asked;      /* not 0: the client has sent something since that response began */
	__u32 sleep_max_s;
	__u32 asked_at; /* the number at which that begins */
	struct fl_give give; /* to whom it was given, and how */
};

#define FL_RESPONSE_LENGTH 1
#define FL_RESPONSE_CHUNKED 2
#define FL_RESPONSE_ENDLESS 3 /* ended by the FIN alone, or the last one of its connection */

/* What the head of a response says. */
struct fl_response {
	__u32 begins_at;
	__u32 ends_at;
	__u32 kind; /* FL_RESPONSE_* */
};

/* A client's request that its socket may leave unread. */
#define FL_UNREAD_BYTES 2048
struct fl_unread {
	__u32 begins_at;
	__u32 ends_at; /* the number behind it */
	__u32 bytes;   /* of the packet, from its IP header on */
	__u8 packet[FL_UNREAD_BYTES];
};

/* What user space is shown. */
#define FL_SHOWN_RESPONSE 0 /* the beginning of a response */
#define FL_SHOWN_ASLEEP 1   /* a connection sleeps */
#define FL_SHOWN_IN_DOUBT 2 /* a FIN came before it was known where its response ends */
#define FL_SHOWN_ALONE 3    /* a request found nobody who listens, and its connection sleeps */
#define FL_SHOWN_BYTES 1024
struct fl_shown_head {
	struct fl_flow_key key; /* the client's */
	__u32 number;
	__u32 method;
	__u32 bytes;
	__u32 what; /* FL_SHOWN_* */
	__u8 head[FL_SHOWN_BYTES];
};

/* Access lists of one service, at most. */
#define FL_ACCESS_LISTS 8

/* A prefix of an access list, as the trie compares it: the list's number, with the lowest bit set for
 * IPv4, and the address; IPv4 in the first four bytes. */
struct fl_access_prefix {
	__u32 list;
	__u8 address[16];
};

/* The access lists of a listening endpoint. */
struct fl_access_rule {
	__u32 count;   /* of lists */
	__u32 reset;   /* not 0: who is denied gets a RST, from the engine */
	__u32 counter; /* of the first list in fl_access_denied; the others follow */
	__u32 allow;   /* a bit a list: who is in none of its prefixes is allowed */
	__u32 lists[FL_ACCESS_LISTS];
};

/* One entry: what the program has to know. */
struct fl_settings {
	__u64 cookie_k0;
	__u64 cookie_k1;
	__u64 origin_ns; /* the core's origin on the monotonic clock */
	__u32 version;   /* LAYOUT_VERSION */
	__u32 records;   /* lines in the record array */
	__u64 netns;     /* inode of the network namespace whose interfaces this serves; ever here */
	__u32 refuse;    /* of 2^32 SYNs, so many are dropped: the engine is overloaded */
	__u32 engine;    /* interface that leads to the engine; 0: what routes say */
	__u64 hash_key;  /* of the index of keys */
	__u32 buckets;   /* of the index, a power of two */
	__u32 proven;    /* not 0: of what strangers send, only segments with a good cookie are the engine's */
	__u32 listens;   /* entries of fl_listen_at, fl_server_at and fl_nat_at that mean something */
	__u32 servers;
	__u32 nats;
	__u32 pad;
};

/*
 * Responses that the kernel sends by itself (lib/hits.h). An object is a whole response: two segments
 * of FL_HIT_SEGMENT at most, with zeros behind it up to the next word.
 */
#define FL_HIT_SEGMENT 1460
#define FL_HIT_BYTES 2920
/* Bytes of the values of `Age` and of `Connection`, which the stored response has as zeros. */
#define FL_HIT_FIELD 10

/* A response, by its number, which is never given to another one. */
struct fl_object {
	__u64 number;  /* first of all: an entry that is written anew meanwhile has another one */
	__u64 born_ns; /* when it had the age 0, on the monotonic clock; it may be before its origin */
	__u32 bytes;
	__u16 age_at;  /* where the two fields are: in the first FL_HIT_FIELDS_END bytes, at a word */
	__u16 keep_at;
	__u8 data[FL_HIT_BYTES];
};
#define FL_HIT_FIELDS_END 128

/* Which response requests get, by the keyed hash of their heads. */
struct fl_offer {
	__u64 object;
	__u64 fresh_until_ns;
	__u64 hits;
	__u64 bytes;  /* sent for them */
	__u32 epoch;  /* valid while it is that of the settings: a purge changes it */
	__u32 pad;
};

/* What the program has to know of a listening endpoint. */
struct fl_hit_listen {
	struct fl_listen listen;
	struct fl_endpoint front; /* where the front listens for its clients */
};

struct fl_hit_settings {
	struct fl_settings base; /* the secret behind cookies, and the origin of time */
	__u32 epoch;
	__u32 logs; /* not 0: an event for each hit */
};

/* A connection whose requests were answered by the kernel. Numbers are in host byte order. */
struct fl_hit {
	__u64 since_ns; /* its client's last segment */
	__u64 sent_ns;  /* when its last answer was sent last */
	__u64 object;   /* the last answer; 0: none */
	__u32 client_isn;
	__u32 asked_at; /* the last request */
	__u32 rcv_nxt;
	__u32 answer_at;
	__u32 snd_nxt;
	__u32 acked;
	__u32 age;     /* in the last answer, seconds */
	__u32 stamp;   /* the client's last timestamp, as it was sent */
	__u32 ifindex; /* by which it came in */
	__u16 mss;     /* the client's */
	__u16 segment; /* payload of one, at most */
	__u8 flags;    /* FL_HIT_* */
	__u8 scales;
	__u8 client_scale;
	__u8 our_scale;
	__u8 sack;
	__u8 timestamps;
	__u8 link[12]; /* link addresses of its segments */
	__u8 pad[6];
};
#define FL_HIT_GIVEN 1      /* to the front, and no socket was seen yet */
#define FL_HIT_CLOSES 2     /* the last answer ends with a FIN */
#define FL_HIT_FIN_SENT 4
#define FL_HIT_FIN_HEARD 8
#define FL_HIT_ENDS 16     /* user space wants it reset: there is no front for it any more */

/* A hit, for the access log. */
struct fl_hit_event {
	struct fl_flow_key client;
	__u32 bytes_in;
	__u64 object;
	__u64 bytes_out;
};

/* A segment on a link of 1,500 bytes always fits. */
#define FL_JOIN_BYTES 1504

/*
 * What joins an armed connection to its server, besides the record: fairlead_tcp::Join. The engine
 * writes it before it arms the record, and again only when that is armed no more.
 */
struct fl_join {
	__u32 line; /* of the record */
	__u32 dseq;
	__u32 our_ts;
	__u32 client_ts;
	__u16 client_window;
	__u16 device_mss;
	__u16 payload_bytes;
	__u16 payload_sum; /* of words as they lie in memory, folded */
	__u8 asked_scale;   /* FL_NO_SCALE: none */
	__u8 offered_scale; /* FL_NO_SCALE: none */
	__u16 syn_mss;      /* of a ticket: the largest that a SYN to the server may name */
	__u32 begun_ms;     /* and when it was taken, after the core's origin */
	__u8 payload[FL_JOIN_BYTES];
};

/* Tickets of a lane, at most; a power of two. */
#define FL_LANE_TICKETS 256
#define FL_LANES 32

/*
 * Tickets for one listening endpoint and route: lines of records in state FL_STATE_TICKET, in the
 * order in which they are taken. Who moves `head` has the line there: the program takes one, the
 * engine takes all that are left back. Only the engine moves `tail`.
 */
struct fl_lane {
	__u32 head;
	__u32 pad[15];
	__u32 tail;
	__u32 pad2[15];
	__u32 lines[FL_LANE_TICKETS];
};

#define FL_TCB_BANKS 2
#define FL_TCB_WAYS 4
/* Pieces of four bits of the longest session identifier: an IPv6 address and a port. */
#define FL_TCB_PIECES 36

/*
 * One set of the TCB cache (lib/tcb.h), two cache lines of the processor. A line of it names a
 * record; it never is the record, which both directions and the engine share in fl_records.
 *
 * Any CPU may write any word of it at any moment, without a lock. What that can do: a newcomer is
 * lost or stands there twice, a time is a moment old, a tag stands beside another's line. All of
 * that costs one look-up in fl_flows and nothing else, for a line is believed only after the record
 * that it names was compared with the packet, all addresses and ports of that leg.
 */
struct fl_tcb_set {
	__u64 tags[FL_TCB_WAYS];    /* 0: empty */
	__u64 used_at[FL_TCB_WAYS]; /* nanoseconds after the core's origin; 0: empty */
	__u32 lines[FL_TCB_WAYS];   /* of fl_records */
	__u32 second[FL_TCB_WAYS][FL_TCB_BANKS]; /* sets by the tag's second functions */
	__u32 pad[FL_TCB_WAYS];
};

/* What the cache is made from: one entry, written before the program is loaded. */
struct fl_tcb {
	__u32 mask;     /* sets of a bank, less one; they are a power of two */
	__u32 on_ticks; /* a line is ON while fewer ticks than these have passed since its last use */
	__u64 tick_ns;
	__u64 pad[6];
	__u64 chance;   /* SplitMix64, written by every CPU: what is lost is chance */
	__u64 pad2[7];
	__u64 ports[1024]; /* a bit a port that is listened on */
	/* By piece and value the sums of universal functions (crates/cache/src/index/universal.rs):
	 * the first and the second ones, of bank 0 in the lower half and of bank 1 in the upper, and
	 * 62 bits that stand for an IPv6 identifier. */
	__u64 first[FL_TCB_PIECES][16];
	__u64 second[FL_TCB_PIECES][16];
	__u64 tag[FL_TCB_PIECES][16];
};

/* Counters, one 64-bit number each and CPU: see counters.h. Drops follow from here on. */
#define FL_DROPS 64
#define FL_COUNTER_PLACE(name, metric, help) FL_C_##name,
enum fl_counter {
	FL_COUNTERS(FL_COUNTER_PLACE)
	FL_C_PLACES,
	/* Drops follow, by fairlead_base::DropReason. */
	FL_C_DROPS = FL_DROPS,
	FL_C_COUNT = 128,
};
_Static_assert(FL_C_PLACES <= FL_C_DROPS, "counters");

/* fairlead_base::DropReason, as far as the program drops; held together by the loader's build script. */
enum fl_reason {
	FL_REASON_TRUNCATED = 1,
	FL_REASON_BAD_TCP_CHECKSUM = 7,
	FL_REASON_BAD_TCP_FLAGS = 9,
	FL_REASON_NO_CONNECTION = 21,
	FL_REASON_ACCESS_DENIED = 33,
	FL_REASON_TRANSMIT_FAILED = 60,
	FL_REASON_OVERLOADED = 62,
};

_Static_assert(sizeof(struct fl_flow_key) == 36, "layout");
_Static_assert(sizeof(struct fl_bucket) == 64, "layout");
_Static_assert(sizeof(struct fl_endpoint) == 20, "layout");
_Static_assert(sizeof(struct fl_record) == 64, "layout");
_Static_assert(__builtin_offsetof(struct fl_record, seq_delta) == 28, "layout");
_Static_assert(__builtin_offsetof(struct fl_record, last_active) == 56, "layout");
_Static_assert(__builtin_offsetof(struct fl_record, phase) == 60, "layout");
_Static_assert(sizeof(struct fl_listen) == 8, "layout");
_Static_assert(sizeof(struct fl_second) == 256, "layout");
_Static_assert(sizeof(struct fl_access_prefix) == 20, "layout");
_Static_assert(sizeof(struct fl_settings) == 80, "layout");
_Static_assert(sizeof(struct fl_give) == 40, "layout");
_Static_assert(sizeof(struct fl_life) == 88, "layout");
_Static_assert(sizeof(struct fl_response) == 12, "layout");
_Static_assert(sizeof(struct fl_shown_head) == 1076, "layout");
_Static_assert(sizeof(struct fl_unread) == 2060, "layout");
_Static_assert(FL_HIT_BYTES == 2 * FL_HIT_SEGMENT, "layout");
_Static_assert(sizeof(struct fl_object) == 24 + FL_HIT_BYTES, "layout");
_Static_assert(sizeof(struct fl_offer) == 40, "layout");
_Static_assert(sizeof(struct fl_hit_listen) == 28, "layout");
_Static_assert(sizeof(struct fl_hit_settings) == 88, "layout");
_Static_assert(sizeof(struct fl_hit) == 88, "layout");
_Static_assert(sizeof(struct fl_hit_event) == 56, "layout");
_Static_assert(sizeof(struct fl_join) == 1536, "layout");
_Static_assert(__builtin_offsetof(struct fl_join, payload) == 32, "layout");
_Static_assert(sizeof(struct fl_lane) == 128 + 4 * FL_LANE_TICKETS, "layout");
_Static_assert(sizeof(struct fl_tcb_set) == 128, "layout");
_Static_assert(__builtin_offsetof(struct fl_tcb, ports) == 128, "layout");
_Static_assert(sizeof(struct fl_tcb) == 128 + 8192 + 3 * 36 * 16 * 8, "layout");

#endif
