/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A workload of lwIP: messages are sent over its loopback interface and received.
 * Usage: tcp|udp SIZE PACKETS */
#define FAIRLEAD_PACKET_NAMES "TCP send\nTCP receive\nUDP send\nUDP receive"
#include "fairlead_packet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lwip/init.h"
#include "lwip/netif.h"
#include "lwip/tcp.h"
#include "lwip/timeouts.h"
#include "lwip/udp.h"

enum { TCP_SEND, TCP_RECEIVE, UDP_SEND, UDP_RECEIVE };
enum { TCP_PORT = 80, UDP_PORT = 53, HANDSHAKE_POLLS = 10, PAUSE_MS = 300, PAUSE_POLLS = 4 };

static u32_t now_ms;
static char message[65536], received[65536];
static unsigned long received_bytes;
static unsigned size;
static int is_connected;

u32_t sys_now(void)
{
    return now_ms;
}

static void fail(const char *what)
{
    fprintf(stderr, "lwIP: %s\n", what);
    exit(1);
}

static void take(struct pbuf *packet)
{
    /* Messages come one at a time, in one or more segments. */
    pbuf_copy_partial(packet, received + received_bytes % size, packet->tot_len, 0);
    received_bytes += packet->tot_len;
}

static err_t on_segment(void *unused, struct tcp_pcb *connection, struct pbuf *packet, err_t error)
{
    (void)unused;
    (void)error;
    if (packet == NULL)
        return ERR_OK;
    take(packet);
    tcp_recved(connection, packet->tot_len);
    pbuf_free(packet);
    return ERR_OK;
}

static err_t on_accept(void *unused, struct tcp_pcb *connection, err_t error)
{
    (void)unused;
    (void)error;
    tcp_recv(connection, on_segment);
    return ERR_OK;
}

static err_t on_connected(void *unused, struct tcp_pcb *connection, err_t error)
{
    (void)unused;
    (void)connection;
    is_connected = error == ERR_OK;
    return ERR_OK;
}

static void on_datagram(void *unused, struct udp_pcb *socket, struct pbuf *packet,
    const ip_addr_t *from, u16_t port)
{
    (void)unused;
    (void)socket;
    (void)from;
    (void)port;
    take(packet);
    pbuf_free(packet);
}

static void send_by_tcp(const ip_addr_t *to, unsigned packets)
{
    struct tcp_pcb *server = tcp_new(), *client = tcp_new();

    if (tcp_bind(server, IP_ADDR_ANY, TCP_PORT) != ERR_OK)
        fail("bind");
    tcp_accept(tcp_listen(server), on_accept);
    tcp_nagle_disable(client);
    tcp_connect(client, to, TCP_PORT, on_connected);
    for (int at = 0; at < HANDSHAKE_POLLS; at++)
        netif_poll(netif_list);
    if (!is_connected)
        fail("no connection");
    for (unsigned at = 0; at < packets; at++) {
        fairlead_packet_begin(TCP_SEND);
        err_t sent = tcp_write(client, message, (u16_t)size, TCP_WRITE_FLAG_COPY);
        tcp_output(client);
        fairlead_packet_end(TCP_SEND);
        if (sent != ERR_OK)
            fail("the message does not fit");
        fairlead_packet_begin(TCP_RECEIVE);
        netif_poll(netif_list);
        fairlead_packet_end(TCP_RECEIVE);
        now_ms += PAUSE_MS;
        sys_check_timeouts();
        for (int poll = 0; poll < PAUSE_POLLS; poll++)
            netif_poll(netif_list);
    }
}

static void send_by_udp(const ip_addr_t *to, unsigned packets)
{
    struct udp_pcb *server = udp_new(), *client = udp_new();

    udp_bind(server, IP_ADDR_ANY, UDP_PORT);
    udp_recv(server, on_datagram, NULL);
    udp_connect(client, to, UDP_PORT);
    for (unsigned at = 0; at < packets; at++) {
        fairlead_packet_begin(UDP_SEND);
        struct pbuf *packet = pbuf_alloc(PBUF_TRANSPORT, (u16_t)size, PBUF_RAM);
        memcpy(packet->payload, message, size);
        udp_send(client, packet);
        pbuf_free(packet);
        fairlead_packet_end(UDP_SEND);
        fairlead_packet_begin(UDP_RECEIVE);
        netif_poll(netif_list);
        fairlead_packet_end(UDP_RECEIVE);
    }
}

int main(int count, char **words)
{
    if (count < 4)
        fail("usage: tcp|udp SIZE PACKETS");
    unsigned packets = (unsigned)atoi(words[3]);
    ip_addr_t to;

    size = (unsigned)atoi(words[2]);
    if (size == 0 || size > sizeof message)
        fail("the size");
    memset(message, 0x5a, sizeof message);
    lwip_init();
    IP_ADDR4(&to, 127, 0, 0, 1);
    if (!strcmp(words[1], "tcp"))
        send_by_tcp(&to, packets);
    else
        send_by_udp(&to, packets);
    if (received_bytes != (unsigned long)size * packets || memcmp(received, message, size))
        fail("not what was sent was received");
    return 0;
}
