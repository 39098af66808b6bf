/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a guest program needs of Linux, without a C library: its code and its addresses are then the
 * same wherever it is built by the same compiler. And what it says to the tracer: text, byte by
 * byte. */
#ifndef FAIRLEAD_SYSTEM_H
#define FAIRLEAD_SYSTEM_H

#include <asm/unistd_64.h>

/* The byte that is read is the letter. */
__attribute__((used)) volatile unsigned char fairlead_guest_letters[256];

__attribute__((used, noinline)) void fairlead_guest_say(unsigned char letter)
{
    (void)fairlead_guest_letters[letter];
}

static long call6(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define CALL_NAME(one, two, three, four, five, six, seven, name, ...) name
#define CALL1(n) call6(n, 0, 0, 0, 0, 0, 0)
#define CALL2(n, a) call6(n, (long)(a), 0, 0, 0, 0, 0)
#define CALL3(n, a, b) call6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL4(n, a, b, c) call6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL5(n, a, b, c, d) call6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL6(n, a, b, c, d, e) call6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL7(n, a, b, c, d, e, f) \
    call6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
/* A system call: its number and up to six arguments. */
#define call(...) \
    CALL_NAME(__VA_ARGS__, CALL7, CALL6, CALL5, CALL4, CALL3, CALL2, CALL1)(__VA_ARGS__)

/* The compiler calls these. */
void *memset(void *to, int byte, unsigned long len)
{
    unsigned char *at = to;

    while (len-- > 0)
        *at++ = (unsigned char)byte;
    return to;
}

void *memcpy(void *to, const void *from, unsigned long len)
{
    unsigned char *at = to;
    const unsigned char *of = from;

    while (len-- > 0)
        *at++ = *of++;
    return to;
}

static int is_equal(const char *a, const char *b)
{
    while (*a != 0 && *a == *b)
        a++, b++;
    return *a == *b;
}

static unsigned long number_of(const char *text)
{
    unsigned long value = 0;

    while (*text >= '0' && *text <= '9')
        value = 10 * value + (unsigned long)(*text++ - '0');
    return value;
}

static void say(const char *text)
{
    while (*text != 0)
        fairlead_guest_say((unsigned char)*text++);
}

/* The machine stops with the last line, "guest WORD...". */
__attribute__((noreturn)) static void end_with(const char *what)
{
    say("guest ");
    say(what);
    say("\n");
    for (;;)
        call(__NR_reboot, 0xfee1dead, 672274793, 0x01234567, 0); /* restart */
}

#endif
