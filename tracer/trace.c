/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A plugin for QEMU that writes each executed instruction and each access to memory as a word of 8
 * bytes, in the order of execution, to the pipe of `fairlead lab protocol run`:
 *
 *   kind: 2 bits (instruction, read, write, other), size: 6 bits, address: 56 bits
 *
 * The size of an instruction has its length and, above that, flags. Other words are marks of
 * packets, the end, and the heads of texts. Arguments:
 *
 *   out=PATH               the pipe
 *   text=A                 lowest address of executable segments in the program's file
 *   begin=A-B end=A-B      addresses of the marks, in the program's file
 *   kinds=A                of the array by which marks tell a packet's kind: a begin reads byte
 *                          KIND of it, an end byte 256 + KIND; without it, a packet begins and ends
 *                          at the first instruction of its mark
 *   thread=N               trace this thread
 *   say=A-B letters=A      a function and an array by which a virtual machine's first program says
 *                          text: a read of byte N is the letter N
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "branches.h"
#include "qemu_plugin_api.h"

#ifndef PLUGIN_API
#define PLUGIN_API 1
#endif
#define EXPORT __attribute__((visibility("default")))

enum { OTHER_BEGIN, OTHER_END, OTHER_TEXT, OTHER_EXIT, OTHER_THREADS };
enum { BUFFER_WORDS = 1 << 16, KEPT_WORDS = 1 << 13, PIPE_BYTES = 1 << 20,
    MAPS_BYTES_MAX = 1 << 20, FD_MIN = 500, SAID_BYTES = 4096 };

#define ADDRESS_MASK ((UINT64_C(1) << 56) - 1)

EXPORT int qemu_plugin_version = PLUGIN_API;

struct range {
    uint64_t from, to;
};

static struct range begin_mark, end_mark, say_mark;
static uint64_t kinds, letters, text;
static bool has_marks, has_kinds, is_placed, is_system;
static int api;
static enum { X86, ARM64, MIPS_BIG, MIPS_LITTLE, UNKNOWN } isa = UNKNOWN;

static uint64_t buffer[BUFFER_WORDS];
static unsigned filled;
static int out = -1;
static pid_t owner;
static unsigned traced;
static bool recording;
static volatile bool has_threads;

static void flush(void)
{
    const char *from = (const char *)buffer;
    size_t left = (size_t)filled * sizeof buffer[0];

    filled = 0;
    /* A child of the traced program has a copy of this plugin. */
    if (getpid() != owner)
        return;
    while (left > 0 && out >= 0) {
        ssize_t done = write(out, from, left);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            fprintf(stderr, "tracer: the pipe is closed: %s\n", strerror(errno));
            out = -1;
            return;
        }
        from += done;
        left -= (size_t)done;
    }
}

static inline void put(uint64_t word)
{
    buffer[filled++] = word;
    if (__builtin_expect(filled == BUFFER_WORDS, 0))
        flush();
}

static uint64_t other(unsigned what, uint64_t value)
{
    return UINT64_C(3) << 62 | (uint64_t)what << 56 | (value & ADDRESS_MASK);
}

static void put_text(const char *bytes, size_t len)
{
    put(other(OTHER_TEXT, len));
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;

        memcpy(&word, bytes + at, len - at < 8 ? len - at : 8);
        put(word);
    }
}

static char said[SAID_BYTES];
static size_t said_len;

static void put_said(void)
{
    put_text(said, said_len);
    said_len = 0;
}

static void on_letter(unsigned cpu, qemu_plugin_meminfo_t what, uint64_t address, void *unused)
{
    (void)cpu;
    (void)what;
    (void)unused;
    if (address - letters >= 256)
        return;
    said[said_len++] = (char)(address - letters);
    if (said_len == sizeof said)
        put_said();
}

static void on_instruction(unsigned cpu, void *word)
{
    if (recording && cpu == traced)
        put((uint64_t)(uintptr_t)word);
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t what, uint64_t address, void *unused)
{
    (void)unused;
    if (!recording || cpu != traced)
        return;
    uint64_t size = UINT64_C(1) << qemu_plugin_mem_size_shift(what);

    put((UINT64_C(1) + qemu_plugin_mem_is_store(what)) << 62 | (size & 63) << 56 |
        (address & ADDRESS_MASK));
}

static void mark(unsigned cpu, bool is_begin, uint64_t kind)
{
    if (cpu != traced)
        return;
    put(other(is_begin ? OTHER_BEGIN : OTHER_END, kind));
    recording = is_begin;
    /* What is in the buffer is lost if the program is killed. */
    if (!is_begin && filled >= KEPT_WORDS)
        flush();
}

static void on_mark_access(unsigned cpu, qemu_plugin_meminfo_t what, uint64_t address,
    void *unused)
{
    (void)what;
    (void)unused;
    if (address - kinds < 512)
        mark(cpu, address - kinds < 256, (address - kinds) & 255);
}

static void on_mark(unsigned cpu, void *is_begin)
{
    mark(cpu, is_begin != NULL, 0);
}

static insn_bytes_copied insn_bytes_to = (insn_bytes_copied)qemu_plugin_insn_data;
static insn_bytes_returned insn_bytes_of = (insn_bytes_returned)qemu_plugin_insn_data;

static unsigned flags_of(const struct qemu_plugin_insn *insn, size_t len)
{
    uint8_t copy[16] = {0};
    const uint8_t *byte = copy;
    uint32_t word;

    if (isa == UNKNOWN)
        return 0;
    if (api >= 3)
        insn_bytes_to(insn, copy, sizeof copy);
    else
        byte = insn_bytes_of(insn);
    if (isa == X86)
        return x86_flags(byte, len);
    if (len < 4)
        return 0;
    memcpy(&word, byte, sizeof word);
    if (isa == MIPS_BIG)
        word = __builtin_bswap32(word);
    bool is_branch = isa == ARM64 ? is_arm64_branch(word) : is_mips_branch(word);

    return is_branch ? FLAG_BRANCH : 0;
}

/* Marks are given as addresses of the program's file; now it is known where that was loaded. */
static void place(void)
{
    char line[64];
    uint64_t base = 0;

    is_placed = true;
    if (!is_system) {
        uint64_t start = qemu_plugin_start_code();
        int len = snprintf(line, sizeof line, "start_code %llu\n", (unsigned long long)start);

        put_text(line, (size_t)len);
        base = start - text;
    }
    begin_mark.from += base;
    begin_mark.to += base;
    end_mark.from += base;
    end_mark.to += base;
    kinds += base;
}

static bool is_in(uint64_t address, struct range range)
{
    return address - range.from < range.to - range.from;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    if (!is_placed)
        place();
    for (size_t at = 0, count = qemu_plugin_tb_n_insns(tb); at < count; at++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, at);
        uint64_t address = qemu_plugin_insn_vaddr(insn);
        size_t len = qemu_plugin_insn_size(insn);
        uint64_t size = (len & 15) | flags_of(insn, len);
        uint64_t word = size << 56 | (address & ADDRESS_MASK);
        bool begins = has_marks && is_in(address, begin_mark);
        bool ends = has_marks && is_in(address, end_mark);

        if (has_kinds && (begins || ends)) {
            /* Asked for reads only, QEMU 7.2 reports nothing. */
            qemu_plugin_register_vcpu_mem_cb(insn, on_mark_access, QEMU_PLUGIN_CB_NO_REGS,
                QEMU_PLUGIN_MEM_RW, NULL);
            continue;
        }
        if (is_in(address, say_mark)) {
            qemu_plugin_register_vcpu_mem_cb(insn, on_letter, QEMU_PLUGIN_CB_NO_REGS,
                QEMU_PLUGIN_MEM_RW, NULL);
            continue;
        }
        if (ends)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, QEMU_PLUGIN_CB_NO_REGS, NULL);
        if (begins)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, QEMU_PLUGIN_CB_NO_REGS, insn);
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_instruction, QEMU_PLUGIN_CB_NO_REGS,
            (void *)(uintptr_t)word);
        qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS,
            QEMU_PLUGIN_MEM_RW, NULL);
    }
}

static void on_cpu(qemu_plugin_id_t id, unsigned cpu)
{
    (void)id;
    if (cpu > 0)
        has_threads = true;
}

static void on_exit_of_program(qemu_plugin_id_t id, void *unused)
{
    static char maps[MAPS_BYTES_MAX];
    size_t len = 0;
    int from = is_system ? -1 : open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

    (void)id;
    (void)unused;
    for (ssize_t got = 1; from >= 0 && got > 0 && len < sizeof maps;) {
        got = read(from, maps + len, sizeof maps - len);
        len += got > 0 ? (size_t)got : 0;
    }
    put_text(maps, len);
    put_said();
    if (has_threads)
        put(other(OTHER_THREADS, 0));
    put(other(OTHER_EXIT, 0));
    flush();
}

static bool read_argument(const char *argument)
{
    char *rest;

    if (!strncmp(argument, "out=", 4)) {
        int opened = open(argument + 4, O_WRONLY | O_CLOEXEC);

        /* Out of the way of the program's own files. */
        out = opened < 0 ? -1 : fcntl(opened, F_DUPFD_CLOEXEC, FD_MIN);
        if (out < 0)
            fprintf(stderr, "tracer: %s: %s\n", argument + 4, strerror(errno));
        close(opened);
        fcntl(out, F_SETPIPE_SZ, PIPE_BYTES);
        return out >= 0;
    }
    const char *value = strchr(argument, '=');
    if (!value)
        return false;
    uint64_t number = strtoull(value + 1, &rest, 0);
    struct range range = {number, *rest == '-' ? strtoull(rest + 1, NULL, 0) : number + 1};

    if (!strncmp(argument, "begin=", 6)) {
        begin_mark = range;
        has_marks = true;
    } else if (!strncmp(argument, "end=", 4)) {
        end_mark = range;
    } else if (!strncmp(argument, "text=", 5)) {
        text = number;
    } else if (!strncmp(argument, "say=", 4)) {
        say_mark = range;
    } else if (!strncmp(argument, "letters=", 8)) {
        letters = number;
    } else if (!strncmp(argument, "kinds=", 6)) {
        kinds = number;
        has_kinds = true;
    } else if (!strncmp(argument, "thread=", 7)) {
        traced = (unsigned)number;
    } else {
        return false;
    }
    return true;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *qemu, int argc, char **argv)
{
    char line[128];
    const char *name = qemu->target_name;
    int len;

    api = qemu->version.cur;
    is_system = qemu->system_emulation;
    owner = getpid();
    if (!strcmp(name, "x86_64"))
        isa = X86;
    else if (!strcmp(name, "aarch64"))
        isa = ARM64;
    else if (!strncmp(name, "mips", 4))
        isa = strstr(name, "el") ? MIPS_LITTLE : MIPS_BIG;
    for (int at = 0; at < argc; at++) {
        if (!read_argument(argv[at])) {
            fprintf(stderr, "tracer: the argument %s\n", argv[at]);
            return -1;
        }
    }
    recording = !has_marks;
    len = snprintf(line, sizeof line, "isa %s\napi %d\n", name, api);
    put_text(line, (size_t)len);
    flush();
    qemu_plugin_register_vcpu_init_cb(id, on_cpu);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_of_program, NULL);
    return 0;
}
