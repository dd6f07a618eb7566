# SPDX-License-Identifier: MIT
"""A second client of the wire protocol, written from ipc/PROTOCOL.md alone: it shares no line with libglmd.

Standard library only, one thread.  Python has no memory barriers, so it follows the rules for such languages
(5.2): a bell after every entry, sleeps of at most 50 ms, a NOP whenever credit_wanted is seen.  Words of the
shared regions are read and written through memoryviews of u32 and u64, which is one access each.

Every rule a client can check is checked; what the daemon breaks is raised as Broken.  Numbers in comments are
sections of PROTOCOL.md.
"""
import array
import collections
import fcntl
import mmap
import os
import select
import socket
import stat
import struct
import time

HELLO, WELCOME, REJECT, BULK_PACKET, BULK_OK, BULK_ERR, NOTICE_PACKET, PING, PONG, BYE = range(1, 11)  # 2.1
LOGPROBS, ALTS_FEATURE, BULK, RESUME, COALESCE, TOOL_EVENTS = 1, 2, 4, 8, 16, 32  # 2.5
TOKENIZE_FEATURE = 0x200
NOP, SUBMIT, CANCEL, CANCEL_ALL, RESUME_OP, TOKENIZE, COUNT = 0, 1, 2, 3, 4, 5, 6  # 4
BULK_FLAG, QUIET, KEEP, BACKGROUND, NO_CACHE = 1, 2, 4, 8, 16
ACCEPTED, PROGRESS, TOKEN, TEXT, ALTS, TOOL, USAGE, END, ERROR, NOTICE, IDS = range(1, 12)  # 6
INLINE, MORE, FIRST, STEP_END, ALTS_FOLLOW, DRAFTED, FORCED, LOOP, IGNORABLE = 1, 2, 4, 8, 16, 32, 64, 128, 0x8000
NO_TOKEN = 0xFFFFFFFF
M32 = 0xFFFFFFFF

Limits = collections.namedtuple("Limits", "max_live max_context max_output vocab max_payload max_messages max_parts "
                                          "max_tools max_stops max_stop_bytes max_bias max_alts max_bulk zero "
                                          "max_bulk_bytes")
Welcome = collections.namedtuple("Welcome", "wire state features generation conn_id u_bytes d_bytes sq_off pay_off "
                                            "tq_off txt_off sq_log2 tq_log2 pay_log2 txt_log2 zero limits model")
Record = collections.namedtuple("Record", "type channel flags seq tag token logprob text_off text_len n_alts t_ns u")
Usage = collections.namedtuple("Usage", "prompt cached completion reasoning drafted accepted tier "
                                        "queued_ns prefill_ns decode_ns longest_gap_ns")
Final = collections.namedtuple("Final", "status reason detail prompt cached completion accepted token")


class Broken(Exception):
    """The daemon broke a rule of the protocol."""


class Refused(Exception):
    """REJECT or BYE: error and words."""

    def __init__(self, error, text):
        super().__init__(f"{error}: {text}")
        self.error, self.text = error, text


def rule(holds, words):
    if not holds:
        raise Broken(words)


def words_of(raw, words):
    text, _, rest = raw.partition(b"\0")
    rule(not rest.strip(b"\0"), words + ": padding that is not NUL")
    rule(not any(c < 32 or c == 127 for c in text), words + ": control characters")
    return text.decode()


# ---------------------------------------------------------------------------------------------------------
# 7: payload


def tlv(kind, data=b"", flags=0):
    return struct.pack("<HHI", kind, flags, len(data)) + data + bytes(-len(data) % 8)


def message(role, text):
    return tlv(1, struct.pack("<II", role, 0)) + tlv(3, text.encode()) + tlv(2)


def tokens(ids):
    return tlv(8, struct.pack(f"<{len(ids)}I", *ids))


def sampling(logprobs=False, **fields):
    """temperature, top_p, ...: names and bits as in glmw_sampling."""
    order = (("temperature", 1), ("top_p", 2), ("min_p", 4), ("repetition_penalty", 16), ("presence_penalty", 32),
             ("frequency_penalty", 64), ("top_k", 8), ("seed", 0x80), ("n_alts", 0x100), ("min_tokens", 0x200),
             ("thinking_budget", 0x400), ("loop_guard", 0x800))
    has = sum(bit for name, bit in order if name in fields)
    return tlv(18, struct.pack("<III6fIQIIII", 64, has, int(logprobs), *(fields.get(name, 0) for name, _ in order)))


def stop(text):
    return tlv(19, text.encode())


def chat(thinking=0):
    return tlv(23, struct.pack("<IBBBBII", 16, 0, thinking, 0, 0, 0, 0))


# ---------------------------------------------------------------------------------------------------------
# 6 and 9: what comes for one tag


class Stream:
    """Collects one tag and checks the order of its records."""

    def __init__(self, tag, opcode, flags, client_ns, limits, start=None):
        self.start = start  # 9.1: the seq that RESUME asked for
        self.stream_id = 0
        self.first_alts = 0
        self.tag, self.opcode, self.flags, self.client_ns, self.limits = tag, opcode, flags, client_ns, limits
        self.next_seq = self.alts_due = self.first_seen = 0
        self.accepted = self.refused = False
        self.usage = self.final = None
        self.ids, self.logprobs, self.alts, self.progress, self.tools, self.prompt_ids = [], [], [], [], [], []
        self.text = collections.defaultdict(bytes)
        self.error = None
        self.forced, self.closed, self.looped = [], False, False  # 7.4
        self.records = 0

    def take(self, r, text):
        rule(self.final is None, f"tag {self.tag}: a record of type {r.type} after END")
        if self.start is not None and r.type == ACCEPTED:  # the seq before the first one that follows
            rule(r.seq + 1 >= self.start, f"RESUME from {self.start} goes on behind {r.seq}")
            self.next_seq = r.seq
        rule(r.seq == self.next_seq, f"tag {self.tag}: seq {r.seq}, expected {self.next_seq}")
        rule(self.usage is None or r.type == END, f"tag {self.tag}: type {r.type} between USAGE and END")
        rule(not self.alts_due or r.type == ALTS, f"tag {self.tag}: type {r.type} where ALTS are due")
        rule(self.records or r.type in (ACCEPTED, ERROR), f"tag {self.tag}: begins with type {r.type}")
        self.next_seq = (r.seq + 1) & M32
        self.records += 1
        take = {ACCEPTED: self.take_accepted, PROGRESS: self.take_progress, TOKEN: self.take_token,
                TEXT: self.take_token, ALTS: self.take_alts, TOOL: self.take_tool, USAGE: self.take_usage,
                END: self.take_end, ERROR: self.take_error, IDS: self.take_ids}.get(r.type)
        if take:
            take(r, text)
        else:
            rule(r.flags & IGNORABLE, f"unknown record type {r.type} that is not to be ignored")

    def take_accepted(self, r, _):
        client_ns, self.stream_id, zero = struct.unpack("<QQQ", r.u)
        rule((r.seq == 0 or self.start is not None) and not self.accepted, "ACCEPTED is not the first")
        rule(self.flags & KEEP or self.start is not None or self.stream_id == 0, "a stream id nobody asked for")
        rule(client_ns == self.client_ns and zero == 0, "ACCEPTED does not echo client_ns")
        self.accepted = True

    def take_progress(self, r, _):
        done, total, cached, queue_pos, phase, wait_ms = struct.unpack("<6I", r.u)
        rule(not self.flags & QUIET, "PROGRESS of a QUIET request")
        rule(1 <= phase <= 3 and (wait_ms == 0 or phase == 1) and cached <= done <= max(total, done * (phase == 2)),
             f"PROGRESS {done} of {total}, {cached} cached, phase {phase}")
        rule(not self.first_seen, "PROGRESS after the first token")
        self.progress.append((phase, done, total, queue_pos))

    def take_token(self, r, text):
        rule(self.accepted, "text before ACCEPTED")
        # on the channel of tool names FIRST marks each call
        rule(bool(r.flags & FIRST) == (not self.first_seen) or r.channel == 2 or (self.start and not r.flags & FIRST),
             f"FIRST at seq {r.seq}")
        rule(r.channel <= 3, f"channel {r.channel}")
        self.first_seen = 1
        if r.type == TOKEN:
            rule(r.token < self.limits.vocab, f"token {r.token}")
            self.ids.append(r.token)
            if r.flags & FORCED:
                self.forced.append(r.token)
            self.logprobs.append(r.logprob)
            self.alts.append([])
            rule(bool(r.flags & ALTS_FOLLOW) == (r.n_alts > 0), "ALTS_FOLLOW and n_alts differ")
            self.alts_due = r.n_alts
        else:
            rule(r.token == NO_TOKEN and r.n_alts == 0, "TEXT with a token")
        self.text[r.channel] += text

    def take_alts(self, r, _):
        rule(self.alts_due, "ALTS without a TOKEN")
        self.first_alts = self.first_alts or r.seq
        for token, logprob in r.u:
            if self.alts_due:
                rule(token < self.limits.vocab, f"alternative {token}")
                self.alts[-1].append((token, logprob))
                self.alts_due -= 1
            else:
                rule(token == NO_TOKEN, "ALTS are not filled up")

    def take_tool(self, r, _):
        index, phase, zero, zero2 = struct.unpack("<IIQQ", r.u)
        rule(1 <= phase <= 3 and zero == zero2 == 0, f"TOOL phase {phase}")
        self.tools.append((index, phase))

    def take_usage(self, r, _):
        rule(self.accepted, "USAGE of a refused tag")
        self.usage = r.u

    def take_end(self, r, _):
        status, reason, detail, *counts = struct.unpack("<iHHIIII", r.u)
        self.final = Final(status, reason, detail, *counts, r.token)
        self.closed, self.looped = bool(r.flags & FORCED), bool(r.flags & LOOP)
        rule(reason != 9 or self.looped, "the loop guard ended an answer and does not say so")
        rule(self.accepted == (self.usage is not None), "END of an accepted tag without USAGE")
        rule(self.accepted or (self.error is not None and r.seq == 1), "a refused tag has ERROR and END")
        rule(status <= 0, f"END with status {status}")
        if self.opcode == SUBMIT:
            ways = (1, 2, 3, 4, 5, 9) if status == 0 else (6, 7, 8) if self.accepted else (0,)
            rule(reason in ways, f"END with status {status} and reason {reason}")
        rule((reason == 6) == (status == -125), f"status {status} with reason {reason}")
        rule((reason != 7) or status == -110, f"status {status} with reason {reason}")
        if self.usage:
            rule(counts[:3] == list(self.usage[:3]), "END and USAGE count differently")
            # the id that ended the turn is sampled and has no TOKEN
            rule(status or self.start or counts[2] == len(self.ids) + (r.token != NO_TOKEN),
                 f"{counts[2]} sampled, {len(self.ids)} TOKEN records")

    def take_error(self, r, text):
        self.error = (struct.unpack("<i", struct.pack("<I", r.token))[0], text.decode())

    def take_ids(self, r, _):
        count, ids = r.channel, r.u
        rule(self.opcode == TOKENIZE and 1 <= count <= 12, f"IDS with {count} ids")
        rule(all(i == NO_TOKEN for i in ids[count:]), "IDS are not filled up")
        self.prompt_ids += ids[:count]


# ---------------------------------------------------------------------------------------------------------
# 2, 3, 5, 8: the connection


class Client:
    def __init__(self, path, sq_log2=0, tq_log2=0, pay_log2=0, txt_log2=0, name="glmw.py", required=0,
                 wanted=LOGPROBS | ALTS_FEATURE | TOOL_EVENTS | TOKENIZE_FEATURE | BULK | RESUME, wire=(1, 1)):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(10)
        self.serial = 0
        self.eof = False
        self.bye = None
        self.notices, self.pongs, self.bulk_answers = [], [], {}
        self.streams, self.live, self.waiting = {}, set(), {}
        self.next_tag = 1
        self.fds = []
        try:
            self.sock.connect(path)
            self.handshake(struct.pack("<IIQQBBBBI32s32x", *wire, wanted, required, sq_log2, tq_log2, pay_log2,
                                       txt_log2, mmap.PAGESIZE, name.encode()))
        except BaseException:
            self.close()
            raise

    def send(self, kind, body, *fds):
        packet = struct.pack("<IHHII", 0x504D4C47, kind, 0, len(body), self.serial) + body
        self.serial += 1
        if fds:
            self.sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        else:
            self.sock.send(packet)

    def receive(self):
        """One packet: type, body, descriptors."""
        want = 4096, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
        try:
            data, control, flags, _ = self.sock.recvmsg(*want)
        except ConnectionResetError:  # once, before what lies there
            data, control, flags, _ = self.sock.recvmsg(*want)
        fds = array.array("i")
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) - len(payload) % 4])
        self.fds += fds
        if not data:
            return None, b"", []
        rule(not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "a packet that is too long")
        rule(len(data) >= 16, "a packet without a header")
        magic, kind, pflags, size, _ = struct.unpack_from("<IHHII", data)
        rule(magic == 0x504D4C47 and size == len(data) - 16 and not pflags & ~1, "a broken packet header")
        if pflags & 1 and kind > BYE:
            for fd in fds:
                self.fds.remove(fd)
                os.close(fd)
            return self.receive()
        return kind, data[16:], list(fds)

    def handshake(self, hello):
        try:
            self.send(HELLO, hello)
        except BrokenPipeError:
            pass  # the answer may lie there already
        kind, body, fds = self.receive()
        if kind == REJECT:
            rule(len(body) >= 256, "a short REJECT")
            error, self.retry_after_ms, self.wire_min, self.wire_max = struct.unpack_from("<iIII", body)
            raise Refused(error, words_of(body[16:256], "REJECT"))
        if kind == BYE:
            raise Refused(*self.read_bye(body))
        rule(kind == WELCOME and len(body) == 216 and len(fds) == 4, f"packet {kind} instead of WELCOME")
        w = Welcome(*struct.unpack("<II9Q4BI64s64s", body))
        self.limits = Limits(*struct.unpack("<14IQ", w.limits))
        self.welcome = w
        self.model = words_of(w.model, "model")
        rule(w.wire == 1 and w.zero == 0 and w.generation and self.limits.zero == 0, "WELCOME")
        self.map(*fds)

    def map(self, u, d, bell, pipe):
        w = self.welcome
        for fd, size in ((u, w.u_bytes), (d, w.d_bytes)):
            st = os.fstat(fd)
            rule(stat.S_ISREG(st.st_mode) and st.st_size == size, "a region of another size than WELCOME says")
        for off, size, end in ((w.sq_off, 64 << w.sq_log2, w.u_bytes), (w.pay_off, 1 << w.pay_log2, w.u_bytes),
                               (w.tq_off, 64 << w.tq_log2, w.d_bytes), (w.txt_off, 1 << w.txt_log2, w.d_bytes)):
            rule(off % 65536 == 0 and size <= end and off <= end - size, f"offset {off} of {size} bytes in {end}")
        self.u = mmap.mmap(u, w.u_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.d = mmap.mmap(d, w.d_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self.u.madvise(mmap.MADV_DONTFORK)
        self.d.madvise(mmap.MADV_DONTFORK)
        self.uw, self.dw = memoryview(self.u).cast("I"), memoryview(self.d).cast("I")
        rule(self.uw[0] == 0x554D4C47 and self.dw[0] == 0x444D4C47, "magic of a region")
        rule(self.uw[1] == self.dw[1] == w.wire, "wire version of a region")
        rule(self.d[8:84] == struct.pack("<9Q4B", *w[2:15]), "region D does not repeat WELCOME")
        self.bell, self.pipe = bell, pipe
        os.set_blocking(pipe, False)
        self.sq_tail = self.head = self.tail = 0
        self.sq_size, self.tq_size = 1 << w.sq_log2, 1 << w.tq_log2
        self.pay_next = 0
        self.poll = select.poll()
        self.poll.register(pipe, select.POLLIN)
        self.poll.register(self.sock, select.POLLIN)

    # ---- up

    def ring(self):
        try:
            os.eventfd_write(self.bell, 1)
        except BlockingIOError:
            pass  # one is pending

    def entry(self, opcode, flags=0, size=0, tag=0, off=0, session=0, max_tokens=0, deadline_ms=0, client_ns=0):
        """False: the submission ring is full."""
        if (self.sq_tail - self.dw[128 // 4]) & M32 >= self.sq_size:
            return False
        at = self.welcome.sq_off + self.sq_tail % self.sq_size * 64
        self.u[at:at + 64] = struct.pack("<BBHIQQQIIQ16x", opcode, flags, 0, size, tag, off, session, max_tokens,
                                         deadline_ms, client_ns)
        self.sq_tail = (self.sq_tail + 1) & M32
        self.uw[128 // 4] = self.sq_tail
        self.ring()
        return True

    def note(self, tag, *stream):
        self.next_tag = max(self.next_tag, tag + 1)
        self.streams[tag] = Stream(tag, *stream)
        self.live.add(tag)
        return self.streams[tag]

    def bulk(self, number, data, seals=0xF, size=None, kind=1):
        """2.4: a sealed memfd; the daemon's answer, 0 or negative, None when it hung up."""
        fd = os.memfd_create("glmw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(fd, len(data)) if not any(data) else os.write(fd, data)  # all zeros: one hole
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            self.send(BULK_PACKET, struct.pack("<IIQ16x", number, kind, len(data) if size is None else size), fd)
        finally:
            os.close(fd)
        self.bulk_answers.pop(number, None)
        while number not in self.bulk_answers and not self.eof:
            self.take() or self.sleep()
        return self.bulk_answers.get(number)

    def submit_bulk(self, number, opcode=SUBMIT, flags=0, max_tokens=0):
        tag, client_ns = self.next_tag, time.monotonic_ns()
        rule(self.entry(opcode, flags | BULK_FLAG, 0, tag, number, 0, max_tokens, 0, client_ns), "a full ring")
        return self.note(tag, opcode, flags, client_ns, self.limits)

    def resume(self, stream_id, seq):
        tag, client_ns = self.next_tag, time.monotonic_ns()
        rule(self.entry(RESUME_OP, 0, 0, tag, stream_id, seq, client_ns=client_ns), "a full ring")
        return self.note(tag, SUBMIT, 0, client_ns, self.limits, seq)

    def submit(self, payload, opcode=SUBMIT, flags=0, max_tokens=0, deadline_ms=0, tag=0):
        """The stream, or None when ring or arena are full."""
        rule(len(payload) <= self.limits.max_payload, "payload over the limit of this connection")
        arena = 1 << self.welcome.pay_log2
        if self.pay_next + len(payload) > arena:
            if self.waiting:
                return None
            self.pay_next = 0
        tag = tag or self.next_tag
        client_ns = time.monotonic_ns()
        at = self.welcome.pay_off + self.pay_next
        self.u[at:at + len(payload)] = payload
        if not self.entry(opcode, flags, len(payload), tag, self.pay_next, 0, max_tokens, deadline_ms, client_ns):
            return None
        self.waiting[tag] = self.pay_next  # the daemon's until the first record
        self.pay_next += (len(payload) + 7) // 8 * 8
        return self.note(tag, opcode, flags, client_ns, self.limits)

    def cancel(self, tag):
        return self.entry(CANCEL, tag=tag)

    # ---- down

    def look(self):
        """Reads tq_tail; how many records lie there."""
        tail = self.dw[384 // 4]
        rule((tail - self.tail) & M32 <= self.tq_size - ((self.tail - self.head) & M32), f"tq_tail jumps to {tail}")
        self.tail = tail
        return (self.tail - self.head) & M32

    def fetch(self):
        """The record at head."""
        at = self.welcome.tq_off + self.head % self.tq_size * 64
        raw = self.d[at:at + 64]
        r = Record(*struct.unpack("<BBHIQIfIHHQ24s", raw))
        if r.type == ALTS:
            return r._replace(u=[struct.unpack_from("<If", raw, 16 + 8 * i) for i in range(6)]), b""
        if r.type == IDS:
            return r._replace(u=list(struct.unpack_from("<12I", raw, 16))), b""
        if r.type == USAGE:
            rule(r.channel >= 1, "USAGE version")
            shift, n = r.flags, struct.unpack_from("<12I", raw, 16)
            rule(shift <= 32 and not raw[44:48].strip(b"\0"), f"USAGE with time_shift {shift}")
            return r._replace(u=Usage(*n[:7], *(t << shift for t in n[8:]))), b""
        return r, self.text_of(r)

    def text_of(self, r):
        if r.type not in (TOKEN, TEXT, ERROR, NOTICE) or r.text_len == 0:
            rule(r.text_len == 0 and r.text_off == 0, f"type {r.type} with text")
            return b""
        if r.flags & INLINE:
            rule(r.text_len <= 24 and r.text_off == 0, f"{r.text_len} bytes inline")
            text = r.u[:r.text_len]
        else:
            size = 1 << self.welcome.txt_log2
            rule(r.text_len <= 4096 and r.text_off <= size - r.text_len, f"text at {r.text_off}+{r.text_len}")
            text = self.d[self.welcome.txt_off + r.text_off:self.welcome.txt_off + r.text_off + r.text_len]
        try:
            text.decode()
        except UnicodeDecodeError:
            raise Broken(f"text that is not whole UTF-8: {text!r}") from None
        return text

    def take(self, most=1 << 30, give_back=True):
        """Takes at most so many records; how many there were."""
        n = min(self.look(), most)
        due = 0
        for _ in range(n):
            r, text = self.fetch()
            stream = self.streams.get(r.tag)
            rule(not due or (stream and stream.alts_due == due), "ALTS do not follow their TOKEN at once")
            if r.tag == 0:
                rule(r.type == NOTICE, f"type {r.type} with tag 0")
            else:
                rule(stream is not None, f"a record of tag {r.tag}, which nobody uses")
                stream.take(r, text)
                due = stream.alts_due
                self.waiting.pop(r.tag, None)
                if stream.final:
                    self.live.discard(r.tag)
            self.head = (self.head + 1) & M32
        if give_back:
            self.give_back()
        return n

    def give_back(self):
        self.uw[256 // 4] = self.head
        if self.dw[388 // 4] and not self.entry(NOP):
            self.ring()

    def socket_news(self):
        kind, body, fds = self.receive()
        rule(not fds, f"packet {kind} with descriptors")
        if kind is None:
            self.eof = True
            self.poll.unregister(self.sock)
        elif kind == PING:
            self.send(PONG, body)
        elif kind == PONG:
            self.pongs.append(body)
        elif kind in (BULK_OK, BULK_ERR):
            number, error, zero = struct.unpack("<IiQ", body)
            rule(zero == 0 and (error == 0 if kind == BULK_OK else error < 0), "a BULK answer")
            self.bulk_answers[number] = error
        elif kind == NOTICE_PACKET:
            rule(len(body) == 136, "NOTICE")
            self.notices.append(struct.unpack_from("<II", body))
        elif kind == BYE:
            self.bye = self.read_bye(body)
        else:
            raise Broken(f"packet {kind}")

    @staticmethod
    def read_bye(body):
        rule(len(body) == 128, "BYE")
        error, zero = struct.unpack_from("<iI", body)
        rule(error <= 0 and zero == 0, "BYE")
        return error, words_of(body[8:], "BYE")

    def sleep(self, seconds=0.05):
        """Arms, looks again, sleeps; never longer than 50 ms, because arming without a barrier may be missed."""
        self.uw[384 // 4] = self.head
        if self.look():
            return
        for fd, _ in self.poll.poll(min(seconds, 0.05) * 1000):
            if fd == self.pipe:
                try:
                    while os.read(self.pipe, 4096):
                        pass
                except BlockingIOError:
                    pass
            else:
                self.socket_news()
        if self.dw[388 // 4]:
            self.give_back()

    def run(self, until=None, seconds=60):
        """Takes records until all tags have ended, or until() is true."""
        end = time.monotonic() + seconds
        while self.live and not (until and until()):
            n = self.take()
            if n == 0 and self.eof:
                for tag in list(self.live):  # 10: the daemon is gone, and the ring was read to its end
                    self.streams[tag].final = Final(-32, 0, 0, 0, 0, 0, 0, NO_TOKEN)
                    self.live.discard(tag)
            elif n == 0:
                rule(time.monotonic() < end, f"tags {sorted(self.live)} do not end")
                self.sleep()

    def status(self):
        """3: struct glmw_status, a copy of one moment."""
        for _ in range(1000):
            seq = self.dw[512 // 4]
            raw = self.d[512:512 + 256]
            if seq % 2 == 0 and self.dw[512 // 4] == seq:
                names = ("seq state heartbeat_ns start_ns kv_free kv_total tokens_out queued running slots_free "
                         "slots_total prefill_mtok_s decode_mtok_s connections load_permille my_live my_live_max "
                         "my_bulk_bytes my_stalls my_bells_sent my_bells_suppressed my_safety_wakes my_records "
                         "requests_accepted requests_ended user_live user_live_max user_connections "
                         "user_connections_max user_kept user_submits_max user_region_bytes user_region_max "
                         "user_bulk_bytes user_bulk_max user_queued_tokens user_queued_max user_kv_tokens "
                         "user_kv_max user_refused budget_closes loop_closes")
                return dict(zip(names.split(), struct.unpack("<II5Q10I8Q6I9Q2I", raw)))
        raise Broken("status is being written for ever")

    def ping(self, cookie):
        self.send(PING, cookie)

    def close(self, bye=True):
        if self.fds and bye and not self.eof:
            try:
                self.send(BYE, struct.pack("<iI120x", 0, 0))
            except OSError:
                pass
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        for name in ("uw", "dw", "u", "d"):
            view = self.__dict__.pop(name, None)
            if view is not None:
                view.release() if isinstance(view, memoryview) else view.close()
