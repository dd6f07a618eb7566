/* SPDX-License-Identifier: MIT */
/* The end of a soak in words, as JSON and as a picture. Runs in the driver after the daemons have ended. */
#include <errno.h>
#include <stdio.h>

#include "soak.h"

enum { WIDTH = 900, HEIGHT = 220, LEFT = 70, TOP = 30 };

void soak_text(const struct soak_track *t, const struct soak_counts *c) {
    const struct soak_sample *last = &t->s[t->n - 1];
    uint64_t low = UINT64_MAX, high = 0;

    for (uint32_t i = t->warm; i < t->n; i++) {
        low = t->s[i].anon_kb < low ? t->s[i].anon_kb : low;
        high = t->s[i].anon_kb > high ? t->s[i].anon_kb : high;
    }
    printf("%s: %llu requests accepted, %llu ended; clients:", t->loop, (unsigned long long)last->accepted,
           (unsigned long long)last->ended);
    for (int i = 0; i < ACT_COUNT; i++)
        printf(" %llu %s", (unsigned long long)c->clients[i], soak_act_names[i]);
    printf("; they saw %llu ends and %llu tokens; %llu times all places were taken\n",
           (unsigned long long)c->ended, (unsigned long long)c->tokens, (unsigned long long)c->refused);
    printf("%s: private memory %llu to %llu KiB after warming up (bound %llu), %u descriptors and %u threads "
           "throughout\n",
           t->loop, (unsigned long long)(high ? low : 0), (unsigned long long)high,
           (unsigned long long)t->bound_kb, last->fds, last->threads);
}

void soak_json(const struct soak_track *t, const struct soak_counts *const *c, uint32_t n, double minutes,
               bool ok) {
    printf("{\"ok\":%s,\"minutes\":%.2f,\"daemons\":[", ok ? "true" : "false", minutes);
    for (uint32_t k = 0; k < n; k++) {
        const struct soak_sample *last = &t[k].s[t[k].n - 1];

        printf("%s{\"loop\":\"%s\",\"accepted\":%llu,\"ended\":%llu,\"bound_kb\":%llu,\"tokens\":%llu,"
               "\"refused\":%llu,"
               "\"clients\":{",
               k ? "," : "", t[k].loop, (unsigned long long)last->accepted, (unsigned long long)last->ended,
               (unsigned long long)t[k].bound_kb, (unsigned long long)c[k]->tokens,
               (unsigned long long)c[k]->refused);
        for (int i = 0; i < ACT_COUNT; i++)
            printf("%s\"%s\":%llu", i ? "," : "", soak_act_names[i], (unsigned long long)c[k]->clients[i]);
        printf("},\"samples\":[");
        for (uint32_t i = 0; i < t[k].n; i++) {
            const struct soak_sample *s = &t[k].s[i];

            printf(
                "%s{\"minute\":%.2f,\"private_kb\":%llu,\"shared_kb\":%llu,\"descriptors\":%u,\"threads\":%u,"
                "\"accepted\":%llu}",
                i ? "," : "", s->minute, (unsigned long long)s->anon_kb, (unsigned long long)s->shmem_kb,
                s->fds, s->threads, (unsigned long long)s->accepted);
        }
        printf("]}");
    }
    printf("]}\n");
}

static double value(const struct soak_sample *s, int what) {
    return what ? s->fds : (double)s->anon_kb;
}

/* One diagram: private memory (0) or descriptors (1), a line for each daemon, from zero. */
static void diagram(FILE *o, const struct soak_track *t, uint32_t n, int what, int y0) {
    static const char *const colours[] = {"#0b62a4", "#c0392b"};
    double top = 1, minutes = 0.01;

    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < t[k].n; i++) {
            top = value(&t[k].s[i], what) > top ? value(&t[k].s[i], what) : top;
            minutes = t[k].s[i].minute > minutes ? t[k].s[i].minute : minutes;
        }
    top *= 1.15;
    fprintf(o, "<text x=\"%d\" y=\"%d\">%s</text>\n", LEFT, y0 - 8,
            what ? "descriptors and children" : "private memory, KiB");
    fprintf(o, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#999\"/>\n", LEFT,
            y0, WIDTH - LEFT - 20, HEIGHT - TOP - 20);
    fprintf(o, "<text x=\"4\" y=\"%d\">%.0f</text><text x=\"4\" y=\"%d\">0</text>\n", y0 + 10, top,
            y0 + HEIGHT - TOP - 20);
    fprintf(o, "<text x=\"%d\" y=\"%d\">%.1f min</text>\n", WIDTH - 80, y0 + HEIGHT - TOP - 6, minutes);
    for (uint32_t k = 0; k < n; k++) {
        fprintf(o, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colours[k % 2]);
        for (uint32_t i = 0; i < t[k].n; i++)
            fprintf(o, "%.1f,%.1f ", LEFT + t[k].s[i].minute / minutes * (WIDTH - LEFT - 20),
                    y0 + (1 - value(&t[k].s[i], what) / top) * (HEIGHT - TOP - 20));
        fprintf(o, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", LEFT + 220 + (int)k * 60, y0 - 8,
                colours[k % 2], t[k].loop);
    }
}

int soak_svg(const char *path, const struct soak_track *t, uint32_t n) {
    FILE *o = fopen(path, "we");

    if (!o)
        return -errno;
    fprintf(o,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, 2 * HEIGHT);
    diagram(o, t, n, 0, TOP);
    diagram(o, t, n, 1, HEIGHT + TOP);
    fputs("</svg>\n", o);
    return fclose(o) == 0 ? 0 : -errno;
}
