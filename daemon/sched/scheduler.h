/* SPDX-License-Identifier: MIT */
/* Who runs next: admission, fair order, batch choice, deadlines. A pure data structure over a clock the
 * caller passes in: no threads, no system calls, no allocation after sched_init, no knowledge of models,
 * devices or rings. The engine thread owns it.
 *
 * A job is one accepted request, named by the number the caller gives it (its stream index). It moves
 *
 *     QUEUED -> FILL -> DECODE -> removed        (sched_remove is legal from every state)
 *
 * Two currencies are budgeted: pages (tokens) and slots (sequences). A job is admitted only when the worst
 * case of both is free, so a step can never fail for memory. sched counts; which ids these are is the
 * engine's business.
 *
 * Fairness is by tokens, not by requests: every user id carries the tokens served to it, the queued job of
 * the least served user goes first, and a user who comes back cannot spend an old lead (its account is
 * lifted to the least served active user's). Nobody overtakes a job that waits for pages: a stream of small
 * jobs would keep a large one out for ever. A job that waits for its own user's quota holds up that user's
 * later jobs for the same reason, and nobody else's. */
#ifndef GLMD_SCHED_H
#define GLMD_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sched_state {
    SCHED_FREE = 0,
    SCHED_QUEUED,
    SCHED_FILL,   /* its prompt is being read */
    SCHED_DECODE, /* one token a step */
};

#define SCHED_NEVER UINT64_MAX

struct sched_config {
    uint32_t max_jobs;    /* job numbers run from 0 */
    uint32_t max_running; /* FILL and DECODE together */
    uint32_t n_pages, n_slots;
    uint32_t page_tokens;
    uint64_t aging_ns;    /* a prompt that waited this long for a chunk gets the next one */
};

struct sched_job {
    uint32_t uid;
    uint32_t prompt_tokens; /* > 0 */
    uint32_t budget_tokens; /* output at most; prompt + budget is reserved */
    uint64_t deadline_ns;   /* SCHED_NEVER = none */
    uint64_t user_tokens;   /* most that running jobs of its user may reserve, this one included; 0 = no limit */
};

struct sched_counts {
    uint32_t queued, running, filling, decoding;
    uint32_t free_pages, free_slots;
};

struct sched;

/* Bytes sched_init needs. -EINVAL: a zero where none makes sense; -EOVERFLOW. */
int sched_bytes(const struct sched_config *cfg, uint64_t *ret_bytes);
/* Places everything into mem (16-aligned, borrowed for the life of the scheduler). */
int sched_init(const struct sched_config *cfg, void *mem, uint64_t bytes, struct sched **ret);

/* Queues a job. -EINVAL: number out of range or empty prompt; -EEXIST: number in use; -E2BIG: could never
 * be admitted (sched_largest says what could). */
int sched_add(struct sched *s, uint32_t job, const struct sched_job *j, uint64_t now_ns);
/* Tokens (prompt + budget) of the largest job that fits an empty pool. */
uint64_t sched_largest(const struct sched *s);
/* Gives back what the job holds. Unknown jobs are ignored. */
void sched_remove(struct sched *s, uint32_t job);

/* Admits the next job: its pages and slot are reserved, it becomes FILL. -EAGAIN: nobody waits, or the one
 * whose turn it is does not fit yet. */
int sched_admit(struct sched *s, uint64_t now_ns, uint32_t *ret_job);
uint32_t sched_job_pages(const struct sched *s, uint32_t job); /* pages reserved for it */

/* The prompt whose next chunk should run: the oldest one that waited longer than aging_ns, else the one with
 * the fewest tokens left. -EAGAIN: none. */
int sched_pick_fill(struct sched *s, uint64_t now_ns, uint32_t *ret_job);
/* tokens of its prompt were read; DECODE once all were. */
void sched_filled(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns);

/* Jobs to decode in the next step, in order of admission, without the skipped ones. Returns how many. */
uint32_t sched_pick_decode(const struct sched *s, uint32_t *ret_jobs, uint32_t max);
/* Charges tokens of output to the job's user. */
void sched_served(struct sched *s, uint32_t job, uint32_t tokens);
/* A skipped job keeps everything it has and takes no part in steps. */
void sched_skip(struct sched *s, uint32_t job, bool skipped);

/* Earliest deadline of any job, SCHED_NEVER when none has one. */
uint64_t sched_next_deadline(const struct sched *s);
/* A job whose deadline has passed. -EAGAIN: none. */
int sched_pick_expired(const struct sched *s, uint64_t now_ns, uint32_t *ret_job);

enum sched_state sched_job_state(const struct sched *s, uint32_t job);
void sched_get_counts(const struct sched *s, struct sched_counts *ret);
/* For every queued job, in the order in which they would be admitted if each took its whole prompt: calls
 * back with the job and its place, 1 = next. */
void sched_positions(struct sched *s, void (*fn)(void *ctx, uint32_t job, uint32_t place), void *ctx);

#endif
