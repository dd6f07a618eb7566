/* SPDX-License-Identifier: MIT */
/* A kept stream moves from one connection to another while the engine publishes on it, and the old connection is
 * freed, on a machine with store buffers (see bell.pml). The engine says that it is in, reads where the stream
 * is, takes that connection's right, reads again, works, leaves. io takes the right of the old connection, stores
 * the new one, lets go, works there; before it frees the old one it waits until the engine is not in.
 *   FENCE & 1   the engine's: being in is visible before it reads where the stream is
 *   FENCE & 2   io's: the new place is visible before it looks whether the engine is in
 *   RECHECK     the engine reads again after it took the right
 * Property: a freed connection is never touched, and one thread at a time works on the stream. */
#ifndef RECHECK
#define RECHECK 1
#endif

byte conn = 0;  /* where the stream is */
bit in = 0;     /* the engine is in */
bit right[2];   /* held */
bit freed = 0;  /* connection 0 */
byte working = 0;
bit in_b = 0, in_v, conn_b = 0; /* stores on their way; conn's with the release of right[0] behind it */

active proctype flush_engine() {
end: do
    :: in_b -> d_step { in = in_v; in_b = 0 }
    od
}

active proctype flush_io() {
end: do
    :: conn_b == 1 && conn == 0 -> conn = 1
    :: conn_b == 1 && conn == 1 -> d_step { right[0] = 0; conn_b = 0 }
    od
}

active proctype engine() {
    byte c, rounds = 0;
    do
    :: rounds == 2 -> break
    :: else ->
        rounds++;
        (in_b == 0);
        d_step { in_v = 1; in_b = 1 }
#if (FENCE & 1)
        (in_b == 0);
#endif
again:
        c = conn;
        assert(!(c == 0 && freed));
        if
        :: atomic { right[c] == 0 -> right[c] = 1 }
            if
            :: RECHECK && conn != c -> right[c] = 0; goto again
            :: else -> skip
            fi;
            working++;
            assert(working == 1 && !(c == 0 && freed));
            working--;
            right[c] = 0
        :: atomic { right[c] == 1 -> skip } /* it never waits: the emit thread gets the event */
        fi;
        (in_b == 0);
        d_step { in_v = 0; in_b = 1 }
    od
}

active proctype io() {
    atomic { right[0] == 0 -> right[0] = 1 }
    conn_b = 1;
#if (FENCE & 2)
    (conn_b == 0);
#endif
    atomic { right[1] == 0 -> right[1] = 1 }
    working++;
    assert(working == 1);
    working--;
    right[1] = 0;
    (in == 0);
    freed = 1
}
