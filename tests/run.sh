#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh BUILD_DIR [address|thread]: runs every unit program and every system script, one line each, two at
# a time, and closes with one line of totals. Logs stay in BUILD_DIR/log/.
set -u
O=$1
SAN=${2:-}
cd "$(dirname "$0")/.." || exit 2
mkdir -p "$O/log"
rm -f "$O"/log/*.log "$O"/log/*.result

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
export GLMD_BUILD=$O GLMD_SAN=$SAN
# instrumented programs are several times slower: so are Check's timeouts, and the one of the whole program
[ -z "$SAN" ] || export CK_TIMEOUT_MULTIPLIER=5
export TEST_TIMEOUT=${TEST_TIMEOUT:-$([ -z "$SAN" ] && echo 900 || echo 3600)}

one() {
    local name=$1 start end rc n
    shift
    start=$(date +%s.%N)
    timeout --kill-after=10 "$TEST_TIMEOUT" "$@" >"$O/log/$name.log" 2>&1 </dev/null
    rc=$?
    end=$(date +%s.%N)
    n=$(sed -n 's/.*Checks: \([0-9]*\), Failures.*/\1/p' "$O/log/$name.log" | tail -1)
    # a Check program that ran nothing proves nothing
    if [ "$rc" -eq 0 ] && [ "${n:-1}" = 0 ]; then rc=99; fi
    echo "$rc ${n:-1}" >"$O/log/$name.result"
    printf '%-6s %-28s %6.1f s  %s\n' "$([ $rc -eq 0 ] && echo ok || echo "FAIL")" "$name" \
        "$(echo "$end - $start" | bc -l 2>/dev/null || awk "BEGIN{print $end-$start}")" "${n:+$n checks}"
    if [ $rc -ne 0 ]; then
        echo "       exit $rc; last lines of $O/log/$name.log:"
        tail -n 15 "$O/log/$name.log" | sed 's/^/       | /'
    fi
}
export -f one
export O

list() {
    local f
    for f in "$O"/unit/*; do
        [ -x "$f" ] && [ -f "$f" ] || continue
        printf '%s\t%s\n' "$(basename "$f")" "$f"
    done
    # the sources are the same under a sanitizer
    if [ -z "$SAN" ]; then
        printf 'sys_layers\ttests/layers.sh\t%s\n' "$O"
        printf 'sys_lint\ttests/lint.sh\n'
    fi
    for f in tests/system/*.sh tests/spin/run.sh; do
        [ -e "$f" ] || continue
        case $(basename "$f") in
        demo.sh | lib.sh) continue ;;
        esac
        # protocol models and documentation do not change under a sanitizer
        if [ -n "$SAN" ] && grep -q '^# sanitizer: skip' "$f"; then continue; fi
        n=$(basename "$f" .sh)
        [ "$n" = run ] && n=spin
        printf '%s\t%s\t%s\n' "sys_$n" "$f" "$O"
    done
}

list >"$O/log/list"
expected=$(wc -l <"$O/log/list")
tr '\t' '\n' <"$O/log/list" >/dev/null
# longest first keeps both cores busy to the end
while IFS=$'\t' read -r name prog arg; do
    printf '%s\0%s\0%s\0' "$name" "$prog" "${arg:-}"
done <"$O/log/list" | xargs -0 -n 3 -P "${TEST_JOBS:-2}" bash -c 'if [ -n "$3" ]; then one "$1" "$2" "$3"; else one "$1" "$2"; fi' _

passed=0 failed=0 ran=0
for r in "$O"/log/*.result; do
    [ -e "$r" ] || continue
    read -r rc n <"$r"
    ran=$((ran + 1))
    if [ "$rc" -eq 0 ]; then passed=$((passed + n)); else failed=$((failed + 1)); fi
done
if [ "$ran" -ne "$expected" ]; then
    echo "run.sh: $expected programs listed, $ran reported" >&2
    failed=$((failed + 1))
fi
left=$(pgrep -f "$PWD/$O/(test/)?glmd " || true)
if [ -n "$left" ]; then
    echo "run.sh: processes left behind: $left" >&2
    failed=$((failed + 1))
fi
echo
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
