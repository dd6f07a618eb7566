#!/bin/bash
# SPDX-License-Identifier: MIT
# layers.sh BUILD_DIR [TABLE]: derives which room includes which from the dependency files and compares it with
# the checked-in table; then checks which symbols objects may ask of other rooms.
set -u
O=$1
table=${2:-tests/layers.txt}
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
# the CUDA backend is there in builds that ask for it; it calls CUDA, or what stands in for it
cuda=
if [ -e "$O/lib/kernels_cuda.a" ]; then
    cuda=-Wl,--defsym=kern_cuda_backend=0
else
    want=$(grep -v '^kernels/cuda ' <<<"$want")
fi
if ! d=$(diff <(echo "$want") <(echo "$edges")); then
    echo "layers: the include graph differs from $table (< table, > sources):"
    echo "$d" | grep '^[<>]'
    fail=1
fi

# kernels/ may ask libc and libm only: everything else would be an undefined symbol in this link
undefined() { nm -u "$@" 2>/dev/null | awk 'NF == 2 && $1 ~ /^[Uw]$/ { sub(/@.*/, "", $2); print $2 }' | sort -u; }
kernels=()
for a in "$O"/lib/kernels*.a; do
    [ "$a" = "$O/lib/kernels_cuda.a" ] || kernels+=("$a")
done
# may be two words: a compiler and what caches it
read -ra cc <<<"${CC:-gcc}"
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
if ! out=$("${cc[@]}" -shared -pthread -o "$tmp" -Wl,-z,defs $cuda -Wl,--whole-archive "${kernels[@]}" -Wl,--no-whole-archive -lm 2>&1); then
    echo "layers: kernels/ may use libc, libm and itself only:"
    echo "$out" | grep -o 'undefined reference to .*' | sort -u
    fail=1
fi
bad=$(undefined "${kernels[@]}" | grep -xE 'malloc|calloc|realloc|free|posix_memalign|aligned_alloc|fopen|open|printf|fprintf|puts|syslog|socket|recv|send' | tr '\n' ' ')
if [ -n "$bad" ]; then
    echo "layers: kernels/ may not allocate, log or open; it calls: $bad"
    fail=1
fi

# pure functions on descriptions may be called where the descriptions are known
kern_calls() { undefined "$1" | grep -E '^kern_' | grep -vE '^kern_(part|store|format)_' | tr '\n' ' '; }
bad=$(kern_calls "$O/lib/daemon_model.a")
if [ -n "$bad" ]; then
    echo "layers: daemon/model uses kern.h for descriptions only (kern_part_, kern_store_, kern_format_); it calls: $bad"
    fail=1
fi
bad=$(undefined "$O/lib/daemon_mem.a" | grep -E '^kern_' |
    grep -vE '^kern_(query|open_error|mem_alloc|mem_free|pack|pack_done|last_error)$' | tr '\n' ' ')
if [ -n "$bad" ]; then
    echo "layers: daemon/mem uses kern.h for allocation and packing only; it calls: $bad"
    fail=1
fi
for lib in base loop conn emit prep text sched cache spill; do
    bad=$(undefined "$O/lib/daemon_$lib.a" | grep -E '^kern_' | tr '\n' ' ')
    if [ -n "$bad" ]; then
        echo "layers: only daemon/engine computes; daemon/$lib calls: $bad"
        fail=1
    fi
done
for o in "$O"/obj/daemon/main/*.o "$O"/obj/daemon/tool/*.o; do
    bad=$(kern_calls "$o")
    if [ -n "$bad" ]; then
        echo "layers: only daemon/engine computes; $o calls: $bad"
        fail=1
    fi
done
[ $fail -eq 0 ] && echo "layers: $(echo "$edges" | wc -l) edges as in $table"
exit $fail
