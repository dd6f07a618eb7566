/* SPDX-License-Identifier: MIT */
/* CRC-32C: with the processor's instruction where there is one, else eight tables, made on first use. */
#include "crc32c.h"

#include <pthread.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#define POLY 0x82f63b78u /* reflected */

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t (*chosen)(uint32_t crc, const uint8_t *p, uint64_t n);

static uint32_t plain(uint32_t crc, const uint8_t *p, uint64_t n) {
    while (n >= 8) {
        uint64_t w;

        memcpy(&w, p, sizeof w);
        w ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= table[7 - i][w >> (8 * i) & 0xff];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t hardware(uint32_t crc, const uint8_t *p, uint64_t n) {
    uint64_t c = crc;

    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;

        memcpy(&w, p, sizeof w);
        c = __builtin_ia32_crc32di(c, w);
    }
    for (crc = (uint32_t)c; n; n--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#define HAS_HARDWARE() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__)
__attribute__((target("+crc"))) static uint32_t hardware(uint32_t crc, const uint8_t *p, uint64_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;

        memcpy(&w, p, sizeof w);
        crc = __builtin_aarch64_crc32cx(crc, w);
    }
    for (; n; n--)
        crc = __builtin_aarch64_crc32cb(crc, *p++);
    return crc;
}
#define HAS_HARDWARE() ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0)
#else
#define hardware       plain
#define HAS_HARDWARE() 0
#endif

static void choose(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ (c & 1 ? POLY : 0);
        table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 0xff];
    chosen = HAS_HARDWARE() ? hardware : plain;
}

uint32_t spill_crc32c(uint32_t crc, const void *p, uint64_t n) {
    pthread_once(&once, choose);
    return ~chosen(~crc, p, n);
}

uint32_t spill_crc32c_plain(uint32_t crc, const void *p, uint64_t n) {
    pthread_once(&once, choose);
    return ~plain(~crc, p, n);
}
