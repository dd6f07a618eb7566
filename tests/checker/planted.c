/* SPDX-License-Identifier: MIT */
/* Ways of reading the peer's memory past its one fetch, one per value of PLANT. Never linked: each must be
 * refused by tests/system/checker.sh, and PLANT 0, the allowed way, must pass. */
#include <string.h>

#include "ringops.h"

uint32_t planted(const struct glmw_u GLMW_FOREIGN *u, const uint8_t GLMW_FOREIGN *slots, uint8_t *own);

uint32_t planted(const struct glmw_u GLMW_FOREIGN *u, const uint8_t GLMW_FOREIGN *slots, uint8_t *own) {
#if PLANT == 0
    glmw_copy_slot(own, slots + GLMW_SLOT_BYTES);
    return glmw_fetch32(&u->sq_tail);
#elif PLANT == 1 /* a word */
    return u->sq_tail + own[0] + (slots != NULL);
#elif PLANT == 2 /* a byte of an array */
    return slots[3] + own[0] + (u != NULL);
#elif PLANT == 3 /* a copy that the compiler may repeat */
    memcpy(own, slots, GLMW_SLOT_BYTES);
    return u != NULL;
#elif PLANT == 4 /* a comparison in place */
    return (uint32_t)memcmp(u->pad0, own, 4) + (slots != NULL);
#elif PLANT == 5 /* the type lost on the way */
    const uint32_t *word = &u->sq_tail;
    return *word + own[0] + (slots != NULL);
#elif PLANT == 6 /* cast away */
    return *(const uint32_t *)&u->sq_tail + own[0] + (slots != NULL);
#elif PLANT == 7 /* cast away by way of a number */
    return *(const uint32_t *)(uintptr_t)slots + own[0] + (u != NULL);
#elif PLANT == 8 /* a load of its own */
    return __atomic_load_n(&u->sq_tail, __ATOMIC_RELAXED) + own[0] + (slots != NULL);
#elif PLANT == 9 /* the whole block */
    struct glmw_u all = *u;
    return all.sq_tail + own[0] + (slots != NULL);
#else
#error "no such plant"
#endif
}
