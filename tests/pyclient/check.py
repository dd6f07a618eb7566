# SPDX-License-Identifier: MIT
"""check.py BUILD_DIR [TEST...]: runs the independent client of glmw.py against real daemons.

What it receives is compared with what glmctl receives over libglmd, and every record with the rules of
ipc/PROTOCOL.md (glmw.py raises Broken).  Leaves no process and no file.
"""
import gc
import json
import os
import sys
import time
import traceback

import glmw
from daemon import Daemon
from glmw import (ACCEPTED, CANCEL_ALL, COUNT, KEEP, QUIET, TOKENIZE, Client, Refused, chat, message, sampling, stop,
                  tlv, tokens)

SKY = [712, 1168, 88, 318, 876, 461, 585, 43, 762, 518, 271, 264, 290, 13]  # of nano's vocabulary
TEXT = b"The sky is blue.\nLight from the sun."
THINK_END, TURN_END = 4082, 4060
ENDLESS = "vocab 100\nstop 2\nstep-us 500\nloop\nrequest\ntokens 10 11 12\nrepeat\n"
EPROTO, EPIPE, ECANCELED, ETIMEDOUT, EOPNOTSUPP, ESHUTDOWN = -71, -32, -125, -110, -95, -108


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: {got!r}, expected {want!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)


def ended(stream, status, reason, what):
    same(stream.final[:2], (status, reason), f"{what}: status and reason of END ({stream.error})")


def fresh(client):
    """A status from after this call."""
    now, end = time.monotonic_ns(), time.monotonic() + 10
    status = client.status()
    while status["heartbeat_ns"] <= now:
        holds(time.monotonic() < end, "the status is not renewed")
        time.sleep(0.01)
        status = client.status()
    return status


# ---------------------------------------------------------------------------------------------------------


def handshake_is_as_written():
    with Daemon(ENDLESS) as d:
        c = Client(d.socket, sq_log2=4, tq_log2=6, pay_log2=16, txt_log2=16)
        same(c.welcome[11:15], (4, 6, 16, 16), "the smallest sizes")
        holds(c.welcome.state == 2 and c.limits.vocab == 100, "state and limits")
        c.close()
        c = Client(d.socket, sq_log2=1, tq_log2=1, pay_log2=1, txt_log2=1)
        same(c.welcome[11:15], (4, 6, 16, 16), "sizes below the smallest")
        generation, number = c.welcome.generation, c.welcome.conn_id
        c.close()
        c = Client(d.socket, sq_log2=255, tq_log2=255, pay_log2=255, txt_log2=255, wanted=(1 << 64) - 1)
        for got, least, most in zip(c.welcome[11:15], (8, 12, 20, 18), (12, 16, 26, 24)):
            holds(least <= got <= most, f"sizes {c.welcome[11:15]} for the largest wanted")
        holds(c.welcome.features < 1 << 12, "a feature that version 1 does not define")
        holds(c.welcome.generation == generation and c.welcome.conn_id != number, "generation and number")
        c.close()
        c = Client(d.socket)
        same(c.welcome[11:15], (8, 12, 20, 18), "default sizes")
        c.close()
        c = Client(d.socket, wire=(1, 9))
        same(c.welcome.wire, 1, "version of a client that knows more")
        c.close()
        for what, error, options in (("version", -93, {"wire": (2, 3)}),
                                     ("feature", EOPNOTSUPP, {"required": 1 << 40})):
            try:
                Client(d.socket, **options)
                raise AssertionError(f"a {what} that does not exist is granted")
            except Refused as e:
                same(e.error, error, what)
                holds(e.text, f"REJECT of a {what} without words")


def same_as_glmctl():
    """A real model: ids, text, log probabilities, alternatives and counts, for messages and for raw ids."""
    with Daemon(arguments=("--context", "2048")) as d:
        question = "Count from 1 to 12."
        c = Client(d.socket)
        prompt = c.submit(message(2, question), TOKENIZE)
        count = c.submit(message(2, question), COUNT)
        c.run()
        ended(prompt, 0, 1, "TOKENIZE")
        ended(count, 0, 1, "COUNT")
        same(count.usage.prompt, len(prompt.prompt_ids), "COUNT beside TOKENIZE")
        common = ("--temperature", "0", "--max-tokens", "60", "--logprobs", "--alternatives", "7")
        how = sampling(temperature=0, logprobs=True, n_alts=7)
        for payload, arguments in (
                (message(2, question), (question,)),
                (tokens(prompt.prompt_ids), ("--tokens", ",".join(map(str, prompt.prompt_ids)))),
                (chat(thinking=2) + message(1, "Be brief.") + message(2, question) + stop("7"),
                 ("--think", "off", "--system", "Be brief.", "--stop", "7", question))):
            s = c.submit(payload + how, max_tokens=60)
            c.run()
            compare(s, d.glmctl(*common, *arguments))
        same(prompt.usage.prompt, s.usage.prompt and count.usage.prompt, "prompt tokens")
        c.close()


def compare(s, lines):
    of = {kind: [x for x in lines if x["event"] == kind] for kind in ("token", "text", "end", "usage")}
    same(s.ids, [x["token"] for x in of["token"]], "ids")
    for number, channel in enumerate(("content", "reasoning")):
        same(s.text[number].decode(), "".join(x["text"] for x in lines if x.get("channel") == channel), channel)
    for got, alts, x in zip(s.logprobs, s.alts, of["token"]):
        holds(abs(got - x["logprob"]) <= 1e-6 * max(1, abs(got)), f"logprob {got} beside {x['logprob']}")
        same([a for a, _ in alts], [a["token"] for a in x["alternatives"]], "alternatives")
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "drafted_tokens",
             "accepted_tokens")
    same(list(s.usage[:6]), [of["usage"][0][name] for name in names], "USAGE")
    same(s.final.status, of["end"][0]["status"], "status")
    same(s.final.detail, of["end"][0]["detail"], "detail")
    same({1: "stop", 2: "stop string", 3: "length"}[s.final.reason], of["end"][0]["reason"], "reason")


def many_tags_interleave():
    """All the tags a connection may have; each answer is whole, and they come together, not one by one."""
    said = " ".join(map(str, [39, 334, 593, THINK_END, *SKY, TURN_END]))
    with Daemon(f"model NANO\nstep-us 300\nloop\nrequest\ntokens {said}\n", "MaxSequences=16\n") as d:
        c = Client(d.socket)
        streams = []
        while len(streams) < c.limits.max_live:
            s = c.submit(message(2, f"question {len(streams)}"), flags=QUIET if len(streams) % 2 else 0)
            holds(s is not None, "the rings are too small for max_live")
            streams.append(s)
        changes, last = 0, None
        take = glmw.Stream.take

        def watch(self, r, text):
            nonlocal changes, last
            changes += r.tag != last
            last = r.tag
            take(self, r, text)
        glmw.Stream.take = watch
        try:
            c.run()
        finally:
            glmw.Stream.take = take
        for s in streams:
            ended(s, 0, 1, "an answer")
            same((s.text[1], s.text[0]), (b"Hello", TEXT), "its text")
            same((s.ids[4:], s.final.token), (SKY, TURN_END), "its ids")
        holds(changes > 4 * len(streams), f"{changes} changes of tag among {len(streams)} answers")
        extra = [c.submit(message(2, "x")) for _ in range(3)]
        c.run()
        holds(all(s.final.status == 0 for s in extra), "tags are free after END")
        same(fresh(c)["my_live"], 0, "live tags in the status")
        c.close()


def cancel_ends_one_or_all():
    with Daemon(ENDLESS) as d:
        c = Client(d.socket)
        neighbour = Client(d.socket)
        a, b, e = (c.submit(tokens([5, 6, 7])) for _ in range(3))
        n = neighbour.submit(tokens([5]), tag=a.tag, max_tokens=400)
        c.run(until=lambda: len(a.ids) > 20)
        holds(c.cancel(a.tag) and c.cancel(a.tag) and c.cancel(987654), "the ring is full")
        c.run(until=lambda: a.final)
        ended(a, ECANCELED, 6, "CANCEL")
        before = len(b.ids)
        c.run(until=lambda: len(b.ids) > before + 20)
        holds(not b.final and not e.final, "CANCEL ended others")
        holds(c.entry(CANCEL_ALL), "the ring is full")
        c.run()
        ended(b, ECANCELED, 6, "CANCEL_ALL")
        ended(e, ECANCELED, 6, "CANCEL_ALL")
        again = c.submit(tokens([1]), tag=a.tag, max_tokens=5)
        c.run()
        ended(again, 0, 3, "a tag used again")
        same(again.ids, [10, 11, 12, 10, 11], "its ids")
        neighbour.run()
        ended(n, 0, 3, "an answer of another connection under a tag that was cancelled here")
        c.close()
        neighbour.close()


def slow_reader_loses_nothing():
    """A ring that is bounded by its 64 records, and one that is bounded by its 64 KiB of text: read a few at a time
    with pauses, or hoarded until nothing fits any more."""
    answer = [THINK_END] + [2348, 1400, 2160, 2750] * 6 + SKY  # four words of 33 bytes, too long to lie in a record
    with Daemon(f"model NANO\nloop\nrequest\ntokens {' '.join(map(str, answer))}\nrepeat\n") as d:
        for size, portion, length in ((6, 7, 1000), (12, 2000, 3000)):
            quick = Client(d.socket)
            other = quick.submit(message(2, "x"), max_tokens=length)
            quick.run()
            ended(other, 0, 3, "the answer of a quick client")
            quick.close()
            c = Client(d.socket, sq_log2=4, tq_log2=size, pay_log2=16, txt_log2=16)
            streams = [c.submit(message(2, "x"), max_tokens=length) for _ in range(4)]
            rounds = 0
            while c.live:
                rounds += 1
                if rounds % 40 == 1:
                    settle(c)
                if not c.take(most=1 + rounds % portion, give_back=rounds % 5 == 0):
                    c.give_back()
                    c.sleep()
            for s in streams:
                ended(s, 0, 3, "a slow answer")
                same(s.ids, (answer * 80)[:length], "its ids")
                holds(s.text[0] == other.text[0], "its text")
            status = fresh(c)
            holds(status["my_stalls"] > 0, "the daemon never waited: the test proves nothing")
            # my_safety_wakes is not judged: without barriers a NOP may be 50 ms late, and a busy machine adds to it
            c.close()


def settle(client):
    """Waits until the daemon publishes nothing more; how many records lie there."""
    n, quiet = client.look(), 0
    while quiet < 5:
        time.sleep(0.005)
        quiet = quiet + 1 if client.look() == n else 0
        n = client.look()
    return n


def last_words_fit_a_full_ring():
    """Nothing is read until the ring is full. USAGE and END of each tag find the places kept for them."""
    with Daemon(ENDLESS) as d:
        for attempt in range(20):
            c = Client(d.socket, tq_log2=6, txt_log2=16)
            streams = [c.submit(tokens([5])) for _ in range(4)]
            n = settle(c)
            at = c.welcome.tq_off
            if sum(c.d[at + 64 * i] == ACCEPTED for i in range(n)) == 4:
                break
            c.close()  # this process was held up: the first streams had filled the ring before the last came
        holds(64 - 16 <= n <= 64 - 12, f"{n} records in a ring of 64 with 4 live tags")
        c.entry(CANCEL_ALL)
        end = time.monotonic() + 10
        while c.look() < n + 8:
            holds(time.monotonic() < end, f"{c.look() - n} of 8 last records came")
            time.sleep(0.001)
        c.run()
        for s in streams:
            ended(s, ECANCELED, 6, "an answer in a full ring")
        c.close()


def requests_wait_in_the_ring():
    """More than the records have room for: they wait in the submission ring, in order, and none is lost."""
    with Daemon(ENDLESS, "MaxSequences=4\n") as d:
        c = Client(d.socket, sq_log2=4, tq_log2=6, txt_log2=16)
        streams = []
        while len(streams) < 60:
            s = c.submit(tokens([5]), max_tokens=9) if len(c.live) < c.limits.max_live else None
            if s:
                streams.append(s)
            else:
                settle(c)
                c.take(most=20)
        c.run()
        for s in streams:
            ended(s, 0, 3, "a request that waited")
            same(s.ids, [10, 11, 12] * 3, "its ids")
        c.close()


def tool_calls_come_in_pieces():
    call = "4083 949 62 866 1923 4087 508 1692 4088 4089 2246 277 4090 4084 "  # get_weather, city: Paris
    tool = json.dumps({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}).encode()
    with Daemon(f"model NANO\nloop\nrequest\ntokens {THINK_END} 712 {call}{call}{TURN_END}\n") as d:
        c = Client(d.socket)
        plain = Client(d.socket, wanted=0)
        for client, events in ((c, [(0, 1), (0, 2), (1, 1), (1, 2)]), (plain, [])):
            s = client.submit(tlv(16, tool) + message(2, "Weather?"))
            client.run()
            ended(s, 0, 5, "an answer with calls")
            same((s.text[0], s.text[2]), (b"The", b"get_weather" * 2), "content and names")
            same(json.loads(b"[" + s.text[3].replace(b"}{", b"},{") + b"]"), [{"city": "Paris"}] * 2, "arguments")
            same(s.tools, events, "TOOL records")
        cut = c.submit(tlv(16, tool) + message(2, "Weather?"), max_tokens=9)
        c.run()
        ended(cut, 0, 3, "an answer cut inside a call")
        same(cut.tools, [(0, 1), (0, 3)], "TOOL records of a call that was cut")
        c.close()
        plain.close()


def what_rules_did_is_marked():
    tool = b'{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}'
    with Daemon("model NANO\nloop\nrequest\nrepeat\ntokens 300 301 302 303 304\n") as d:
        c = Client(d.socket)
        plain = c.submit(message(2, "Hi"), max_tokens=20)
        budget = c.submit(message(2, "Hi") + sampling(thinking_budget=3), max_tokens=20)
        nothing = c.submit(message(2, "Hi") + sampling(thinking_budget=0), max_tokens=20)
        guard = c.submit(message(2, "Hi") + sampling(loop_guard=1))
        call = c.submit(tlv(16, tool) + message(2, "Hi") + tlv(17, bytes([2, 0, 0, 0, 1, 0, 0, 0])) + chat(thinking=2),
                        max_tokens=40)
        c.run()
        ended(plain, 0, 3, "an answer without rules")
        same((plain.forced, plain.closed, plain.looped), ([], False, False), "its marks")
        ended(budget, 0, 3, "an answer with a budget")
        same(budget.ids[:3] + budget.ids[3 + len(budget.forced):][:2], [300, 301, 302, 300, 301], "its own ids")
        same((budget.forced[-1], budget.closed, budget.looped), (THINK_END, True, False), "its marks")
        same(budget.usage.reasoning, 3 + len(budget.forced), "reasoning tokens")
        same((nothing.forced, nothing.text[1]), ([THINK_END], b""), "a budget of 0")
        ended(guard, 0, 9, "an answer that goes in circles")
        same((guard.closed, guard.usage.reasoning), (True, 256 + len(guard.forced)), "what closed its reasoning")
        same(call.text[2], b"get_weather", "the tool that must be called")
        c.close()


def refusals_end_only_themselves():
    with Daemon(ENDLESS) as d:
        c = Client(d.socket)
        good = c.submit(tokens([5]))
        for what, status, payload in (
                ("an empty payload", -74, b""), ("no prompt", -74, stop("x")),
                ("an open message", -74, tlv(1, bytes([2, 0, 0, 0, 0, 0, 0, 0]))),
                ("an unknown TLV", -74, tlv(999) + tokens([1])), ("a temperature of 1000", -22,
                                                                  tokens([1]) + sampling(temperature=1000)),
                ("an id beyond the vocabulary", -22, tokens([100]))):
            s = c.submit(payload)
            c.run(until=lambda s=s: s.final)
            ended(s, status, 0, what)
            holds(s.error and s.error[0] == status and s.error[1], f"{what}: ERROR says {s.error}")
        s = c.submit(tlv(999, b"later", 1) + tokens([1]), max_tokens=2)
        late = c.submit(tokens([1]), deadline_ms=50)
        c.run(until=lambda: s.final and late.final)
        ended(s, 0, 3, "an unknown TLV that is to be ignored")
        ended(late, ETIMEDOUT, 7, "a deadline")
        holds(not good.final and late.ids, "a refusal ended another answer")
        c.close()

        plain = Client(d.socket, wanted=0)
        same(plain.welcome.features, 0, "features nobody wanted")
        s = plain.submit(tokens([1]), COUNT)
        t = plain.submit(tokens([1]) + sampling(logprobs=True))
        plain.run()
        ended(s, EOPNOTSUPP, 0, "COUNT without its feature")
        ended(t, EOPNOTSUPP, 0, "log probabilities without their feature")
        plain.close()


def broken_entries_end_the_connection():
    with Daemon(ENDLESS) as d:
        for what, entry in (("opcode", {"opcode": 99}), ("tag 0", {"opcode": 1, "tag": 0, "size": 8}),
                            ("NOP with a tag", {"opcode": 0, "tag": 1}),
                            ("live tag", {"opcode": 1, "tag": 1, "size": 16}),
                            ("alignment", {"opcode": 1, "tag": 2, "size": 8, "off": 4}),
                            ("payload outside", {"opcode": 1, "tag": 2, "size": 16, "off": (1 << 20) - 8})):
            c = Client(d.socket)
            s = c.submit(tokens([5]))
            c.run(until=lambda s=s: s.ids)
            c.entry(**entry)
            c.run()
            holds(c.eof and c.bye, f"{what}: no BYE")
            same(c.bye[0], EPROTO, what)
            holds(c.bye[1], f"{what}: BYE without words")
            c.close()


def ping_and_status():
    with Daemon(ENDLESS) as d:
        c = Client(d.socket)
        c.ping(b"\0\xffabcdef")
        end = time.monotonic() + 10
        while not c.pongs and time.monotonic() < end:
            c.sleep()
        same(c.pongs, [b"\0\xffabcdef"], "PONG")
        s, t = c.submit(tokens([1]), max_tokens=30), c.submit(tokens([1]), max_tokens=1)
        c.run()
        status = fresh(c)
        same(status["state"], 2, "state")
        same(status["my_records"], s.records + t.records, "records")
        same((status["tokens_out"], status["connections"]), (31, 1), "tokens sampled and connections")
        holds(abs(time.monotonic_ns() - status["heartbeat_ns"]) < 5e9, "an old heartbeat")
        c.close()


def death_keeps_what_was_published():
    with Daemon(ENDLESS.replace("500", "100")) as d:
        c = Client(d.socket)
        streams = [c.submit(tokens([5])) for _ in range(4)]
        c.run(until=lambda: all(len(s.ids) > 10 for s in streams))
        end = time.monotonic() + 10
        while c.look() < 200:
            holds(time.monotonic() < end, "no more records")
            time.sleep(0.001)
        d.kill()
        lying = c.look()
        before = sum(s.records for s in streams)
        c.run()
        same(sum(s.records for s in streams), before + lying, "records after the death")
        holds(c.eof and c.bye is None, "end of file without BYE")
        for s in streams:
            ended(s, EPIPE, 0, "an answer of a dead daemon")
            same(s.ids, ([10, 11, 12] * len(s.ids))[:len(s.ids)], "its ids")
        c.close()


def draining_is_told():
    with Daemon(ENDLESS) as d:
        c = Client(d.socket)
        s = c.submit(tokens([5]), max_tokens=2000)
        c.run(until=lambda: len(s.ids) > 5)
        d.process.terminate()
        end = time.monotonic() + 10
        c.run(until=lambda: c.notices or time.monotonic() > end)
        same(c.notices[:1], [(1, 3)], "NOTICE of draining")
        refused = c.submit(tokens([1]))
        c.run(until=lambda: refused.final)
        ended(refused, ESHUTDOWN, 0, "a request while draining")
        c.run()
        ended(s, 0, 3, "an answer while draining")
        end = time.monotonic() + 20
        while not c.eof and time.monotonic() < end:
            c.sleep()
        holds(c.eof and c.bye is not None, "the daemon left without BYE")
        c.close()


def payload_is_returned_at_the_first_record():
    """A small arena, used again and again while another answer runs."""
    with Daemon(ENDLESS.replace("stop", "context 16384\nstop")) as d:
        c = Client(d.socket, pay_log2=16)
        long = c.submit(tokens([5]))
        for i in range(12):
            s = c.submit(tokens([i % 100] * 6000), max_tokens=1)
            while s is None:
                c.take() or c.sleep()
                s = c.submit(tokens([i % 100] * 6000), max_tokens=1)
            c.run(until=lambda s=s: s.accepted)
        c.run(until=lambda: len(c.live) == 1)
        for s in c.streams.values():
            holds(s is long or s.usage.prompt == 6000 and s.final.status == 0, f"{s.final} of 6000 ids")
        c.close()


def bulk_payloads():
    """Large payloads in sealed memfds, and what is no such thing."""
    with Daemon(ENDLESS.replace("stop", "context 131072\nstop")) as d:
        c = Client(d.socket)
        holds(c.welcome.features & glmw.BULK and c.limits.max_bulk >= 2, "no BULK")
        ids = [i % 99 + 1 for i in range(90000)]
        for number in (7, 8, 7):  # free again after END
            same(c.bulk(number, tokens(ids)), 0, "a good object")
            s = c.submit_bulk(number, max_tokens=3)
            c.run()
            ended(s, 0, 3, "a request in an object")
            same((s.usage.prompt, s.ids), (90000, [10, 11, 12]), "its tokens")
        good = tokens([1, 2, 3])
        for what, error, wrong in (("not sealed", -22, {"seals": 0}), ("a seal missing", -22, {"seals": 0x7}),
                                   ("shorter than said", -22, {"size": 4096}), ("too large", -90, {"size": 1 << 50})):
            same(c.bulk(9, good, **wrong), error, what)
        same(c.bulk(9, bytes(8192)), -22, "a hole")
        same(c.bulk(9, tlv(999)), 0, "a good object with a bad payload")
        s = c.submit_bulk(9)
        c.run()
        ended(s, -74, 8, "a malformed payload in an object")
        holds(s.accepted and s.error, "ACCEPTED and ERROR before its END")
        same([c.bulk(100 + i, good) for i in range(c.limits.max_bulk)], [0] * c.limits.max_bulk, "as many as allowed")
        same(c.bulk(99, good), -16, "one more")
        same(fresh(c)["my_bulk_bytes"], len(good) * c.limits.max_bulk, "bytes in the status")
        c.submit_bulk(12345)
        c.run()
        same(c.bye and c.bye[0], EPROTO, "an id that is not alive")
        c.close()
        c = Client(d.socket)
        same((c.bulk(1, good), c.bulk(1, good)), (0, None), "an id that is alive already")
        same(c.bye and c.bye[0], EPROTO, "its BYE")
        c.close()
        c = Client(d.socket)
        same(c.bulk(1, good), 0, "a good object")
        c.submit_bulk(1)
        c.submit_bulk(1)
        c.run()
        same(c.bye and c.bye[0], EPROTO, "an object named twice")
        c.close()


def resume_goes_on_where_it_was():
    with Daemon(ENDLESS.replace("500", "1000"), "[IPC]\nKeepDisconnectedSec=30\n") as d:
        payload = tokens([5]) + sampling(logprobs=True, n_alts=8, seed=1)
        c = Client(d.socket)
        s = c.submit(payload, flags=KEEP, max_tokens=150)
        c.run(until=lambda: len(s.ids) > 30)
        holds(s.stream_id, "no stream id")
        c.close(bye=False)
        n, seq, ids = len(s.ids), s.next_seq, s.ids[:len(s.ids)]
        alts_due = s.alts_due
        c = Client(d.socket)
        t = c.resume(s.stream_id, seq)
        c.run()
        ended(t, 0, 3, "a resumed answer")
        same(t.stream_id, s.stream_id, "its stream id")
        same(ids + t.ids, ([10, 11, 12] * 50), f"ids, {n} of them before, {alts_due} alternatives due")
        holds(all(len(a) == 8 for a in t.alts), "alternatives of resumed tokens")
        everything = c.resume(s.stream_id, 0)
        c.run()
        ended(everything, 0, 3, "an answer resumed after its END")
        same(everything.ids, [10, 11, 12] * 50, "all its ids")
        same((everything.next_seq, everything.usage), (t.next_seq, t.usage), "its last seq and USAGE")
        inside = c.resume(s.stream_id, everything.first_alts + 1)  # 8 alternatives lie in two records
        c.run()
        holds(inside.ids == everything.ids[-len(inside.ids):] and len(inside.ids) == 149, "RESUME inside of ALTS")
        resume_refusals(c, d, s.stream_id, t.next_seq)
        c.close()
        resume_takes_away(d)


def resume_refusals(c, d, stream_id, end):
    for what, number, seq in (("no such stream", stream_id ^ 1, 0), ("behind the end", stream_id, end)):
        s = c.resume(number, seq)
        c.run()
        ended(s, -61, 0, what)
    plain = Client(d.socket, wanted=glmw.RESUME)
    s = plain.resume(stream_id, 0)
    plain.run()
    ended(s, EOPNOTSUPP, 0, "RESUME with fewer features")
    plain.close()


def resume_takes_away(d):
    a, b = Client(d.socket), Client(d.socket, tq_log2=6, txt_log2=16)  # what is kept does not fit at once
    s = a.submit(tokens([5]), flags=KEEP)
    a.run(until=lambda: len(s.ids) > 200)
    t = b.resume(s.stream_id, 0)
    while len(t.ids) < 300:
        settle(b)
        b.take(most=50)
    a.run()
    ended(s, ECANCELED, 6, "a tag that lost its stream")
    holds(s.error and not t.final, "ERROR of the tag, life of the stream")
    same(t.ids, ([10, 11, 12] * len(t.ids))[:len(t.ids)], "ids of the new tag")
    b.cancel(t.tag)
    b.run()
    ended(t, ECANCELED, 6, "CANCEL of a resumed tag")
    a.close()
    b.close()


TESTS = [handshake_is_as_written, same_as_glmctl, many_tags_interleave, cancel_ends_one_or_all,
         slow_reader_loses_nothing, last_words_fit_a_full_ring, requests_wait_in_the_ring,
         tool_calls_come_in_pieces, what_rules_did_is_marked, refusals_end_only_themselves,
         broken_entries_end_the_connection, ping_and_status,
         death_keeps_what_was_published, draining_is_told, payload_is_returned_at_the_first_record,
         bulk_payloads, resume_goes_on_where_it_was]


def main():
    failed = 0
    wanted = sys.argv[2:]
    tests = [t for t in TESTS if not wanted or t.__name__ in wanted]
    for test in tests:
        start = time.monotonic()
        gc.collect()  # what a test that failed left behind
        before = len(os.listdir("/proc/self/fd"))
        try:
            test()
            same(len(os.listdir("/proc/self/fd")), before, "descriptors after the test")
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"{test.__name__}: failed")
        print(f"{test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    print(f"Checks: {len(tests)}, Failures: {failed}")
    sys.exit(1 if failed or not tests or len(tests) < len(wanted) else 0)


if __name__ == "__main__":
    main()
