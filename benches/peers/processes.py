"""Child processes: started in a group of their own, stopped as a group, gone when this process is gone."""

import ctypes
import os
import signal
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A process did not do what it was started for. The text is for the user."""


class Process:
    """A running child. `log` gets its standard error, and its standard output unless that is captured."""

    def __init__(self, name, command, env, log, cwd, user=None, stdout=None):
        self.name, self.log = name, log
        as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
        with open(log, "ab") as log_file:
            try:
                self.popen = subprocess.Popen(
                    command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout or log_file, stderr=log_file,
                    start_new_session=True, preexec_fn=die_with_parent, **as_user)
            except OSError as error:
                raise Failed(f"{name} cannot be started: {error}") from error

    @property
    def pid(self):
        return self.popen.pid

    def check(self):
        """Fail if the process has ended."""
        code = self.popen.poll()
        if code is not None:
            raise Failed(f"{self.name} ended with {code}: {self.last_words()}")

    def last_words(self):
        """Return the end of the log."""
        with open(self.log, errors="replace") as log_file:
            lines = [line.strip() for line in log_file if line.strip()]
        return f"{' / '.join(lines[-3:]) or 'no word'} ({os.path.basename(self.log)})"

    def wait_until(self, ready, seconds):
        """Wait for a condition, for as long as the process lives."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} was not ready after {seconds} s: {self.last_words()}")
            time.sleep(0.02)

    def stop(self, first=signal.SIGTERM, seconds=10):
        """Ask the process to stop, then kill what is left of its group."""
        if self.popen.poll() is None:
            self.popen.send_signal(first)
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()


def run_shown(command, cwd, breakable=True):
    """Run a program to its end, with its output on standard error. Return its exit code.

    When the comparison is stopped meanwhile, the program is ended with all that it started; or, if it must not be
    broken off, its end is awaited.
    """
    popen = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True,
                             preexec_fn=die_with_parent if breakable else None)
    try:
        return popen.wait()
    finally:
        if popen.poll() is None:
            if breakable:
                os.killpg(popen.pid, signal.SIGTERM)
            popen.wait()


def die_with_parent():
    """Let the kernel kill this child when the comparison is killed. Runs in the child before its program."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_seconds(pids):
    """Return the CPU time of these processes and their descendants, with the children that they have reaped."""
    times, children = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # The name of the program, in brackets, may hold spaces.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        # Parent, then: user and system time, and those of reaped children.
        children.setdefault(int(fields[1]), []).append(int(entry))
        times[int(entry)] = sum(map(int, fields[11:15]))
    ticks, pending = 0, list(pids)
    while pending:
        pid = pending.pop()
        ticks += times.get(pid, 0)
        pending.extend(children.get(pid, []))
    return ticks / TICKS
