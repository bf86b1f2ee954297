"""A small server with the protocol of workers and the enqueue calls, which loses answers on demand."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
import uuid
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

DEADLINE = 15.0
"""Seconds after which a test gives up to wait."""


def eventually(what: str, condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Wait until a condition holds, and return its value."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"did not happen in {seconds} s: {what}")
        time.sleep(0.01)


class Call:
    """A request that the server got."""

    def __init__(self, op: str, path: str, headers: Any, body: Any):
        self.at = time.monotonic()
        self.op = op
        self.path = path
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body


class FakeServer:
    """Faults are queued by operation: "before" closes the connection without doing anything, "after" does it and then
    closes, "half" sends half of the answer, a number answers with this status, a float waits so many seconds, and
    anything else is the body of a success, as JSON or in bytes."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.changed = threading.Condition()
        self.calls: list[Call] = []
        self.faults: dict[str, deque] = defaultdict(deque)
        self.jobs: deque = deque()
        self.answers: dict[str, Any] = {}
        self.verdicts: dict[str, dict] = {}
        self.settled: list[dict] = []
        self.out: dict[str, dict] = {}
        self.given_back: list[str] = []
        self.enqueued: dict[str, Any] = {}
        self.cancel: set[str] = set()
        self.lost: set[str] = set()
        self.drain = False
        self.workers: list[str] = []
        self.known: set[str] = set()
        self.refuse: Callable[[dict], int] = lambda verdict: 0
        self.locked: set[str] = set()
        self.refused: list[dict] = []
        self.enqueue_key: str | None = None
        self.lease_ms: int | None = None
        self.refuse_beat: Callable[[list[dict]], int] = lambda holding: 0
        self.retry_after = "0"
        self.beat_ms = 100
        self.took_ms: int | None = None
        self.stopped = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                text = self.rfile.read(length)
                body = json.loads(text) if text else None
                op = fake.op(self.command, self.path)
                with fake.changed:
                    fake.calls.append(Call(op, self.path, self.headers, body))
                    fault = fake.faults[op].popleft() if fake.faults[op] else None
                    fake.changed.notify_all()
                if isinstance(fault, float):
                    time.sleep(fault)
                if fault == "before":
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    problem = {"type": "urn", "title": "Busy", "status": fault, "code": "busy", "detail": "try later"}
                    self.answer(fault, problem)
                    return
                if fault is not None and not isinstance(fault, (float, str)):
                    self.answer(200, fault)
                    return
                status, answer = fake.serve(op, self.path, body, self.headers)
                if fault == "half":
                    self.answer(status, answer, cut=True)
                    return
                if fault == "after":
                    self.close_connection = True
                    return
                self.answer(status, answer)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def answer(self, status: int, body: Any, cut: bool = False) -> None:
                data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    if status in (429, 503):
                        self.send_header("retry-after", fake.retry_after)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[: len(data) // 2] if cut else data)
                    self.close_connection = self.close_connection or cut
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.http.server_address[1]}"
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        self.http.shutdown()
        self.http.server_close()

    @staticmethod
    def op(method: str, path: str) -> str:
        path = path.partition("?")[0]
        if path == "/v1/workers":
            return "register"
        if path.startswith("/v1/workers/"):
            return "leave" if method == "DELETE" else path.rpartition("/")[2]
        return f"{method} {path}"

    def of(self, op: str) -> list[Call]:
        """Return the calls of an operation so far."""
        with self.changed:
            return [call for call in self.calls if call.op == op]

    def add(self, kind: str, payload: Any = None, **fields: Any) -> str:
        """Make a job, and return the token of its attempt."""
        token = fields.pop("token", uuid.uuid4().hex)
        job = {
            "id": str(uuid.uuid4()),
            "kind": kind,
            "queue": "q",
            "payload": payload,
            "attempt": 1,
            "max_attempts": 3,
            "token": token,
            "started_at": "2026-11-27T01:02:03.004Z",
            "deadline_at": "2026-11-27T02:02:03.004Z",
            "timeout_ms": 60_000,
            **fields,
        }
        with self.changed:
            self.jobs.append(job)
            self.changed.notify_all()
        return token

    def verdict(self, token: str) -> dict:
        """Wait for the verdict of an attempt."""
        return eventually(f"a verdict of {token}", lambda: self.verdicts.get(token))

    def serve(self, op: str, path: str, body: Any, headers: Any) -> tuple[int, Any]:
        worker = path.split("/")[3] if path.startswith("/v1/workers/") else ""
        with self.changed:
            if op == "register":
                self.workers.append(f"w-{len(self.workers) + 1}")
                self.known.add(self.workers[-1])
                lease_ms = self.lease_ms or body["lease_ms"]
                return 201, {"id": self.workers[-1], "lease_ms": lease_ms, "beat_ms": self.beat_ms}
            if op in ("fetch", "beat") and worker not in self.known:
                return 404, {"title": "Not found", "status": 404, "code": "not_found", "detail": "register again"}
            if op == "fetch":
                return 200, self.fetch(body)
            if op == "beat":
                status = self.refuse_beat(body["holding"])
                if status:
                    return status, {"title": "Refused", "status": status, "code": "refused", "detail": "too much"}
                tokens = [held["token"] for held in body["holding"]]
                cancel = [token for token in tokens if token in self.cancel]
                lost = [token for token in tokens if token in self.lost]
                answer = {"cancel": cancel, "lost": lost, "drain": self.drain}
                reported = [held["token"] for held in body["holding"] if len(held) > 1]
                unsaved = [token for token in reported if token in self.locked]
                if self.refused and reported:
                    answer["refused"], self.refused = self.refused, []
                return 200, {**answer, "unsaved": unsaved} if unsaved else answer
            if op == "finish":
                return self.finish(body["verdicts"])
            if op == "leave":
                self.known.discard(worker)
                return 204, None
            if op.startswith("POST /v1/jobs"):
                if self.enqueue_key not in (None, (headers.get("authorization") or "")[7:]):
                    return 403, {"title": "Forbidden", "status": 403, "code": "forbidden", "detail": "another scope"}
                key = headers.get("idempotency-key")
                if key not in self.enqueued:
                    jobs = body.get("jobs", [body])
                    receipts = [{"id": str(uuid.uuid4()), "state": "waiting"} for _ in jobs]
                    self.enqueued[key] = {"jobs": receipts} if "jobs" in body else receipts[0]
                return 201, self.enqueued[key]
        return 200, {}

    def fetch(self, body: Any) -> Any:
        if body["fetch_id"] not in self.answers:
            # What a new request does not list did not arrive: it is given back, and has another token from then on.
            for token in [it for it in self.out if it not in body["holding"] and it not in self.verdicts]:
                self.given_back.append(token)
                self.jobs.append({**self.out.pop(token), "token": uuid.uuid4().hex})
            until = time.monotonic() + body["wait_ms"] / 1000
            while not (self.jobs and not self.drain) and not self.stopped and not self.drain:
                if not self.changed.wait(max(0.0, until - time.monotonic())):
                    break
            jobs = []
            while self.jobs and len(jobs) < body["slots"] and not self.drain:
                jobs.append(self.jobs.popleft())
            self.out.update({job["token"]: job for job in jobs})
            took = {} if self.took_ms is None else {"took_ms": self.took_ms}
            self.answers[body["fetch_id"]] = {"jobs": jobs, "drain": self.drain, **took}
        return self.answers[body["fetch_id"]]

    def finish(self, verdicts: list[dict]) -> tuple[int, Any]:
        for verdict in verdicts:
            status = self.refuse(verdict)
            if status:
                return status, {"title": "No", "status": status, "code": "invalid_request", "detail": "no"}
        results = []
        for verdict in verdicts:
            if verdict["token"] in self.locked:
                results.append({"token": verdict["token"], "result": "locked"})
                continue
            first = verdict["token"] not in self.verdicts
            if first:
                self.verdicts[verdict["token"]] = verdict
            self.settled.append(verdict)
            results.append({"token": verdict["token"], "result": "settled", "state": "completed"})
        self.changed.notify_all()
        return 200, {"results": results}


class SlowServer:
    """A server whose answers arrive one byte at a time, `pause` seconds apart, behind `at_once` bytes of them."""

    def __init__(self, at_once: int, pause: float, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.socket.getsockname()[1]}"
        self.at_once, self.pause, self.tls = at_once, pause, tls
        self.closed = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while not self.closed.is_set():
            try:
                end, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(end,), daemon=True).start()

    def answer(self, end: socket.socket) -> None:
        text = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + b" " * 500
        try:
            with self.tls.wrap_socket(end, server_side=True) if self.tls else end as peer:
                peer.recv(65_536)
                peer.sendall(text[: self.at_once])
                for byte in text[self.at_once :]:
                    if self.closed.wait(self.pause):
                        return
                    peer.sendall(bytes([byte]))
        except OSError:
            pass

    def close(self) -> None:
        self.closed.set()
        self.socket.close()
