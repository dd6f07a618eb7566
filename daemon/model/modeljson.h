/* SPDX-License-Identifier: MIT */
/* Reads the small JSON files of a checkpoint directory: bounded in size and depth, duplicate keys refused.
 * Start-up only, any thread. */
#ifndef GLMD_MODELJSON_H
#define GLMD_MODELJSON_H

#include <jansson.h>
#include <stdint.h>

#include "show.h"
#include "xerr.h"

enum {
    MODELJSON_MAX_DEPTH = 16, /* checkpoint files need 4 */
};

/* Gives an object (the root must be one); release with json_decref(). -EFBIG beyond max_bytes, -EBADMSG for
 * anything that is not strict JSON, else the errno of the file system. */
int modeljson_load(const char *path, uint64_t max_bytes, json_t **ret, struct xerr *e);

/* A short rendering of a value for "found …". */
const char *modeljson_show(struct show *s, const json_t *v);

#endif
