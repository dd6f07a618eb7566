/* SPDX-License-Identifier: MIT */
/* cuda_prod_exl3_more.cu: products with EXL3 of more than four bits. */
#include "cuda_prod_exl3.cuh"

PROD_EXL3(5)
PROD_EXL3(6)
PROD_EXL3(7)
PROD_EXL3(8)
