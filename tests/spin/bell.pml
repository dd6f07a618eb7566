/* SPDX-License-Identifier: MIT */
/* The wake-up protocol of PROTOCOL.md 5.2 on a machine with store buffers.
 *
 * Each process has a buffer of one store per word, emptied by a process of its own at any time; loads see
 * memory, never another process's buffer. That is the reordering that loses wake-ups (store, then load of
 * another word). The bell is latched, as a pipe or an eventfd is. Indices wrap at 8, so that every arithmetic
 * is the modular one of the real code.
 *   FENCE & 1   the producer's barrier F1      FENCE & 2   the consumer's barrier F2
 *   AHEAD       how far ahead the consumer arms (1; 2 = coalescing; -DNOURGENT: the last record is no urgent one)
 * Property: all K records are consumed. With every barrier that holds, without any of them it does not. */
#ifndef AHEAD
#define AHEAD 1
#endif
#define N 2     /* slots */
#define K 5     /* records */
#define START 6 /* crosses the wrap */
#define M(x) ((x) & 7)

byte tail = START, head = START, ev = START, slot[N], got = 0;
bit bell = 0;
byte ptail_v, cev_v, chead_v;
bit ptail_b = 0, cev_b = 0, chead_b = 0; /* pending stores */

active proctype flush_producer() {
end: do
    :: ptail_b -> d_step { tail = ptail_v; ptail_b = 0 }
    od
}

active proctype flush_consumer() {
end: do
    :: cev_b -> d_step { ev = cev_v; cev_b = 0 }
    :: chead_b -> d_step { head = chead_v; chead_b = 0 }
    od
}

active proctype producer() {
    byte t = START, n = 0, old, e;
    bit urgent;
    do
    :: n < K ->
        (M(t - head) < N); /* a full ring is the credit protocol's business: credit.pml */
        slot[t % N] = n + 1;
        (ptail_b == 0);
        old = t;
        t = M(t + 1);
        n++;
#ifndef NOURGENT
        urgent = (n == K);
#endif
        d_step { ptail_v = t; ptail_b = 1 } /* R1 */
#if (FENCE & 1)
        (ptail_b == 0); /* F1 */
#endif
        e = ev;
        if
        :: M(e - old) < M(t - old) -> bell = 1
        :: else ->
            if
            :: urgent && M(e - old) < 4 -> bell = 1
            :: else -> skip
            fi
        fi
    :: else -> break
    od
}

active proctype consumer() {
    byte h = START, n = 0, seen;
    do
    :: n == K -> break
    :: else ->
        seen = tail; /* A1 */
        if
        :: seen != h ->
            assert(slot[h % N] == n + 1);
            h = M(h + 1);
            n++;
            (chead_b == 0);
            d_step { chead_v = h; chead_b = 1 }
            got = n
        :: else ->
            (cev_b == 0);
            d_step { cev_v = M(h + AHEAD - 1); cev_b = 1 } /* arm */
#if (FENCE & 2)
            (cev_b == 0); /* F2 */
#endif
            if
            :: tail != h -> skip
            :: else -> (bell == 1); bell = 0 /* asleep */
            fi
        fi
    od
}

ltl done { <> (got == K) }
