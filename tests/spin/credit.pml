/* SPDX-License-Identifier: MIT */
/* The hand-back of credit of PROTOCOL.md 8.3 on a machine with store buffers (see bell.pml).
 *
 * The producer (daemon) finds no free slot, stores want, and sleeps if there is still none; the consumer
 * (client) gives a slot back and, when it sees want, sends a NOP, which is latched, or where its submission ring is
 * full rings the bell alone, which is latched as well and counts as much (ALONE 0: does not). One slot: with two, the
 * one-deep store buffers hide the need for the consumer's barrier. The consumer's own sleep is bell.pml's
 * business; here it simply waits for a record.
 *   FENCE & 1   the producer's barrier F4      FENCE & 2   the consumer's barrier F3
 * Property: all K records are consumed. */
#define N 1
#define K 4

byte tail = 0, head = 0, got = 0;
bit want = 0, nop = 0, bell = 0;
#ifndef ALONE
#define ALONE 1
#endif
byte chead_v;
bit pwant_v;
bit pwant_b = 0, chead_b = 0;

active proctype flush_producer() {
end: do
    :: pwant_b -> d_step { want = pwant_v; pwant_b = 0 }
    od
}

active proctype flush_consumer() {
end: do
    :: chead_b -> d_step { head = chead_v; chead_b = 0 }
    od
}

active proctype producer() {
    byte t = 0;
    do
    :: t == K -> break
    :: else ->
        if
        :: t - head < N -> t++; tail = t
        :: else ->
            (pwant_b == 0);
            d_step { pwant_v = 1; pwant_b = 1 } /* ask */
#if (FENCE & 1)
            (pwant_b == 0); /* F4 */
#endif
            if
            :: t - head < N -> skip
            :: else -> (nop || (ALONE && bell)); nop = 0; bell = 0 /* the stream is skipped until then */
            fi;
            (pwant_b == 0);
            d_step { pwant_v = 0; pwant_b = 1 }
        fi
    od
}

active proctype consumer() {
    byte h = 0;
    do
    :: h == K -> break
    :: else ->
        (tail != h);
        h++;
        got = h;
        (chead_b == 0);
        d_step { chead_v = h; chead_b = 1 } /* R2 */
#if (FENCE & 2)
        (chead_b == 0); /* F3 */
#endif
        if
        :: want ->
            if
            :: nop = 1
            :: bell = 1 /* no room for a NOP */
            fi
        :: else -> skip
        fi
    od
}

ltl done { <> (got == K) }
