/* SPDX-License-Identifier: MIT */
/* eaway.c: a background sequence, or one whose reader stands still, gives slot and pages to somebody who waits for
 * memory. Its state stays in the prefix cache for as long as there is room; what it was told and what it has answered
 * stay with it. When it is admitted again, not before its reader reads, it reads its prompt and its answer behind what
 * is still there, and goes on. Engine thread, between rounds. */
#include "engine_priv.h"

uint32_t away_id(const struct engine *e, const struct eng_seq *q, uint32_t pos) {
    const struct sched_req *req = e->streams[q->stream].req;

    return pos < req->n_ids ? req->ids[pos] : q->cache.answer[pos - req->n_ids];
}

bool away_one(struct engine *e) {
    struct eng_seq *q;
    uint32_t stream;

    if (sched_pick_release(e->sched, &stream) < 0)
        return false;
    q = stream_seq(e, stream);
    /* what a chunk writes into cannot be given away; a sample that waits for its reader can wait without */
    if (fill_until(e, (uint32_t)(q - e->seqs)) != q->pos)
        return false;
    if (!q->answers && sched_job_state(e->sched, stream) == SCHED_DECODE) {
        q->answers = true;
        q->n_read = q->pos;
    }
    ecache_leave(e, q);
    mem_pages_give(&e->pages, q->n_pages, q->pages);
    q->n_pages = 0;
    q->away = true;
    sched_requeue(e->sched, stream, q->n_read, e->now_ns);
    e->calm = false;
    e->queue_dirty = true;
    return true;
}
