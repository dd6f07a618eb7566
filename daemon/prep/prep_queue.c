/* SPDX-License-Identifier: MIT */
/* The queue of the text workers; see prep_queue.h. Under prep.c's lock; allocates nothing. */
#include "prep_queue.h"

#include <stddef.h>

#include "prep.h"

/* A request costs its bytes, and as much as a page of them whatever it has. A large one takes a worker for tenths of a
 * second and more. */
enum { PAGE_COST = 4096, LARGE = 1 << 20 };

void prep_queue_init(struct prep_queue *q, uint32_t workers) {
    /* one is left for those who have little to say; a single worker must take everything */
    *q = (struct prep_queue){.most_large = workers > 1 && !FAULT(prep_all_large) ? workers - 1 : UINT32_MAX};
}

static uint64_t finish_of(const struct prep_req *r) {
    return r->start + PAGE_COST + r->payload_len;
}

static bool is_large(const struct prep_req *r) {
    return r->payload_len > LARGE;
}

/* It starts where the user's last one in queue or work ends, and never in the past: whoever had nothing to do does not
 * save it up. */
void prep_queue_push(struct prep_queue *q, struct prep_req *r) {
    struct prep_req **at = &q->first;

    r->start = q->now;
    for (const struct prep_turn *t = q->turns; t; t = t->next)
        if (t->uid == r->uid && t->finish > r->start)
            r->start = t->finish;
    for (const struct prep_req *o = q->first; o; o = o->next)
        if (o->uid == r->uid && finish_of(o) > r->start)
            r->start = finish_of(o);
    while (*at && ((*at)->start <= r->start || FAULT(prep_in_order_of_arrival)))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
}

static struct prep_req **find(const struct prep_queue *q) {
    struct prep_req **at = (struct prep_req **)(uintptr_t)&q->first;

    while (*at && q->n_large >= q->most_large && is_large(*at))
        at = &(*at)->next;
    return at;
}

bool prep_queue_ready(const struct prep_queue *q) {
    return *find(q) != NULL;
}

struct prep_req *prep_queue_take(struct prep_queue *q, struct prep_turn *turn) {
    struct prep_req **at = find(q), *r = *at;

    if (!r)
        return NULL;
    *at = r->next;
    r->next = NULL;
    if (r->start > q->now)
        q->now = r->start;
    *turn = (struct prep_turn){.next = q->turns, .uid = r->uid, .finish = finish_of(r), .large = is_large(r)};
    q->turns = turn;
    q->n_large += turn->large;
    return r;
}

void prep_queue_done(struct prep_queue *q, struct prep_turn *turn) {
    struct prep_turn **at = &q->turns;

    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    q->n_large -= turn->large;
}

bool prep_queue_remove(struct prep_queue *q, struct prep_req *r) {
    struct prep_req **at = &q->first;

    while (*at && *at != r)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = r->next;
    return true;
}
