#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh BUILD_DIR: for each line of list.txt (FAULT PROGRAM [ARG...]) the program must pass without the fault
# and fail with it. One line a fault; exit 1 when one survives. A line that begins with + names a switch that is
# no fault: the program must pass with it too.
set -u
here=$(cd "$(dirname "$0")" && pwd)
O=$1
cd "$here/../.." || exit 2
export GLMD_BUILD=$O
unset GLMD_FAULT
fail=0 caught=0
declare -A clean
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

run() { timeout --kill-after=5 "${MUTATE_TIMEOUT:-300}" "$@" >"$log/out" 2>&1 </dev/null; }

while read -r fault prog args; do
    case $fault in '' | \#*) continue ;; esac
    prog=${prog//@O@/$O} args=${args//@O@/$O}
    # programs of a device are in builds for one only
    case ${prog##*/} in cuda_*) [ -x "$prog" ] || continue ;; esac
    harmless=${fault:0:1}
    fault=${fault#+}
    grep -rqE "FAULT\($fault\)" --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' ipc kernels daemon client tests/lib ||
        { echo "gone     $fault: no such switch in the sources"; fail=1; continue; }
    key="$prog $args"
    if [ -z "${clean[$key]:-}" ]; then
        # shellcheck disable=SC2086
        if run "$prog" $args; then clean[$key]=yes; else
            clean[$key]=no
            tail -n 5 "$log/out"
        fi
    fi
    if [ "${clean[$key]}" = no ]; then
        echo "broken   $fault: $key fails without any fault"
        fail=1
        continue
    fi
    if [ "$harmless" = + ]; then
        # shellcheck disable=SC2086
        if GLMD_FAULT=$fault run "$prog" $args; then echo "passed   $key with $fault"; else
            echo "FAILED   $key with $fault, which is no fault"
            tail -n 5 "$log/out"
            fail=1
        fi
        continue
    fi
    # shellcheck disable=SC2086
    if GLMD_FAULT=$fault run "$prog" $args; then
        echo "SURVIVED $fault: $key passed"
        fail=1
    else
        by=$(grep -oE '^[^ ]+:[0-9]+:[EF]:[^:]*:[^:]*' "$log/out" | head -n 1 | awk -F: '{ print $5 }')
        echo "caught   $fault by $key${by:+ ($by)}"
        caught=$((caught + 1))
    fi
done <"$here/list.txt"
echo "$caught faults caught"
[ $fail -eq 0 ] && [ $caught -ge 12 ]
