"""The client and the worker against a real server at TICKR_URL. The outbox needs TICKR_MYSQL_URL as well."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import unittest
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import tickr
from tests.support import DEADLINE, eventually
from tickr import outbox

URL = os.environ.get("TICKR_URL")
MYSQL_URL = os.environ.get("TICKR_MYSQL_URL")

try:
    import pymysql
except ImportError:
    pymysql = None  # type: ignore[assignment]


@dataclass
class Resize:
    path: str
    width: int = 80


@unittest.skipUnless(URL, "TICKR_URL is unset: no server to test against")
class ServerCase(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("tickr").setLevel(logging.CRITICAL + 1)
        self.client = tickr.Client(exact=True)
        self.addCleanup(self.client.close)
        self.app = tickr.App(self.client)
        self.suffix = uuid.uuid4().hex[:10]
        self.queue = f"py-{self.suffix}"
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.addCleanup(self.remove_kinds)

    def remove_kinds(self) -> None:
        for kind in self.app:
            try:
                self.client.request("DELETE", f"/v1/kinds/{kind.name}")
            except tickr.ApiError as error:
                self.assertEqual(error.code, "not_found")

    def kind(self, name: str, **options: Any) -> Any:
        options = {"queue": self.queue, "retry": {"delays_ms": [20]}, "max_attempts": 3, **options}
        return self.app.kind(f"{name}-{self.suffix}", **options)

    def start(self, **settings: Any) -> tickr.Worker:
        self.app.declare()
        settings = {"slots": 4, "lease_ms": 10_000, "grace_ms": 3_000, **settings}
        worker = tickr.Worker(self.app, name="test", queues=[self.queue], exact=True, **settings)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()

        def stop() -> None:
            self.go.set()
            worker.stop()
            thread.join(DEADLINE)
            self.assertFalse(thread.is_alive(), "the worker did not leave")

        self.addCleanup(stop)
        eventually("registered", lambda: worker.id)
        return worker

    def wait_started(self) -> None:
        self.assertTrue(self.started.acquire(timeout=DEADLINE), "no handler started")

    def test_a_typed_job_comes_back_with_its_result(self) -> None:
        @self.kind("resize")
        def resize(job: Resize, context: tickr.Context) -> Any:
            context.log("resize %s", job.path)
            return {"path": job.path, "width": job.width, "tags": context.tags, "attempt": context.attempt}

        self.start()
        enqueued = resize.enqueue(Resize("a.png"), tags=["t:1"], priority=1)
        self.assertFalse(enqueued.existing)
        result = self.client.wait(enqueued.id, DEADLINE)
        self.assertEqual(result.value(), {"path": "a.png", "width": 80, "tags": ["t:1"], "attempt": 1})
        self.assertEqual(self.client.log_of(enqueued.id, 1), "resize a.png")
        job = self.client.get(enqueued.id)
        self.assertEqual((job.state, job.ended, job.payload), ("completed", True, {"path": "a.png", "width": 80}))
        with self.assertRaises(tickr.ApiError) as caught:
            self.client.enqueue(resize, {"width": 1})
        self.assertEqual(caught.exception.code, "invalid_payload")
        self.assertIn("path", str(caught.exception))

    def test_numbers_survive(self) -> None:
        echo = self.kind("echo")(lambda payload: payload)
        self.start()
        value = {"big": 2**63 + 1, "decimal": Decimal("0.1000000000000000000001"), "text": "é\u2028😀", "none": None}
        self.assertEqual(self.client.wait(echo.enqueue(value).id, DEADLINE).value(), value)

    def test_a_failed_attempt_is_followed_by_one_that_begins_with_its_checkpoint(self) -> None:
        @self.kind("steps")
        def steps(_: Any, context: tickr.Context) -> Any:
            if context.checkpoint is None:
                context.save_checkpoint({"row": 7})
                raise ValueError("half way")
            return context.checkpoint

        self.start()
        id = steps.enqueue({}).id
        self.assertEqual(self.client.wait(id, DEADLINE).value(), {"row": 7})
        attempts = self.client.get(id).attempts
        self.assertEqual([it["verdict"] for it in attempts], ["failed", "succeeded"])
        self.assertEqual(attempts[0]["error"], "ValueError: half way")

    def test_verdicts(self) -> None:
        ends = {
            "rejected": tickr.Rejected("never"),
            "snoozed": tickr.Snoozed("later", 50),
            "released": tickr.Released(),
        }
        seen = set()

        @self.kind("end")
        def end(name: str, context: tickr.Context) -> str:
            if context.job_id in seen:
                return "again"
            seen.add(context.job_id)
            raise ends[name]

        self.start()
        ids = {name: end.enqueue(name).id for name in ends}
        results = {name: self.client.wait(id, DEADLINE) for name, id in ids.items()}
        with self.assertRaises(tickr.JobFailed) as caught:
            results["rejected"].value()
        self.assertEqual(caught.exception.last_error, "never")
        for name in ("snoozed", "released"):
            self.assertEqual(results[name].value(), "again")
            self.assertEqual(self.client.get(ids[name]).attempt, 1)

    def test_a_cancel_reaches_the_handler(self) -> None:
        @self.kind("sleep")
        def sleep(_: Any, context: tickr.Context) -> None:
            context.progress(40, "asleep")
            self.started.release()
            context.sleep(60)

        self.start()
        id = sleep.enqueue({}).id
        self.wait_started()
        eventually("progress", lambda: (self.client.get(id).data.get("progress") or {}).get("note") == "asleep")
        self.assertEqual(self.client.cancel(id).state, "executing")
        self.assertEqual(self.client.wait(id, DEADLINE).state, "cancelled")
        with self.assertRaises(tickr.ApiError) as caught:
            self.client.cancel(id)
        self.assertEqual((caught.exception.code, caught.exception.current_state), ("wrong_state", "cancelled"))

    def test_a_worker_that_stops_gives_back_and_uses_no_attempt(self) -> None:
        @self.kind("long")
        def long(_: Any, context: tickr.Context) -> int:
            self.started.release()
            while not self.go.is_set():
                context.sleep(0.01)
            return context.attempt

        first = self.start(grace_ms=50)
        id = long.enqueue({}).id
        self.wait_started()
        first.stop()
        eventually("given back", lambda: self.client.get(id).state == "waiting")
        self.start()
        self.wait_started()
        self.go.set()
        self.assertEqual(self.client.wait(id, DEADLINE).value(), 1)

    def test_bulk_unique_keys_idempotency_and_a_batch(self) -> None:
        @self.kind("add")
        def add(number: int) -> int:
            return number + 1

        self.start()
        many = self.client.enqueue_many([add.job(number) for number in range(20)])
        self.assertEqual([self.client.wait(it.id, DEADLINE).value() for it in many], list(range(1, 21)))
        one = add.enqueue(1, unique_key="k", delay_ms=60_000)
        two = add.enqueue(2, unique_key="k")
        self.assertEqual((two.id, two.existing), (one.id, True))
        self.assertEqual(self.client.cancel(one.id).state, "cancelled")
        key = uuid.uuid4().hex
        again = [add.enqueue(3, idempotency_key=key) for _ in range(2)]
        self.assertEqual([it.repeated for it in again], [False, True])
        self.assertEqual(again[0].id, again[1].id)
        batch = self.client.create_batch([add.job(1), add.job(2)], on_success=add.job(10), close=True)
        eventually("the batch", lambda: self.client.get_batch(batch["id"])["state"] == "succeeded")
        with self.assertRaises(tickr.WaitTimeout):
            self.client.wait(add.enqueue(1, delay_ms=60_000).id, 0.1)

    def test_asyncio(self) -> None:
        @self.kind("nap")
        async def nap(seconds: float, context: tickr.Context) -> str:
            self.started.release()
            await asyncio.sleep(seconds)
            return "slept"

        async def main() -> None:
            self.app.declare()
            worker = tickr.AsyncWorker(self.app, name="test", queues=[self.queue], lease_ms=10_000)
            running = asyncio.ensure_future(worker.run(signals=False))
            async with tickr.AsyncClient() as client:
                jobs = await asyncio.gather(*(client.enqueue(nap, 0.05) for _ in range(8)))
                results = await asyncio.gather(*(client.wait(job.id, DEADLINE) for job in jobs))
                self.assertEqual([it.value() for it in results], ["slept"] * 8)
                for _ in jobs:
                    self.started.acquire()
                id = (await client.enqueue(nap, 60)).id
                await asyncio.get_running_loop().run_in_executor(None, self.wait_started)
                await client.cancel(id)
                self.assertEqual((await client.wait(id, DEADLINE)).state, "cancelled")
            worker.stop()
            await running

        asyncio.run(main())

    @unittest.skipUnless(MYSQL_URL and pymysql, "TICKR_MYSQL_URL is unset, or PyMySQL is not installed")
    def test_a_job_of_the_outbox_exists_exactly_if_the_transaction_was_committed(self) -> None:
        @self.kind("mail")
        def mail(payload: dict) -> str:
            return str(payload["to"])

        self.start()
        parts = urlsplit(str(MYSQL_URL))
        socket = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair).get("socket")
        connection = pymysql.connect(
            host=parts.hostname or "localhost",
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=parts.path.strip("/"),
            unix_socket=unquote(socket) if socket else None,
        )
        self.addCleanup(connection.close)
        ids = [outbox.enqueue(connection, mail, {"to": "é"}, tags=["a"], queue=self.queue) for _ in range(2)]
        connection.commit()
        undone = outbox.enqueue(connection, mail, {"to": "b"})
        connection.rollback()
        later = outbox.enqueue(connection, mail, {"to": "c"}, delay_ms=60_000)
        connection.commit()
        self.client.nudge()
        for id in ids:
            job = eventually("the job", lambda id=id: self.found(id))
            self.assertEqual(job.data["tags"], ["a"])
            self.assertEqual(self.client.wait(id, DEADLINE).value(), "é")
        # A transaction whose COMMIT was not answered is run again with the same id, and makes no second job.
        self.assertEqual(outbox.enqueue(connection, mail, {"to": "é"}, id=ids[0]), ids[0])
        connection.commit()
        self.assertEqual(eventually("the later job", lambda: self.found(later)).state, "waiting")
        self.assertIsNone(self.found(undone))

    def found(self, id: str) -> Any:
        try:
            return self.client.get(id)
        except tickr.ApiError as error:
            self.assertEqual(error.code, "not_found")
            return None


if __name__ == "__main__":
    unittest.main()
