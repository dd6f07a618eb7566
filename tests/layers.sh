#!/bin/bash
# SPDX-License-Identifier: MIT
# layers.sh BUILD_DIR TABLE: derives which room includes which from the dependency files and compares it with
# the checked-in table; then checks which symbols objects may ask of other rooms.
set -u
O=$1
table=$2
cd "$(dirname "$0")/.." || exit 2
fail=0

edges=$(find "$O/obj" -name '*.d' ! -path "$O/obj/tests/*" -print0 | sort -z | xargs -0 cat |
    awk '
    function room(p,   n, a) {
        n = split(p, a, "/")
        if (a[1] == "daemon" || a[1] == "kernels" || a[1] == "client")
            return (n > 2) ? a[1] "/" a[2] : a[1]
        return a[1]
    }
    { sub(/\\$/, "") }
    /^[^ ].*\.o:/ { split($0, h, ":"); sub(/^[^:]*:/, "") ; cur = "" }
    {
        n = split($0, w, /[ \t]+/)
        for (i = 1; i <= n; i++) {
            f = w[i]
            if (f == "" || f ~ /^\// || f ~ /:$/ ) continue
            if (f ~ /\.c$/) { cur = room(f); continue }
            if (f ~ /\.h$/ && cur != "") { r = room(f); if (r != cur && r != "tests") print cur, r }
        }
    }' | sort -u)

want=$(grep -v '^#' "$table" | sed '/^$/d' | sort -u)
if ! d=$(diff <(echo "$want") <(echo "$edges")); then
    echo "layers: the include graph differs from $table (< table, > sources):"
    echo "$d" | grep '^[<>]'
    fail=1
fi

# symbols: libc, libm and each other only
undefined() { nm -u "$@" 2>/dev/null | awk 'NF == 2 && $1 ~ /^[Uw]$/ { sub(/@.*/, "", $2); print $2 }' | sort -u; }
defined() { nm --defined-only "$@" 2>/dev/null | awk 'NF == 3 && $2 ~ /[TDBRVWC]/ { print $3 }' | sort -u; }

kernels=$(ls "$O"/lib/kernels*.a)
# shellcheck disable=SC2086
bad=$(comm -23 <(undefined $kernels) <(defined $kernels) |
    grep -E '^(glmd_|glmw_|sched_|engine_|conn_|emit_|prep_|tok_|chat_|model_|mem_|log_|conf_|xerr_|malloc$|calloc$|realloc$|free$|fopen$|printf$|fprintf$|sd_|json_|io_uring)' || true)
if [ -n "$bad" ]; then
    echo "layers: kernels/ may use libc, libm and itself only, no allocation, no logging; found:" $bad
    fail=1
fi
kern_calls() { undefined "$1" | grep -E '^kern_' | tr '\n' ' '; }
bad=$(kern_calls "$O/lib/daemon_model.a")
if [ -n "$bad" ]; then
    echo "layers: daemon/model uses kern.h for descriptions only; it calls: $bad"
    fail=1
fi
bad=$(undefined "$O/lib/daemon_mem.a" | grep -E '^kern_' |
    grep -vE '^kern_(query|open_error|mem_alloc|mem_free|pack|pack_done|last_error)$' | tr '\n' ' ')
if [ -n "$bad" ]; then
    echo "layers: daemon/mem uses kern.h for allocation and packing only; it calls: $bad"
    fail=1
fi
for lib in base loop conn emit prep text sched; do
    bad=$(kern_calls "$O/lib/daemon_$lib.a")
    if [ -n "$bad" ]; then
        echo "layers: only daemon/engine computes; daemon/$lib calls: $bad"
        fail=1
    fi
done
# nothing that looks like a compute stage outside engine
[ $fail -eq 0 ] && echo "layers: $(echo "$edges" | wc -l) edges as in $table"
exit $fail
