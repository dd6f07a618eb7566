/* SPDX-License-Identifier: MIT */
/* libFuzzer target; the body is in tests/lib/ipctest.c and also runs in the unit test ipc_fuzz.
 * clang -g -O1 -fsanitize=fuzzer,address,undefined -std=c11 -D_GNU_SOURCE '-DFAULT(n)=0' -Iipc -Itests/lib \
 *     tests/fuzz/ipc_hello.c tests/lib/ipctest.c ipc/hello.c ipc/reqdec.c ipc/shm.c ipc/utf8chk.c */
#include "ipctest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return ipc_fuzz_hello(data, size);
}
