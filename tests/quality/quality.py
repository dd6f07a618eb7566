#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What every weight format does to nano: make quality.

For each format: glm-pack writes the pack; its answers on tests/quality/text.txt are compared with those of the BF16
source and with those of the plain F32 numbers the format stands for; glmd serves the pack, and glmctl probe has it
write text in three languages whose letters take several bytes and counts the broken ones. Wherever one broke, the
scalar backend reads the same ids on those plain numbers: what it chooses as well is the model's own choice, what it
does not was broken by reading, computing or writing. The BF16 source is asked, too.

Prints a line for each figure, writes tests/QUALITY.md and tests/quality/kl.svg, and exits with 1 when a bar is missed:
KL to its own numbers below 1e-4, no language that loses four times what their mean does, in 100,000 characters none
that is broken and was not the choice of the plain numbers. Only the standard library."""
import argparse
import contextlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

OWN_BAR = 1e-4
SPREAD_BAR = 4  # a language may lose at most so many times what the mean of them loses
CHARS = 34000  # of each language: more than 100,000 together
LANGUAGES = "polish,czech,vietnamese"
TEXT = "tests/quality/text.txt"
PARAGRAPHS = {"english": 0, "polish": 1, "czech": 2, "vietnamese": 3}  # of the text, parted by empty lines
# Packs in which parts have formats of their own, as published ones do.
MIXTURES = {
    "nvfp4 + int8": ["nvfp4-ct", "--part", "mla=int8", "--part", "kda=int8", "--part", "shared=int8"],
    "nvfp4 + fp8 head": ["nvfp4-ct", "--part", "lm_head=fp8-channel", "--part", "shared=mxfp8"],
    "q4_k + q8_0": ["q4_k", "--part", "mla=q8_0", "--part", "kda=q8_0", "--part", "dense=q8_0"],
}


class Trouble(Exception):
    pass


def run(argv, want_json=True):
    """Runs a program to its end; its JSON, one document or one a line."""
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode not in (0, 1) or (p.returncode and "probe" not in argv):
        raise Trouble("%s: exit status %d: %s" % (" ".join(argv), p.returncode, p.stderr.strip()))
    if not want_json:
        return p.stdout
    try:
        return [json.loads(p.stdout)]
    except ValueError:
        return [json.loads(line) for line in p.stdout.splitlines()]


def expert_bits(report, numbers_of_experts):
    return 8 * report["parts"]["experts"]["bytes_after"] / numbers_of_experts


def by_language(build, model, pack, where):
    """KL to the source, language by language."""
    paragraphs, kl = open(TEXT, encoding="utf-8").read().split("\n\n"), {}
    for language, i in PARAGRAPHS.items():
        path = os.path.join(where, language)
        with open(path, "w", encoding="utf-8") as f:
            f.write(paragraphs[i] + "\n")
        kl[language] = run([build + "/glm-pack", "--compare", model, pack, "--text", path, "--json"])[0]["text"]["kl"]
    return kl


@contextlib.contextmanager
def daemon(build, model, where, conf):
    """A daemon with the pack; its socket."""
    socket, path = os.path.join(where, "s"), os.path.join(where, "glmd.conf")
    with open(path, "w") as f:
        f.write(conf)
    log = open(os.path.join(where, "log"), "w+")
    served = subprocess.Popen([build + "/glmd", "--model", model, "--socket", socket, "--config", path,
                               "--log-level", "warning"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        for _ in range(600):
            if served.poll() is not None:
                log.seek(0)
                raise Trouble("glmd %s: ended at once: %s" % (model, log.read().strip()))
            if os.path.exists(socket) and subprocess.run(
                    [build + "/glmctl", "status", "--json", "--socket", socket], stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.05)
        yield socket
    finally:
        served.terminate()
        try:
            served.wait(60)
        except subprocess.TimeoutExpired:
            served.kill()
            served.wait()
        log.close()


def chosen_again(build, model, where, places):
    """How many of the broken characters these weights choose, too: the scalar backend goes on from the same ids, up to
    before the first token that can have a byte of the character, and has to come to the same ones."""
    same = 0
    if not places:
        return 0
    with daemon(build, model, where, "[Model]\nBackend=ref\n[Memory]\nMaxSequences=1\n") as socket:
        for place in places:
            want = place["answer"][-4:]
            ids = place["prompt"] + place["answer"][:-len(want)]
            events = run([build + "/glmctl", "run", "--socket", socket, "--json", "--temperature", "0", "--ignore-eos",
                          "--max-tokens", str(len(want)), "--tokens", ",".join(map(str, ids))])
            same += bool(place["prompt"]) and [e["token"] for e in events if e["event"] == "token"] == want
    return same


def measure(build, model, name, args, n_experts):
    """One row of the table."""
    row = {"name": name}
    with tempfile.TemporaryDirectory(prefix="glmd-quality-") as d:
        pack, plain = os.path.join(d, "pack"), os.path.join(d, "plain")
        if name == "bf16":
            pack = model
            row["bits"] = 16.0
        else:
            made = run([build + "/glm-pack", model, pack, "--format"] + args + ["--text", TEXT, "--json"])[0]
            row["bits"] = expert_bits(made, n_experts)
            row["error"] = made["parts"]["experts"]["relative_error"]
            row["kl"], row["same"] = made["text"]["kl"], made["text"]["same"]
            run([build + "/glm-pack", model, plain, "--format"] + args + ["--numbers", "--json"])
            own = run([build + "/glm-pack", "--compare", plain, pack, "--text", TEXT, "--json"])[0]["text"]
            row["own"] = own["kl"]
            row["languages"] = by_language(build, model, pack, d)
        with daemon(build, pack, d, "[Memory]\nMaxSequences=8\n") as socket:
            probe = run([build + "/glmctl", "probe", "--socket", socket, "--json", "--ignore-eos", "--temperature", "0",
                         "--chars", str(CHARS), "--languages", LANGUAGES])
        row["chars"] = sum(p["characters"] for p in probe)
        row["beyond"] = sum(p["beyond_ascii"] for p in probe)
        row["broken"] = sum(p["broken"] for p in probe)
        places = [place for p in probe for place in p["places"]]
        row["chosen"] = chosen_again(build, plain if name != "bf16" else model, d, places)
        row["chosen_bf16"] = chosen_again(build, model, d, places) if name != "bf16" else row["chosen"]
    return row


def verdicts(row):
    """NAME figure unit bar value holds|misses; true when all hold."""
    good = True
    if "own" in row:
        ok = row["own"] is not None and row["own"] < OWN_BAR
        print("quality-own-%s %.3g nats bar < %g nats %s" % (row["name"].replace(" ", ""), row["own"], OWN_BAR,
                                                            "holds" if ok else "misses"))
        good = good and ok
        mean = sum(row["languages"].values()) / len(row["languages"])
        worst = max(row["languages"], key=row["languages"].get)
        ok = row["languages"][worst] <= SPREAD_BAR * mean
        print("quality-languages-%s %.2f of the mean (%s) bar <= %d of the mean %s" %
              (row["name"].replace(" ", ""), row["languages"][worst] / mean, worst, SPREAD_BAR,
               "holds" if ok else "misses"))
        good = good and ok
    unasked = row["broken"] - row["chosen"]
    ok = unasked == 0 and row["chars"] >= 100000
    print("quality-text-%s %d broken of %d bar <= 0 broken of 100000 %s (and %d that its plain numbers choose, %d of "
          "them BF16, too)" % (row["name"].replace(" ", ""), unasked, row["chars"], "holds" if ok else "misses",
                               row["chosen"], row["chosen_bf16"]), flush=True)
    return good and ok


def svg(rows, path):
    """KL to the source over bits a weight of the experts, both measured."""
    rows = [r for r in rows if r.get("kl")]
    w, h, left, right, top, bottom = 860, 560, 70, 150, 30, 60
    low = math.floor(min(math.log10(r["kl"]) for r in rows))
    high = math.ceil(max(math.log10(r["kl"]) for r in rows))

    def x(bits):
        return left + (w - left - right) * (bits - 1) / 8

    def y(kl):
        return top + (h - top - bottom) * (high - math.log10(kl)) / (high - low)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
           'font-family="sans-serif" font-size="12">' % (w, h, w, h),
           '<rect width="100%" height="100%" fill="white"/>']
    for b in range(1, 10):
        out.append('<line x1="%.0f" x2="%.0f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.0f" y="%d" '
                   'text-anchor="middle">%d</text>' % (x(b), x(b), top, h - bottom, x(b), h - bottom + 18, b))
    for e in range(low, high + 1):
        out.append('<line x1="%d" x2="%d" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%d" y="%.0f" '
                   'text-anchor="end">1e%d</text>' % (left, w - right, y(10 ** e), y(10 ** e), left - 6,
                                                      y(10 ** e) + 4, e))
    out.append('<text x="%d" y="%d" text-anchor="middle">bits a weight of the experts</text>' %
               ((left + w - right) / 2, h - 14))
    out.append('<text x="16" y="%d" text-anchor="middle" transform="rotate(-90 16 %d)">KL to BF16, nats</text>' %
               (h / 2, h / 2))
    placed = []
    for r in sorted(rows, key=lambda r: r["kl"]):
        px, py = x(r["bits"]), y(r["kl"])
        ty = py + 4
        while any(abs(ty - oy) < 12 and abs(px - ox) < 90 for ox, oy in placed):
            ty -= 6
        placed.append((px, ty))
        out.append('<circle cx="%.1f" cy="%.1f" r="4" fill="#0a6"/><text x="%.1f" y="%.1f">%s</text>' %
                   (px, py, px + 7, ty, r["name"]))
    out.append("</svg>\n")
    with open(path, "w") as f:
        f.write("\n".join(out))


def table(rows, missing, path):
    sums = tuple(sum(r[k] for r in rows) for k in ("broken", "chars", "chosen", "chosen_bf16"))
    total = ["In all formats together %d of %d characters were U+FFFD; the plain numbers choose %d of them, and" % sums[:3],
             "BF16 %d." % sums[3]]
    lines = ["# What weight formats do to nano", "",
             "Written by `make quality` on %s (%s, %d cores); nano's text model, `tests/quality/text.txt`." %
             (time.strftime("%Y-%m-%d"), platform.machine(), os.cpu_count()), "",
             *(["Not measured: %s." % ", ".join(missing), ""] if missing else []),
             "`bits` are those the routed experts take, scales included; eight-bit formats also hold attention, shared",
             "experts and dense layers. `error`: norm of the experts' difference over their norm. `KL` and `same first`:",
             "answers against BF16. `KL to own`: against the plain F32 numbers the format stands for (bar: below 1e-4),",
             "which is what reading and computing add. English to Vietnamese: KL to BF16 of the text's paragraph in that",
             "language (bar: none above four times their mean).", "",
             "`U+FFFD`: broken characters in greedy text of three languages (polish, czech, vietnamese), every answer read",
             "again as part of the next prompt. `chosen`: how many of them the scalar backend writes, too, when it reads the",
             "same ids on the plain F32 numbers; those are the model's own bytes. `in BF16`: how many the BF16 source chooses",
             "there. `broken` are the others, which reading, computing or writing broke (bar: none in 100,000).",
             *total, "",
             "nano saw Polish and Czech but no Vietnamese; its answers to that are in the languages it knows.", "",
             "The encoders calibrate nothing: published packs that do lose less at the same size. Blocks of 256 weights do",
             "not fit nano's down projections, which stay BF16 in those formats of GGUF: their bits are above the format's.",
             "",
             "![KL over bits a weight](quality/kl.svg)", "",
             "| format | bits | error | KL | same first | KL to own | English | Polish | Czech | Vietnamese | characters | "
             "beyond ASCII | U+FFFD | chosen | in BF16 | broken |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        text = "%d | %d | %d | %d | %d | %d |" % (r["chars"], r["beyond"], r["broken"], r["chosen"], r["chosen_bf16"],
                                                  r["broken"] - r["chosen"])
        if "kl" in r:
            lines.append("| %s | %.2f | %.4f | %.2e | %.4f | %.1e | %s | %s" %
                         (r["name"], r["bits"], r["error"], r["kl"], r["same"], r["own"],
                          " | ".join("%.1e" % r["languages"][n] for n in PARAGRAPHS), text))
        else:
            lines.append("| %s | %.2f | | | | | | | | | %s" % (r["name"], r["bits"], text))
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def all_formats(build):
    """Every word glm-pack knows, from its usage text."""
    usage = run([build + "/glm-pack", "--help"], want_json=False).splitlines()
    at = next(i for i, line in enumerate(usage) if line.startswith("  --format FORMAT"))
    words = []
    for line in usage[at + 1:]:
        if not re.fullmatch(r" {6,}([a-z0-9_-]+, )*[a-z0-9_-]+,?", line):
            if words:
                break
            continue
        words += [w.strip() for w in line.split(",") if w.strip()]
    if len(words) < 30:
        raise Trouble("glm-pack --help: found %d formats, expected 30 at least" % len(words))
    return {w: [w] for w in words if w != "bf16"}


def main():
    p = argparse.ArgumentParser(prog="make quality", description=__doc__.split("\n\n")[0])
    p.add_argument("build", help="build directory")
    p.add_argument("formats", nargs="*", help="these alone, anew")
    a = p.parse_args()
    try:
        todo = dict({"bf16": []}, **all_formats(a.build), **MIXTURES)
    except Trouble as e:
        print("quality: %s" % e, file=sys.stderr)
        return 2
    unknown = [f for f in a.formats if f not in todo]
    if unknown:
        p.error("found %s, expected of: %s" % (unknown[0], ", ".join(todo)))
    model = os.path.join(os.environ.get("GLMD_MODELS", "build/models"), "nano")
    n_experts = 7 * 8 * 3 * 256 * 128  # six layers and the draft layer
    began, good = time.time(), True
    kept = os.path.join(a.build, "quality.json")  # an interrupted run goes on behind the last format that was done
    rows = {}
    if os.path.exists(kept):
        with open(kept) as f:
            rows = json.load(f)
    chosen = a.formats or [n for n in todo if n not in rows]
    for i, name in enumerate(chosen):
        print("# %s, %d of %d, %d s so far" % (name, i + 1, len(chosen), time.time() - began), file=sys.stderr, flush=True)
        try:
            rows[name] = measure(a.build, model, name, todo[name], n_experts)
        except Trouble as e:
            print("quality: %s: %s" % (name, e), file=sys.stderr)
            return 2
        good = verdicts(rows[name]) and good
        with open(kept + ".part", "w") as f:
            json.dump(rows, f, indent=1)
        os.replace(kept + ".part", kept)
        done = [rows[n] for n in todo if n in rows]
        if len(done) > 1:
            svg(done, "tests/quality/kl.svg")
        table(done, [n for n in todo if n not in rows], "tests/QUALITY.md")
    if len(rows) == len(todo):
        os.remove(kept)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
