/* SPDX-License-Identifier: MIT */
/* cpu_body_panel.h: sixteen rows of a tensor as one panel, over vectors of bytes (vb). Runs on loader threads; touches
 * the panel it is given and nothing else. */
#ifndef GLMD_CPU_BODY_PANEL_H
#define GLMD_CPU_BODY_PANEL_H

/* One 16-byte lane of each of 16 rows becomes 256 bytes of the panel. An element's address has four bits of its row
 * above those of its place in the lane; each stage moves the highest bit to the lowest place, so that after four the
 * row lies below. With rows dealt as 0, 8, 1, 9, ... words hold rows i and i + 8: pair order. */
ALWAYS void panel_stages(vb v[16], const uint32_t unit) {
    vb t[16];
    for (int stage = 0; stage < 4; stage++) {
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {
            t[2 * i] = vb_zip_lo(v[i], v[i + 8], unit);
            t[2 * i + 1] = vb_zip_hi(v[i], v[i + 8], unit);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) v[i] = t[i];
    }
}

ALWAYS void panel_of(uint8_t *dst, const uint8_t *src, size_t stride, size_t bytes, const uint32_t unit,
                     const int pairs) {
    _Alignas(64) uint8_t rest[16][VB_BYTES], made[16 * VB_BYTES];
    vb v[16];
    size_t at = 0;
    for (; at + VB_BYTES <= bytes; at += VB_BYTES) {
        _Pragma("GCC unroll 16") for (size_t r = 0; r < 16; r++)
            v[pairs ? r % 8 * 2 + r / 8 : r] = vb_ld(src + r * stride + at);
        for (size_t r = 0; r < 16; r++)
            __builtin_prefetch(src + r * stride + at + 512, 0, 3);
        panel_stages(v, unit);
        for (int i = 0; i < 16; i += 4)
            vb_put(dst + at * 16 + 16 * i, v + i);
    }
    if (at == bytes)
        return;
    memset(rest, 0, sizeof(rest));
    for (size_t r = 0; r < 16; r++)
        memcpy(rest[pairs ? r % 8 * 2 + r / 8 : r], src + r * stride + at, bytes - at);
    for (size_t r = 0; r < 16; r++)
        v[r] = vb_ld(rest[r]);
    panel_stages(v, unit);
    for (int i = 0; i < 16; i += 4)
        vb_put(made + 16 * i, v + i);
    vb_fence();
    memcpy(dst + at * 16, made, (bytes - at) * 16);
}

static void body_panel(uint8_t *dst, const uint8_t *src, size_t stride, size_t bytes, uint32_t unit, int pairs) {
    if (pairs)
        panel_of(dst, src, stride, bytes, 2, FAULT(cpu_panel_natural) ? 0 : 1);
    else if (unit == 1)
        panel_of(dst, src, stride, bytes, 1, 0);
    else if (unit == 2)
        panel_of(dst, src, stride, bytes, 2, 0);
    else
        panel_of(dst, src, stride, bytes, 4, 0);
    vb_fence();
}

#endif
