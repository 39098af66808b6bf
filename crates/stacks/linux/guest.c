/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The first program of a virtual machine whose kernel is traced: messages are sent and received by
 * Linux over its loopback interface. Arguments: linux-tcp|linux-udp SIZE[,SIZE...] PACKETS */
#define FAIRLEAD_PACKET_NAMES "TCP send\nTCP receive\nUDP send\nUDP receive"
#include "fairlead_packet.h"
#include "system.h"

#include <linux/if.h>
#include <linux/in.h>
#include <linux/tcp.h>

enum { TCP_SEND, TCP_RECEIVE, UDP_SEND, UDP_RECEIVE };
enum { STREAM = 1, DATAGRAM = 2, WAIT_FOR_ALL = 0x100, SET_FLAGS = 0x8914 };
enum { SOCKET_LEVEL = 1, SEND_BUFFER = 7, RECEIVE_BUFFER = 8 };
enum { PORT = 7777, SIZE_MAX = 65536, BUFFER_BYTES = 212992 };
/* Nothing here waits for long: a machine that stands still ends itself. */
enum { PATIENCE_SECONDS = 600 };

static char message[SIZE_MAX], received[SIZE_MAX];
static const char *sizes;
static unsigned long packets;

static long checked(long result, const char *what)
{
    if (result < 0)
        end_with(what);
    return result;
}

static void set_up(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    long any = checked(call(__NR_socket, AF_INET, DATAGRAM, 0), "failed: socket");

    call(__NR_alarm, PATIENCE_SECONDS);
    checked(call(__NR_ioctl, any, SET_FLAGS, &loopback), "failed: no loopback interface");
    call(__NR_close, any);
    call(__NR_mkdir, "/proc", 0755);
    checked(call(__NR_mount, "proc", "/proc", "proc", 0, 0), "failed: no /proc");
    memset(message, 0x5a, sizeof message);
    memset(received, 1, sizeof received);
}

static long socket_of(int type)
{
    int bytes = BUFFER_BYTES;
    long made = checked(call(__NR_socket, AF_INET, type, 0), "failed: socket");

    call(__NR_setsockopt, made, SOCKET_LEVEL, SEND_BUFFER, &bytes, sizeof bytes);
    call(__NR_setsockopt, made, SOCKET_LEVEL, RECEIVE_BUFFER, &bytes, sizeof bytes);
    return made;
}

static struct sockaddr_in address(void)
{
    struct sockaddr_in made = {.sin_family = AF_INET};

    made.sin_port = __builtin_bswap16(PORT);
    made.sin_addr.s_addr = __builtin_bswap32(INADDR_LOOPBACK);
    return made;
}

/* Sends messages of a size from one socket to the other and receives them. */
static void send_and_receive_some(long from, long to, unsigned char kind, int flags,
    unsigned long size)
{
    if (size == 0 || size > SIZE_MAX)
        end_with("failed: the size");
    for (unsigned long at = 0; at < packets; at++) {
        message[0] = (char)at;
        fairlead_packet_begin(kind);
        long sent = call(__NR_sendto, from, message, size, 0, 0, 0);
        fairlead_packet_end(kind);
        if (sent != (long)size)
            end_with("failed: the message was not sent");
        fairlead_packet_begin(kind + 1);
        long got = call(__NR_recvfrom, to, received, size, flags, 0, 0);
        fairlead_packet_end(kind + 1);
        if (got != (long)size || received[0] != message[0])
            end_with("failed: not what was sent was received");
    }
}

static void send_and_receive(long from, long to, unsigned char kind, int flags)
{
    for (const char *at = sizes; *at != 0; at += *at == ',') {
        send_and_receive_some(from, to, kind, flags, number_of(at));
        while (*at != 0 && *at != ',')
            at++;
    }
}

static void by_tcp(void)
{
    struct sockaddr_in to = address();
    long listener = socket_of(STREAM), client = socket_of(STREAM);
    int yes = 1;

    checked(call(__NR_bind, listener, &to, sizeof to), "failed: bind");
    checked(call(__NR_listen, listener, 1), "failed: listen");
    checked(call(__NR_connect, client, &to, sizeof to), "failed: connect");
    long server = checked(call(__NR_accept, listener, 0, 0), "failed: accept");
    call(__NR_setsockopt, client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    send_and_receive(client, server, TCP_SEND, WAIT_FOR_ALL);
}

static void by_udp(void)
{
    struct sockaddr_in to = address();
    long server = socket_of(DATAGRAM), client = socket_of(DATAGRAM);

    checked(call(__NR_bind, server, &to, sizeof to), "failed: bind");
    checked(call(__NR_connect, client, &to, sizeof to), "failed: connect");
    send_and_receive(client, server, UDP_SEND, 0);
}

/* Says the functions of the kernel, "symbol ADDRESS NAME" a line. */
static void say_symbols(void)
{
    static char read[1 << 16];
    char head[20];
    unsigned at = 0, is_function = 0;
    long file = checked(call(__NR_open, "/proc/kallsyms", 0), "failed: no /proc/kallsyms"), len;

    /* A line: 16 digits of the address, a letter for the kind, the name, a tab and its module. */
    while ((len = call(__NR_read, file, read, sizeof read)) > 0) {
        for (long byte = 0; byte < len; byte++, at++) {
            char letter = read[byte];

            if (letter == '\n') {
                if (is_function)
                    say("\n");
                at = -1u, is_function = 0;
            } else if (at < 18) {
                head[at] = letter;
            } else if (at == 18) {
                is_function = head[17] == 't' || head[17] == 'T' || head[17] == 'w' ||
                    head[17] == 'W';
                if (is_function)
                    say("symbol ");
                for (unsigned of = 0; is_function && of < 17; of++)
                    fairlead_guest_say((unsigned char)head[of]);
            }
            if (at >= 19 && is_function && letter != '\n')
                fairlead_guest_say((unsigned char)letter);
        }
    }
}

static void say_kernel(void)
{
    static char names[6][65];

    call(__NR_uname, names);
    say("kernel ");
    say(names[2]);
    say("\n");
}

__attribute__((used, noreturn)) static void start(long *stack)
{
    /* The kernel puts options in front that it does not know. */
    char **words = (char **)stack + stack[0] - 3;

    if (stack[0] < 4)
        end_with("failed: arguments: linux-tcp|linux-udp SIZES PACKETS");
    sizes = words[2];
    packets = number_of(words[3]);
    set_up();
    if (is_equal(words[1], "linux-tcp"))
        by_tcp();
    else
        by_udp();
    say_kernel();
    say_symbols();
    end_with("is done");
}

__attribute__((naked, noreturn)) void _start(void)
{
    __asm__("mov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start\n\thlt");
}
