/* SPDX-License-Identifier: MIT */
/* What the engine counts for people to look at: pools, shares of users, what the prefix cache found and did not.
 * Words shared by the engine, which fills them, and conn, which decides who may see what. */
#ifndef GLMD_NUMBERS_H
#define GLMD_NUMBERS_H

#include <stdint.h>

enum { NUMBERS_USERS = 24, NUMBERS_MISSES = 10 };

enum numbers_why { /* why so little of a prompt was found */
    NUMBERS_WHY_NEW = 1,    /* nothing kept begins like it */
    NUMBERS_WHY_EVICTED,    /* it was kept once */
    NUMBERS_WHY_OTHER_USER, /* somebody else's begins like it: for the owner's eyes only */
    NUMBERS_WHY_DIVERGED,   /* it goes another way from some token on */
    NUMBERS_WHY_SHORT,      /* too short to be kept */
    NUMBERS_WHY_REFUSED,    /* the request wished no cache */
};

struct numbers_miss {
    uint64_t t_ns;
    uint32_t uid;
    uint32_t why; /* enum numbers_why */
    uint32_t prompt, found, same; /* tokens; same: equal to kept ones from the beginning */
};

struct numbers_found { /* in the prefix cache */
    uint64_t lookups, hits, prompt_tokens, cached_tokens, tier_tokens;
};

struct numbers_user {
    uint32_t uid, weight, running, queued;
    uint64_t served_tokens; /* prompt and answer */
    struct numbers_found found;
    uint64_t misses; /* ever; the last of them: */
    struct numbers_miss miss[NUMBERS_MISSES]; /* number i lies at i % NUMBERS_MISSES */
    uint64_t used_ns;
};

struct numbers_pool {
    uint32_t total, free, cached, high; /* cached: held by the prefix cache alone, and given up for others */
};

/* The tier of checkpoints on disk. */
enum numbers_tier_state { NUMBERS_TIER_NONE = 0, NUMBERS_TIER_ON, NUMBERS_TIER_OFF, NUMBERS_TIER_READS };

struct numbers_tier {
    uint32_t state; /* NONE: not wanted; OFF: it could not be opened; READS: it is not written to any more */
    uint32_t error; /* of the last writing, as errno; 0: it went well */
    uint32_t blocks, checkpoints, foreign; /* files; of them states; those of other models */
    uint64_t bytes, max_bytes;
    uint64_t written, read, refused, damaged, thrown_out; /* checkpoints, since the start */
    char text[320]; /* how it works, or why it does not */
};

struct numbers {
    struct numbers_pool pages, slots;
    uint32_t seats, running, paused, queued;
    uint64_t cache_bytes, kept, evicted; /* checkpoints of states */
    struct numbers_found found;
    struct numbers_tier tier; /* whoever hands the numbers on fills it in */
    uint64_t misses;
    struct numbers_miss miss[NUMBERS_MISSES];
    uint32_t n_users;
    struct numbers_user user[NUMBERS_USERS];
};

#endif
