"""A remote worker in the standard library alone: the reference program of the conformance kit.

It serves the kinds `conformance.…` as docs/WORKERS.md says. It is small rather than fast, and no library: those are in
`clients/`. With an argument it has one fault, which the scenario of the kit that is named for it must find. Each fault is
marked `fault(...)` where it is made.
"""

import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from decimal import Decimal

FAULT = sys.argv[1] if len(sys.argv) > 1 else None
ADDRESSES = os.environ["TICKR_URL"].split(",")
TOKEN = os.environ["TICKR_TOKEN"]
QUEUES = os.environ.get("TICKR_QUEUES", "conformance").split(",")
SLOTS = int(os.environ.get("TICKR_SLOTS", "4"))
GRACE = int(os.environ.get("TICKR_GRACE_MS", "5000")) / 1000
LEASE_MS = int(os.environ.get("TICKR_LEASE_MS", "10000"))
WAIT_MS = int(os.environ.get("TICKR_WAIT_MS", "30000"))
MAX_RESULT, MAX_LOG, MAX_ERROR, MAX_NOTE, MAX_BODY = 256 << 10, 16 << 10, 2_000, 120, 250_000


def fault(name):
    return FAULT == name


def read_json(text):
    return json.loads(text, parse_float=Decimal)


def write_json(value):
    """JSON in which decimals keep their digits. The encoder of the standard library has no hook for numbers."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, int, float)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + write_json(v) for k, v in value.items()) + "}"
    return "[" + ",".join(write_json(item) for item in value) + "]"


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status, retry_after):
        super().__init__(f"status {status}")
        self.status, self.retry_after = status, retry_after


class Connection:
    """A connection to one of the addresses. After a failure the next address is used."""

    def __init__(self, timeout, obeys=True):
        self.timeout, self.address, self.connection, self.obeys = timeout, 0, None, obeys
        # Time at which the newest request was sent.
        self.sent = 0.0
        # Time until which each address asked not to be called.
        self.resting = [0.0] * len(ADDRESSES)

    def call(self, method, path, body=None, headers=None):
        pause = self.resting[self.address] - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        try:
            return self.once(method, path, body, headers or {})
        except Refused as refused:
            if refused.status != 404:
                if refused.retry_after and self.obeys and not (fault("hurries-after-503") and refused.status == 503):
                    self.resting[self.address] = time.monotonic() + min(refused.retry_after, 60)
                self.next_address()
            raise
        except (OSError, http.client.HTTPException, ValueError):
            self.next_address()
            raise

    def once(self, method, path, body, headers):
        if self.connection is None:
            host = urllib.parse.urlsplit(ADDRESSES[self.address]).netloc
            self.connection = http.client.HTTPConnection(host, timeout=self.timeout)
        headers = {"authorization": f"Bearer {TOKEN}", **headers}
        if fault("token-in-url"):
            path = f"{path}?token={TOKEN}"
        if body is not None:
            body, headers["content-type"] = write_json(body).encode(), "application/json"
        self.sent = time.monotonic()
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise Refused(answer.status, int(answer.headers.get("retry-after", "0")))
        return read_json(content) if content else None

    def next_address(self):
        self.close()
        if not fault("one-address"):
            self.address = (self.address + 1) % len(ADDRESSES)

    def close(self):
        connection, self.connection = self.connection, None
        if connection:
            connection.close()

    def abort(self):
        """End a call that waits, from another thread."""
        connection = self.connection
        if connection and connection.sock:
            try:
                connection.sock.shutdown(2)
            except OSError:
                pass


class Pauses:
    """Growing pauses between tries, at most `most` seconds."""

    def __init__(self, most):
        self.most, self.next = most, 0.1

    def wait(self, event=None):
        pause = 0 if fault("hurries-after-500") else self.next * random.uniform(0.5, 1)
        self.next = min(self.most, self.next * 2)
        event.wait(pause) if event else time.sleep(pause)


class Stopped(BaseException):
    """The attempt was cancelled or lost."""


class Verdict(Exception):
    def __init__(self, word, error=None, delay_ms=None):
        super().__init__(error)
        self.word, self.error, self.delay_ms = word, error, delay_ms


class Attempt:
    def __init__(self, job):
        self.job, self.token = job, job["token"]
        self.stop, self.lines, self.report, self.lock = threading.Event(), [], {}, threading.Lock()
        self.cancelled = self.lost = self.finished = self.expired = False
        # Time from which its lease holds, at the earliest.
        self.renewed = 0.0

    def sleep(self, seconds):
        if fault("ignores-cancel"):
            time.sleep(seconds)
        elif self.stop.wait(seconds):
            raise Stopped

    def held(self):
        with self.lock:
            return {"token": self.token, **self.report}


# The handlers.


def echo(attempt, payload):
    return payload


def fail(attempt, payload):
    raise Verdict("failed", payload["message"], payload.get("delay_ms"))


def reject(attempt, payload):
    raise Verdict("rejected", payload["message"])


def snooze(attempt, payload):
    raise Verdict("snoozed", payload["message"], payload["delay_ms"])


def release(attempt, payload):
    raise Verdict("released")


def throw(attempt, payload):
    raise RuntimeError(payload["message"])


def sleep(attempt, payload):
    attempt.sleep(payload["ms"] / 1000)
    return {"slept": True}


def block(attempt, payload):
    time.sleep(payload["ms"] / 1000)


def progress(attempt, payload):
    note = "".join(c if c.isprintable() else " " for c in payload["note"])[:MAX_NOTE]
    with attempt.lock:
        attempt.report = {"percent": payload["percent"], "note": note, "checkpoint": payload["checkpoint"]}
    attempt.sleep(payload["ms"] / 1000)
    return {"began_with": attempt.job.get("checkpoint")}


def log(attempt, payload):
    attempt.lines.extend(payload["lines"])


def big(attempt, payload):
    return "x" * payload["bytes"]


def enqueue(attempt, payload):
    connection, pauses, key = Connection(10), Pauses(5), str(uuid.uuid4())
    while True:
        if fault("new-key"):
            key = str(uuid.uuid4())
        try:
            job = connection.call("POST", "/v1/jobs", payload, {"idempotency-key": key})
            return {"id": job["id"]}
        except (OSError, http.client.HTTPException, ValueError, Refused):
            pauses.wait()
        finally:
            connection.close()


HANDLERS = {f"conformance.{f.__name__}": f for f in (
    echo, fail, reject, snooze, release, throw, sleep, block, progress, log, big, enqueue)}


class Worker:
    def __init__(self):
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.attempts, self.verdicts, self.later = {}, {}, {}
        self.id, self.beat_s, self.beat_size = None, LEASE_MS / 3000, MAX_BODY
        self.lease_s, self.renewed = LEASE_MS / 1000, 0.0
        self.stopping, self.ended = threading.Event(), threading.Event()
        self.poll = None

    # Registration.

    def register(self):
        connection, pauses = Connection(10), Pauses(5)
        body = {"name": "reference", "kinds": list(HANDLERS), "queues": QUEUES, "slots": SLOTS, "lease_ms": LEASE_MS,
                "pid": os.getpid()}
        if fault("unknown-field"):
            body["language"] = "python"
        while not self.ended.is_set():
            try:
                answer = connection.call("POST", "/v1/workers", body)
                self.beat_s, self.lease_s = answer["beat_ms"] / 1000, answer["lease_ms"] / 1000
                self.id = answer["id"]
                return
            except (OSError, http.client.HTTPException, ValueError, Refused) as error:
                refused = isinstance(error, Refused) and error.status < 500 and error.status not in (408, 422, 429)
                refused = refused and self.id is None and not fault("registers-for-ever")
                if fault("registers-once") or refused:
                    raise
                pauses.wait(self.ended)

    def register_again(self, former):
        """Register again unless another thread has done so meanwhile."""
        with REGISTERING:
            if self.id == former and not fault("ignores-404"):
                self.register()

    # Requests for jobs.

    def fetch(self):
        patience = None if fault("polls-for-ever") else WAIT_MS / 1000 + 10
        self.poll, pauses, body, worker, tries = Connection(patience), Pauses(5), None, None, 0
        while not self.stopping.is_set():
            if body is None or worker != self.id:
                worker, body, began, tries = self.id, self.request(), time.monotonic(), 0
                if body is None:
                    continue
            tries += 1
            try:
                answer = self.poll.call("POST", f"/v1/workers/{worker}/fetch", body)
            except Refused as refused:
                if refused.status == 404:
                    self.register_again(worker)
                    body = None
                else:
                    pauses.wait(self.stopping)
                continue
            except (OSError, http.client.HTTPException, ValueError):
                if self.stopping.is_set():
                    return
                if fault("changed-body"):
                    body = {**body, "wait_ms": body["wait_ms"] - 1}
                pauses.wait(self.stopping)
                continue
            pauses, body = Pauses(5), None
            if self.stopping.is_set():
                return
            # After a quarter of the lease on its way, the answer counts as lost. The next request lists none of its jobs.
            sent = began if fault("times-repetitions") else self.poll.sent
            took = 0 if fault("ignores-took") and "took_ms" in answer else answer.get("took_ms", float("inf")) / 1000
            way = time.monotonic() - sent - took
            late = way >= self.beat_s * 3 / 4
            # A repeated answer may have jobs that were claimed a quarter of the lease before.
            age = max(way, 0) + (self.lease_s / 4 if tries > 1 else 0)
            since = time.monotonic() - age if "took_ms" in answer else self.renewed
            for job in answer["jobs"] if not late or fault("begins-late") else []:
                self.start(job, max(began, since))
            if answer["drain"] and not fault("ignores-drain"):
                self.stopping.wait(self.beat_s)

    def request(self):
        """Wait for a free slot, and make the next request."""
        with self.changed:
            if not fault("all-slots"):
                self.changed.wait_for(lambda: self.free() > 0 or self.stopping.is_set(), 0.5)
            slots = SLOTS if fault("all-slots") else self.free()
            if self.stopping.is_set() or slots <= 0:
                return None
            holding = [] if fault("empty-holding") else list(self.attempts)
            fetch_id = str(uuid.UUID(int=7) if fault("old-fetch-id") else uuid.uuid4())
            return {"slots": slots, "wait_ms": WAIT_MS, "holding": holding, "fetch_id": fetch_id}

    def free(self):
        return SLOTS - sum(not attempt.finished for attempt in self.attempts.values())

    def start(self, job, since):
        with self.changed:
            if job["token"] in self.attempts and not fault("twice"):
                return
            attempt = self.attempts[job["token"]] = Attempt(job)
            attempt.renewed = since
        threading.Thread(target=self.execute, args=(attempt,), daemon=True).start()

    # Attempts.

    def execute(self, attempt):
        verdict = {"token": attempt.token}
        try:
            handler = HANDLERS.get(attempt.job["kind"])
            if handler is None:
                raise Verdict("released")
            result = handler(attempt, attempt.job["payload"])
            size = len(write_json(result).encode())
            if size > MAX_RESULT and not fault("large-results"):
                raise Verdict("failed", f"the result has {size} bytes, more than {MAX_RESULT}")
            verdict.update(verdict="succeeded")
            if result is not None:
                verdict.update(result=result)
        except Verdict as end:
            verdict.update(verdict=end.word)
            if end.word != "released":
                verdict.update(error=end.error)
            if end.delay_ms is not None:
                verdict.update(delay_ms=end.delay_ms)
        except Stopped:
            verdict.update(verdict="released" if attempt.expired else "failed", error="the attempt was stopped")
        except Exception as error:
            verdict.update(verdict="failed", error=f"{type(error).__name__}: {error}")
        if attempt.cancelled and verdict["verdict"] != "failed" and not fault("success-after-cancel"):
            verdict = {"token": attempt.token, "verdict": "failed", "error": "the attempt was cancelled"}
        if "error" in verdict and not fault("long-errors"):
            verdict["error"] = (verdict["error"].strip() or "no message")[:MAX_ERROR]
        if attempt.lines:
            verdict["log"] = "\n".join(attempt.lines)
            if not fault("long-logs"):
                verdict["log"] = verdict["log"].encode()[-MAX_LOG:].decode(errors="ignore")
        self.finish(attempt, verdict)

    def finish(self, attempt, verdict):
        with self.changed:
            if attempt.finished and not fault("twice"):
                return
            attempt.finished = True
            if attempt.lost:
                self.attempts.pop(attempt.token, None)
            else:
                self.verdicts[attempt.token] = verdict
            if fault("forgets-verdicts"):
                self.attempts.pop(attempt.token, None)
            self.changed.notify_all()

    def settle(self):
        """Send verdicts until each is answered."""
        connection, pauses = Connection(10), Pauses(5)
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.sendable() or self.ended.is_set(), 0.2 if self.later else None)
                batch = self.batch()
                if not batch and self.ended.is_set():
                    return
            if not batch:
                continue
            worker = self.id
            try:
                said = connection.call("POST", f"/v1/workers/{worker}/finish", {"verdicts": batch})
            except (OSError, http.client.HTTPException, ValueError, Refused) as error:
                if isinstance(error, Refused) and error.status == 404:
                    self.register_again(worker)
                given_up = fault("gives-up-at-stop") and self.stopping.is_set()
                given_up |= fault("drops-without-answer") and isinstance(error, socket.timeout)
                given_up |= fault("drops-after-403") and isinstance(error, Refused) and error.status == 403
                given_up |= fault("drops-after-404") and isinstance(error, Refused) and error.status == 404
                if given_up:
                    self.answered(batch)
                pauses.wait()
                continue
            pauses = Pauses(5)
            locked = {it["token"] for it in said["results"] if it["result"] == "locked"}
            locked = set() if fault("drops-locked") else locked
            self.answered([verdict for verdict in batch if verdict["token"] not in locked])
            for token in locked:
                pause = min(2 * self.later.get(token, (0, 0.25))[1], 5)
                self.later[token] = (time.monotonic() + pause, pause)
            for result in said["results"]:
                if result["result"] == "refused" and not fault("drops-refused"):
                    self.mend(result)

    def mend(self, result):
        """Fail the attempt of a verdict that the server refuses."""
        why = "; ".join(f"{wrong['field']} {wrong['detail']}" for wrong in result["errors"])
        verdict = {"token": result["token"], "verdict": "failed", "error": f"the verdict was refused: {why}"[:MAX_ERROR]}
        with self.changed:
            self.verdicts[result["token"]] = verdict
            self.changed.notify_all()

    def sendable(self):
        """The verdicts, without those that wait because the rows of their jobs were locked."""
        now = time.monotonic()
        return [it for it in self.verdicts.values() if self.later.get(it["token"], (0, 0))[0] <= now]

    def batch(self):
        """The verdicts of the next call: as many as one body holds, and at least one."""
        batch, size = [], 0
        for verdict in self.sendable()[:100]:
            size += len(write_json(verdict).encode()) + 1
            if batch and size > MAX_BODY and not fault("large-bodies"):
                break
            batch.append(verdict)
        return batch

    def answered(self, batch):
        with self.changed:
            for verdict in batch:
                if self.verdicts.get(verdict["token"]) is verdict:
                    self.verdicts.pop(verdict["token"], None)
                    self.attempts.pop(verdict["token"], None)
                    self.later.pop(verdict["token"], None)
            self.changed.notify_all()

    # Heartbeats.

    def beat(self):
        connection = Connection(3, obeys=fault("obeys-503-in-beats"))
        while not self.ended.wait(self.beat_s):
            with self.lock:
                held = list(self.attempts.values())
                busy = any(not a.finished and a.job["kind"].endswith("block") for a in held)
            if fault("blocked-beats") and busy:
                continue
            worker = self.id
            for holding in self.parts(held):
                try:
                    answer = connection.call("POST", f"/v1/workers/{worker}/beat", {"holding": holding})
                except Refused as refused:
                    if refused.status == 404:
                        self.register_again(worker)
                    if refused.status == 413 and not fault("repeats-large-beats"):
                        self.beat_size //= 2
                    break
                except (OSError, http.client.HTTPException, ValueError):
                    break
                with self.lock:
                    self.renewed = connection.sent
                    for attempt in held:
                        attempt.renewed = max(attempt.renewed, connection.sent)
                for attempt in held:
                    # Each beat has the newest reports, so what was not stored goes with the next one.
                    if fault("forgets-unsaved") and attempt.token in answer.get("unsaved", ()):
                        attempt.report = {}
                    cancelled, lost = (self.names(answer[word], attempt, held) for word in ("cancel", "lost"))
                    if cancelled or lost:
                        self.stop_attempt(attempt, lost)

    def names(self, tokens, attempt, held):
        """Whether the answer to a beat names this attempt. Another one of the same job is not meant."""
        if fault("stops-by-job"):
            return any(it.token in tokens and it.job["id"] == attempt.job["id"] for it in held)
        return attempt.token in tokens

    def parts(self, held):
        """The lists of the next beats. Each has every attempt, and the reports go in as many as their size needs."""
        parts, size = [{}], 0
        for report in [attempt.held() for attempt in held]:
            length = len(write_json(report).encode())
            if parts[-1] and size + length > self.beat_size:
                parts.append({})
                size = 0
            parts[-1][report["token"]] = report
            size += length
        if fault("splits-holding"):
            return [list(part.values()) for part in parts]
        return [[part.get(a.token, {"token": a.token}) for a in held] for part in parts]

    def stop_attempt(self, attempt, lost):
        with self.changed:
            attempt.cancelled, attempt.lost = True, lost
            if lost and not fault("keeps-lost"):
                # Its thread may go on, but the slot is free.
                if not fault("lists-lost"):
                    self.attempts.pop(attempt.token, None)
                self.verdicts.pop(attempt.token, None)
                self.changed.notify_all()
        if not (lost and fault("keeps-lost")):
            attempt.stop.set()

    def watch(self):
        """Stop attempts when no beat was answered for nine tenths of the lease. Another worker may start their jobs."""
        while not self.ended.wait(0.1):
            until = time.monotonic() - self.lease_s * 0.9
            with self.lock:
                over = [a for a in self.attempts.values() if a.renewed <= until and not (a.finished or a.stop.is_set())]
            for attempt in over if not fault("outlives-lease") else []:
                # It stays listed, so that a later beat tells what has become of it.
                attempt.expired = True
                attempt.stop.set()

    # The end.

    def stop(self, *_):
        if self.stopping.is_set():
            os._exit(1)
        self.stopping.set()
        if self.poll and not fault("waits-for-poll"):
            self.poll.abort()

    def run(self):
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        self.register()
        threads = [threading.Thread(target=f, daemon=True) for f in (self.fetch, self.settle, self.beat, self.watch)]
        for thread in threads:
            thread.start()
        # In short waits: Python runs a signal handler in this thread, and a signal that another thread received does not
        # end a wait of this one.
        while not self.stopping.wait(0.1):
            pass
        if fault("waits-for-poll") and not self.attempts:
            threads[0].join()
        until = time.monotonic() + GRACE
        with self.changed:
            while self.attempts and time.monotonic() < until:
                self.changed.wait(0.1)
            for attempt in list(self.attempts.values()):
                if not attempt.finished and not fault("keeps-at-stop"):
                    attempt.finished = True
                    self.verdicts[attempt.token] = {"token": attempt.token, "verdict": "released"}
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.verdicts, 10)
        self.ended.set()
        if not fault("stays-registered"):
            try:
                Connection(2).call("DELETE", f"/v1/workers/{self.id}")
            except (OSError, http.client.HTTPException, Refused):
                pass
        os._exit(0)


REGISTERING = threading.Lock()
Worker().run()
