/* SPDX-License-Identifier: MIT */
/* cpu_stored.c: matrices that are not plain BF16: which panels of a product come from which tensor, how windows of a
 * tensor's pieces go into panels, rows of the embedding. Products run on the team, packing on any number of loader
 * threads at once (each byte has a place of its own). */
#include "cpu.h"
#include "host_unpack.h"

#include <string.h>

uint64_t cpu_mat_bytes(const struct cpu_layout *l, const struct cpu_mat *m) {
    uint64_t bytes = m->n_segs ? 0 : m->bytes;
    for (uint32_t i = 0; i < m->n_segs; i++)
        bytes += l->seg[m->first_seg + i].bytes;
    return bytes;
}

const struct cpu_seg *cpu_seg_of(const struct cpu_layout *l, const struct cpu_mat *m, uint32_t part) {
    for (uint32_t i = 0; i < m->n_segs; i++)
        if (l->seg[m->first_seg + i].part == part)
            return &l->seg[m->first_seg + i];
    return NULL;
}

void cpu_prod(struct cpu_run *r, const struct cpu_mat *m, uint32_t p0, uint32_t p1, const float *x, size_t ldx,
              const uint32_t *idx, uint32_t rows, float *out, size_t ldo) {
    if (!m->n_segs) {
        r->ops->prod(cpu_words(r, m->off), m->k, p0, p1, x, ldx, idx, rows, out, ldo);
        return;
    }
    for (uint32_t i = 0; i < m->n_segs; i++) {
        const struct cpu_seg *s = &r->c->l.seg[m->first_seg + i];
        uint32_t lo = p0 > s->out0 ? (p0 - s->out0 + s->step - 1) / s->step : 0;
        uint32_t hi = p1 > s->out0 ? (p1 - s->out0 + s->step - 1) / s->step : 0;
        hi = hi < s->panels ? hi : s->panels;
        struct cpu_packed shared = s->m;
        if (FAULT(cpu_one_factor_for_both) && s->step == 2) /* gate's, for up too */
            shared.global = r->c->l.seg[m->first_seg].m.global;
        float *at = out + ((size_t)s->out0 + (size_t)lo * s->step - p0) * 16;
        for (int again = FAULT(cpu_multiplies_again) ? 24 : 0; again && lo < hi; again--) /* a handicap */
            r->ops->packed(&s->m, (const uint8_t *)r->c->weights, lo, hi, x, ldx, idx, rows, at, ldo, s->step, r->room);
        if (lo < hi)
            r->ops->packed(FAULT(cpu_one_factor_for_both) ? &shared : &s->m, (const uint8_t *)r->c->weights, lo, hi, x,
                           ldx, idx, rows, at, ldo, s->step, r->room);
    }
}

/* ---- the embedding -------------------------------------------------------------------------------------------- */

uint64_t cpu_embed_bytes(const struct cpu_layout *l, const struct kern_config *cfg) {
    const struct kern_store s = cpu_store(cfg, KERN_EMBED, 0);
    uint64_t bytes = 0;
    if (s.format == KERN_BF16)
        return l->d.e * 2ull;
    kern_store_bytes(&s, cfg->model.vocab_rows, cfg->model.hidden, &bytes);
    return bytes / cfg->model.vocab_rows;
}

void cpu_embed_row(const struct cpu_run *r, uint32_t token, float *out) {
    const struct kern_config *cfg = &r->c->k->cfg;
    const struct kern_store s = cpu_store(cfg, KERN_EMBED, 0);
    const char *w = r->c->weights;
    uint32_t hidden = cfg->model.hidden, e = r->c->l.d.e;
    if (s.format == KERN_BF16) {
        r->ops->widen(out, (const uint16_t *)(const void *)(w + r->c->l.embed) + (uint64_t)token * e, e);
        return;
    }
    const void *piece[KERN_PIECES] = {[KERN_PIECE_CODES] = w + r->c->l.embed,
                                      [KERN_PIECE_SCALE] = w + r->c->l.embed_scale};
    struct kern_piece_info p = {0};
    kern_store_piece(&s, cfg->model.vocab_rows, hidden, KERN_PIECE_GLOBAL, &p);
    if (p.rows)
        piece[KERN_PIECE_GLOBAL] = w + r->c->l.embed_global;
    host_unpack_rows(&s, cfg->model.vocab_rows, hidden, piece, token, 1, out);
    memset(out + hidden, 0, (e - hidden) * sizeof(float));
}

/* ---- packing ---------------------------------------------------------------------------------------------------- */

/* A row of a tensor in a segment: its first byte, and how far its units are apart. */
struct row_place {
    uint64_t at, step;
};

static struct row_place row_place(const struct cpu_seg *s, const struct cpu_seg *key, uint64_t off, uint64_t key_off,
                                  const struct kern_piece_info *p, uint64_t row) {
    const struct cpu_packed *m = &s->m;
    uint64_t head = m->rstride ? row / m->rstride : 0, i = m->rstride ? row % m->rstride : row;
    if (FAULT(cpu_row_of_next) && row == 17)
        i++;
    uint64_t n = head * (m->rstride ? m->rblock_pad : 0) + i - m->roff;
    if (key && i < m->roff) {
        n = head * key->m.rblock_pad + i;
        off = key_off;
    }
    return (struct row_place){.at = off + n / 16 * p->row_bytes * 16 + n % 16 * p->unit, .step = 16ull * p->unit};
}

/* Are 16 rows from this one on a panel by themselves? Rows keep their order, so the first and the last tell. */
static bool is_panel(const struct cpu_seg *s, const struct cpu_seg *key, uint64_t off, uint64_t key_off,
                     const struct kern_piece_info *p, uint64_t row) {
    struct row_place a = row_place(s, key, off, key_off, p, row), z = row_place(s, key, off, key_off, p, row + 15);
    uint64_t from = key && a.at < off ? key_off : off; /* keys lie before values */
    return (a.at - from) % (16ull * p->row_bytes) == 0 && z.at == a.at + 15ull * p->unit;
}

/* Tiles of EXL3: those of a row of the file are of 16 inputs and all outputs, here those of 16 outputs follow each
 * other. Inside a tile word i of row n moves from [n][i] to [i][n]. */
static void pack_tiles(uint8_t *codes, const struct cpu_packed *m, uint64_t offset, const uint8_t *src, uint64_t n) {
    const uint32_t bits = m->s.bits, tile = 32 * bits, across = m->rows / 16, down = m->cols / 16;
    for (uint64_t done = 0; n; n -= done, src += done, offset += done) {
        uint64_t t = offset / tile, b = offset % tile;
        uint8_t *to = codes + (t % across * down + t / across) * tile;
        done = tile - b < n ? tile - b : n;
        for (uint32_t w = 0; done == tile && w < 8 * bits; w++)
            memcpy(to + (w % bits * 8 + w / bits) * 4, src + 4 * w, 4);
        for (uint64_t i = b; done < tile && i < b + done; i++) {
            uint64_t w = i / 4;
            to[(w % bits * 8 + w / bits) * 4 + i % 4] = src[i - b];
        }
    }
}

static void pack_exl3(struct cpu *c, const struct cpu_packed *m, uint32_t piece, uint64_t offset, const uint8_t *src,
                      uint64_t n) {
    uint8_t *base = c->k->mem[KERN_MEM_WEIGHTS].base;
    if (piece == KERN_PIECE_CODES)
        pack_tiles(base + m->codes, m, offset, src, n);
    else
        memcpy(base + (piece == KERN_PIECE_SUH ? m->suh : m->svh) + offset, src, n);
}

void cpu_pack_seg(struct cpu *c, const struct cpu_seg *s, const struct cpu_seg *key, uint32_t piece, uint64_t offset,
                  const uint8_t *src, uint64_t n) {
    const struct cpu_packed *m = &s->m;
    uint8_t *base = c->k->mem[KERN_MEM_WEIGHTS].base;
    struct kern_piece_info p = {0};
    kern_store_piece(&m->s, m->rows, m->cols, (enum kern_piece)piece, &p);
    if (m->s.format == KERN_EXL3) {
        pack_exl3(c, m, piece, offset, src, n);
        return;
    }
    bool codes = piece == KERN_PIECE_CODES, scale = piece == KERN_PIECE_SCALE;
    if (!codes && !(scale && m->s.block_rows == 1)) { /* of the whole matrix */
        memcpy(base + (scale ? m->scale : m->global) + offset, src, n);
        return;
    }
    uint64_t off = codes ? m->codes : m->scale, key_off = key ? (codes ? key->m.codes : key->m.scale) : 0;
    while (n) {
        uint64_t row = offset / p.row_bytes, b = offset % p.row_bytes, run = p.row_bytes - b < n ? p.row_bytes - b : n;
        struct row_place at = row_place(s, key, off, key_off, &p, row);
        uint8_t *to = base + at.at;
        if (!b && n >= 16 * p.row_bytes && is_panel(s, key, off, key_off, &p, row)) {
            c->ops->panel(to, src, p.row_bytes, p.row_bytes, p.unit, 0);
            src += 16 * p.row_bytes;
            offset += 16 * p.row_bytes;
            n -= 16 * p.row_bytes;
            continue;
        }
        if (p.unit == 1)
            for (uint64_t i = 0; i < run; i++)
                to[(b + i) * at.step] = src[i];
        else
            for (uint64_t i = 0; i < run; i++)
                to[(b + i) / p.unit * at.step + (b + i) % p.unit] = src[i];
        src += run;
        offset += run;
        n -= run;
    }
}

/* Codes and scales of rows that are not there are zeros, which every format reads as the number 0 (INT8 and INT4
 * through their scales). Only the last panel has such rows, or each head's. */
void cpu_clear_seg(struct cpu *c, const struct cpu_seg *s) {
    const struct cpu_packed *m = &s->m;
    uint8_t *base = c->k->mem[KERN_MEM_WEIGHTS].base;
    uint64_t row = (uint64_t)m->row_bytes * 16, scales = 16ull * m->scale_cols * m->scale_unit;
    uint64_t panels = m->transposed ? (uint64_t)m->rows / m->rstride * (m->rblock_pad / 16) : s->panels;
    uint64_t first = m->rblock != m->rblock_pad ? 0 : panels - 1;
    if (m->s.format == KERN_EXL3) /* has no rows but its own */
        return;
    memset(base + m->codes + first * row, 0, (panels - first) * row);
    if (m->s.block_rows == 1)
        memset(base + m->scale + first * scales, 0, (panels - first) * scales);
}
