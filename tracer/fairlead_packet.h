/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Marks the work on a packet for `fairlead lab protocol run`:
 *
 *   #define FAIRLEAD_PACKET_NAMES "receive\nsend"     (optional: names of the kinds 0, 1, ...)
 *   #include "fairlead_packet.h"
 *
 *   fairlead_packet_begin(0);
 *   handle(packet);
 *   fairlead_packet_end(0);
 *
 * Outside the tracer the marks cost a call and a read. They must come in pairs, and may not be
 * nested. To print this file: fairlead lab protocol markers c */
#ifndef FAIRLEAD_PACKET_H
#define FAIRLEAD_PACKET_H

#define FAIRLEAD_PACKET_SYMBOL __attribute__((weak, used, visibility("default")))

/* The byte that a mark reads tells the kind: a begin reads one of the first half, an end of the
 * other. */
FAIRLEAD_PACKET_SYMBOL volatile unsigned char fairlead_packet_kinds[512];

#ifdef FAIRLEAD_PACKET_NAMES
FAIRLEAD_PACKET_SYMBOL const char fairlead_packet_names[] = FAIRLEAD_PACKET_NAMES;
#endif

FAIRLEAD_PACKET_SYMBOL __attribute__((noinline)) void fairlead_packet_begin(unsigned char kind)
{
    (void)fairlead_packet_kinds[kind];
}

FAIRLEAD_PACKET_SYMBOL __attribute__((noinline)) void fairlead_packet_end(unsigned char kind)
{
    (void)fairlead_packet_kinds[256 + kind];
}

#endif
