#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh: the bench programs of a set in turn; --help says how it is called. Each prints
# `NAME figure … bar … holds|misses`, but for ipc_wake, whose figures are only to be read.
set -u
usage() {
    cat <<'EOF'
usage: tests/bench/run.sh BUILD_DIR model|ipc|sched|formats
       (make bench, make bench-ipc, make bench-sched, make bench-formats)

Measures the set's programs in BUILD_DIR/bench one after another and prints their notes (# ...) and verdicts as they
come. Nothing else should run meanwhile; the programs go before others of this machine where that is allowed.

BENCH_HANDICAP=1  runs BUILD_DIR-fault, the mutation build, with what is measured slowed down or broken on purpose:
                  every bar must miss

exit status: 0 every bar holds; 1 one misses, or a program failed; 2 wrong usage
             BENCH_HANDICAP=1: 1 every bar misses, as it must; 3 one holds all the same, so it shows nothing
EOF
}
case ${1:-} in -h | --help) usage; exit 0 ;; esac
[ $# -eq 2 ] || { usage >&2; exit 2; }
O=$1
case $2 in
    model) set="decode prefill ttft publish" ;;
    sched) set=$(cd "$(dirname "$0")" && for p in sched_*.c; do echo "${p%.c}"; done) ;;
    formats) set="formats_load formats_gemv" ;;
    ipc) set="ipc_ring ipc_handover ipc_bells ipc_idle ipc_sse ipc_wake" ;;
    *) usage >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.." || exit 2
export GLMD_BUILD=$O
handicap=${BENCH_HANDICAP:-0}
fail=0 n=0 held=0 all=$(echo "$set" | wc -w)
out=$(mktemp) || exit 1
before=$(sed -n 's/.* nice //p' /proc/self/autogroup 2>/dev/null)
put_back() {
    rm -f "$out"
    [ -z "$before" ] || { echo "$before" >/proc/self/autogroup; } 2>/dev/null
}
trap put_back EXIT
# Where sessions are scheduled as groups, the niceness of a program counts in its own group alone.
[ -z "$before" ] || { echo -5 >/proc/self/autogroup; } 2>/dev/null
# handicaps are planted faults, and those are only in the mutation build
[ "$handicap" = 1 ] && bin="$O-fault" || bin=$O
echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, Linux $(uname -r)"
for b in $set; do
    n=$((n + 1))
    echo "# $b, $n of $all, $SECONDS s so far"
    p="$bin/bench/$b"
    if [ ! -x "$p" ]; then
        echo "$b: $p was not built" >&2
        fail=1
        continue
    fi
    "$p" | tee "$out"
    rc=${PIPESTATUS[0]}
    # a bench that prints no verdict has measured nothing
    case $b in ipc_wake) line='^wake .* p50 .* p99 ' ;; *) line='^[a-z0-9-]+ .* bar .* (holds|misses)$' ;; esac
    grep -qE "$line" "$out" || { echo "$b: no verdict" >&2; fail=1; }
    [ "$rc" -eq 0 ] || fail=1
    [ "$handicap" != 1 ] || { grep -E "$line" "$out" | grep ' holds$' && held=1; }
    [ "$handicap" != 1 ] || [ "$rc" -le 1 ] || held=1
done
echo "# $SECONDS s"
if [ "$handicap" = 1 ] && [ $held -ne 0 ]; then
    echo "a bar holds although what it measures is broken, or a program failed" >&2
    exit 3
fi
[ $fail -eq 0 ] && [ "$n" -gt 0 ]
