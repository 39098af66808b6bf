/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Options of lwIP for a program without an operating system and with a loopback interface. */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_SOCKET 0
#define LWIP_NETCONN 0
#define LWIP_TCP 1
#define LWIP_UDP 1
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_HAVE_LOOPIF 1
#define LWIP_NETIF_LOOPBACK 1

#define MEM_ALIGNMENT 8
#define MEM_SIZE (1 << 20)
#define MEMP_NUM_TCP_SEG 128
#define MEMP_NUM_PBUF 64
#define PBUF_POOL_SIZE 64
#define TCP_MSS 1460
#define TCP_WND (16 * TCP_MSS)
#define TCP_SND_BUF (16 * TCP_MSS)
#define TCP_SND_QUEUELEN 64

#endif
