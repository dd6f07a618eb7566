# SPDX-License-Identifier: MIT
"""A real daemon for the checks of the second client: started from the build directory named by the first argument of
the program, stopped and looked after when its `with` block ends."""
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

BUILD = sys.argv[1]
MODELS = os.environ.get("GLMD_MODELS", os.path.abspath("build/models"))


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Daemon:
    """A glmd in a directory of its own; `with` ends it and wants a clean end, unless kill() was called."""

    def __init__(self, script=None, conf="", arguments=()):
        self.dir = tempfile.TemporaryDirectory(prefix="glmd-test-")
        path = self.dir.name
        self.socket = path + "/glmd.sock"
        model = MODELS + "/nano"
        if script is not None:
            model = f"script:{path}/model.script"
            with open(path + "/model.script", "w") as f:
                f.write("glmd-script 1\n" + script.replace("NANO", MODELS + "/nano"))
        with open(path + "/glmd.conf", "w") as f:
            f.write("[Memory]\nKeepFreeBytes=0\n" + conf)
        self.log = open(path + "/log", "w+")
        self.process = subprocess.Popen(
            [BUILD + "/test/glmd", "--model", model, "--socket", self.socket, "--config", path + "/glmd.conf",
             *arguments], stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)
        end = time.monotonic() + 60
        while "ready after" not in self.log_text():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the daemon does not become ready: " + self.log_text()[-500:])
            time.sleep(0.01)

    def log_text(self):
        with open(self.dir.name + "/log") as f:
            return f.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        killed = self.process.returncode is not None
        if not killed:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        log = self.log_text()
        self.log.close()
        self.dir.cleanup()
        if kind is None and not killed and self.process.returncode != 0:
            raise AssertionError(f"the daemon ended with {self.process.returncode}: {log[-500:]}")

    def glmctl(self, *arguments):
        out = subprocess.run([BUILD + "/glmctl", "run", "--socket", self.socket, "--json", *arguments],
                             capture_output=True, timeout=60, check=True).stdout
        return [json.loads(line) for line in out.splitlines()]
