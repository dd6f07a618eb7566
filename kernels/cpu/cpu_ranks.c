/* SPDX-License-Identifier: MIT */
/* cpu_ranks.c: what a rank exchanges with the others inside a stage. All members of the team call each function; member
 * 0 sends and waits while the others sleep at the barrier. Nothing here is called with one rank. */
#include "cpu.h"
#include "host.h"

bool cpu_exchange(struct cpu_run *r, uint64_t bytes, const void *ret_part[COMM_MAX_RANKS]) {
    struct cpu *c = r->c;
    run_barrier(r); /* the slot is written */
    if (r->me == 0)
        c->failed = kern_exchange(c->k, r->lane_id, r->stage, bytes, c->part);
    run_barrier(r);
    r->failed = c->failed; /* the next exchange begins with a barrier: it is not written before all have read it */
    memcpy(ret_part, c->part, c->k->cfg.n_ranks * sizeof(*ret_part));
    return !r->failed;
}

bool cpu_sum_ranks(struct cpu_run *r, uint32_t rows, uint64_t lo, uint64_t hi) {
    const uint64_t e = r->c->l.d.e;
    const uint32_t n = r->c->k->cfg.n_ranks, rank = r->c->k->cfg.rank;
    const void *part[COMM_MAX_RANKS];
    float *own = kern_part_slot_of(r->c->k), *y = r->lane->y;
    memcpy(own + lo * 16, y + lo * 16, (hi - lo) * 16 * sizeof(float));
    if (!cpu_exchange(r, rows * e * sizeof(float), part))
        return false;
    memcpy(y + lo * 16, (const float *)part[FAULT(ranks_sum_own_first) ? rank : 0] + lo * 16,
           (hi - lo) * 16 * sizeof(float));
    for (uint32_t i = 1; i < n; i++) {
        uint32_t from = FAULT(ranks_sum_own_first) ? (rank + i) % n : i;
        for (uint64_t at = lo * 16; at < hi * 16;) {
            uint64_t some = hi * 16 - at < 1u << 20 ? hi * 16 - at : 1u << 20;
            r->ops->axpy(y + at, 1.0f, (const float *)part[from] + at, (uint32_t)some);
            at += some;
        }
    }
    return true;
}

bool cpu_gather_embeddings(struct cpu_run *r, const struct cpu_rows *rows, bool next, float *to, size_t ld) {
    struct kern *k = r->c->k;
    const uint64_t e = r->c->l.d.e;
    const uint32_t lo = share_lo(r, rows->n), hi = share_hi(r, rows->n);
    const void *part[COMM_MAX_RANKS];
    float *own = kern_part_slot_of(k);
    for (int sent = 0; sent < 2; sent++) {
        for (uint32_t i = lo; i < hi; i++) {
            const struct kern_row *row = &plan_rows(r->plan)[rows->row[i]];
            if (!next && row->embed != KERN_NONE)
                continue;
            uint32_t id = host_token(k, &plan_seqs(r->plan)[row->seq], next ? row->next : row->token);
            id = id < k->whole.vocab_rows ? id : 0; /* nothing could be drawn */
            uint32_t owner = kern_vocab_owner(k, id);
            if (sent)
                memcpy(to + i * ld, (const float *)part[FAULT(ranks_embed_of_first) ? 0 : owner] + i * e,
                       e * sizeof(float));
            else if (owner == k->cfg.rank)
                cpu_embed_row(r, id - kern_vocab_at(k, owner), own + i * e);
        }
        if (!sent && !cpu_exchange(r, rows->n * e * sizeof(float), part))
            return false;
    }
    return true;
}

float *cpu_own_logits(const struct cpu_run *r) {
    return kern_part_slot_of(r->c->k);
}

bool cpu_gather_logits(struct cpu_run *r, uint32_t first, uint32_t n) {
    const struct kern *k = r->c->k;
    const struct cpu_dims *d = &r->c->l.d;
    const void *part[COMM_MAX_RANKS];
    if (!cpu_exchange(r, (uint64_t)n * d->vocab * sizeof(float), part))
        return false;
    for (uint32_t i = share_lo(r, n), hi = share_hi(r, n); i < hi; i++)
        for (uint32_t rank = 0; rank < k->cfg.n_ranks; rank++) {
            uint32_t at = kern_vocab_at(k, rank), width = kern_vocab_at(k, rank + 1) - at;
            memcpy(r->lane->logits + (uint64_t)(first + i) * d->logits + (FAULT(ranks_vocab_unmoved) ? 0 : at),
                   (const float *)part[rank] + i * pad16(width), width * sizeof(float));
        }
    return true;
}

bool cpu_gather_selection(struct cpu_run *r, uint32_t rows) {
    const uint32_t sel = r->c->l.d.sel, words = sel + 1, n_ranks = r->c->k->cfg.n_ranks, rank = r->c->k->cfg.rank;
    const uint32_t first = cpu_rank_lo(r, rows, rank), end = cpu_rank_lo(r, rows, rank + 1);
    uint32_t *own = kern_part_slot_of(r->c->k);
    const void *part[COMM_MAX_RANKS];
    run_barrier(r); /* rows were chosen by whoever was free */
    for (uint32_t i = first + share_lo(r, end - first), hi = first + share_hi(r, end - first); i < hi; i++) {
        own[(uint64_t)(i - first) * words] = r->lane->n_sel[i];
        memcpy(own + (uint64_t)(i - first) * words + 1, r->lane->sel + (uint64_t)i * sel, sel * sizeof(*own));
    }
    if (!cpu_exchange(r, (uint64_t)(end - first) * words * sizeof(*own), part))
        return false;
    for (uint32_t from = r->me; from < n_ranks; from += r->n) {
        const uint32_t lo = cpu_rank_lo(r, rows, from), hi = cpu_rank_lo(r, rows, from + 1);
        for (uint32_t i = lo; i < hi && from != rank; i++) {
            const uint32_t *row = (const uint32_t *)part[from] + (uint64_t)(i - lo) * words;
            r->lane->n_sel[i] = row[0];
            memcpy(r->lane->sel + (uint64_t)i * sel, row + 1, sel * sizeof(*row));
        }
    }
    return true;
}
