#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the compiler made of the CUDA kernels, without a device: registers, stack, spills and shared memory of each for
each architecture, and for one of them how many instructions a lane spends on a weight in the loop that multiplies.

usage: kernel_report.py NVCC ARCH,ARCH DIRECTORY FILE.cu ... -- FLAG ...

Exit 1: a kernel spills, or takes more shared memory than a block of the smallest device has. Objects go to DIRECTORY.
The loop is found in the machine code: the shortest one around matrix instructions. Each of those takes eight weights of
a lane; with 16 rows two of them share the weights."""
import concurrent.futures
import os
import re
import shutil
import struct
import subprocess
import sys

SHARED_MAX = 101376  # bytes a block of GB10 may have
LOOP_ARCH = "121"    # whose branches are understood below
BRANCH, MATRIX = 0x947, 0x23C


def compile_one(nvcc, arch, out, src, flags):
    """The cubin's path, and what ptxas says of each kernel: {name: (registers, stack, spills, shared)}"""
    cubin = os.path.join(out, "%s.sm_%s.cubin" % (os.path.basename(src), arch))
    cmd = [nvcc, *flags, "-Xptxas", "-v", "-cubin", "-arch=sm_" + arch, "-o", cubin, src]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if r.returncode:
        sys.exit("kernel_report: %s\n%s" % (" ".join(cmd), r.stdout))
    found, name = {}, None
    for line in r.stdout.splitlines():
        m = re.search(r"Compiling entry function '(\S+)'", line)
        name = m.group(1) if m else name
        m = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if m and name:
            found[name] = [0, int(m.group(1)), int(m.group(2)) + int(m.group(3)), 0]
        m = re.search(r"Used (\d+) registers", line)
        if m and name in found:
            found[name][0] = int(m.group(1))
            shared = re.search(r"(\d+) bytes smem", line)
            found[name][3] = int(shared.group(1)) if shared else 0
    return cubin, found


def code_of(cubin):
    """{kernel: machine code}: the sections .text.NAME of an ELF file."""
    with open(cubin, "rb") as f:
        b = f.read()
    at, = struct.unpack_from("<Q", b, 0x28)
    size, count, names = struct.unpack_from("<HHH", b, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", b, at + i * size) for i in range(count)]
    found = {}
    for h in heads:
        begin = heads[names][4] + h[0]
        name = b[begin:b.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            found[name[6:]] = b[h[4]:h[4] + h[5]]
    return found


def inner_loop(code):
    """(instructions, matrix instructions) of the shortest loop that has any, or None."""
    words = list(struct.iter_unpack("<QQ", code))
    best = None
    for i, (lo, _) in enumerate(words):
        if lo & 0xFFF != BRANCH:
            continue
        high = (lo >> 34) - ((1 << 30) if lo >> 63 else 0)
        target = i + 1 + ((high << 8) + (lo >> 16 & 255)) // 4  # in words of four bytes, an instruction has four
        if not 0 <= target < i:
            continue
        matrix = sum(1 for w, _ in words[target:i + 1] if w & 0xFFF == MATRIX)
        if matrix and (best is None or i + 1 - target < best[0]):
            best = (i + 1 - target, matrix)
    return best


def short(name):
    """Readable: the template's arguments of a mangled name."""
    m = re.match(r"_Z(?:N\d+_GLOBAL__N__\w+?)?L?(\d+)(\w+)", name)
    if not m:
        return name
    n = int(m.group(1))
    base, rest = m.group(2)[:n], m.group(2)[n:]
    if not rest.startswith("I"):
        return base
    words = re.findall(r"\d+([a-z]\w*?)(?=I|L|E|$)|L[ib](\d+)E", rest)
    return base + "<" + ", ".join(a or b for a, b in words) + ">"


def rows_of(name):
    """Blocks of eight rows a product is for, from the arguments <format, blocks, sides>."""
    m = re.search(r"EL?i?(\d)ELi(\d)EE?v?", name) or re.search(r"Li(\d)ELi(\d)EE", name)
    return int(m.group(1)) if m else 1


def main():
    nvcc, archs, out, *rest = sys.argv[1:]
    if not shutil.which(nvcc):
        sys.exit("kernel_report: no compiler %s: install the CUDA toolkit and name it (make NVCC=...)" % nvcc)
    files, flags = rest[:rest.index("--")], rest[rest.index("--") + 1:]
    os.makedirs(out, exist_ok=True)
    jobs = [(nvcc, a, out, f, flags) for f in files for a in archs.split(",")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda j: compile_one(*j), jobs))
    bad = 0
    print("%-58s %5s %5s %6s %6s %7s %s"
          % ("kernel", "sm", "regs", "stack", "spill", "shared", "instructions a weight"))
    for (_, arch, _, _, _), (cubin, found) in zip(jobs, results):
        code = code_of(cubin) if arch == LOOP_ARCH else {}
        for name, (regs, stack, spill, shared) in sorted(found.items()):
            loop = inner_loop(code[name]) if name in code else None
            per = ""
            if loop:
                per = "%5.2f  (%d in a loop with %d products)" % (
                    loop[0] / (8 * loop[1] / rows_of(name)), loop[0], loop[1])
            wrong = spill > 0 or shared > SHARED_MAX
            bad += wrong
            print("%-58s %5s %5d %6d %6d %7d %s%s" % (short(name)[:58], arch, regs, stack, spill, shared, per,
                                                      "  BREACH" if wrong else ""))
    print("kernel-report: %d kernels, %d of them spill or take more than %d bytes of shared memory"
          % (sum(len(f) for _, f in results), bad, SHARED_MAX))
    sys.exit(1 if bad else 0)


main()
