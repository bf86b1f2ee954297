"""The client against a server that loses answers and refuses."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import traceback
import unittest
import warnings
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Callable
from unittest import mock

import tickr
from tests.support import FakeServer, SlowServer
from tickr import _http, _ids, _json, testing
from tickr.options import NAMES, checked

TOKEN = "secret-of-the-test-1234"


class ClientCase(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("tickr").setLevel(logging.CRITICAL + 1)
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        self.client = tickr.Client(self.server.url, TOKEN, timeout=5)
        self.addCleanup(self.client.close)

    def other(self, url: object = None, **settings: object) -> tickr.Client:
        client = tickr.Client(url or self.server.url, **settings)  # type: ignore[arg-type]
        self.addCleanup(client.close)
        return client

    def posts(self) -> list:
        return self.server.of("POST /v1/jobs")


class Enqueue(ClientCase):
    def test_a_lost_answer_is_repeated_with_the_same_key_and_enqueues_once(self) -> None:
        self.server.faults["POST /v1/jobs"].extend(["after", 503, "before", "half", 429])
        enqueued = self.client.enqueue("email", {"to": "ada"})
        self.assertEqual(len(self.posts()), 6)
        self.assertEqual(len({call.headers["idempotency-key"] for call in self.posts()}), 1)
        self.assertEqual([job["id"] for job in self.server.enqueued.values()], [enqueued.id])

    def test_two_calls_have_two_keys_and_a_key_of_the_caller_is_kept(self) -> None:
        for _ in range(2):
            self.client.enqueue("email")
        self.client.enqueue("email", idempotency_key="order-7")
        keys = [call.headers["idempotency-key"] for call in self.posts()]
        self.assertEqual(len(set(keys)), 3)
        self.assertEqual(keys[2], "order-7")

    def test_a_success_without_an_id_is_no_answer_to_an_enqueue(self) -> None:
        def keys(op: str) -> list:
            return [call.headers["idempotency-key"] for call in self.server.of(op)]

        for stray in ({"status": "ok"}, {"id": ""}, {"id": 7}, [], b"<html>", b""):
            with self.subTest(stray):
                self.server.faults["POST /v1/jobs"].append(stray)
                self.assertEqual(len(self.client.enqueue("email").id), 36)
                first, second = keys("POST /v1/jobs")[-2:]
                self.assertEqual(first, second)
        for stray in ({"jobs": []}, {"jobs": [{"id": "a"}, {}]}, {"id": "a"}, b"<html>"):
            with self.subTest(stray):
                self.server.faults["POST /v1/jobs/batch"].append(stray)
                self.assertEqual(len(self.client.enqueue_many([self.client.job("a"), self.client.job("b")])), 2)
                first, second = keys("POST /v1/jobs/batch")[-2:]
                self.assertEqual(first, second)
        self.assertEqual((len(keys("POST /v1/jobs")), len(keys("POST /v1/jobs/batch"))), (12, 8))

    def test_a_proxy_that_answers_every_enqueue_is_left_for_the_next_address(self) -> None:
        proxy = FakeServer()
        self.addCleanup(proxy.close)
        proxy.faults["POST /v1/jobs"].extend([{"status": "ok"}] * 1000)
        client = self.other([proxy.url, self.server.url])
        client.enqueue("email")
        self.assertEqual((len(proxy.of("POST /v1/jobs")), len(self.posts())), (1, 1))
        self.assertEqual(client._transport.current, 1)
        with self.assertRaises(tickr.ConnectionFailed):
            self.other(proxy.url, timeout=0.3).enqueue("email")

    def test_every_option_goes_by_its_name(self) -> None:
        moment = datetime(2026, 11, 27, 2, 0, tzinfo=timezone(timedelta(hours=1)))
        self.client.enqueue(
            "email",
            {"n": Decimal("0.10000000000000000000000001"), "big": 2**80},
            queue="mail",
            execute_at=moment,
            expires_in_ms=timedelta(minutes=1),
            timeout_ms=5,
            tags=("a", "b"),
            after=["x"],
            retry={"delays_ms": [1, 2]},
            unique_key=None,
        )
        self.assertEqual(
            self.posts()[0].body,
            {
                "kind": "email",
                "payload": {"n": 0.1, "big": 2**80},
                "queue": "mail",
                "execute_at": "2026-11-27T01:00:00.000Z",
                "expires_in_ms": 60_000,
                "timeout_ms": 5,
                "tags": ["a", "b"],
                "after": ["x"],
                "retry": {"delays_ms": [1, 2]},
            },
        )

    def test_wrong_options_are_refused_before_they_are_sent(self) -> None:
        for wrong in ({"prioritty": 1}, {"delay_ms": 1.5}, {"tags": "one"}, {"delay_ms": True}):
            with self.subTest(wrong), self.assertRaises(TypeError):
                self.client.enqueue("email", **wrong)
        for wrong in ({"delay_ms": -1}, {"execute_at": datetime(2026, 1, 1)}):
            with self.subTest(wrong), self.assertRaises(ValueError):
                self.client.enqueue("email", **wrong)
        for wrong in (object(), float("nan"), {"a": {1, 2}}, "\ud800", Decimal("inf")):
            with self.subTest(wrong), self.assertRaises(tickr.PayloadError):
                self.client.enqueue("email", wrong)
        self.assertEqual(self.posts(), [])

    def test_bulk(self) -> None:
        app = tickr.App(self.client)

        @app.kind("email")
        def email(payload: dict) -> None:
            pass

        many = self.client.enqueue_many([email.job({"to": "a"}, priority=1), self.client.job("other")])
        self.assertEqual(len(many), 2)
        body = self.server.of("POST /v1/jobs/batch")[0].body
        jobs = [{"kind": "email", "payload": {"to": "a"}, "priority": 1}, {"kind": "other", "payload": {}}]
        self.assertEqual(body, {"jobs": jobs})
        self.assertEqual(self.client.enqueue_many([]), [])
        with self.assertRaises(ValueError):
            self.client.enqueue_many([self.client.job("x")] * 1001)


class Failures(ClientCase):
    def test_a_problem_document_is_one_exception(self) -> None:
        self.server.faults["POST /v1/jobs"].append(422)
        with self.assertRaises(tickr.ApiError) as caught:
            self.client.enqueue("email")
        error = caught.exception
        self.assertEqual((error.status, error.code, error.title, error.detail), (422, "busy", "Busy", "try later"))
        self.assertEqual(len(self.posts()), 1)
        self.assertIsInstance(pickle.loads(pickle.dumps(error)), tickr.ApiError)

    def test_the_time_of_a_call_is_bounded(self) -> None:
        client = self.other(timeout=0.6)
        self.server.faults["POST /v1/jobs"].extend(["before"] * 1000)
        began = time.monotonic()
        with self.assertRaises(tickr.ConnectionFailed):
            client.enqueue("email")
        self.assertLess(time.monotonic() - began, 2)
        self.server.faults["POST /v1/jobs"].clear()
        self.server.faults["POST /v1/jobs"].extend([5.0] * 2)
        began = time.monotonic()
        with self.assertRaises(tickr.ConnectionFailed):
            client.enqueue("email")
        self.assertLess(time.monotonic() - began, 2)

    def test_retry_after_is_kept_and_one_that_is_too_long_ends_the_call(self) -> None:
        self.server.retry_after = "1"
        self.server.faults["POST /v1/jobs"].append(429)
        began = time.monotonic()
        self.client.enqueue("email")
        self.assertGreaterEqual(time.monotonic() - began, 1.0)
        self.server.retry_after = "60"
        self.server.faults["POST /v1/jobs"].append(503)
        began = time.monotonic()
        with self.assertRaises(tickr.ApiError):
            self.client.enqueue("email")
        self.assertLess(time.monotonic() - began, 1.0)

    def test_an_answer_that_trickles_ends_at_the_timeout(self) -> None:
        for part, at_once in (("header", 0), ("body", 60)):
            slow = SlowServer(at_once, 0.2)
            self.addCleanup(slow.close)
            with self.subTest(part):
                began = time.monotonic()
                with self.assertRaises(tickr.ConnectionFailed):
                    _http.Transport(slow.url).call("GET", "/", timeout=1.0)
                self.assertLess(time.monotonic() - began, 5)

    def test_an_address_is_not_called_before_its_retry_after_when_the_other_is_down(self) -> None:
        dead = FakeServer()
        dead.close()
        self.server.retry_after = "2"
        self.server.faults["POST /v1/jobs"].append(503)
        self.other([self.server.url, dead.url], timeout=10.0).enqueue("email")
        first, second = self.posts()
        self.assertGreaterEqual(second.at - first.at, 1.9)

    def test_the_other_address_is_tried_while_one_waits_for_its_retry_after(self) -> None:
        pause = _http.Pause(2)
        self.assertEqual(pause.place(0), 0)
        self.assertLess(pause.next(60.0), 0.1)
        for _ in range(3):
            self.assertEqual(pause.place(0), 1)
            self.assertLess(pause.next(), 5.1)
        self.assertEqual(pause.place(1), 1)
        self.assertGreater(pause.next(30.0), 29.0)

    def test_a_pause_is_over_when_the_address_that_named_a_time_is_free(self) -> None:
        pause = _http.Pause(2)

        def rounds(*named: float) -> float:
            last = 0.0
            for at_least in named:
                pause.place(0)
                last = pause.next(at_least)
            return last

        rounds(*[0.0] * 16)
        self.assertLessEqual(rounds(1.0, 0.0), 1.0)
        pause = _http.Pause(2)
        rounds(*[0.0] * 16)
        self.assertGreater(rounds(1.0, 2.0), 2.0, "a pause still grows when all addresses name a time")

    def test_a_nudge_is_tried_once_and_holds_up_no_request(self) -> None:
        self.server.faults["POST /v1/outbox/nudge"].extend([3.0, 503])
        client = self.other()
        began = time.monotonic()
        with self.assertRaises(tickr.ConnectionFailed):
            client.nudge()
        self.assertLess(time.monotonic() - began, 2)
        with self.assertRaises(tickr.ApiError):
            client.nudge()
        self.assertEqual(len(self.server.of("POST /v1/outbox/nudge")), 2)
        client.nudge()

    def test_the_next_address_is_tried_at_once_and_kept(self) -> None:
        dead = FakeServer()
        dead.close()
        client = self.other([dead.url, self.server.url + "/"])
        for _ in range(3):
            client.enqueue("email")
        self.assertEqual(len(self.posts()), 3)
        self.assertEqual(client._transport.current, 1)

    def test_a_kept_connection_that_the_server_closed_is_replaced(self) -> None:
        self.client.enqueue("email")
        kept = self.client._transport._addresses[0]._idle[0]
        kept.sock.raw.shutdown(2)
        self.client.enqueue("email")
        self.assertEqual(len(self.posts()), 2)

    def test_a_forked_process_does_not_share_connections(self) -> None:
        self.client.enqueue("email")
        address = self.client._transport._addresses[0]
        kept = address._idle[0]
        with mock.patch.object(os, "getpid", return_value=-1):
            self.assertIsNone(address.kept())
        kept.close()


class Secrets(ClientCase):
    def test_the_token_is_sent_and_shown_nowhere(self) -> None:
        self.client.enqueue("email")
        self.assertEqual(self.posts()[0].headers["authorization"], f"Bearer {TOKEN}")
        app = tickr.App()
        app.kind("a")(lambda payload: None)
        shown = [repr(self.client), repr(tickr.AsyncClient(client=self.client)), repr(self.client._transport.__dict__)]
        shown.append(repr(tickr.Worker(app, url=self.server.url, token=TOKEN)))
        for call in (lambda: tickr.Client("http://x:1", "bad\n" + TOKEN), lambda: tickr.Client(f"http://u:{TOKEN}@x")):
            try:
                call()
                self.fail("was taken")
            except ValueError:
                shown.append(traceback.format_exc())
        self.server.faults["POST /v1/jobs"].append(401)
        try:
            self.client.enqueue("email")
        except tickr.ApiError:
            shown.append(traceback.format_exc())
        with self.assertRaises(TypeError):
            pickle.dumps(self.client)
        self.assertNotIn(TOKEN, "\n".join(shown))

    def test_no_variable_of_a_traceback_shows_the_token(self) -> None:
        self.server.faults["POST /v1/jobs"].extend([0.5, 0.5])
        shown = ""
        try:
            self.other(token=TOKEN, timeout=0.2).enqueue("email")
        except tickr.ConnectionFailed as error:
            shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        self.assertIn("'authorization': ***", shown)
        self.assertNotIn(TOKEN, shown)

    def test_address_and_token_come_from_the_environment(self) -> None:
        with mock.patch.dict(os.environ, {"TICKR_URL": f"{self.server.url}, http://b:1", "TICKR_TOKEN": TOKEN}):
            client = tickr.Client()
        self.addCleanup(client.close)
        self.assertEqual(client._transport.urls, [self.server.url, "http://b:1"])
        client.enqueue("email")
        self.assertEqual(self.posts()[0].headers["authorization"], f"Bearer {TOKEN}")
        self.assertEqual(_http.Transport("h:1").urls, ["http://h:1"])


class Async(ClientCase):
    def test_calls_are_awaitable(self) -> None:
        async def main() -> None:
            async with tickr.AsyncClient(self.server.url) as client:
                one, two = await asyncio.gather(client.enqueue("a", delay_ms=1), client.enqueue("b"))
                self.assertNotEqual(one.id, two.id)
                self.assertEqual(len(await client.enqueue_many([client.job("c")])), 1)

        asyncio.run(main())
        self.assertEqual(sorted(call.body["kind"] for call in self.posts()), ["a", "b"])

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_process_has_threads_of_its_own(self) -> None:
        client = tickr.AsyncClient(self.server.url)
        asyncio.run(client.enqueue("a"))
        self.assertEqual(in_a_fork(lambda: asyncio.run(client.enqueue("b"))), 0)
        self.assertEqual([call.body["kind"] for call in self.posts()], ["a", "b"])
        asyncio.run(client.close())


def in_a_fork(call: Callable[[], object]) -> int:
    """Call a function in a forked process, for at most ten seconds. Returns 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(10)
            # Of the connections of the parent, which are left to it.
            warnings.simplefilter("ignore", ResourceWarning)
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed: no certificate to test with")
class Tls(unittest.TestCase):
    def test_a_certificate_is_checked_and_an_answer_that_trickles_ends_at_the_timeout(self) -> None:
        logging.getLogger("tickr").setLevel(logging.CRITICAL + 1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        key, certificate = f"{folder.name}/key.pem", f"{folder.name}/cert.pem"
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
        subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = FakeServer(context)
        self.addCleanup(server.close)
        with tickr.Client(server.url, tls=ssl.create_default_context(cafile=certificate)) as client:
            client.enqueue("email")
        with tickr.Client(server.url, timeout=0.3) as stranger, self.assertRaises(tickr.ConnectionFailed) as caught:
            stranger.enqueue("email")
        slow = SlowServer(60, 0.2, context)
        self.addCleanup(slow.close)
        began = time.monotonic()
        with self.assertRaises(tickr.ConnectionFailed):
            _http.Transport(slow.url, tls=ssl.create_default_context(cafile=certificate)).call("GET", "/", timeout=1.0)
        self.assertLess(time.monotonic() - began, 5)
        self.assertIn("certificate", str(caught.exception))
        self.assertEqual(len(server.of("POST /v1/jobs")), 1)


class Values(unittest.TestCase):
    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_process_makes_ids_while_a_thread_of_its_parent_did_so(self) -> None:
        with _ids._lock:
            self.assertEqual(in_a_fork(_ids.uuid7), 0)

    def test_numbers_lose_no_digit(self) -> None:
        text = b'{"a":12345678901234567890123,"b":0.1000000000000000000001,"c":1.0,"d":-1E+300}'
        self.assertEqual(_json.encode(_json.decode(text, exact=True)), text)
        self.assertEqual(_json.decode(b"[1.5]"), [1.5])
        # A payload of another program must not be able to stop a worker.
        self.assertEqual(len(_json.decode(b"[" + b"9" * 5000 + b", 1e999]")), 2)

    def test_a_text_that_looks_like_a_mark_stays_a_text(self) -> None:
        value = {"a": Decimal("1.50"), "b": "decimal-0000:1.50", "c": '"decimal-'}
        self.assertEqual(_json.decode(_json.encode(value), exact=True), value)

    def test_a_job_starts_at_no_earlier_millisecond_and_expires_at_no_later_one(self) -> None:
        moment = datetime(2026, 11, 27, 23, 59, 59, 999_001, tzinfo=timezone.utc)
        made = checked({"execute_at": moment, "expires_at": moment})
        self.assertEqual(made, {"execute_at": "2026-11-28T00:00:00.000Z", "expires_at": "2026-11-27T23:59:59.999Z"})
        exact = moment.replace(microsecond=7_000)
        self.assertEqual(checked({"execute_at": exact}), {"execute_at": "2026-11-27T23:59:59.007Z"})

    def test_a_checkpoint_of_more_than_64_levels_is_refused_and_none_is_one(self) -> None:
        context = testing.FakeContext()

        def nested(levels: int) -> list:
            value: list = []
            for _ in range(levels - 1):
                value = [value]
            return value

        context.save_checkpoint([nested(63), {"[": '{"\\[' * 100}])
        with self.assertRaises(tickr.PayloadError):
            context.save_checkpoint(nested(65))
        self.assertEqual(_json.levels(b'{"a":[{}],"b":[]}'), 3)
        context.save_checkpoint(None)
        self.assertEqual(context._reports()[-1], b"null")

    def test_the_names_of_the_options_are_checked(self) -> None:
        self.assertEqual(len(NAMES), 23)
        self.assertEqual(checked({"queue": None}), {})


if __name__ == "__main__":
    unittest.main()
