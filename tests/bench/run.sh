#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh BUILD_DIR: every bench program in turn; each prints `NAME figure … bar … holds|misses`.
set -u
O=$1
cd "$(dirname "$0")/../.." || exit 2
export GLMD_BUILD=$O
fail=0 n=0
for b in decode prefill ttft publish; do
    p="$O/bench/$b"
    if [ ! -x "$p" ]; then
        echo "$b: $p was not built" >&2
        fail=1
        continue
    fi
    out=$("$p")
    rc=$?
    echo "$out"
    # a bench that prints no verdict has measured nothing
    echo "$out" | grep -qE '^[a-z0-9-]+ .* bar .* (holds|misses)$' || { echo "$b: no verdict" >&2; fail=1; }
    [ $rc -eq 0 ] || fail=1
    n=$((n + 1))
done
[ $fail -eq 0 ] && [ $n -gt 0 ]
