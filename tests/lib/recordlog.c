/* SPDX-License-Identifier: MIT */
/* See recordlog.h. */
#include "recordlog.h"

#include <check.h>
#include <string.h>

void recordlog_begin(struct recordlog *l) {
    l->n = l->n_text = 0;
    l->stream_id = 0;
    l->status = 1;
}

static void add(struct rawclient *c, struct recordlog *l, const struct glmw_rec *r) {
    const char *text = NULL;
    uint32_t len = 0;

    ck_assert_uint_lt(l->n, RECORDLOG_MAX);
    if (r->type == GLMW_REC_TOKEN || r->type == GLMW_REC_TEXT || r->type == GLMW_REC_ERROR) {
        len = r->text_len;
        text = r->flags & GLMW_RF_INLINE ? (const char *)r->u.text
                                         : (const char *)c->view.d + c->view.geom.txt_off + r->text_off;
    }
    ck_assert_uint_le(l->n_text + len, RECORDLOG_TEXT);
    l->rec[l->n] = *r;
    l->text_at[l->n++] = l->n_text;
    if (len)
        memcpy(l->text + l->n_text, text, len);
    l->n_text += len;
}

static void accepted(struct recordlog *l, const struct glmw_rec *r) {
    ck_assert_msg(r->seq < (l->n ? l->n : 1), "ACCEPTED says %u, %u records are there", r->seq, l->n);
    if (l->n > r->seq + 1) { /* it goes on before what was read last */
        l->n = r->seq + 1;
        l->n_text = l->n < RECORDLOG_MAX ? l->text_at[l->n] : l->n_text;
    }
    l->stream_id = r->u.accepted.stream_id;
}

bool recordlog_read(struct rawclient *c, uint64_t tag, uint32_t most, struct recordlog *l) {
    bool first = true;

    for (uint32_t read = 0; most == 0 || read < most; read++) {
        struct glmw_rec r;

        do
            ck_assert_msg(raw_record(c, &r, 20000, true), "nothing after record %u of tag %llu", l->n,
                          (unsigned long long)tag);
        while (r.tag != tag);
        if (r.type == GLMW_REC_ACCEPTED && l->n) {
            ck_assert(first);
            accepted(l, &r);
        } else {
            ck_assert_msg(r.seq == l->n, "record of type %u has seq %u instead of %u", r.type, r.seq, l->n);
            if (r.type == GLMW_REC_ACCEPTED)
                l->stream_id = r.u.accepted.stream_id;
            add(c, l, &r);
        }
        first = false;
        glmw_give_back(&c->tq, &c->view.d->credit_wanted);
        if (glmw_fetch32(&c->view.d->credit_wanted))
            raw_bell(c);
        if (r.type == GLMW_REC_END) {
            l->status = r.u.end.status;
            return true;
        }
    }
    return false;
}

uint32_t recordlog_next(const struct recordlog *l) {
    uint32_t at = l->n, alts;

    while (at > 0 && l->rec[at - 1].type == GLMW_REC_ALTS)
        at--;
    if (at == 0 || !(l->rec[at - 1].flags & GLMW_RF_ALTS_FOLLOW) || l->rec[at - 1].type != GLMW_REC_TOKEN)
        return l->n;
    alts = (l->rec[at - 1].n_alts + GLMW_ALTS_PER_REC - 1) / GLMW_ALTS_PER_REC;
    return l->n - at < alts ? at - 1 : l->n;
}

static struct glmw_rec bare(const struct glmw_rec *r) {
    struct glmw_rec b = *r;
    struct glmw_usage u;

    b.tag = 0;
    switch (r->type) {
    case GLMW_REC_USAGE:
        memcpy(&u, &b, sizeof u);
        u.queued = u.prefill = u.decode = u.longest_gap = u.time_shift = 0;
        memcpy(&b, &u, sizeof u);
        break;
    case GLMW_REC_ACCEPTED:
        memset(&b.u, 0, sizeof b.u);
        b.t_ns = 0;
        break;
    case GLMW_REC_ALTS:
        break;
    default:
        b.t_ns = 0;
        b.text_off = 0;
    }
    return b;
}

void recordlog_expect_same(const struct recordlog *got, const struct recordlog *want) {
    for (uint32_t i = 0; i < got->n && i < want->n; i++) {
        struct glmw_rec a = bare(&got->rec[i]), b = bare(&want->rec[i]);

        ck_assert_msg(memcmp(&a, &b, sizeof a) == 0, "record %u: type %u token %u flags %x, not %u %u %x", i,
                      a.type, a.token, a.flags, b.type, b.token, b.flags);
    }
    ck_assert_uint_eq(got->n, want->n);
    ck_assert_uint_eq(got->n_text, want->n_text);
    ck_assert_int_eq(memcmp(got->text, want->text, want->n_text), 0);
}

struct glmw_entry recordlog_submit(struct rawclient *c, uint64_t tag, uint8_t flags, const struct tlvbuf *t) {
    memcpy((uint8_t *)c->view.u + c->welcome.pay_off, t->b, t->len);
    return (struct glmw_entry){
        .opcode = GLMW_OP_SUBMIT, .flags = flags, .payload_len = (uint32_t)t->len, .tag = tag};
}

struct glmw_entry recordlog_resume(uint64_t tag, uint64_t stream_id, uint32_t from_seq) {
    return (struct glmw_entry){
        .opcode = GLMW_OP_RESUME, .tag = tag, .payload_off = stream_id, .session = from_seq};
}
