#!/bin/bash
# SPDX-License-Identifier: MIT
# sanitizer: skip
# abi.sh BUILD_DIR [update]: libglmd.so.1 against tests/abi/libglmd.abi, which says what programs built so far
# rely on. Additions are reported; anything else fails and names the function. Then variants of the library with
# one change each prove that the comparison sees it. `make abi-update` writes the file anew, after a release or
# after additions.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 2
lib=${1:-build}/libglmd.so.1 known=tests/abi/libglmd.abi
for t in abidw abidiff; do
    command -v $t >/dev/null || { echo "abi: no $t: 'make deps' installs it"; exit 1; }
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# No path, no place and no machine goes into the file; only what client/glmd.h shows does.
dump() { # LIBRARY FILE [HEADER]
    abidw --header-file "${3:-client/glmd.h}" --drop-private-types --no-comp-dir-path --no-corpus-path --no-show-locs \
        --exported-interfaces-only --no-architecture --no-elf-needed --short-locs --type-id-style hash --out-file "$2" "$1"
}
# What differs between the file and a library, without what every old program survives: more functions, more
# enumerators, and members behind the end of a struct that begins with its size (the library looks at the size
# before it touches them). Prints the rest; 0 when there is none.
diff_of() { # LIBRARY HEADER
    dump "$1" "$tmp/other.abi" "$2" || return 2
    abidiff --no-added-syms --no-show-locs "$known" "$tmp/other.abi" >"$tmp/diff"
    case $? in 0) return 0 ;; 4) ;; *) cat "$tmp/diff"; return 1 ;; esac
    awk -v sized="$(sed -n '/^struct glmd_/{s/struct \(glmd_[a-z]*\) {/\1/;h;n;/uint32_t size;/{g;p}}' client/glmd.h | xargs)" '
        BEGIN { n = split(sized, a); for (i = 1; i <= n; i++) ok[a[i]] = 1; bad = 0 }
        /^$|changes summary|with some indirect sub-type change:/ { next }
        /^  \[C\]/ { function_line = $0; next }
        /(parameter [0-9]+ of type|return type|of pointed to type).*(has sub-type changes|changed):$/ { next }
        /in pointed to type .const glmd_[a-z]*.*:$/ { next }
        /in (pointed to|unqualified underlying) type .struct glmd_[a-z]*.*:$/ { name = $0; sub(/.*struct /, "", name); sub(/[^a-z_].*/, "", name); next }
        /^ *type size changed from [0-9]+ to [0-9]+/ && (name in ok) { end = $5; if ($7 > $5) next }
        /^ *[0-9]+ data member insertions?:$/ && (name in ok) { next }
        /at offset [0-9]+ \(in bits\)/ && (name in ok) { o = $0; sub(/.*at offset /, "", o); if (o + 0 >= end + 0) next }
        { if (function_line) { print function_line; function_line = "" } print; bad = 1 }
        END { exit bad }' "$tmp/diff"
}

# Enumerators and macros never reach the library: their values are a list of their own.
constants() {
    sed -nE '/GLMD_API|GLMD_VERSION_/d; s/^#define (GLMD_[A-Z0-9_]+) +([^ ]+).*/\1 \2/p' "$1"
    grep -oE '\bGLMD_[A-Z0-9_]+ = -?[0-9][0-9a-zA-Z]*' "$1" | sed 's/ = / /'
}
lost_constants() { constants "$1" | sort -u | comm -23 <(grep -v '^#' tests/abi/constants.txt) -; }

# Each declaration of the header is compared, so the library needs its debugging information.
readelf -S "$lib" | grep -q '\.debug_info' || { echo "abi: $lib was built without -g"; exit 1; }
dump "$lib" "$tmp/now.abi" || exit 1
for leak in "$PWD" clconn.h glmw_ cl_arena; do
    ! grep -qF "$leak" "$tmp/now.abi" || { echo "abi: the description holds $leak, which is not public"; exit 1; }
done
if [ "${2:-}" = update ]; then
    { head -n 1 "$tmp/now.abi"; echo "  <!-- SPDX-License-Identifier: MIT -->"; tail -n +2 "$tmp/now.abi"; } >"$known"
    { echo "# SPDX-License-Identifier: MIT"; constants client/glmd.h | sort -u; } >tests/abi/constants.txt
    echo "abi: $known has $(grep -c "<elf-symbol name='glmd_" "$known") symbols"
    exit 0
fi

fail=0
if ! diff_of "$lib" client/glmd.h >"$tmp/out"; then
    echo "abi: programs built against the library of $known break:"
    cat "$tmp/out"
    fail=1
fi
lost=$(lost_constants client/glmd.h)
if [ -n "$lost" ]; then
    echo "abi: constants of client/glmd.h that programs were built with are gone or have another value:"
    echo "$lost"
    fail=1
fi
abidiff --no-show-locs "$known" "$tmp/now.abi" | grep -E "^ *\[A\]" | sed 's/^ */abi: new since the file: /'

# variant NAME SED_FOR_HEADER SED_FOR_MAP [FILE SED...]: a library with that change.
variant() {
    local d=$tmp/$1
    mkdir -p "$d"
    cp client/*.c client/*.h "$d/"
    sed -E -e "$2" client/glmd.h >"$d/glmd.h"
    sed -E -e "$3" client/libglmd.map >"$d/map"
    [ $# -lt 4 ] || sed -i -E -e "$5" "$d/$4"
    if cmp -s "$d/glmd.h" client/glmd.h && cmp -s "$d/map" client/libglmd.map; then
        echo "abi: the variant $1 changes nothing"
        return 1
    fi
    gcc -std=c11 -D_GNU_SOURCE '-DGLMD_VERSION="0"' '-DFAULT(name)=0' -g -O0 -w -fPIC -fvisibility=hidden -pthread \
        -shared -Wl,-soname,libglmd.so.1 -Wl,--version-script="$d/map" -I"$d" -Iipc -o "$d/lib.so" "$d"/*.c
}
breaks() { # NAME FUNCTION SED_FOR_HEADER SED_FOR_MAP [FILE SED]: must fail and name the function
    local name=$1 function=$2
    shift 2
    variant "$name" "$@" || { fail=1; return; }
    if diff_of "$tmp/$name/lib.so" "$tmp/$name/glmd.h" >"$tmp/out"; then
        echo "abi: the planted change '$name' is not seen"
        fail=1
    elif ! grep -q "$function" "$tmp/out"; then
        echo "abi: the planted change '$name' does not name $function:"
        cat "$tmp/out"
        fail=1
    fi
}
passes() { # NAME SED_FOR_HEADER SED_FOR_MAP [FILE SED]
    variant "$@" || { fail=1; return; }
    if ! diff_of "$tmp/$1/lib.so" "$tmp/$1/glmd.h" >"$tmp/out"; then
        echo "abi: the compatible change '$1' is refused:"
        cat "$tmp/out"
        fail=1
    fi
}

breaks member-wider glmd_next '/^struct glmd_event/,/^}/s/uint32_t reason;/uint64_t reason;/' ''
breaks member-moved glmd_get_info '/^struct glmd_info/,/^}/{s/uint32_t wire;/uint32_t other;/;s/uint32_t load_permille;/uint32_t wire;/;s/uint32_t other;/uint32_t load_permille;/}' ''
breaks symbol-gone glmd_wait '' '/^ *glmd_wait;/d'
breaks parameter glmd_set_coalesce 's/(glmd_set_coalesce\(glmd_conn \*c, )uint32_t tokens/\1uint64_t tokens/' '' \
    clloop.c 's/(glmd_set_coalesce\(glmd_conn \*c, )uint32_t tokens/\1uint64_t tokens/'
sed -E 's/GLMD_STATE_READY = 2/GLMD_STATE_READY = 9/' client/glmd.h >"$tmp/enum.h"
[ "$(lost_constants "$tmp/enum.h")" = "GLMD_STATE_READY 2" ] || { echo "abi: a changed enumerator is not seen"; fail=1; }
passes member-appended '/^struct glmd_info/,/^}/s/^}/    uint64_t brand_new;\n}/' ''
passes function-added 's/^GLMD_API int glmd_get_fd.*/&\nGLMD_API int glmd_brand_new(glmd_conn *c);/' \
    's/^    glmd_resume;/&\n    glmd_brand_new;/' clloop.c '$a int glmd_brand_new(glmd_conn *c) { return cl_check(c); }'

[ $fail -eq 0 ] && echo "abi: programs built before still run; planted changes are seen"
exit $fail
