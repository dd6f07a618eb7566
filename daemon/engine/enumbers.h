/* SPDX-License-Identifier: MIT */
/* The engine's numbers for people. Filled by the engine thread; a copy is shown to others a few times a second and
 * before every sleep. Nothing here waits for anybody or allocates. */
#ifndef GLMD_ENGINE_ENUMBERS_H
#define GLMD_ENGINE_ENUMBERS_H

#include <pthread.h>
#include <stdbool.h>

#include "numbers.h"
#include "prefix.h"

struct engine;
struct sched_req;

struct enumbers {
    struct numbers now;
    uint64_t shown_ns;
    bool stale; /* something may have changed since */
    pthread_mutex_t lock; /* only tried, by both sides */
    struct numbers shown;
};

void enumbers_open(struct engine *e, const struct sched_req *req);
void enumbers_admit(struct engine *e, const struct sched_req *req);
void enumbers_end(struct engine *e, const struct sched_req *req, bool admitted, uint32_t tier);
/* A prompt began with `cached` tokens from the prefix cache; why: of a miss, else PREFIX_WHY_HIT. */
void enumbers_found(struct engine *e, const struct sched_req *req, uint32_t cached, uint32_t same, enum prefix_why why);
void enumbers_round(struct engine *e, bool sleeps);

#endif
