/* SPDX-License-Identifier: MIT */
/* cuda_prod_exl3.cu: products with EXL3 of four bits and fewer, and the choice among all. */
#include "cuda_prod_exl3.cuh"

PROD_EXL3(1)
PROD_EXL3(2)
PROD_EXL3(3)
PROD_EXL3(4)

/* All jobs of a launch have the same number of bits, and the same rule. */
cudaError_t prod_exl3(const struct prod_args &a, uint32_t blocks, int nb, int t, cudaStream_t s) {
    static prod_exl3_fn *const by_bits[9] = {NULL,        prod_exl3_1, prod_exl3_2, prod_exl3_3, prod_exl3_4,
                                             prod_exl3_5, prod_exl3_6, prod_exl3_7, prod_exl3_8};
    return t == 1 ? by_bits[a.job[0].bits](a, blocks, nb, a.job[0].mul1, s) : cudaErrorInvalidValue;
}
