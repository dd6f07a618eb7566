/* SPDX-License-Identifier: MIT */
/* Client stop strings on a stream of decoded text, with the least possible hold-back: what is kept back is
 * exactly the longest suffix that is a proper prefix of some stop string. No allocation, no buffer: the kept
 * bytes are by definition a prefix of a stop string, so they are read back from the set.
 *
 * A set belongs to a request and is read-only after init (the engine's control automaton and the output
 * parser may share it); a cursor belongs to one reader. Any thread. */
#ifndef GLMD_STOPSTR_H
#define GLMD_STOPSTR_H

#include <stddef.h>
#include <stdint.h>

#define STOPSTR_MAX_STRINGS     16
#define STOPSTR_MAX_TOTAL_BYTES 4096

struct stopstr_set {
    uint16_t n;
    uint16_t off[STOPSTR_MAX_STRINGS + 1];  /* string i is bytes[off[i] .. off[i + 1]) */
    uint16_t fail[STOPSTR_MAX_TOTAL_BYTES]; /* per byte: longest proper border of the string up to it */
    char bytes[STOPSTR_MAX_TOTAL_BYTES];
};

struct stopstr {
    uint16_t matched[STOPSTR_MAX_STRINGS]; /* per string: length of the prefix that ends at the last byte */
    uint16_t held_bytes;                   /* max of matched */
    uint16_t held_by;                      /* the string it belongs to */
};

/* What one feed lets out: first `early` (bytes held back before, points into the set), then the first
 * `fresh_bytes` bytes of the input. With hit >= 0 nothing after that may be shown. */
struct stopstr_out {
    const char *early;
    size_t early_bytes;
    size_t fresh_bytes;
    size_t used_bytes; /* input consumed: all of it, or up to and with the last byte of the match */
    int hit;           /* index of the string that matched, -1 for none */
};

/* n may be 0 (nothing ever matches). -EINVAL: an empty string; -E2BIG: too many or too long. */
int stopstr_set_init(struct stopstr_set *set, const char *const *strings, const size_t *lens, size_t n);

void stopstr_begin(struct stopstr *cur);

/* The first match to end wins; of several that end at one byte, the longest. The cursor restarts after a
 * hit. */
void stopstr_feed(const struct stopstr_set *set, struct stopstr *cur, const char *text, size_t n,
                  struct stopstr_out *ret);

/* The text ended, or left the channel in which stops count: the held bytes may go out. Restarts the
 * cursor. */
void stopstr_flush(const struct stopstr_set *set, struct stopstr *cur, const char **ret_text, size_t *ret_n);

#endif
