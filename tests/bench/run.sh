#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh BUILD_DIR model|ipc|sched: the bench programs of a set in turn; each prints `NAME figure … bar … holds|misses`,
# but for ipc_wake, whose figures are only to be read.
set -u
O=$1
case $2 in
    model) set="decode prefill ttft publish" ;;
    sched) set=$(cd "$(dirname "$0")" && for p in sched_*.c; do echo "${p%.c}"; done) ;;
    ipc) set="ipc_ring ipc_handover ipc_bells ipc_idle ipc_sse ipc_wake" ;;
    *) exit 2 ;;
esac
cd "$(dirname "$0")/../.." || exit 2
export GLMD_BUILD=$O
fail=0 n=0
# handicaps are planted faults, and those are only in the mutation build
[ "${BENCH_HANDICAP:-0}" = 1 ] && bin="$O-fault" || bin=$O
echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, Linux $(uname -r)"
for b in $set; do
    p="$bin/bench/$b"
    if [ ! -x "$p" ]; then
        echo "$b: $p was not built" >&2
        fail=1
        continue
    fi
    out=$("$p")
    rc=$?
    echo "$out"
    # a bench that prints no verdict has measured nothing
    case $b in ipc_wake) line='^wake .* p50 .* p99 ' ;; *) line='^[a-z0-9-]+ .* bar .* (holds|misses)$' ;; esac
    echo "$out" | grep -qE "$line" || { echo "$b: no verdict" >&2; fail=1; }
    [ $rc -eq 0 ] || fail=1
    n=$((n + 1))
done
[ $fail -eq 0 ] && [ $n -gt 0 ]
