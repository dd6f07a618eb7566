/* SPDX-License-Identifier: MIT */
/* The block of numbers in region D, for connections that were granted GLMW_FEAT_NUMBERS. Layout only, like wire.h. */
#ifndef GLMW_WIRE_NUM_H
#define GLMW_WIRE_NUM_H

#include "wire.h"

#define GLMW_NUMBERS_OFF   4096u /* in region D */
#define GLMW_NUMBER_USERS  24u
#define GLMW_NUMBER_MISSES 10u

enum glmw_why { /* why so little of a prompt was found in the prefix cache */
    GLMW_WHY_NEW = 1,        /* nothing kept begins like it */
    GLMW_WHY_EVICTED = 2,    /* it was kept, and had to make room */
    GLMW_WHY_OTHER_USER = 3, /* another user's begins like it; said with scope 2 only */
    GLMW_WHY_DIVERGED = 4,   /* it goes another way before the next checkpoint */
    GLMW_WHY_SHORT = 5,      /* shorter than the cache's grid */
    GLMW_WHY_REFUSED = 6     /* the request wished no cache */
};

struct glmw_number_user {
    uint32_t uid;
    uint32_t weight; /* of its share, 100 as a rule */
    uint32_t running, queued;
    uint64_t served_tokens; /* of prompts and answers, since the start */
    uint64_t lookups;       /* prompts looked up in the prefix cache; how many were found in part */
    uint64_t hits;
    uint64_t prompt_tokens; /* of those looked up; how many of them were found */
    uint64_t cached_tokens;
    uint64_t tier_tokens; /* of cached_tokens, read back from the tier below the memory */
};
GLMW_SIZE(glmw_number_user, 64);
GLMW_AT(glmw_number_user, served_tokens, 16);

struct glmw_number_miss {
    uint64_t t_ns;
    uint32_t uid;
    uint32_t why; /* enum glmw_why */
    uint32_t prompt_tokens;
    uint32_t found_tokens;
    uint32_t same_tokens; /* equal to kept ones from the beginning, with or without a checkpoint there */
    uint32_t zero;
};
GLMW_SIZE(glmw_number_miss, 32);
GLMW_AT(glmw_number_miss, prompt_tokens, 16);

enum glmw_tier { /* of the directory for kept beginnings of prompts */
    GLMW_TIER_NONE = 0,  /* none is configured */
    GLMW_TIER_ON = 1,
    GLMW_TIER_OFF = 2,   /* it could not be used */
    GLMW_TIER_READS = 3  /* writing failed again and again and is not tried any more */
};

struct glmw_numbers {
    uint32_t seq;
    uint32_t scope; /* 0: nothing was written yet; 1: the reader's own; 2: all users */
    uint32_t page_tokens;
    uint32_t pages_total, pages_free;
    uint32_t pages_cached; /* held by the prefix cache alone, given up when others need them */
    uint32_t pages_high;   /* most that were in use at once */
    uint32_t slots_total, slots_free, slots_cached, slots_high; /* recurrent states */
    uint32_t seats;           /* sequences that are computed at the same time */
    uint32_t running, paused; /* with a seat, without */
    uint32_t queued;
    uint32_t zero;
    uint64_t cache_bytes;                       /* 0 with scope 1, as the next two */
    uint64_t kept, evicted;                     /* checkpoints, since the start */
    uint64_t lookups, hits;                     /* this and the next four are of the scope */
    uint64_t prompt_tokens, cached_tokens, tier_tokens;
    uint64_t misses;
    uint32_t n_users, n_misses; /* of the lists */
    uint8_t users[GLMW_NUMBER_USERS * 64];   /* struct glmw_number_user each */
    uint8_t miss_list[GLMW_NUMBER_MISSES * 32]; /* struct glmw_number_miss each, the newest first */
    uint32_t tier_state;                        /* enum glmw_tier; everything below: 0 with scope 1 */
    uint32_t tier_error;                        /* errno of the last writing there; 0: it went well */
    uint32_t tier_blocks;                       /* files */
    uint32_t tier_checkpoints, tier_foreign;    /* of them: states; those of other models */
    uint32_t tier_zero;
    uint64_t tier_bytes, tier_max_bytes;
    uint64_t tier_written, tier_read;                       /* checkpoints, since the start, as the next three */
    uint64_t tier_refused, tier_damaged, tier_thrown_out;
    uint8_t tier_text[320]; /* how it works, or why it does not; ends with a zero byte */
};
GLMW_SIZE(glmw_numbers, 2400);
GLMW_AT(glmw_numbers, tier_state, 2000);
GLMW_AT(glmw_numbers, tier_bytes, 2024);
GLMW_AT(glmw_numbers, tier_text, 2080);
GLMW_AT(glmw_numbers, cache_bytes, 64);
GLMW_AT(glmw_numbers, n_users, 136);
GLMW_AT(glmw_numbers, users, 144);
GLMW_AT(glmw_numbers, miss_list, 1680);

#endif
