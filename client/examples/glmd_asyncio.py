#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""libglmd in an asyncio loop, through ctypes and nothing else.

    glmd_asyncio.py "Why is the sky blue?" "Count from 1 to 12."

Connection is for other programs, too:

    c = Connection(asyncio.get_running_loop())
    async for channel, text in c.stream("Hello"):
        ...
    c.close()

One thread, that of the loop; nothing but connecting waits.  asyncio has no hook before it sleeps, so take()
goes on until glmd_next() returns 0, which allows sleeping as glmd_prepare() does, and runs once after each
submission; in a flood it lets the loop run in between and calls itself soon.
"""
import argparse
import asyncio
import ctypes as c
import errno
import os
import resource
import signal
import sys

EV_TOKEN, EV_TEXT, EV_END, EV_ERROR = 3, 4, 6, 7
CONTENT, REASONING = 0, 1
ROLE_USER, KEY_MAX_TOKENS = 2, 1
AT_ONCE = 64  # events taken before the rest of the loop gets its turn

REFUSED, USAGE, NO_DAEMON, GONE, CANCELLED = 1, 2, 3, 4, 130  # exit statuses, as glmctl(1) has them


class Options(c.Structure):
    """struct glmd_options"""
    _fields_ = [("size", c.c_uint32), ("timeout_ms", c.c_uint32), ("socket_path", c.c_char_p),
                ("socket_path_len", c.c_size_t), ("client_name", c.c_char_p), ("client_name_len", c.c_size_t),
                ("error", c.c_char_p), ("error_bytes", c.c_size_t), ("entries_log2", c.c_uint32),
                ("records_log2", c.c_uint32), ("payload_log2", c.c_uint32), ("text_log2", c.c_uint32)]


class Event(c.Structure):
    """struct glmd_event, up to the field this program needs last: the library fills no more than size says"""
    _fields_ = [("size", c.c_uint32), ("type", c.c_uint32), ("channel", c.c_uint32), ("flags", c.c_uint32),
                ("tag", c.c_uint64), ("seq", c.c_uint32), ("token", c.c_uint32), ("text", c.c_void_p),
                ("text_len", c.c_size_t), ("alts", c.c_void_p), ("ids", c.c_void_p), ("n_alts", c.c_uint32),
                ("n_ids", c.c_uint32), ("logprob", c.c_float), ("status", c.c_int32)]


def load():
    try:
        lib = c.CDLL("libglmd.so.1")
    except OSError as e:
        sys.exit(f"glmd_asyncio: {e}; install glmd and run ldconfig, or set LD_LIBRARY_PATH to where it was built")
    ptr = c.c_void_p
    for name, result, *arguments in (
            ("connect", c.c_int, c.POINTER(Options), c.POINTER(ptr)), ("close", ptr, ptr),
            ("get_fd", c.c_int, ptr), ("dispatch", c.c_int, ptr), ("next", c.c_int, ptr, c.POINTER(Event)),
            ("get_error", c.c_int, ptr, c.POINTER(c.c_char_p)), ("cancel", c.c_int, ptr, c.c_uint64),
            ("req_new", c.c_int, ptr, c.POINTER(ptr)), ("req_free", ptr, ptr),
            ("req_message", c.c_int, ptr, c.c_int, c.c_char_p, c.c_size_t),
            ("req_set_u64", c.c_int, ptr, c.c_int, c.c_uint64),
            ("submit", c.c_int, ptr, ptr, c.POINTER(c.c_uint64)), ("strerror", c.c_char_p, c.c_int)):
        f = getattr(lib, "glmd_" + name)
        f.restype, f.argtypes = result, arguments
    return lib


lib = load()


class Error(Exception):
    def __init__(self, status, text=None):
        super().__init__(text or lib.glmd_strerror(status).decode())
        self.status = status


class Connection:
    """One connection with any number of streams.  Belongs to the thread of its loop."""

    def __init__(self, loop, socket=None):
        why = c.create_string_buffer(256)
        path = os.fsencode(socket) if socket else None
        o = Options(size=c.sizeof(Options), socket_path=path, socket_path_len=len(path or b""),
                    error=c.cast(why, c.c_char_p), error_bytes=len(why))
        self.conn = c.c_void_p()
        r = lib.glmd_connect(c.byref(o), c.byref(self.conn))
        if r < 0:
            raise Error(r, why.value.decode())
        self.loop = loop
        self.takes = 0
        self.dead = 0  # what killed it
        self.queues = {}  # tag -> events of that stream
        self.room = asyncio.Event()  # set when an answer ended
        self.fd = lib.glmd_get_fd(self.conn)
        loop.add_reader(self.fd, self.take)

    def take(self):
        ev = Event(size=c.sizeof(Event))
        self.takes += 1
        r = 0 if self.dead else lib.glmd_dispatch(self.conn)
        n = 0
        while r >= 0 and not self.dead and n < AT_ONCE:
            r = lib.glmd_next(self.conn, c.byref(ev))
            if r != 1:
                break
            n += 1
            queue = self.queues.get(ev.tag)
            if queue:  # the text lies in memory shared with the daemon: string_at copies it
                queue.put_nowait((ev.type, ev.channel, c.string_at(ev.text, ev.text_len), ev.status))
            if ev.type == EV_END:
                self.queues.pop(ev.tag, None)
                self.room.set()
        if r < 0:
            self.die(r)
        elif n == AT_ONCE:
            self.loop.call_soon(self.take)

    def die(self, status):
        self.dead = status
        self.loop.remove_reader(self.fd)
        for queue in self.queues.values():
            queue.put_nowait((EV_END, 0, b"", status))
        self.queues.clear()
        self.room.set()

    def why(self):
        text = c.c_char_p()
        lib.glmd_get_error(self.conn, c.byref(text))
        return text.value.decode()

    def request(self, prompt, max_tokens):
        request, tag = c.c_void_p(), c.c_uint64()
        data = prompt.encode()
        r = lib.glmd_req_new(self.conn, c.byref(request))
        if r == 0:
            r = lib.glmd_req_message(request, ROLE_USER, data, len(data))
        if r == 0 and max_tokens:
            r = lib.glmd_req_set_u64(request, KEY_MAX_TOKENS, max_tokens)
        if r == 0:
            r = lib.glmd_submit(self.conn, request, c.byref(tag))
        if r < 0:
            lib.glmd_req_free(request)
            raise Error(r)
        self.loop.call_soon(self.take)
        return tag.value

    async def submit(self, prompt, max_tokens):
        """As request(); while the rings are full it waits for an answer to end."""
        while True:
            self.room.clear()
            try:
                return self.request(prompt, max_tokens)
            except Error as e:
                if e.status not in (-errno.ENOBUFS, -errno.EBUSY) or not self.queues:
                    raise
            await self.room.wait()

    async def stream(self, prompt, max_tokens=0):
        """Yields (channel, text) as it comes; raises Error when the answer ends with one.  A stream that is
        left early, or whose task is cancelled, is cancelled in the daemon."""
        tag = await self.submit(prompt, max_tokens)
        queue = self.queues[tag] = asyncio.Queue()
        words = None
        try:
            while True:
                kind, channel, text, status = await queue.get()
                if kind in (EV_TOKEN, EV_TEXT) and text:
                    yield channel, text.decode()
                elif kind == EV_ERROR:
                    words = text.decode()
                elif kind == EV_END:
                    if status < 0:
                        raise Error(status, words)
                    return
        finally:
            if self.queues.pop(tag, None) and not self.dead:
                lib.glmd_cancel(self.conn, tag)

    def cancel_all(self):
        """Every stream ends with -ECANCELED, or as it was about to end."""
        for tag in self.queues:
            lib.glmd_cancel(self.conn, tag)

    def close(self):
        if not self.dead:
            self.loop.remove_reader(self.fd)
            self.dead = -errno.EPIPE
        self.conn = lib.glmd_close(self.conn)


async def answer(connection, prompt, number, of, max_tokens):
    """Prints one answer as it comes; of several, whole lines with their number in front."""
    line = ""
    try:
        async for channel, text in connection.stream(prompt, max_tokens):
            if channel != CONTENT:
                continue
            if of == 1:
                print(text, end="", flush=True)
                continue
            *whole, line = (line + text).split("\n")
            for w in whole:
                print(f"{number}: {w}", flush=True)
    except Error as e:
        print(f"glmd_asyncio: answer {number}: {e}", file=sys.stderr)
        return e.status
    finally:
        if of == 1:
            print(flush=True)
        elif line:
            print(f"{number}: {line}", flush=True)
    return 0


async def ticker(ms, ticks):
    while ms:
        await asyncio.sleep(ms / 1000)
        ticks.append(1)


def interrupt(connections, interrupted):
    if interrupted:
        os._exit(CANCELLED)
    interrupted.append(1)
    for one in connections:
        one.cancel_all()


def exit_status(connections, results):
    if any(one.dead for one in connections):
        return GONE
    bad = [r for r in results if r < 0]
    return 0 if not bad else CANCELLED if bad[0] == -errno.ECANCELED else REFUSED


async def run(o):
    loop = asyncio.get_running_loop()
    connections, interrupted, ticks = [], [], []
    try:
        for path in o.socket or [None]:
            connections.append(Connection(loop, path))
    except Error as e:
        print(f"glmd_asyncio: {e}", file=sys.stderr)
        return NO_DAEMON
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, connections, interrupted)
    other = asyncio.create_task(ticker(o.interval, ticks))
    results = await asyncio.gather(*(answer(connections[i % len(connections)], p, i + 1, len(o.prompt), o.tokens)
                                     for i, p in enumerate(o.prompt)))
    other.cancel()
    status = exit_status(connections, results)
    for one in connections:
        if one.dead:
            print(f"glmd_asyncio: {one.why()}", file=sys.stderr)
        one.close()
    if o.verbose:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"glmd_asyncio: {sum(one.takes for one in connections)} dispatches, {len(ticks)} ticks, "
              f"{round((used.ru_utime + used.ru_stime) * 1000)} ms of processor", file=sys.stderr)
    return status


def main():
    p = argparse.ArgumentParser(description="Streams answers of glmd. Ctrl-C cancels.")
    p.add_argument("-s", dest="socket", action="append", help="socket of the daemon; repeat for more connections")
    p.add_argument("-n", dest="tokens", type=int, default=0, help="longest answer")
    p.add_argument("-i", dest="interval", type=int, default=0, help="ms; a timer in the same loop, only counts")
    p.add_argument("-v", dest="verbose", action="store_true", help="say at the end what the loop did")
    p.add_argument("prompt", nargs="+")
    sys.exit(asyncio.run(run(p.parse_args())))


if __name__ == "__main__":
    main()
