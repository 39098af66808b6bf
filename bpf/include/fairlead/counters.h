/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The counters of the kernel program, one 64-bit number each and CPU. This table is their only
 * declaration: the build script of crates/bpf-loader makes the Rust struct from it, from which
 * /status, /metrics and docs/metrics.md follow. A counter without a metric is for user space's own
 * sums. New counters go to the end: the numbers of those above outlive a restart.
 *
 * COUNTER(NAME, "metric", "help text without its full stop")
 */
#ifndef FAIRLEAD_COUNTERS_H
#define FAIRLEAD_COUNTERS_H

#define FL_COUNTERS(COUNTER) \
	COUNTER(FAST_PACKETS, "kernel_packets", "Packets forwarded in the kernel") \
	COUNTER(FAST_BYTES, "kernel_bytes", "Bytes forwarded in the kernel, IP headers included") \
	COUNTER(SYNS, "kernel_syns", "SYNs answered in the kernel") \
	COUNTER(SYN_ACKS, "", "SYN-ACKs sent by the kernel") \
	COUNTER(ACKS_SWALLOWED, "kernel_acks_swallowed", \
		"Handshake ACKs without data consumed in the kernel") \
	COUNTER(TO_ENGINE, "kernel_to_engine", \
		"Packets of connections and services passed to the engine, for any reason") \
	COUNTER(NO_NEIGHBOUR, "kernel_no_neighbour", \
		"Packets of connections passed to the engine because the kernel cannot send " \
		"them: no route or neighbour entry, longer than the MTU, or, under XDP, an " \
		"interface that accepts no packets from XDP") \
	COUNTER(NOT_OURS, "kernel_not_ours", \
		"Packets of no service or connection, passed on unchanged") \
	COUNTER(FINS, "kernel_fins", "Packets with a FIN forwarded in the kernel") \
	COUNTER(RESETS, "kernel_resets", "RSTs forwarded in the kernel that ended their connections") \
	COUNTER(FLOW_OTHER, "", "Packets found in the flow table but not forwarded in the kernel") \
	COUNTER(FLOW_MISSES, "", \
		"Packets not found in the flow table, by its kind: see flow_table.rs") \
	COUNTER(TCB_MISMATCHES, "", "Hits on a line of another connection") \
	COUNTER(TCB_SECOND_HITS, "", "Hits in the set of the second index function") \
	COUNTER(TCB_MIGRATIONS, "", "Lines moved into another of their sets") \
	COUNTER(TCB_EVICTIONS, "", "Lines evicted") \
	COUNTER(TCB_EVICTED_ON, "", "Lines evicted while they were ON") \
	COUNTER(JOINS, "kernel_joins", \
		"Connections spliced in the kernel, on the SYN-ACK of the server") \
	COUNTER(ENDED_BYTES, "", "Bytes of packets that ended in the kernel without being forwarded") \
	COUNTER(MADE_BYTES, "", "Bytes of packets that the kernel made in their place") \
	COUNTER(BEGUN, "kernel_begun", "Connections to servers opened by the kernel itself") \
	COUNTER(HOST_ASSIGNED, "host_assigned", \
		"Connections that became sockets of a listener on this machine") \
	COUNTER(HOST_NO_LISTENER, "host_no_listener", \
		"Connections reset because nothing listened where their route leads on this machine") \
	COUNTER(HOST_REFUSED, "host_refused", \
		"Connections reset because the kernel did not make them sockets of their listener") \
	COUNTER(HOST_PACKETS, "host_packets", "Packets of sockets of this machine passed to its stack") \
	COUNTER(HOST_RESTS_ENDED, "host_time_wait_ended", \
		"Sockets in TIME_WAIT ended by the SYN of a new connection on their ports") \
	COUNTER(HOST_SYNS_PASSED, "host_syns_passed", \
		"SYNs on the ports of a live socket, or of one in TIME_WAIT that they do not end, passed " \
		"to the stack") \
	COUNTER(HOST_SLEPT, "host_slept", "Idle connections that outlived their socket") \
	COUNTER(HOST_FINS_PASSED, "host_fins_passed", \
		"Connections of routes with `sleep` whose FIN went out: they were not idle") \
	COUNTER(HOST_OLD_DROPPED, "", "Packets of the former sockets of sleepers") \
	COUNTER(HOST_SLEEPERS_RESET, "host_sleepers_reset", "Sleepers that their clients reset") \
	COUNTER(HOST_HEADS_LOST, "host_heads_lost", \
		"Beginnings of responses that were not read, so that their connections do not sleep") \
	COUNTER(HOST_WAITED, "", "Segments that found no listener, and whose clients were to send them again") \
	COUNTER(HOST_FINS_IN_DOUBT, "host_fins_in_doubt", \
		"FINs that came before it was known where their response ends: withheld until then") \
	COUNTER(HOST_IN_DOUBT_HELD, "", "Segments of clients that came meanwhile") \
	COUNTER(HOST_UNFOLLOWED, "host_unfollowed", \
		"Connections to watched addresses that do not sleep, because `sleepers` in [limits] is " \
		"reached") \
	COUNTER(HOST_UNREAD, "host_unread", \
		"Connections of routes with `sleep` whose socket ended with a request that nobody had " \
		"read, and which sleep") \
	COUNTER(HOST_UNREAD_LOST, "host_unread_lost", \
		"Connections whose socket ended with a request that nobody had read and that was not " \
		"kept: too long, in parts, or behind a response that was not whole") \
	COUNTER(HITS, "kernel_hits", "Requests answered from a cache in the kernel") \
	COUNTER(HIT_BYTES, "kernel_hit_bytes", "Bytes of these answers, heads included") \
	COUNTER(HIT_CONNECTIONS, "kernel_hit_connections", \
		"Connections whose first request was answered in the kernel") \
	COUNTER(HITS_GIVEN, "kernel_hits_given", \
		"Connections given to the front at a request that the kernel does not answer") \
	COUNTER(HITS_REPEATED, "kernel_hits_repeated", \
		"Segments of answers that the kernel has sent once more") \
	COUNTER(HITS_FULL, "kernel_hits_full", \
		"Requests passed to the front because the kernel has no room for their connection") \
	COUNTER(HITS_RESET, "kernel_hits_reset", \
		"Connections reset because their last answer is needed again and is gone, or because " \
		"a restart left them without a front") \
	COUNTER(HITS_UNREADY, "kernel_hits_unready", \
		"Segments dropped because the front did not take their connection; clients repeat them") \
	COUNTER(HITS_UNLOGGED, "kernel_hits_unlogged", \
		"Hits in the kernel without a line in the access log, because they came too fast for it")

#endif
