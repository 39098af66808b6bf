/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Which instructions are jumps, calls and returns, by their bytes. System calls are not. */
#ifndef FAIRLEAD_BRANCHES_H
#define FAIRLEAD_BRANCHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FLAG_BRANCH = 16, FLAG_REP = 32 };

/* FLAG_REP is of string instructions with a prefix that repeats them. */
static inline unsigned x86_flags(const uint8_t *byte, size_t len)
{
    bool is_rep = false;
    size_t at = 0;

    for (; at < len; at++) {
        uint8_t b = byte[at];

        if (b == 0xf2 || b == 0xf3)
            is_rep = true;
        else if (b != 0x66 && b != 0x67 && b != 0x2e && b != 0x36 && b != 0x3e && b != 0x26 &&
                 b != 0x64 && b != 0x65 && b != 0xf0 && (b & 0xf0) != 0x40)
            break;
    }
    uint8_t op = at < len ? byte[at] : 0, next = at + 1 < len ? byte[at + 1] : 0;

    if (is_rep && ((op >= 0xa4 && op <= 0xa7) || (op >= 0xaa && op <= 0xaf) ||
                   (op >= 0x6c && op <= 0x6f)))
        return FLAG_REP;
    unsigned group = next >> 3 & 7;
    bool is_branch = (op & 0xf0) == 0x70 || (op >= 0xe0 && op <= 0xe3) || op == 0xe8 ||
        op == 0xe9 || op == 0xeb || (op & 0xf6) == 0xc2 ||
        (op == 0xff && group >= 2 && group <= 5) || (op == 0x0f && (next & 0xf0) == 0x80);

    return is_branch ? FLAG_BRANCH : 0;
}

static inline bool is_arm64_branch(uint32_t word)
{
    return (word & 0x7c000000) == 0x14000000 || (word & 0xff000000) == 0x54000000 ||
        (word & 0x7c000000) == 0x34000000 || (word & 0xfe000000) == 0xd6000000;
}

static inline bool is_mips_branch(uint32_t word)
{
    unsigned op = word >> 26, function = word & 63;

    return (op >= 1 && op <= 7) || (op >= 20 && op <= 23) ||
        (op == 0 && (function == 8 || function == 9));
}

#endif
