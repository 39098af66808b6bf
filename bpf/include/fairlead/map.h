/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whether a map is pinned, and so outlives the process that made it. Every map is defined with one of
 * these in place of SEC(".maps"), on the line of its name; the build of crates/bpf-loader reads them
 * (src/declared.rs) and fails where one is missing.
 */
#ifndef FAIRLEAD_MAP_H
#define FAIRLEAD_MAP_H

#include <bpf/bpf_helpers.h>

/* Pinned. A restart refuses to take over where it is missing or has another shape: a new one, or a
 * change of its content, needs a new LAYOUT_VERSION. */
#define FL_MAP_REQUIRED SEC(".maps")

/* Pinned, but a restart can do without its content: where it is missing, or has another shape, it is
 * made anew. LAYOUT_VERSION stays. Its size is not set by the loader. Those of fairlead_host are
 * pinned by their own rules (crates/bpf-loader/src/lasting.rs) and FL_HOST_LAYOUT. */
#define FL_MAP_OPTIONAL SEC(".maps")

/* Not pinned: each process makes its own. */
#define FL_MAP_PRIVATE SEC(".maps")

#endif
