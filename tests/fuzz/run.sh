#!/bin/bash
# SPDX-License-Identifier: MIT
# run.sh FUZZER SECONDS [TARGET...]: every fuzz target (or those named) for so many seconds from its corpus; one
# line each: runs, edges covered by the corpus and at the end, crashes. First each line of faults.txt: the fault
# must be found. A crashing input stays in build/fuzz/; exit 1 when there is one.
#
# Shrink a crash with: FUZZ_TARGET=NAME build-fuzzer/fuzz -minimize_crash=1 -runs=20000 FILE
# Then fix, and put the file into tests/fuzz/corpus/NAME/ under a name that says what was wrong.
set -u
fuzzer=$(realpath "$1") seconds=$2
shift 2
cd "$(dirname "$0")/../.." || exit 2
out=build/fuzz
mkdir -p "$out"
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=0:allocator_may_return_null=1
tmp=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "$out")" glmd-fuzz-XXXXXX)
trap 'rm -rf "$tmp"' EXIT
export TMPDIR=$tmp
unset GLMD_FAULT FUZZ_TARGET
fail=0

declare -A max
while read -r name bytes; do max[$name]=$bytes; done < <(FUZZ_TARGET=list "$fuzzer")
[ ${#max[@]} -ge 10 ] || { echo "fuzz: $fuzzer lists ${#max[@]} targets"; exit 1; }
if [ $# -eq 0 ]; then mapfile -t targets < <(FUZZ_TARGET=list "$fuzzer" | cut -d' ' -f1); else targets=("$@"); fi

# fuzz TARGET SECONDS PREFIX LOG: new inputs go to a directory of their own, never into the corpus.
fuzz() {
    local t=$1 dict=()
    rm -rf "${tmp:?}/work-$t"
    mkdir -p "$tmp/work-$t"
    [ -e "tests/fuzz/dict/$t.dict" ] && dict=(-dict="tests/fuzz/dict/$t.dict")
    FUZZ_TARGET=$t "$fuzzer" -max_len="${max[$t]}" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -max_total_time="$2" -artifact_prefix="$3" "${dict[@]}" "$tmp/work-$t" "tests/fuzz/corpus/$t" >"$4" 2>&1
}

while read -r fault t; do
    case $fault in '' | \#*) continue ;; esac
    [[ " ${targets[*]} " == *" $t "* ]] || continue
    GLMD_FAULT=$fault fuzz "$t" "$seconds" "$tmp/proof-" "$tmp/proof.log"
    rc=$?
    what=$(grep -m 1 -oE 'AddressSanitizer: [a-z-]+|runtime error: .*|[a-z_]+\.[ch]:[0-9]+: .*|libFuzzer: [a-z ]+' "$tmp/proof.log")
    if [ $rc -eq 0 ] || [ -z "$what" ]; then
        echo "fuzz: $t did not find the planted fault $fault in $seconds s"
        fail=1
    else
        echo "proof  $t finds $fault: $what"
    fi
done <tests/fuzz/faults.txt

for t in "${targets[@]}"; do
    [ -n "${max[$t]:-}" ] || { echo "fuzz: no target $t (there are: ${!max[*]})"; exit 2; }
    before=$(find "$out" -name "$t-*" | wc -l)
    fuzz "$t" "$seconds" "$out/$t-" "$out/$t.log"
    rc=$?
    crashes=$(($(find "$out" -name "$t-*" | wc -l) - before))
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$t.log")
    from=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$out/$t.log" | tail -1)
    to=$(sed -n 's/^#.* cov: \([0-9]*\) .*/\1/p' "$out/$t.log" | tail -1)
    printf '%-6s %-20s %9s runs  %5s edges, %4s new  %s crashes\n' "$([ $rc -eq 0 ] && echo ok || echo FAIL)" \
        "$t" "${runs:-?}" "${to:-?}" "$((${to:-0} - ${from:-0}))" "$crashes"
    if [ $rc -ne 0 ]; then
        fail=1
        grep -m 8 -E 'ERROR|SUMMARY|^[^ ]*\.[ch]:[0-9]+:|Test unit written' "$out/$t.log" | sed 's/^/       | /'
    fi
done
exit $fail
