/* SPDX-License-Identifier: MIT */
/* Who runs next: admission, fair order, seats, batch choice, deadlines. A pure data structure over a clock the
 * caller passes in: no threads, no system calls, no allocation after sched_init, no knowledge of models,
 * devices, caches or rings. The engine thread owns it.
 *
 * A job is one accepted request, named by the number the caller gives it (its stream index). It moves
 *
 *     QUEUED -> FILL -> DECODE -> removed        (sched_remove is legal from every state)
 *
 * Two currencies are budgeted: pages (tokens) and slots (sequences). A job is admitted only when the worst
 * case of both is free, so a step can never fail for memory. sched counts; which ids these are is the
 * engine's business.
 *
 * A job of state FILL or DECODE has a seat or is paused. There are max_running seats. A paused job keeps its
 * slot and pages, takes part in nothing, and goes on where it was when it gets a seat again. A seat is taken
 * from a parked job when anybody waits, and from a background job when an
 * interactive one waits.
 *
 * When a job waits for memory that movable jobs hold which are parked, or an interactive one for
 * that of background jobs, sched_pick_release names one of them; the caller takes it back and queues the job again
 * with what must be computed to go on (sched_requeue). Such a job keeps its place among the caller's sequences, and
 * one that is skipped is passed over until it no longer is.
 *
 * A user of whom a job is skipped may begin more only while fewer of the places are his than are free: so somebody
 * whose readers stand still, however many, leaves half of what is left to the others.
 *
 * Fairness is by tokens, not by requests: every user carries the tokens served to it (prompt tokens computed
 * and output, divided by its weight); the queued job of the least served user goes first, and so does the next
 * chunk of a prompt. A user who comes back cannot spend an old lead: its account is lifted to the least
 * served user's that has something to be read. Nobody overtakes a job that waits for pages: a stream of small
 * jobs would keep a large one out for ever. A job that waits for its own user's quota holds up that user's
 * later jobs for the same reason, and nobody else's; one held by sched_hold holds up nobody.
 *
 * Interactive jobs go before background ones. A background job that has waited patience_ns counts as an
 * interactive one of its user until it has had its seat for patience_ns: so it waits at most that much longer
 * than an interactive one would have. */
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

enum {
    SCHED_WEIGHT = 100,        /* of a user whose jobs state none */
    SCHED_WEIGHT_MAX = 10000,
    SCHED_SHORT_TOKENS = 2048, /* with fewer tokens to read a user's only prompt goes before long ones */
};

struct sched_config {
    uint32_t max_jobs;    /* job numbers run from 0 */
    uint32_t max_running; /* seats */
    uint32_t n_pages, n_slots;
    uint32_t n_places;    /* sequences the caller has room for: running, paused and without memory; 0 = n_slots */
    uint32_t page_tokens;
    uint32_t max_queued;  /* jobs beyond max_running that may be there; 0 = as many as there are numbers */
    uint64_t aging_ns;    /* a prompt that waited this long for a chunk gets its user's next one */
    uint64_t park_ns;     /* 0 = a skipped job keeps its seat */
    uint64_t patience_ns; /* 0 = background jobs wait for as long as there are interactive ones */
};

struct sched_job {
    uint32_t uid;
    uint32_t prompt_tokens; /* > 0 */
    uint32_t budget_tokens; /* output at most; prompt + budget is reserved */
    uint32_t weight;        /* of its user, 1 to SCHED_WEIGHT_MAX; 0 = SCHED_WEIGHT */
    bool background;
    bool movable;           /* its slot and pages may be taken from it, and its tokens computed again */
    uint64_t deadline_ns;   /* SCHED_NEVER = none */
    uint64_t user_tokens;   /* most that running jobs of its user may reserve, this one included; 0 = no limit */
};

struct sched_counts {
    uint32_t queued, running, paused; /* running ones have a seat */
    uint32_t filling, decoding;       /* of the running ones */
    uint32_t free_pages, free_slots;
};

struct sched;

/* Bytes sched_init needs. -EINVAL: a zero where none makes sense; -EOVERFLOW. */
int sched_bytes(const struct sched_config *cfg, uint64_t *ret_bytes);
/* Places everything into mem (16-aligned, borrowed for the life of the scheduler). */
int sched_init(const struct sched_config *cfg, void *mem, uint64_t bytes, struct sched **ret);

/* Queues a job. -EINVAL: number out of range or empty prompt; -EEXIST: number in use; -E2BIG: could never
 * be admitted (sched_largest says what could); -EBUSY: max_queued wait already. */
int sched_add(struct sched *s, uint32_t job, const struct sched_job *j, uint64_t now_ns);
/* Tokens (prompt + budget) of the largest job that fits an empty pool. */
uint64_t sched_largest(const struct sched *s);
/* Gives back what the job holds. Unknown jobs are ignored. */
void sched_remove(struct sched *s, uint32_t job);

/* What is free now, as the engine knows it: ids in the pools and those it would take from its cache. Without a
 * call sched counts by itself from what the pools had at the start. */
void sched_available(struct sched *s, uint32_t pages, uint32_t slots);
/* Sequences that the caller could begin besides those of the jobs that were admitted; without a call only n_places
 * bounds them. A job that was queued again has one. */
void sched_set_places(struct sched *s, uint32_t places);
/* What a queued job would take after a hit in a cache: fresh pages, and prompt tokens still to compute (at
 * least 1). Without a call: all of its worst case, and its whole prompt. The last call before admission holds; one
 * for a job just admitted, of which nothing has been read yet, corrects it. */
void sched_set_need(struct sched *s, uint32_t job, uint32_t pages, uint32_t tokens);
/* A held job is passed over by admission and by nothing else. */
void sched_hold(struct sched *s, uint32_t job, bool held);

/* Gives free seats to paused jobs and takes seats from those who must yield; then admits the next job: its
 * pages and slot are reserved, it becomes FILL. -EAGAIN: nobody waits, or the one whose turn it is does not fit
 * yet. To be called until it says so. */
int sched_admit(struct sched *s, uint64_t now_ns, uint32_t *ret_job);
/* The job that sched_admit would take if there were room for it, whatever it needs: whose hit to look up and
 * whom to make room for. -EAGAIN: none. */
int sched_peek(struct sched *s, uint64_t now_ns, uint32_t *ret_job);
/* A job that must give up slot and pages for one that waits for memory and would then have it, as of the last
 * sched_admit: a parked one, else a background one for an interactive one. -EAGAIN: none. */
int sched_pick_release(struct sched *s, uint32_t *ret_job);
/* It has: the job is queued again, with so many tokens to read before it goes on. */
void sched_requeue(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns);
uint32_t sched_job_pages(const struct sched *s, uint32_t job); /* pages reserved for it: fresh ones */

/* What the next chunk of at most `rows` rows reads of whose prompts, given out in pieces of `grid` tokens or what is
 * left of a prompt, so a part is a multiple of grid unless it ends its prompt. Interactive prompts go first, but one
 * chunk in aging_ns is for background ones that waited as long. Among them the short one of a user who has no other,
 * unless that user is ahead of the others; then the least served user's; of a user's the one that waited longer
 * than aging_ns, else the one with the fewest tokens left. Nothing is charged until sched_filled. Returns how many
 * parts. */
struct sched_part {
    uint32_t job, tokens;
};
uint32_t sched_plan_chunk(struct sched *s, uint64_t now_ns, uint32_t rows, uint32_t grid, struct sched_part *ret,
                          uint32_t max);
/* tokens of its prompt were read; DECODE once all were. */
void sched_filled(struct sched *s, uint32_t job, uint32_t tokens, uint64_t now_ns);

/* Jobs to decode in the next step, in order of admission, without skipped and paused ones. Returns how many. */
uint32_t sched_pick_decode(const struct sched *s, uint32_t *ret_jobs, uint32_t max);
/* Charges tokens of output to the job's user. */
void sched_served(struct sched *s, uint32_t job, uint32_t tokens);
/* A skipped job takes no part in steps. It keeps what it has until it is parked and somebody needs it. */
void sched_skip(struct sched *s, uint32_t job, bool skipped, uint64_t now_ns);

/* The earliest moment at which something must happen by itself: a deadline, or a seat to be taken from a
 * skipped job because somebody waits. SCHED_NEVER when there is none. */
uint64_t sched_next_event(const struct sched *s);
/* A job whose deadline has passed. -EAGAIN: none. */
int sched_pick_expired(const struct sched *s, uint64_t now_ns, uint32_t *ret_job);

enum sched_state sched_job_state(const struct sched *s, uint32_t job);
bool sched_job_paused(const struct sched *s, uint32_t job);
void sched_get_counts(const struct sched *s, struct sched_counts *ret);
/* Tokens served to a user so far, prompt tokens computed and output, not divided by anything. */
uint64_t sched_user_tokens(const struct sched *s, uint32_t uid);

/* What things take, measured by the caller on its own clock, everything beside them included: a chunk of a
 * prompt from its start to its end, and one token of a running answer. */
void sched_measured_fill(struct sched *s, uint32_t tokens, uint64_t ns);
void sched_measured_token(struct sched *s, uint64_t ns);

/* For every queued job, in the order in which they would be admitted if each took its whole prompt: calls
 * back with the job, its place, 1 = next, and how long it will probably wait until it is admitted: from what
 * was measured, the answers that ended so far, and everything in front of it. 0 = nothing measured yet. */
typedef void (*sched_place_fn)(void *ctx, uint32_t job, uint32_t place, uint64_t wait_ns);
void sched_positions(struct sched *s, uint64_t now_ns, sched_place_fn fn, void *ctx);
/* How long until a place in the queue is probably free. */
uint64_t sched_retry_ns(struct sched *s);

#endif
