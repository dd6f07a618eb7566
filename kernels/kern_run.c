/* SPDX-License-Identifier: MIT */
/* The running half of kern.h: capture of stage sequences, plans, launches, results, slot and page operations.
 * Everything a backend is asked to do has been checked here once for all of them. One thread calls. */
#include "backend.h"

#include <errno.h>
#include <string.h>

/* ---- capture ---- */

int kern_capture_begin(struct kern *k, uint32_t lane) {
    if (lane >= KERN_LANES || k->capturing >= 0)
        return kern_error(k, "capture: lane %u, or a capture is already open", lane), -EINVAL;
    if (k->running)
        return kern_error(k, "capture after the first launch"), -EPERM;
    if (k->n_progs == KERN_MAX_PROGS)
        return kern_error(k, "more than %d programs", KERN_MAX_PROGS), -ENOSPC;
    k->progs[k->n_progs] = (struct kern_prog){.lane = lane, .first = k->n_stages};
    k->capturing = (int)lane;
    return 0;
}

int kern_capture_end(struct kern *k, struct kern_prog **ret) {
    if (k->capturing < 0)
        return kern_error(k, "no capture is open"), -EINVAL;
    struct kern_prog *p = &k->progs[k->n_progs];
    p->n = k->n_stages - p->first;
    k->capturing = -1;
    int r = k->backend->capture ? k->backend->capture(k, p) : 0;
    if (r) {
        k->n_stages = p->first;
        return r;
    }
    k->n_progs++;
    *ret = p;
    return 0;
}

uint32_t kern_prog_no(const struct kern *k, const struct kern_prog *prog) {
    return (uint32_t)(prog - k->progs);
}

const struct kern_prog *kern_prog_at(const struct kern *k, uint32_t no) {
    return no < k->n_progs ? &k->progs[no] : NULL;
}

static int stage(struct kern *k, enum kern_stage_op op, uint32_t layer, uint32_t arg) {
    if (k->capturing < 0)
        return kern_error(k, "a stage was called outside a capture"), -EINVAL;
    if (k->n_stages == KERN_MAX_STAGES)
        return kern_error(k, "more than %d stages", KERN_MAX_STAGES), -ENOSPC;
    k->stages[k->n_stages++] = (struct kern_stage){.op = (uint16_t)op, .arg = (uint16_t)arg, .layer = layer};
    return 0;
}

static int layer_stage(struct kern *k, enum kern_stage_op op, uint32_t layer, uint32_t arg) {
    if (layer >= kern_total_layers(&k->cfg.model) || arg > KERN_SITE_FFN)
        return kern_error(k, "stage %d: no layer %u or site %u", (int)op, layer, arg), -EINVAL;
    return stage(k, op, layer, arg);
}

static int draft_stage(struct kern *k, enum kern_stage_op op, uint32_t layer) {
    if (layer < k->cfg.model.n_layers)
        return kern_error(k, "stage %d: layer %u is not a draft layer", (int)op, layer), -EINVAL;
    return layer_stage(k, op, layer, 0);
}

int kern_embed(struct kern *k) {
    return stage(k, KERN_OP_EMBED, 0, 0);
}
int kern_site_in(struct kern *k, uint32_t layer, enum kern_site s) {
    return layer_stage(k, KERN_OP_SITE_IN, layer, (uint32_t)s);
}
int kern_mix(struct kern *k, uint32_t layer) {
    return layer_stage(k, KERN_OP_MIX, layer, 0);
}
int kern_mlp(struct kern *k, uint32_t layer) {
    return layer_stage(k, KERN_OP_MLP, layer, 0);
}
int kern_site_out(struct kern *k, uint32_t layer, enum kern_site s) {
    return layer_stage(k, KERN_OP_SITE_OUT, layer, (uint32_t)s);
}
int kern_final(struct kern *k) {
    return stage(k, KERN_OP_FINAL, 0, 0);
}
int kern_draft_in(struct kern *k, uint32_t layer) {
    return draft_stage(k, KERN_OP_DRAFT_IN, layer);
}
int kern_draft_out(struct kern *k, uint32_t layer) {
    return draft_stage(k, KERN_OP_DRAFT_OUT, layer);
}
int kern_head(struct kern *k, enum kern_source source) {
    if (source != KERN_SOURCE_TRUNK && source != KERN_SOURCE_DRAFT)
        return kern_error(k, "head: source %d", (int)source), -EINVAL;
    return stage(k, KERN_OP_HEAD, 0, (uint32_t)source);
}

/* ---- plans ---- */

static int check_slots(struct kern *k, const struct kern_plan *p) {
    const struct kern_seq *seqs = plan_seqs(p);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *s = &seqs[i];
        const struct kern_slot_info *slot = &k->slots[s->slot];
        if (!(s->flags & KERN_SEQ_RESET) && (s->keep > slot->pending || slot->pos + s->keep != s->pos0))
            return kern_error(k,
                              "slot %u is at %u with %u pending rows; the plan keeps %u and continues at %u",
                              s->slot, slot->pos, slot->pending, s->keep, s->pos0),
                   -ESTALE;
    }
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const struct kern_row *r = &plan_rows(p)[i];
        const struct kern_seq *s = &seqs[r->seq];
        if (r->token == KERN_TOKEN_LAST && (!k->slots[s->slot].has_last || (s->flags & KERN_SEQ_RESET)))
            return kern_error(k, "row %u wants the last token of slot %u, which has drawn none", i, s->slot),
                   -ESTALE;
    }
    /* A draft row may refer to what this very step draws. */
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const struct kern_row *r = &plan_rows(p)[i];
        const struct kern_seq *s = &seqs[r->seq];
        bool drawn = k->slots[s->slot].has_last && !(s->flags & KERN_SEQ_RESET);
        for (uint32_t j = 0; r->next == KERN_TOKEN_LAST && !drawn && j < p->n_samples; j++)
            drawn = plan_samples(p)[j].mode == KERN_SAMPLE_DRAW &&
                    plan_samples(p)[j].source == KERN_SOURCE_TRUNK &&
                    plan_rows(p)[plan_samples(p)[j].row].seq == r->seq;
        if (r->next == KERN_TOKEN_LAST && !drawn)
            return kern_error(k, "row %u's next token is one that nothing draws", i), -ESTALE;
    }
    return 0;
}

static void move_slots(struct kern *k, const struct kern_plan *p) {
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kern_seq *s = &plan_seqs(p)[i];
        struct kern_slot_info *slot = &k->slots[s->slot];
        bool commit = s->flags & KERN_SEQ_COMMIT;
        if (s->flags & KERN_SEQ_RESET)
            *slot = (struct kern_slot_info){.last = KERN_NONE};
        slot->pos = commit ? s->pos0 + s->n_rows : s->pos0;
        slot->pending = commit ? 0 : s->n_rows;
    }
    for (uint32_t i = 0; i < p->n_samples; i++) {
        const struct kern_sample *s = &plan_samples(p)[i];
        if (s->mode == KERN_SAMPLE_DRAW && s->source == KERN_SOURCE_TRUNK)
            k->slots[plan_seqs(p)[plan_rows(p)[s->row].seq].slot].has_last = true;
    }
}

/* A plan is about the whole model. */
static int check_plan(const struct kern *k, const struct kern_plan *plan, uint64_t bytes) {
    struct kern_config c = k->cfg;
    c.model = k->whole;
    return kern_plan_check(&c, plan, bytes);
}

int kern_plan_load(struct kern *k, const struct kern_plan *plan, uint64_t bytes) {
    if (k->lost)
        return -EIO;
    int r = check_plan(k, plan, bytes);
    if (r)
        return kern_error(k, "the plan is malformed"), r;
    uint32_t lane = plan->lane;
    if (k->in_flight[lane])
        return kern_error(k, "lane %u is busy", lane), -EBUSY;
    if (!k->packed)
        return kern_error(k, "weights are not complete"), -EPERM;
    r = check_slots(k, plan);
    if (r)
        return r;
    memcpy(k->plan[lane], plan, plan->bytes);
    memset(&k->counters[lane], 0, sizeof(k->counters[lane]));
    memset(k->results[lane], 0, plan->n_samples * sizeof(struct kern_result));
    for (uint32_t i = 0; i < plan->n_samples; i++)
        k->results[lane][i] = (struct kern_result){.sample = i, .token = KERN_NONE, .top1 = KERN_NONE};
    k->loaded[lane] = false;
    r = k->backend->plan_load ? k->backend->plan_load(k, lane) : 0;
    if (r)
        return r;
    move_slots(k, k->plan[lane]);
    k->loaded[lane] = true;
    return 0;
}

int kern_launch(struct kern *k, const struct kern_prog *prog) {
    if (k->lost)
        return -EIO;
    if (prog < k->progs || prog >= k->progs + k->n_progs || k->capturing >= 0)
        return kern_error(k, "launch of something that is not a program"), -EINVAL;
    if (!k->loaded[prog->lane])
        return kern_error(k, "lane %u has no plan", prog->lane), -EINVAL;
    k->running = true;
    int r = k->backend->launch(k, prog);
    if (!r)
        k->in_flight[prog->lane]++;
    return r;
}

bool kern_caller_computes(const struct kern *k) {
    return k->backend->caller_computes;
}

int kern_wait(struct kern *k, uint32_t lane) {
    if (lane >= KERN_LANES)
        return -EINVAL;
    if (k->lost)
        return -EIO;
    if (!k->in_flight[lane])
        return 0;
    int r = k->backend->wait(k, lane);
    if (r == -EIO)
        k->lost = true;
    if (r != -EAGAIN)
        k->in_flight[lane] = 0;
    return r;
}

int kern_exchange(struct kern *k, uint32_t lane, const struct kern_stage *s, uint64_t bytes,
                  const void *ret_part[COMM_MAX_RANKS]) {
    struct comm *c = k->cfg.comm;
    /* which stage of which plan: ranks that differ in either find out here */
    const uint64_t stage_no = (uint64_t)(s - k->stages) + 1;
    int r = c->ops->send(c, k->plan[lane]->digest ^ stage_no * 0x9e3779b97f4a7c15ull, bytes);
    if (!r)
        r = c->ops->wait(c, ret_part);
    if (r)
        kern_error(k, "%s", c->error);
    return r ? -EIO : 0;
}

const struct kern_result *kern_results(const struct kern *k, uint32_t lane, uint32_t *ret_n) {
    if (lane >= KERN_LANES || !k->loaded[lane]) {
        *ret_n = 0;
        return NULL;
    }
    *ret_n = k->plan[lane]->n_samples;
    return k->results[lane];
}

int kern_counters(const struct kern *k, uint32_t lane, struct kern_counters *ret) {
    if (lane >= KERN_LANES)
        return -EINVAL;
    *ret = k->counters[lane];
    return 0;
}

int kern_peek(struct kern *k, uint32_t lane, enum kern_peek what, uint32_t row0, uint32_t n, float *dst,
              uint64_t dst_floats) {
    const struct kern_model_desc *m = &k->whole;
    if (lane >= KERN_LANES || !k->loaded[lane])
        return -EINVAL;
    if (k->in_flight[lane])
        return -EBUSY;
    uint32_t rows = what == KERN_PEEK_LOGITS ? k->plan[lane]->n_samples : k->plan[lane]->n_rows;
    uint64_t width;
    switch (what) {
    case KERN_PEEK_STREAMS:
        width = (uint64_t)m->hc_mult * m->hidden;
        break;
    case KERN_PEEK_HIDDEN:
        width = m->hidden;
        break;
    case KERN_PEEK_DRAFT:
        width = m->n_draft ? m->hidden : 0;
        break;
    case KERN_PEEK_LOGITS:
        width = m->vocab_rows;
        break;
    default:
        width = 0;
    }
    if (!width || n > rows || row0 > rows - n || dst_floats / width < n || !k->backend->peek)
        return kern_error(k, "peek: rows %u to %u of %u, room for %llu numbers", row0, row0 + n, rows,
                          (unsigned long long)dst_floats),
               -EINVAL;
    return k->backend->peek(k, lane, what, row0, n, dst);
}

/* ---- slots and pages ---- */

/* In front of a slot's or a page's bytes; the rest is the backend's. */
struct state_head {
    uint64_t magic, model_id, bytes;
    uint32_t pos, last; /* of a slot */
    uint32_t has_last, zero[7];
};
#define SLOT_MAGIC 0x31544f4c534d4c47ull /* "GLMSLOT1" */
#define PAGE_MAGIC 0x31454741504d4c47ull /* "GLMPAGE1" */

_Static_assert(sizeof(struct state_head) == 64, "a slot's head is 64 bytes");

static int lanes_idle(struct kern *k) {
    for (int i = 0; i < KERN_LANES; i++)
        if (k->in_flight[i])
            return kern_error(k, "lane %d is busy", i), -EBUSY;
    return 0;
}

static int slot_idle(struct kern *k, uint32_t slot) {
    if (slot >= k->cfg.n_slots)
        return kern_error(k, "no slot %u", slot), -EINVAL;
    return lanes_idle(k);
}

static int slot_settled(struct kern *k, uint32_t slot) {
    int r = slot_idle(k, slot);
    if (!r && k->slots[slot].pending)
        return kern_error(k, "slot %u has %u pending rows", slot, k->slots[slot].pending), -EBUSY;
    return r;
}

static int page_idle(struct kern *k, uint32_t page) {
    if (page >= k->cfg.n_pages)
        return kern_error(k, "no page %u", page), -EINVAL;
    return lanes_idle(k);
}

/* The head of bytes that came from outside, copied once. */
static int take_head(struct kern *k, uint64_t magic, uint64_t want, const void *src, uint64_t bytes,
                     struct state_head *ret) {
    struct state_head h;
    const char *what = magic == SLOT_MAGIC ? "slot" : "page";
    if (bytes != want)
        return kern_error(k, "a %s has %llu bytes, found %llu", what, (unsigned long long)want,
                          (unsigned long long)bytes),
               -EBADMSG;
    memcpy(&h, src, sizeof(h));
    if (h.magic != magic || h.model_id != (magic == SLOT_MAGIC ? k->model_id : k->page_id) || h.bytes != bytes)
        return kern_error(k, "%s bytes of another model or backend", what), -EBADMSG;
    *ret = h;
    return 0;
}

int kern_slot_state(const struct kern *k, uint32_t slot, uint32_t *ret_pos, uint32_t *ret_pending) {
    if (slot >= k->cfg.n_slots)
        return -EINVAL;
    *ret_pos = k->slots[slot].pos;
    *ret_pending = k->slots[slot].pending;
    return 0;
}

uint64_t kern_slot_bytes(const struct kern *k) {
    return sizeof(struct state_head) + k->backend->slot_bytes(k);
}

int kern_slot_read(struct kern *k, uint32_t slot, void *dst, uint64_t bytes) {
    int r = slot_settled(k, slot);
    if (r)
        return r;
    if (bytes < kern_slot_bytes(k))
        return kern_error(k, "a slot has %llu bytes", (unsigned long long)kern_slot_bytes(k)), -EINVAL;
    const struct kern_slot_info *s = &k->slots[slot];
    const struct state_head h = {.magic = SLOT_MAGIC,
                                 .model_id = k->model_id,
                                 .bytes = kern_slot_bytes(k),
                                 .pos = s->pos,
                                 .last = s->last,
                                 .has_last = s->has_last};
    memcpy(dst, &h, sizeof(h));
    return k->backend->slot_read(k, slot, (char *)dst + sizeof(h));
}

int kern_slot_write(struct kern *k, uint32_t slot, const void *src, uint64_t bytes) {
    struct state_head h;
    int r = slot_idle(k, slot);
    if (!r)
        r = take_head(k, SLOT_MAGIC, kern_slot_bytes(k), src, bytes, &h);
    if (r)
        return r;
    if (h.pos > k->cfg.max_context || h.has_last > 1 ||
        (h.last != KERN_NONE && h.last >= k->cfg.model.vocab_rows))
        return kern_error(k, "slot bytes with position %u, last token %u", h.pos, h.last), -EBADMSG;
    /* first, because a device backend takes the token last drawn from here */
    const struct kern_slot_info before = k->slots[slot];
    k->slots[slot] = (struct kern_slot_info){.pos = h.pos, .last = h.last, .has_last = h.has_last};
    r = k->backend->slot_write(k, slot, (const char *)src + sizeof(h));
    if (r)
        k->slots[slot] = before;
    return r;
}

int kern_slot_copy(struct kern *k, uint32_t dst, uint32_t src) {
    int r = slot_settled(k, src);
    if (!r)
        r = slot_idle(k, dst);
    if (!r && dst != src)
        r = k->backend->slot_copy(k, dst, src);
    if (!r)
        k->slots[dst] = k->slots[src];
    return r;
}

int kern_page_copy(struct kern *k, uint32_t dst, uint32_t src) {
    int r = page_idle(k, src);
    if (!r)
        r = page_idle(k, dst);
    return r || dst == src ? r : k->backend->page_copy(k, dst, src);
}

uint64_t kern_page_bytes(const struct kern *k) {
    return sizeof(struct state_head) + k->backend->page_bytes(k);
}

int kern_page_read(struct kern *k, uint32_t page, void *dst, uint64_t bytes) {
    int r = page_idle(k, page);
    if (r)
        return r;
    if (bytes < kern_page_bytes(k))
        return kern_error(k, "a page has %llu bytes", (unsigned long long)kern_page_bytes(k)), -EINVAL;
    const struct state_head h = {
        .magic = PAGE_MAGIC, .model_id = k->page_id, .bytes = kern_page_bytes(k)};
    memcpy(dst, &h, sizeof(h));
    return k->backend->page_read(k, page, (char *)dst + sizeof(h));
}

int kern_page_write(struct kern *k, uint32_t page, const void *src, uint64_t bytes) {
    struct state_head h;
    int r = page_idle(k, page);
    if (!r)
        r = take_head(k, PAGE_MAGIC, kern_page_bytes(k), src, bytes, &h);
    return r ? r : k->backend->page_write(k, page, (const char *)src + sizeof(h));
}
