"""The worker against a server that loses answers, refuses, cancels and drains."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import tickr
from tests.support import DEADLINE, FakeServer, eventually
from tickr import _engine, _http, testing


class WorkerCase(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("tickr").setLevel(logging.CRITICAL + 1)
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        self.app = tickr.App()
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.addCleanup(self.go.set)

    def start(self, app: Any = None, **settings: Any) -> tickr.Worker:
        settings = {"url": self.server.url, "slots": 2, "grace_ms": 2_000, "wait_ms": 5_000, **settings}
        worker = tickr.Worker(app or self.app, name="test", **settings)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()

        def stop() -> None:
            self.go.set()
            worker.stop()
            thread.join(DEADLINE)
            self.assertFalse(thread.is_alive(), "the worker did not leave")

        self.addCleanup(stop)
        worker.thread = thread  # type: ignore[attr-defined]
        eventually("registered", lambda: worker.id)
        return worker

    def blocking(self, name: str = "block") -> None:
        @self.app.kind(name)
        def block(payload: Any, context: tickr.Context) -> str:
            self.started.release()
            while not self.go.wait(0.01):
                context.check()
            return "done"

    def wait_started(self) -> None:
        self.assertTrue(self.started.acquire(timeout=DEADLINE), "no handler started")


class Verdicts(WorkerCase):
    def test_each_end_of_a_handler_has_its_verdict(self) -> None:
        ends = {
            "value": lambda: {"a": 1},
            "none": lambda: None,
            "failed": lambda: tickr.Failed("no", 7),
            "rejected": lambda: tickr.Rejected("never"),
            "snoozed": lambda: tickr.Snoozed("later", 9),
            "released": lambda: tickr.Released(),
            "thrown": lambda: KeyError("x"),
            "exit": lambda: SystemExit(3),
        }

        @self.app.kind("end")
        def end(payload: Any) -> Any:
            value = ends[payload]()
            if isinstance(value, BaseException):
                raise value
            return value

        tokens = {name: self.server.add("end", name) for name in ends}
        self.start()
        seen = {name: self.server.verdict(token) for name, token in tokens.items()}
        without_log = {n: {k: v for k, v in it.items() if k not in ("token", "log")} for n, it in seen.items()}
        self.assertEqual(
            without_log,
            {
                "value": {"verdict": "succeeded", "result": {"a": 1}},
                "none": {"verdict": "succeeded"},
                "failed": {"verdict": "failed", "error": "no", "delay_ms": 7},
                "rejected": {"verdict": "rejected", "error": "never"},
                "snoozed": {"verdict": "snoozed", "error": "later", "delay_ms": 9},
                "released": {"verdict": "released"},
                "thrown": {"verdict": "failed", "error": "KeyError: 'x'"},
                "exit": {"verdict": "failed", "error": "SystemExit: 3"},
            },
        )
        self.assertIn("raise value", seen["thrown"]["log"])
        self.assertNotIn("_engine.py", seen["thrown"]["log"])

    def test_jobs_follow_a_success_and_no_other_verdict(self) -> None:
        @self.app.kind("grow")
        def grow(payload: Any, context: tickr.Context) -> str:
            context.then("mail", {"to": payload}, delay_ms=5, in_batch=True)
            with self.assertRaises(TypeError):
                context.then("mail", unique_key="ada")
            if payload == "nowhere":
                raise tickr.Failed("no address")
            return "sent"

        good, bad = self.server.add("grow", "ada"), self.server.add("grow", "nowhere")
        client = tickr.Client(self.server.url, "may-enqueue")
        self.addCleanup(client.close)
        self.start(client=client, token="may-work")
        mail = {"kind": "mail", "payload": {"to": "ada"}, "delay_ms": 5, "in_batch": True}
        self.assertEqual(self.server.verdict(good)["follow_ups"], [mail])
        self.assertNotIn("follow_ups", self.server.verdict(bad))
        calls = self.server.of("finish")
        keys = {it["token"]: call.headers for call in calls for it in call.body["verdicts"]}
        self.assertEqual(keys[good].get("tickr-enqueue-authorization"), "Bearer may-enqueue")
        self.assertEqual(keys[good].get("authorization"), "Bearer may-work")
        alone = testing.run(grow, "bob")
        self.assertEqual([job["payload"] for job in alone.follow_ups], [{"to": "bob"}])
        self.assertEqual(testing.run(grow, "nowhere").follow_ups, [])

    def test_the_key_of_a_client_of_another_server_is_not_sent_to_that_of_the_worker(self) -> None:
        @self.app.kind("grow")
        def grow(payload: Any, context: tickr.Context) -> str:
            context.then("mail")
            return "sent"

        token = self.server.add("grow", None)
        client = tickr.Client("http://elsewhere.invalid", "of-another-server")
        self.addCleanup(client.close)
        self.start(client=client)
        verdict = self.server.verdict(token)
        self.assertEqual((verdict["verdict"], verdict.get("follow_ups")), ("failed", None))
        self.assertIn("its client has other addresses (http://elsewhere.invalid)", verdict["error"])
        headers = [call.headers for call in self.server.of("finish")]
        self.assertFalse(any("tickr-enqueue-authorization" in header for header in headers))

    def test_a_success_whose_jobs_are_refused_fails_its_attempt(self) -> None:
        @self.app.kind("grow")
        def grow(payload: Any, context: tickr.Context) -> str:
            context.then("no-kind")
            return "sent"

        token = self.server.add("grow", None)
        wrong = {"field": "follow_ups/0/kind", "detail": "no kind is called so"}
        refused = {"token": token, "result": "refused", "errors": [wrong]}
        self.server.faults["finish"].append({"results": [refused]})
        self.start()
        verdict = self.server.verdict(token)
        self.assertEqual((verdict["verdict"], verdict.get("follow_ups")), ("failed", None))
        self.assertIn("follow_ups/0/kind no kind is called so", verdict["error"])

    def test_an_odd_verdict_ends_its_attempt_and_no_worker(self) -> None:
        class Bare(tickr.Failed):
            def __init__(self) -> None:
                pass

        class Unreadable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        class Unwritable(tickr.Failed):
            def __init__(self) -> None:
                super().__init__("later")
                self.delay_ms = {1, 2}  # type: ignore[assignment]

        ends = {
            "failed": lambda: tickr.Failed(KeyError("x")),
            "rejected": lambda: tickr.Rejected(ValueError("never")),
            "snoozed": lambda: tickr.Snoozed(OSError("later"), 9),
            "number": lambda: tickr.Failed(7),  # type: ignore[arg-type]
            "unreadable": lambda: tickr.Failed(Unreadable()),
            "bare": Bare,
            "unwritable": Unwritable,
        }

        @self.app.kind("end")
        def end(payload: Any) -> Any:
            raise ends[payload]()

        tokens = {name: self.server.add("end", name) for name in ends}
        self.start(slots=len(ends))
        seen = {name: self.server.verdict(token) for name, token in tokens.items()}
        errors = {name: (it["verdict"], it["error"]) for name, it in seen.items()}
        odd = {name: errors.pop(name) for name in ("unreadable", "bare", "unwritable")}
        self.assertEqual(
            errors,
            {
                "failed": ("failed", "KeyError: 'x'"),
                "rejected": ("rejected", "ValueError: never"),
                "snoozed": ("snoozed", "OSError: later"),
                "number": ("failed", "7"),
            },
        )
        self.assertEqual({verdict for verdict, _ in odd.values()}, {"failed"})
        self.assertIn("its message cannot be read", odd["unreadable"][1])
        self.assertIn("the error of the handler cannot be read: AttributeError", odd["bare"][1])
        self.assertIn("the verdict cannot be written", odd["unwritable"][1])

    def test_a_result_that_is_too_large_or_no_json_fails_before_it_is_sent(self) -> None:
        @self.app.kind("big")
        def big(size: int) -> Any:
            return "x" * size if size else object()

        tokens = [self.server.add("big", size) for size in (262_142, 262_143, 0)]
        self.start()
        fits, large, none = (self.server.verdict(token) for token in tokens)
        self.assertEqual(fits["verdict"], "succeeded")
        self.assertEqual(large["error"], "the result has 262145 bytes of JSON, and 262144 is the most")
        self.assertIn("cannot be written as JSON", none["error"])

    def test_a_payload_that_does_not_fit_is_rejected(self) -> None:
        @dataclass
        class Resize:
            path: str
            width: int = 80

        @self.app.kind("resize", payload=Resize)
        def resize(job: Resize) -> int:
            return job.width

        good, bad = self.server.add("resize", {"path": "a"}), self.server.add("resize", {"path": 1})
        self.start()
        self.assertEqual(self.server.verdict(good)["result"], 80)
        self.assertEqual(self.server.verdict(bad)["verdict"], "rejected")
        self.assertIn("/path must be a string", self.server.verdict(bad)["error"])

    def test_long_and_odd_texts_are_made_fit(self) -> None:
        @self.app.kind("odd")
        def odd(_: Any, context: tickr.Context) -> None:
            for number in range(5_000):
                context.log("line %d\x1b[0m", number)
            raise ValueError("\ud800" + "é" * 5_000)

        token = self.server.add("odd")
        self.start()
        seen = self.server.verdict(token)
        self.assertLessEqual(len(seen["error"]), 2_000)
        self.assertTrue(seen["error"].startswith("ValueError: ?é"))
        self.assertLessEqual(len(seen["log"].encode()), 16_384)
        self.assertIn("line 4999 [0m", seen["log"])
        self.assertNotIn("line 1 ", seen["log"])

    def test_records_of_logging_go_to_the_log_of_their_attempt(self) -> None:
        both = threading.Barrier(2)

        @self.app.kind("say")
        def say(word: str) -> None:
            both.wait(DEADLINE)
            logging.getLogger("shop").warning("said %s", word)

        tokens = {word: self.server.add("say", word) for word in ("a", "b")}
        self.start()
        for word, token in tokens.items():
            self.assertEqual(self.server.verdict(token)["log"], f"said {word}")

    def test_a_verdict_that_the_server_refuses_becomes_a_failure_and_holds_up_no_other(self) -> None:
        self.blocking()

        @self.app.kind("odd")
        def odd(value: str) -> str:
            self.started.release()
            self.go.wait(DEADLINE)
            return value

        self.server.refuse = lambda verdict: 422 if verdict.get("result") == "bad" else 0
        tokens = [self.server.add("odd", value) for value in ("a", "bad", "b", "c")]
        self.start(slots=4)
        for _ in tokens:
            self.wait_started()
        self.go.set()
        seen = [self.server.verdict(token) for token in tokens]
        self.assertEqual([it["verdict"] for it in seen], ["succeeded", "failed", "succeeded", "succeeded"])
        self.assertIn("was refused", seen[1]["error"])


class LostAnswers(WorkerCase):
    def counting(self) -> list:
        runs: list = []

        @self.app.kind("count")
        def count(payload: Any) -> None:
            runs.append(payload)

        return runs

    def test_a_request_for_jobs_whose_answer_is_lost_is_sent_again_with_the_same_body(self) -> None:
        runs = self.counting()
        self.server.faults["fetch"].extend(["after", "after", 503, "before"])
        token = self.server.add("count", 1)
        self.start()
        self.server.verdict(token)
        bodies = [call.body for call in self.server.of("fetch")[:5]]
        self.assertEqual(bodies, [bodies[0]] * 5)
        self.assertEqual(runs, [1])

    def test_an_answer_that_was_long_on_its_way_starts_no_job_and_is_logged(self) -> None:
        runs = self.counting()
        self.server.beat_ms, self.server.took_ms = 2_000, 0
        self.server.faults["fetch"].append(1.6)
        late = self.server.add("count", 1)
        with self.assertLogs("tickr.worker", "WARNING") as logged:
            self.start()
            eventually("another attempt of the job", lambda: self.server.verdicts)
        self.assertIn("an answer with 1 jobs came late and counts as lost", "\n".join(logged.output))
        self.assertEqual(self.server.given_back, [late])
        self.assertNotIn(late, self.server.verdicts)
        self.assertEqual(runs, [1])

    def test_the_time_of_a_try_that_broke_after_long_does_not_make_the_next_answer_late(self) -> None:
        runs = self.counting()
        self.server.beat_ms, self.server.took_ms = 2_000, 0
        self.server.faults["fetch"].append("after")
        self.start()
        eventually("a request for jobs", lambda: self.server.of("fetch"))
        time.sleep(1.6)
        self.server.verdict(self.server.add("count", 1))
        self.assertEqual(self.server.given_back, [])
        self.assertEqual(runs, [1])

    def test_a_token_that_is_delivered_twice_is_executed_once(self) -> None:
        runs = self.counting()
        first = self.server.add("count", 1, token="same")
        self.start()
        self.server.verdict(first)
        self.server.add("count", 1, token="same")
        last = self.server.add("count", 2)
        self.server.verdict(last)
        self.assertEqual(runs, [1, 2])

    def test_verdicts_are_sent_until_they_are_answered_and_stay_in_holding_until_then(self) -> None:
        self.counting()
        self.server.faults["finish"].extend(["after", 503, "before", 502])
        token = self.server.add("count", 1)
        self.start(wait_ms=50)
        eventually("five tries", lambda: len(self.server.of("finish")) == 5)
        eventually("out of holding", lambda: token not in self.server.of("fetch")[-1].body["holding"])
        answered = self.server.calls.index(self.server.of("finish")[4])
        began = self.server.calls.index(self.server.of("finish")[0])
        between = [call for call in self.server.calls[began:answered] if call.op == "fetch"]
        self.assertTrue(all(token in call.body["holding"] for call in between))

    def test_a_verdict_whose_row_is_locked_is_sent_again_and_holds_up_no_other(self) -> None:
        self.app.kind("echo")(lambda payload: payload)
        locked = self.server.add("echo", "locked")
        self.server.locked.add(locked)
        self.start()
        eventually("it was sent", lambda: self.server.of("finish"))
        self.assertEqual(self.server.verdict(self.server.add("echo", "free"))["result"], "free")
        tries = lambda: [c for c in self.server.of("finish") if locked in str(c.body)]  # noqa: E731
        eventually("it was sent again", lambda: len(tries()) > 1)
        beats = len(self.server.of("beat"))
        eventually("a beat", lambda: len(self.server.of("beat")) > beats + 1)
        self.assertEqual([held["token"] for held in self.server.of("beat")[-1].body["holding"]], [locked])
        self.server.locked.clear()
        self.assertEqual(self.server.verdict(locked)["result"], "locked")

    def test_a_checkpoint_whose_row_is_locked_goes_with_the_next_beat_and_before_its_verdict(self) -> None:
        @self.app.kind("step")
        def step(_: Any, context: tickr.Context) -> None:
            context.save_checkpoint({"row": 9})
            raise tickr.Failed("later")

        self.app.kind("echo")(lambda payload: payload)
        token = self.server.add("step")
        self.server.locked.add(token)
        self.start()
        self.assertEqual(self.server.verdict(self.server.add("echo", "free"))["result"], "free")
        saves = lambda: [c for c in self.server.of("beat") if "checkpoint" in str(c.body)]  # noqa: E731
        eventually("it was sent again", lambda: len(saves()) > 1)
        self.assertFalse(any(token in str(call.body) for call in self.server.of("finish")))
        self.server.locked.clear()
        self.assertEqual(self.server.verdict(token)["error"], "later")

    def test_a_large_report_whose_row_is_locked_keeps_back_no_report_and_no_verdict_of_another(self) -> None:
        @self.app.kind("hold")
        def hold(_: Any, context: tickr.Context) -> None:
            context.save_checkpoint("x" * 64_000)
            self.go.wait(DEADLINE)

        @self.app.kind("step")
        def step(_: Any, context: tickr.Context) -> None:
            context.save_checkpoint("y" * 60_000)
            raise tickr.Failed("later")

        self.app.kind("echo")(lambda payload: payload)

        def reports(token: str) -> int:
            held = [held for call in self.server.of("beat") for held in call.body["holding"]]
            return sum(it["token"] == token and "checkpoint" in it for it in held)

        locked = self.server.add("hold")
        self.server.locked.add(locked)
        self.start(slots=3)
        self.addCleanup(self.server.locked.clear)
        eventually("the report of the locked one", lambda: reports(locked))
        began, before = time.monotonic(), len(self.server.of("beat"))
        tokens = [self.server.add("step"), self.server.add("echo", "free")]
        eventually("both verdicts", lambda: all(it in self.server.verdicts for it in tokens), 5.0)
        self.assertEqual(reports(tokens[0]), 1)
        again = reports(locked) + 2
        eventually("it is sent again", lambda: reports(locked) >= again)
        # A beat each 100 ms is due, and no loop adds to them.
        self.assertLess(len(self.server.of("beat")) - before, 10 + 12 * (time.monotonic() - began))
        self.assertLess(reports(locked), 4 + 2 * (time.monotonic() - began))

    def test_random_faults_lose_no_verdict_and_double_no_job(self) -> None:
        seed = int(os.environ.get("TEST_SEED") or random.randrange(10_000))
        dice = random.Random(seed)
        runs: collections.Counter = collections.Counter()

        @self.app.kind("work")
        def work(number: int, context: tickr.Context) -> int:
            runs[context.job_id] += 1
            context.progress(number % 100)
            context.sleep(dice.random() / 50)
            if number % 10 == 0:
                raise tickr.Failed("one in ten", 0)
            return number

        for op in ("fetch", "finish", "beat", "register"):
            faults = ["before", "after", "half", 503, 429, 502, 0.05]
            self.server.faults[op].extend(dice.choice(faults) if dice.random() < 0.3 else None for _ in range(300))
        tokens = [self.server.add("work", number) for number in range(200)]
        self.start(slots=8, url=f"{self.server.url},{self.server.url}/")
        seen = [self.server.verdict(token) for token in tokens]
        failed = [number for number, it in enumerate(seen) if it["verdict"] == "failed"]
        self.assertEqual(failed, list(range(0, 200, 10)), f"seed {seed}")
        self.assertEqual(set(runs.values()), {1}, f"seed {seed}")
        self.assertEqual((len(runs), self.server.given_back), (200, []), f"seed {seed}")

    def test_the_worker_registers_again_after_404(self) -> None:
        self.counting()
        worker = self.start(wait_ms=50)
        self.server.known.clear()
        eventually("a second registration", lambda: len(self.server.workers) == 2)
        self.server.verdict(self.server.add("count", 1))
        self.assertEqual(worker.id, "w-2")
        self.assertEqual(len(self.server.workers), 2)

    def test_the_next_address_is_tried(self) -> None:
        runs = self.counting()
        dead = FakeServer()
        dead.close()
        began = time.monotonic()
        self.start(url=f"{dead.url},{self.server.url}")
        self.server.verdict(self.server.add("count", 1))
        self.assertEqual(runs, [1])
        self.assertLess(time.monotonic() - began, 5)

    def test_a_registration_is_repeated_after_every_5xx(self) -> None:
        runs = self.counting()
        self.server.faults["register"].extend([500, 503])
        self.start()
        self.server.verdict(self.server.add("count", 1))
        self.assertEqual(runs, [1])

    def test_the_first_registration_waits_for_a_server_that_is_away_for_long(self) -> None:
        runs = self.counting()
        refusals = self.server.faults["register"]
        refusals.extend([503, "before", 503])
        count = len(refusals)
        # The clock of the engine is two minutes ahead after each of them.
        clock = mock.Mock(wraps=time)
        clock.monotonic.side_effect = lambda: time.monotonic() + 120.0 * (count - len(refusals))
        patch = mock.patch.object(_engine, "time", clock)
        patch.start()
        self.addCleanup(patch.stop)
        self.start()
        self.server.verdict(self.server.add("count", 1))
        self.assertEqual(runs, [1])

    def test_a_kind_may_become_known_long_after_the_start_of_the_program(self) -> None:
        self.blocking()
        # The server is away for longer than a declaration takes, and learns of the kind after its first answer.
        self.server.faults["register"].extend([503] * 5 + [422])
        began = time.monotonic()
        self.server.retry_after = "1"
        self.start()
        self.assertGreater(time.monotonic() - began, 3.0)

    def test_a_worker_whose_kind_is_unknown_says_so(self) -> None:
        self.counting()
        self.server.faults["register"].extend([403])
        with self.assertRaises(tickr.ApiError) as caught:
            tickr.Worker(self.app, url=self.server.url).run()
        self.assertEqual(caught.exception.status, 403)


class Beats(WorkerCase):
    def test_no_handler_holds_up_the_beats(self) -> None:
        @self.app.kind("busy")
        def busy(_: Any) -> None:
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                sum(range(1000))

        token = self.server.add("busy")
        self.start()
        self.server.verdict(token)
        with_it = [c for c in self.server.of("beat") if token in [held["token"] for held in c.body["holding"]]]
        self.assertGreaterEqual(len(with_it), 4)

    def test_a_cancel_reaches_the_handler_and_the_attempt_fails(self) -> None:
        @self.app.kind("sleep")
        def sleep(_: Any, context: tickr.Context) -> None:
            self.started.release()
            context.sleep(60)

        token = self.server.add("sleep")
        self.start()
        self.wait_started()
        self.server.cancel.add(token)
        seen = self.server.verdict(token)
        self.assertEqual(seen["verdict"], "failed")
        self.assertIn("cancelled", seen["error"])

    def test_a_handler_that_does_not_notice_a_cancel_fails_as_well(self) -> None:
        @self.app.kind("deaf")
        def deaf(_: Any, context: tickr.Context) -> str:
            self.started.release()
            eventually("the cancel", lambda: context.cancelled)
            return "done"

        token = self.server.add("deaf")
        self.start()
        self.wait_started()
        self.server.cancel.add(token)
        self.assertEqual(self.server.verdict(token)["verdict"], "failed")

    def test_a_lost_attempt_is_stopped_and_sends_no_verdict(self) -> None:
        reasons = []

        @self.app.kind("sleep")
        def sleep(_: Any, context: tickr.Context) -> None:
            self.started.release()
            try:
                context.sleep(60)
            except tickr.Lost as reason:
                reasons.append(reason)
                raise

        token = self.server.add("sleep")
        self.start(wait_ms=50)
        self.wait_started()
        self.server.lost.add(token)
        eventually("the stop", lambda: reasons)
        eventually("out of holding", lambda: token not in self.server.of("fetch")[-1].body["holding"])
        self.assertNotIn(token, self.server.verdicts)

    def test_a_verdict_under_way_is_sent_until_it_is_answered_also_when_a_beat_calls_it_lost(self) -> None:
        @self.app.kind("quick")
        def quick(_: Any) -> None:
            pass

        self.server.faults["finish"].extend([503, 503, 503])
        token = self.server.add("quick")
        self.server.lost.add(token)
        self.start()
        self.assertEqual(self.server.verdict(token)["verdict"], "succeeded")

    def test_the_time_limit_stops_the_handler_without_a_beat(self) -> None:
        self.blocking()
        self.server.faults["beat"].extend(["before"] * 100)
        token = self.server.add("block", timeout_ms=200)
        self.start()
        self.assertEqual(self.server.verdict(token)["error"], "timed out after 200 ms")

    def test_progress_and_checkpoint_go_with_a_beat_and_once(self) -> None:
        @self.app.kind("steps")
        def steps(_: Any, context: tickr.Context) -> Any:
            context.progress(120, "half\nway" + "x" * 200)
            context.save_checkpoint({"row": 7})
            self.started.release()
            self.go.wait(DEADLINE)
            return context.checkpoint

        token = self.server.add("steps", checkpoint={"row": 3})
        self.start()
        self.wait_started()

        def reports() -> list:
            held = [held for call in self.server.of("beat") for held in call.body["holding"]]
            return [it for it in held if len(it) > 1]

        eventually("a report", reports)
        beats = len(self.server.of("beat"))
        eventually("two more beats", lambda: len(self.server.of("beat")) >= beats + 2)
        self.assertEqual(
            reports(),
            [{"token": token, "percent": 100.0, "note": ("half way" + "x" * 200)[:120], "checkpoint": {"row": 7}}],
        )
        self.go.set()
        self.assertEqual(self.server.verdict(token)["result"], {"row": 3})

    def test_a_checkpoint_arrives_before_the_verdict_after_which_another_attempt_may_start(self) -> None:
        @self.app.kind("step")
        def step(_: Any, context: tickr.Context) -> None:
            context.save_checkpoint({"row": 9})
            raise tickr.Failed("later")

        self.server.beat_ms = 60_000
        self.server.faults["beat"].extend(["before", 503])
        token = self.server.add("step")
        self.start()
        self.server.verdict(token)
        ops = [c.op for c in self.server.calls if c.op in ("beat", "finish")]
        self.assertEqual(ops, ["beat", "beat", "beat", "finish"])
        self.assertEqual(self.server.of("beat")[2].body["holding"][0]["checkpoint"], {"row": 9})

    def test_a_report_that_the_server_refuses_costs_no_lease(self) -> None:
        self.blocking()

        @self.app.kind("report")
        def report(_: Any, context: tickr.Context) -> None:
            context.progress(10)
            self.started.release()
            self.go.wait(DEADLINE)

        self.server.beat_ms = 60_000
        self.server.faults["beat"].append(422)
        token = self.server.add("report")
        self.start()
        eventually("a bare beat", lambda: len(self.server.of("beat")) >= 2)
        self.assertEqual(self.server.of("beat")[1].body, {"holding": [{"token": token}]})

    def test_a_checkpoint_that_the_server_refuses_is_told_in_both_logs(self) -> None:
        @self.app.kind("step")
        def step(_: Any, context: tickr.Context) -> None:
            context.save_checkpoint({"row": 9})
            raise tickr.Failed("later")

        token = self.server.add("step")
        self.server.refused = [{"token": token, "field": "checkpoint", "detail": "must be smaller"}]
        with self.assertLogs("tickr.worker", "ERROR") as logged:
            self.start()
            seen = self.server.verdict(token)
        self.assertIn("the server refuses a report: checkpoint must be smaller", seen["log"])
        self.assertIn("checkpoint must be smaller", "\n".join(logged.output))

    def test_every_checkpoint_arrives_behind_a_proxy_that_takes_only_small_beats(self) -> None:
        together = threading.Barrier(3)

        @self.app.kind("save")
        def save(payload: Any, context: tickr.Context) -> None:
            together.wait(DEADLINE)
            context.save_checkpoint({"n": payload, "text": "x" * 40_000})
            self.go.wait(DEADLINE)

        def checkpoints(holding: list) -> list:
            return [held["checkpoint"]["n"] for held in holding if "checkpoint" in held]

        self.server.refuse_beat = lambda holding: 413 if len(checkpoints(holding)) > 1 else 0
        for n in range(3):
            self.server.add("save", n)
        self.start(slots=3)

        def beats() -> list:
            return [holding for call in self.server.of("beat") if checkpoints(holding := call.body["holding"])]

        def arrived() -> set:
            return {n for holding in beats() if len(checkpoints(holding)) == 1 for n in checkpoints(holding)}

        eventually("each checkpoint", lambda: arrived() == {0, 1, 2})
        self.assertEqual({len(holding) for holding in beats()}, {3})

    def test_a_report_that_the_server_refuses_takes_no_other_along(self) -> None:
        together = threading.Barrier(3)

        @self.app.kind("save")
        def save(payload: Any, context: tickr.Context) -> None:
            together.wait(DEADLINE)
            context.save_checkpoint(payload)
            self.go.wait(DEADLINE)

        def wrong(holding: list) -> bool:
            return any(held.get("checkpoint") == "wrong" for held in holding)

        self.server.refuse_beat = lambda holding: 422 if wrong(holding) else 0
        for payload in ("one", "wrong", "two"):
            self.server.add("save", payload)
        self.start(slots=3)

        def arrived() -> set:
            taken = [call.body["holding"] for call in self.server.of("beat") if not wrong(call.body["holding"])]
            return {held["checkpoint"] for holding in taken for held in holding if "checkpoint" in held}

        eventually("the other checkpoints", lambda: arrived() == {"one", "two"})

    def test_a_drained_worker_asks_again_after_a_beat_and_goes_on_when_it_is_resumed(self) -> None:
        self.blocking()
        self.go.set()
        self.server.drain = True
        token = self.server.add("block")
        self.start()
        eventually("three requests", lambda: len(self.server.of("fetch")) >= 3)
        self.assertNotIn(token, self.server.verdicts)
        self.server.drain = False
        self.server.verdict(token)


class Leases(WorkerCase):
    """Attempts whose leases end because no beat is answered."""

    def waiting(self, ends_behind_a_beat: bool = False) -> list:
        """Make a kind whose handler waits until it is stopped. Return the times at which one was lost."""
        lost: list = []

        @self.app.kind("wait")
        def wait(payload: Any, context: tickr.Context) -> None:
            self.started.release()
            try:
                if payload == "reports":
                    self.go.wait(DEADLINE)
                    context.progress(50)
                context.sleep(60)
            except tickr.Lost:
                lost.append(time.monotonic())
                if ends_behind_a_beat:
                    eventually("a beat behind the loss", lambda: self.beats_behind(lost[0]))
                raise

        return lost

    def beats_behind(self, moment: float) -> list:
        return [call for call in self.server.of("beat") if call.at > moment]

    def beaten(self, token: str) -> None:
        """Wait until a beat that lists this attempt was answered."""

        def listed() -> int:
            return sum(token in str(call.body) for call in self.server.of("beat"))

        before = listed()
        eventually("two beats with it", lambda: listed() > before + 1)

    def check_loss(self, break_beats: Any) -> None:
        lost = self.waiting(ends_behind_a_beat=True)
        self.server.lease_ms, self.server.beat_ms = 2_000, 200
        token = self.server.add("wait")
        self.start(wait_ms=50)
        self.wait_started()
        self.beaten(token)
        break_beats()
        broken = time.monotonic()
        eventually("the loss", lambda: lost)
        # The time of a lease, and some for a slow machine.
        self.assertLess(lost[0] - broken, 2.0 + 3.0)
        self.assertEqual(self.server.verdict(token), {"token": token, "verdict": "released"})
        self.assertIn(token, str(self.beats_behind(lost[0])[0].body))

    def test_a_handler_is_stopped_before_its_lease_ends_when_beats_are_refused(self) -> None:
        self.check_loss(lambda: setattr(self.server, "refuse_beat", lambda holding: 401))

    def test_a_handler_is_stopped_before_its_lease_ends_when_beats_get_no_answer(self) -> None:
        self.check_loss(lambda: self.server.faults["beat"].extend(["before"] * 1_000))

    def clock(self) -> list:
        """Let the clock of the worker be ahead by the first number of the list."""
        ahead = [0.0]

        def clock() -> float:
            return time.monotonic() + ahead[0]

        for module in (_engine, _http):
            patch = mock.patch.object(module, "clock", clock)
            patch.start()
            self.addCleanup(patch.stop)
        return ahead

    def test_a_handler_whose_beats_are_answered_sees_no_loss(self) -> None:
        ahead, lost = self.clock(), self.waiting()
        token = self.server.add("wait")
        with mock.patch.object(_engine, "LOOK_TIME", 0.05):
            engine = self.start()._engine
            self.wait_started()
            with mock.patch.object(engine, "_stop_expired", wraps=engine._stop_expired) as look:
                for _ in range(4):
                    ahead[0] += 30.0  # half of the lease
                    self.beaten(token)
                    looks = look.call_count
                    eventually("two looks at the lease", lambda looks=looks: look.call_count > looks + 1)
        self.assertEqual(lost, [])
        self.assertNotIn(token, self.server.verdicts)

    def test_a_handler_that_ends_its_work_behind_its_lease_sends_its_own_verdict(self) -> None:
        @self.app.kind("deaf")
        def deaf(_: Any, context: tickr.Context) -> str:
            self.started.release()
            eventually("the loss", lambda: context.lost)
            return "done"

        ahead = self.clock()
        token = self.server.add("deaf")
        self.start()
        self.wait_started()
        self.beaten(token)
        self.server.refuse_beat = lambda holding: 401
        ahead[0] += 60.0
        self.assertEqual(self.server.verdict(token)["result"], "done")

    def test_a_coroutine_is_cancelled_before_its_lease_ends_and_given_back(self) -> None:
        @self.app.kind("nap")
        async def nap(_: Any) -> None:
            self.started.release()
            await asyncio.sleep(60)

        ahead = self.clock()
        token = self.server.add("nap")
        self.start()
        self.wait_started()
        self.beaten(token)
        self.server.refuse_beat = lambda holding: 401
        ahead[0] += 60.0
        self.assertEqual(self.server.verdict(token)["verdict"], "released")

    def test_a_job_that_a_long_request_brings_is_not_stopped_at_once(self) -> None:
        ahead, lost = self.clock(), self.waiting()
        self.start()
        eventually("a request", lambda: self.server.of("fetch"))
        beats = len(self.server.of("beat"))
        ahead[0] += 100.0
        eventually("two more beats", lambda: len(self.server.of("beat")) > beats + 2)
        self.server.refuse_beat = lambda holding: 401
        self.server.add("wait")
        self.wait_started()
        refused = len(self.server.of("beat"))
        eventually("two refused beats", lambda: len(self.server.of("beat")) > refused + 1)
        self.assertEqual(lost, [])

    def test_a_beat_that_does_not_list_an_attempt_renews_no_lease_of_it(self) -> None:
        ahead, lost = self.clock(), self.waiting()
        # No beat but that of the report, and no answer counts as late.
        self.server.beat_ms, self.server.took_ms = 1_000_000, 0
        other = self.server.add("wait", "reports")
        with mock.patch.object(_engine, "LOOK_TIME", 0.05):
            engine = self.start()._engine
            self.wait_started()
            eventually("the next request", lambda: len(self.server.of("fetch")) == 2)
            ahead[0] = 30.0
            reported = _engine.clock()
            self.go.set()
            eventually("the answer to a beat", lambda: engine._renewed >= reported)
            # Its answer was on its way for as long as the request waited.
            token = self.server.add("wait")
            self.wait_started()
            ahead[0] = 60.0
            self.assertEqual(self.server.verdict(token)["verdict"], "released")
        self.assertEqual(len(lost), 1)
        self.assertNotIn(other, self.server.verdicts)

    def test_an_attempt_of_a_repeated_request_is_stopped_a_quarter_of_its_lease_earlier(self) -> None:
        ahead, lost = self.clock(), self.waiting()
        self.server.beat_ms, self.server.took_ms = 1_000_000, 0
        self.server.faults["fetch"].append("after")
        serve = self.server.serve

        def later(op: str, *call: Any) -> Any:
            answer = serve(op, *call)
            if op == "fetch" and not ahead[0]:
                ahead[0] = 30.0
            return answer

        self.server.serve = later  # type: ignore[method-assign]
        token = self.server.add("wait")
        with mock.patch.object(_engine, "LOOK_TIME", 0.05):
            self.start()
            self.wait_started()
            ahead[0] = 77.0
            self.assertEqual(self.server.verdict(token)["verdict"], "released")
        self.assertEqual(len(lost), 1)


class Keys(WorkerCase):
    def test_a_handler_enqueues_with_the_client_of_the_program_and_its_other_key(self) -> None:
        @self.app.kind("parent")
        def parent(_: Any, context: tickr.Context) -> str:
            return context.enqueue("child").id

        self.server.enqueue_key = "key-to-enqueue"
        client = tickr.Client(self.server.url, "key-to-enqueue")
        self.addCleanup(client.close)
        token = self.server.add("parent")
        with mock.patch.object(client, "close") as close:
            worker = self.start(token="key-to-work", client=client)
            seen = self.server.verdict(token)
            worker.stop()
            worker.thread.join(DEADLINE)  # type: ignore[attr-defined]
            close.assert_not_called()
        self.assertEqual(seen["result"], next(iter(self.server.enqueued.values()))["id"])
        self.assertEqual(self.server.of("fetch")[0].headers["authorization"], "Bearer key-to-work")


class Slots(WorkerCase):
    def test_at_most_as_many_handlers_run_as_there_are_slots(self) -> None:
        self.blocking()
        tokens = [self.server.add("block") for _ in range(5)]
        self.start(slots=2, wait_ms=50)
        self.wait_started()
        self.wait_started()
        self.assertFalse(self.started.acquire(timeout=0.3))
        self.go.set()
        for token in tokens:
            self.server.verdict(token)
        self.assertTrue(all(call.body["slots"] <= 2 for call in self.server.of("fetch")))

    def test_a_job_that_comes_back_waits_for_the_handler_of_its_lost_attempt(self) -> None:
        running: list = []

        @self.app.kind("slow")
        def slow(_: Any, context: tickr.Context) -> int:
            running.append(context)
            self.started.release()
            self.go.wait(DEADLINE)
            running.remove(context)
            return len(running)

        first = self.server.add("slow", id="the-job")
        self.start()
        self.wait_started()
        self.server.lost.add(first)
        eventually("lost", lambda: running[0].lost)
        second = self.server.add("slow", id="the-job")
        eventually("second is held", lambda: second in str(self.server.of("beat")[-1].body))
        self.assertFalse(self.started.acquire(timeout=0.2), "two handlers of one job ran at a time")
        self.go.set()
        self.assertEqual(self.server.verdict(second)["result"], 0)

    def test_many_verdicts_share_a_call(self) -> None:
        self.blocking()
        self.server.faults["finish"].append(0.5)
        tokens = [self.server.add("block") for _ in range(50)]
        self.start(slots=50)
        for _ in tokens:
            self.wait_started()
        self.go.set()
        for token in tokens:
            self.server.verdict(token)
        self.assertLess(len(self.server.of("finish")), 25)


class Leave(WorkerCase):
    def test_running_jobs_end_within_the_grace(self) -> None:
        self.blocking()
        token = self.server.add("block")
        worker = self.start(grace_ms=10_000)
        self.wait_started()
        worker.stop()
        eventually("told to stop", lambda: worker._engine._stopping)
        fetches = len(self.server.of("fetch"))
        self.go.set()
        worker.thread.join(DEADLINE)  # type: ignore[attr-defined]
        self.assertEqual(self.server.verdicts[token]["verdict"], "succeeded")
        self.assertEqual(self.server.calls[-1].op, "leave")
        self.assertEqual(len(self.server.of("fetch")), fetches)

    def test_the_rest_is_released_also_when_a_handler_blocks(self) -> None:
        @self.app.kind("sleep")
        def sleep(_: Any, context: tickr.Context) -> None:
            self.started.release()
            context.sleep(60)

        @self.app.kind("deaf")
        def deaf(_: Any) -> str:
            self.started.release()
            self.go.wait(DEADLINE)
            return "late"

        tokens = [self.server.add("sleep"), self.server.add("deaf")]
        worker = self.start(grace_ms=100)
        self.wait_started()
        self.wait_started()
        with mock.patch.object(_engine, "STOP_TIME", 0.2):
            worker.stop()
            worker.thread.join(DEADLINE)  # type: ignore[attr-defined]
        self.assertEqual([self.server.verdicts[t]["verdict"] for t in tokens], ["released", "released"])
        self.assertEqual(self.server.calls[-1].op, "leave")

    def test_a_job_that_was_on_its_way_has_the_grace_and_one_that_comes_after_it_is_given_back(self) -> None:
        self.blocking()
        worker = self.start()
        eventually("a request", lambda: self.server.of("fetch"))
        engine = worker._engine
        with engine._changed:
            engine._stopping = True
        engine._accept({**self.job(), "token": "on-its-way"}, _http.clock())
        with engine._changed:
            engine._leaving = True
        engine._accept({**self.job(), "token": "late"}, _http.clock())
        self.assertEqual(self.server.verdict("late")["verdict"], "released")
        self.go.set()
        self.assertEqual(self.server.verdict("on-its-way")["verdict"], "succeeded")

    def job(self) -> dict:
        self.server.add("block")
        return self.server.jobs.pop()


class Signals(WorkerCase):
    PROGRAM = """
        import sys, threading, time
        import tickr
        app = tickr.App()

        @app.kind("deaf")
        def deaf(payload):
            print("started", flush=True)
            time.sleep(60)

        tickr.Worker(app, url=sys.argv[1], grace_ms=int(sys.argv[2])).run()
        print("left", flush=True)
    """

    FORKING = """
        import os, sys, time
        import tickr
        app = tickr.App()

        @app.kind("deaf")
        def deaf(payload):
            child = os.fork()
            if child == 0:
                print("child", os.getpid(), flush=True)
                time.sleep(60)
                os._exit(0)
            return os.WTERMSIG(os.waitpid(child, 0)[1])

        tickr.Worker(app, url=sys.argv[1], grace_ms=int(sys.argv[2])).run()
        print("left", flush=True)
    """

    def program(self, grace_ms: int, text: str = PROGRAM) -> subprocess.Popen:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "program.py"
        path.write_text(textwrap.dedent(text))
        env = {**os.environ, "PYTHONPATH": str(Path(tickr.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, str(path), self.server.url, str(grace_ms)], stdout=subprocess.PIPE, text=True, env=env
        )
        self.addCleanup(process.wait, DEADLINE)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def test_a_signal_ends_the_process_in_order_although_a_handler_blocks_its_thread(self) -> None:
        token = self.server.add("deaf")
        process = self.program(grace_ms=100)
        self.assertEqual(process.stdout.readline(), "started\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(DEADLINE), 0)
        self.assertEqual(process.stdout.read(), "left\n")
        self.assertEqual(self.server.verdicts[token]["verdict"], "released")
        self.assertEqual(self.server.calls[-1].op, "leave")

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_signal_to_a_forked_child_ends_the_child_and_not_the_worker(self) -> None:
        token = self.server.add("deaf")
        process = self.program(10_000, self.FORKING)
        child = int(process.stdout.readline().split()[1])

        def kill() -> None:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass

        self.addCleanup(kill)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        self.assertEqual(self.server.verdict(token)["result"], signal.SIGTERM)
        again = self.server.add("end")
        self.assertEqual(self.server.verdict(again)["verdict"], "failed")
        self.assertEqual(self.server.of("leave"), [])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(DEADLINE), 0)
        self.assertEqual(process.stdout.read(), "left\n")

    def test_a_second_signal_ends_the_process_at_once(self) -> None:
        self.server.add("deaf")
        process = self.program(grace_ms=60_000)
        self.assertEqual(process.stdout.readline(), "started\n")
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(5), 130)


class Coroutines(WorkerCase):
    def setUp(self) -> None:
        super().setUp()

        @self.app.kind("nap")
        async def nap(seconds: float, context: tickr.Context) -> str:
            self.started.release()
            await asyncio.sleep(seconds)
            return "slept"

        @self.app.kind("boom")
        async def boom(_: Any) -> None:
            raise ValueError("boom")

        @self.app.kind("plain")
        def plain(_: Any) -> str:
            return threading.current_thread().name

    def check_all(self) -> None:
        tokens = [self.server.add("nap", 0.01), self.server.add("boom"), self.server.add("plain")]
        seen = [self.server.verdict(token) for token in tokens]
        self.assertEqual(seen[0]["result"], "slept")
        self.assertEqual(seen[1]["error"], "ValueError: boom")
        self.assertTrue(seen[2]["result"].startswith("tickr-handler"))
        cancelled = self.server.add("nap", 60)
        self.wait_started()
        self.wait_started()
        self.server.cancel.add(cancelled)
        self.assertEqual(self.server.verdict(cancelled)["verdict"], "failed")

    def test_a_worker_with_threads_runs_coroutines_as_well(self) -> None:
        self.start()
        self.check_all()

    def test_an_asyncio_worker_runs_both_and_leaves_when_its_task_is_cancelled(self) -> None:
        async def main() -> None:
            worker = tickr.AsyncWorker(self.app, url=self.server.url, slots=2, grace_ms=100)
            task = asyncio.ensure_future(worker.run(signals=False))
            await asyncio.get_running_loop().run_in_executor(None, self.check_all)
            token = self.server.add("nap", 60)
            await asyncio.get_running_loop().run_in_executor(None, self.wait_started)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(self.server.verdicts[token]["verdict"], "released")

        asyncio.run(main())
        self.assertEqual(self.server.calls[-1].op, "leave")

    def test_a_coroutine_that_blocks_the_loop_holds_up_no_beat(self) -> None:
        @self.app.kind("rude")
        async def rude(_: Any) -> None:
            time.sleep(1.0)  # noqa: ASYNC251 - the fault that this test is about

        async def main() -> None:
            worker = tickr.AsyncWorker(self.app, url=self.server.url)
            task = asyncio.ensure_future(worker.run(signals=False))
            token = self.server.add("rude")
            await asyncio.get_running_loop().run_in_executor(None, self.server.verdict, token)
            worker.stop()
            await task
            with_it = [c for c in self.server.of("beat") if token in str(c.body)]
            self.assertGreaterEqual(len(with_it), 4)

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
