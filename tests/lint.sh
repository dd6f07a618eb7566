#!/bin/bash
# SPDX-License-Identifier: MIT
# lint.sh: the habits a machine can check. Prints each breach; exit 1 when there is one.
set -u
cd "$(dirname "$0")/.." || exit 2
fail=0
say() { echo "lint: $*"; fail=1; }

if git rev-parse --git-dir >/dev/null 2>&1; then
    files() { git ls-files -- "$@"; }
else
    files() { find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||' | grep -E "^($(printf '%s\n' "$@" | sed 's/\./\\./g;s/\*/.*/g' | paste -sd'|'))\$"; }
fi

# one pass over all: a process for each file would take longer than the build
mapfile -t code < <(files '*.c' '*.h' '*.cu' '*.cuh' | while read -r f; do [ ! -e "$f" ] || echo "$f"; done)
LC_ALL=C awk '
    function done() {
        if (name == "") return
        if (!generated && lines > 600) { print "lint: " name " has " lines " lines, 600 at most"; bad = 1 }
        if (!licence) { print "lint: " name " has no licence line at its top"; bad = 1 }
        if (tabs) { print "lint: " name " has tab characters"; bad = 1 }
    }
    FNR == 1 { done(); name = FILENAME; generated = name ~ /table|unicode/; licence = tabs = 0 }
    { lines = FNR }
    FNR <= 3 && /SPDX-License-Identifier: MIT/ { licence = 1 }
    /\t/ { tabs = 1 }
    !generated && length($0) > 120 { print "lint: " name ":" FNR ": line of " length($0) " columns"; bad = 1 }
    END { done(); exit bad }' "${code[@]}" || fail=1

words='TO''DO|FIX''ME|\bXX''X\b'
mapfile -t sources < <(files '*.c' '*.h' '*.sh' '*.mk' Makefile)
if grep -nE "$words" "${sources[@]}" /dev/null; then
    say "unfinished work is not committed"
fi

# realpath() may write PATH_MAX bytes whatever the path: a fortified libc aborts for a smaller buffer
while IFS=: read -r f n line; do
    buf=$(sed -E 's/.*realpath\(.*, *([a-z_]+)\).*/\1/' <<<"$line")
    grep -qE "\<$buf\[PATH_MAX\]" "$f" || say "$f:$n: realpath() into something that is not PATH_MAX bytes: $buf"
done < <(files '*.c' | xargs grep -nE 'realpath\([^)]' | grep -vE 'realpath\(.*, *NULL\)')

[ "$(MAKEFLAGS='' make -pn help 2>/dev/null | sed -n 's/^.DEFAULT_GOAL := //p')" = all ] ||
    say "a plain make does not build everything"
# what a user without root is told to ask for is what the scripts install
for set in build test_; do
    grep -qF "$(sed -n "s/^$set=\"\(.*\)\"\$/\1/p" tests/deps.sh)" README.md ||
        say "README.md does not list the packages of deps.sh ($set)"
done

[ "$(wc -l <README.md)" -lt 200 ] || say "README.md must stay under 200 lines"
size=$(files '*' | tr '\n' '\0' | xargs -0 stat -c %s 2>/dev/null | awk '{ s += $1 } END { print s }')
[ "$size" -lt $((48 << 20)) ] || say "tracked files are $size bytes, 48 MiB at most"

for p in glmd.8 glmd.conf.5 glm-eval.1 glm-pack.1; do [ -e "daemon/man/$p" ] || say "daemon/man/$p is missing"; done
for p in glmctl.1 libglmd.3; do [ -e "client/man/$p" ] || say "client/man/$p is missing"; done
for f in daemon/man/*.[0-9] client/man/*.[0-9]; do
    out=$(cd "$(dirname "$f")" && mandoc -T lint -W warning "$(basename "$f")" 2>&1 | grep -v "outdated mandoc.db")
    [ -z "$out" ] || say "manual page: $out"
done

# a structure that the library fills says its size where it is made: with one left over from the stack glmd_next() refuses
# every event, and the caller turns for ever
sized=$(awk '/^struct glmd_[a-z_]+ \{/ { n = $2 } n && /uint32_t size;/ { print n } { if (!/^struct/) n = "" }' client/glmd.h | paste -sd'|')
while IFS= read -r m; do
    say "$m: a structure of glmd.h without its size"
done < <(files 'client/tool/*.c' 'client/examples/*.c' | xargs awk -v sized="$sized" \
    '/^[a-z ]*struct [a-z_]+ \{/ { inside = 1 } /^}/ { inside = 0 }
    !inside && $0 ~ "^ +(static )?struct (" sized ") [a-z_]+(\\[[^]]*\\])?;" { print FILENAME ":" FNR }')

# what scripts read is described
while IFS= read -r w; do
    grep -qE "^\.(Va|It Va|Cm) ([a-z_]+ , )*$w( |\$)" client/man/glmctl.1 || say "glmctl.1 does not describe the JSON field $w"
done < <(grep -ohE '\\"[a-z_]+\\":' client/tool/*.c | tr -d '\\":' | sort -u)

# a test that CASES.md names is there
while IFS= read -r m; do
    prog=${m%%\`:*} names=${m#*: }
    prog=${prog#\`}
    for t in ${names//,/ }; do
        [ "$prog" = program ] || [ "$t" = row ] || grep -qsF "START_TEST($t)" "tests/unit/$prog.c" ||
            say "tests/CASES.md names $t of tests/unit/$prog.c, which is not there"
    done
done < <(grep -oE '`[a-z0-9_]+`: [a-z0-9_]+(, [a-z0-9_]+)*' tests/CASES.md)

n=$(grep -E '^\| [0-9]+ \|' tests/CASES.md | grep -cvE '^\| [0-9]+ \| [^|]* \| later issue')
grep -q "^$n of 150 are covered" tests/CASES.md || say "tests/CASES.md: $n rows name a test or a rule; its head says otherwise"

if command -v shellcheck >/dev/null; then
    mapfile -t scripts < <(files '*.sh')
    shellcheck -S warning "${scripts[@]}" .ci/run || fail=1
fi
[ $fail -eq 0 ] && echo "lint: clean"
exit $fail
