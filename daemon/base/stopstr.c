/* SPDX-License-Identifier: MIT */
/* Stop strings: one failure function a string (Knuth, Morris, Pratt), all advanced together. */
#include "stopstr.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

int stopstr_set_init(struct stopstr_set *set, const char *const *strings, const size_t *lens, size_t n) {
    size_t total = 0;

    if (n > STOPSTR_MAX_STRINGS)
        return -E2BIG;
    for (size_t i = 0; i < n; i++) {
        if (lens[i] == 0)
            return -EINVAL;
        if (lens[i] > STOPSTR_MAX_TOTAL_BYTES - total)
            return -E2BIG;
        total += lens[i];
    }
    memset(set, 0, sizeof *set);
    set->n = (uint16_t)n;
    for (size_t i = 0; i < n; i++) {
        char *s = set->bytes + set->off[i];
        uint16_t *fail = set->fail + set->off[i];

        memcpy(s, strings[i], lens[i]);
        set->off[i + 1] = (uint16_t)(set->off[i] + lens[i]);
        for (size_t k = 1; k < lens[i]; k++) {
            uint16_t b = fail[k - 1];

            while (b > 0 && s[b] != s[k])
                b = fail[b - 1];
            fail[k] = (uint16_t)(b + (s[b] == s[k]));
        }
    }
    return 0;
}

void stopstr_begin(struct stopstr *cur) {
    memset(cur, 0, sizeof *cur);
}

static uint16_t advance(const struct stopstr_set *set, size_t i, uint16_t m, char c) {
    const char *s = set->bytes + set->off[i];
    const uint16_t *fail = set->fail + set->off[i];

    while (m > 0 && s[m] != c)
        m = FAULT(stopstr_border) ? 0 : fail[m - 1];
    return (uint16_t)(m + (s[m] == c));
}

void stopstr_feed(const struct stopstr_set *set, struct stopstr *cur, const char *text, size_t n,
                  struct stopstr_out *ret) {
    size_t held_before = cur->held_bytes, shown;
    const char *early = set->bytes + set->off[cur->held_by];

    *ret = (struct stopstr_out){.early = early, .hit = -1};
    for (size_t at = 0; at < n; at++) {
        size_t hit_len = 0;

        cur->held_bytes = 0;
        for (size_t i = 0; i < set->n; i++) {
            size_t len = (size_t)(set->off[i + 1] - set->off[i]);

            cur->matched[i] = advance(set, i, cur->matched[i], text[at]);
            if (cur->matched[i] == len && len > hit_len) {
                hit_len = len;
                ret->hit = (int)i;
            }
            if (cur->matched[i] > cur->held_bytes) {
                cur->held_bytes = cur->matched[i];
                cur->held_by = (uint16_t)i;
            }
        }
        if (ret->hit < 0)
            continue;
        ret->used_bytes = at + 1;
        shown = held_before + at + 1 - hit_len;
        ret->early_bytes = shown < held_before ? shown : held_before;
        ret->fresh_bytes = shown - ret->early_bytes;
        stopstr_begin(cur);
        return;
    }
    ret->used_bytes = n;
    shown = held_before + n - cur->held_bytes;
    ret->early_bytes = shown < held_before ? shown : held_before;
    ret->fresh_bytes = shown - ret->early_bytes;
}

void stopstr_flush(const struct stopstr_set *set, struct stopstr *cur, const char **ret_text, size_t *ret_n) {
    *ret_text = set->bytes + set->off[cur->held_by];
    *ret_n = cur->held_bytes;
    stopstr_begin(cur);
}
