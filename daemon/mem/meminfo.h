/* SPDX-License-Identifier: MIT */
/* What the machine can still give, and whether the plan fits into it. Start-up, on the starting thread. */
#ifndef GLMD_MEMINFO_H
#define GLMD_MEMINFO_H

#include <stddef.h>

#include "account.h"

struct mem_info {
    uint64_t total_bytes, available_bytes;
};

/* /proc/meminfo's text. -EBADMSG: a line is missing or is no number of kB. */
int mem_info_parse(const char *text, size_t n, struct mem_info *ret);
/* path NULL: /proc/meminfo. */
int mem_info_read(const char *path, struct mem_info *ret, struct xerr *e);

/* Before anything is allocated: everything planned, and floor_bytes that stay free. -ENOMEM names each class,
 * because on machines with unified memory an overshoot freezes the host instead of failing a call. */
int mem_check(const struct mem_account *a, const struct mem_info *info, uint64_t floor_bytes, struct xerr *e);

#endif
