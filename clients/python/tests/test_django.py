"""The backend for tasks and the command `tickr_worker`. Skipped without Django and its tasks framework."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import unittest
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import tickr
from tests.support import DEADLINE, FakeServer, eventually

KIND = f"django-{uuid.uuid4().hex[:10]}"
os.environ.setdefault("TEST_KIND", KIND)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_project.settings")

try:
    import django

    django.setup()
    from django.core.checks import run_checks
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import call_command
    from django.db import connections, transaction
    from django.test import SimpleTestCase, override_settings

    from tests.django_project import settings as project
    from tests.django_project import tasks
    from tickr.django import _tasks, backend
    from tickr.django.outbox import enqueue_in_transaction, nudge_after_commit, shared_client

    MISSING = ""
except ImportError as error:
    MISSING = f"Django with its tasks framework is not installed: {error}"
    SimpleTestCase = unittest.TestCase  # type: ignore[assignment,misc]

URL = os.environ.get("TICKR_URL")

OTHER = tickr.App()
OTHER.kind("other.plain")(lambda payload: payload)
OTHER.kind("other.mail", queue="other.mails")(lambda payload: payload)


def options(**changes: Any) -> Any:
    return override_settings(
        TASKS={
            "default": {
                "BACKEND": "tickr.django.TickrBackend",
                "QUEUES": ["default", "mail"],
                "OPTIONS": {**project.TASKS["default"]["OPTIONS"], **changes},
            }
        }
    )


@unittest.skipIf(MISSING, MISSING)
class Enqueue(SimpleTestCase):
    databases: Any = {"default"}

    def setUp(self) -> None:
        self.server = FakeServer()
        self.addCleanup(self.server.close)
        changed = options(url=self.server.url)
        changed.enable()
        self.addCleanup(changed.disable)
        self.addCleanup(shared_client.cache_clear)
        self.addCleanup(lambda: _tasks.task_backends["default"].client.close())

    def body(self) -> Any:
        return self.server.of("POST /v1/jobs")[-1].body

    def test_the_worker_serves_the_queues_of_all_kinds_of_an_app(self) -> None:
        with mock.patch("tickr.django.management.commands.tickr_worker.Worker") as worker:
            call_command("tickr_worker", "--queues", "mail", "--app", "tests.test_django:OTHER", stdout=io.StringIO())
        queues = set(worker.call_args.kwargs["queues"])
        self.assertTrue({"default", "other.mails"} < queues, queues)
        self.assertEqual(len(queues), 3)

    def test_the_worker_has_a_key_of_its_own_and_its_tasks_enqueue_with_the_other(self) -> None:
        with mock.patch("tickr.django.management.commands.tickr_worker.Worker") as worker:
            with options(url=self.server.url, token="key-to-enqueue", worker_token="key-to-work"):
                call_command("tickr_worker", stdout=io.StringIO())
                expected = _tasks.task_backends["default"].client
            self.assertEqual(worker.call_args.kwargs["token"], "key-to-work")
            self.assertIs(worker.call_args.kwargs["client"], expected)
            call_command("tickr_worker", stdout=io.StringIO())
            self.assertIsNone(worker.call_args.kwargs["token"])

    def test_a_task_is_a_job(self) -> None:
        heard = []

        def hear(sender: Any, task_result: Any, **_: Any) -> None:
            heard.append((sender, task_result.id))

        _tasks.task_enqueued.connect(hear)
        self.addCleanup(_tasks.task_enqueued.disconnect, hear)
        result = tasks.add.enqueue(1, b=(2, 3))
        self.assertEqual(
            self.body(),
            {
                "kind": os.environ["TEST_KIND"],
                "payload": {
                    "task": "tests.django_project.tasks.add",
                    "args": [1],
                    "kwargs": {"b": [2, 3]},
                    "backend": "default",
                    "priority": 0,
                    "run_after": None,
                },
                "queue": f"{os.environ['TEST_KIND']}.default",
                "priority": 5,
                "max_attempts": 2,
                "retry": {"delays_ms": [20]},
            },
        )
        self.assertEqual(result.status, "READY")
        self.assertEqual((result.args, result.kwargs, result.attempts), ([1], {"b": [2, 3]}, 0))
        self.assertEqual(heard, [(backend.TickrBackend, result.id)])

    def test_options_of_a_task(self) -> None:
        moment = datetime(2026, 11, 27, 3, 0, tzinfo=timezone(timedelta(hours=2)))
        tasks.shout.using(run_after=moment, priority=-100).enqueue("a")
        body = self.body()
        self.assertEqual(body["execute_at"], "2026-11-27T01:00:00.000Z")
        self.assertEqual((body["queue"], body["priority"]), (f"{os.environ['TEST_KIND']}.mail", 9))
        priorities = [backend.job_priority(value) for value in (100, 81, 80, 21, 20, 1, 0, -1, -25, -26, -100)]
        self.assertEqual(priorities, [0, 0, 1, 3, 4, 4, 5, 6, 6, 7, 9])

    def test_what_cannot_be_enqueued_is_refused(self) -> None:
        with self.assertRaises(TypeError):
            tasks.add.enqueue(object())
        with self.assertRaisesMessage(Exception, "Queue 'other' is not valid"):
            tasks.add.using(queue_name="other").enqueue(1)
        self.assertEqual(self.server.of("POST /v1/jobs"), [])

    def test_settings_are_checked(self) -> None:
        self.assertEqual(run_checks(), [])
        for wrong, id in (
            ({"outbox": "default"}, "tickr.E002"),
            ({"outbox": "nowhere"}, "tickr.E001"),
            ({"queue_prefix": "Django "}, "tickr.E003"),
            ({"timeout_ms": "long"}, "tickr.E004"),
        ):
            with self.subTest(id), options(**wrong):
                self.assertIn(id, [message.id for message in run_checks()])
        with self.assertRaises(ImproperlyConfigured), options(speed=9):
            _tasks.task_backends["default"]
        with self.assertRaisesMessage(ImproperlyConfigured, "sqlite"):
            enqueue_in_transaction("a", {})

    def test_a_transaction_has_one_nudge(self) -> None:
        client = _tasks.task_backends["default"].client
        with transaction.atomic():
            for _ in range(3):
                nudge_after_commit(client, "default")
            self.assertEqual(self.nudges(), 0)
        self.assertEqual(self.nudges(), 1)
        with transaction.atomic():
            with self.assertRaises(RuntimeError), transaction.atomic():
                nudge_after_commit(client, "default")
                raise RuntimeError
            nudge_after_commit(client, "default")
        self.assertEqual(self.nudges(), 2)
        with self.assertRaises(RuntimeError), transaction.atomic():
            nudge_after_commit(client, "default")
            raise RuntimeError
        self.assertEqual(self.nudges(), 2)
        nudge_after_commit(client, "default")
        self.assertEqual(self.nudges(), 3, "without a transaction it is sent at once")

    def nudges(self) -> int:
        return len(self.server.of("POST /v1/outbox/nudge"))

    def test_only_tasks_are_called(self) -> None:
        for path in ("tests.django_project.tasks.no_task", "os.getpid", "tests.nowhere.task"):
            with self.subTest(path), self.assertRaises(ImportError):
                backend.task_of({"task": path}, "default", "default")


@unittest.skipIf(MISSING, MISSING)
@unittest.skipUnless(URL, "TICKR_URL is unset: no server to test against")
class Execute(SimpleTestCase):
    databases: Any = set() if MISSING else {"mysql"} & set(project.DATABASES)
    worker: subprocess.Popen

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        logging.getLogger("tickr").setLevel(logging.CRITICAL + 1)
        client = tickr.Client()
        cls.addClassCleanup(client.close)
        command = ["tickr_worker", "--declare", "--lease-ms", "10000", "--grace-ms", "5000"]
        cls.worker = subprocess.Popen(
            [sys.executable, "-m", "django", *command],
            cwd=Path(__file__).resolve().parent.parent,
            env={**os.environ, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        kind = os.environ["TEST_KIND"]

        def stop() -> None:
            cls.worker.send_signal(signal.SIGTERM)
            code = cls.worker.wait(DEADLINE)
            client.request("DELETE", f"/v1/kinds/{kind}")
            assert code == 0, f"the worker ended with {code}"

        cls.addClassCleanup(stop)
        eventually("the kind", lambda: kind in str(client.request("GET", "/v1/kinds")))

    def ended(self, result: Any) -> Any:
        def ended() -> bool:
            result.refresh()
            return bool(result.is_finished)

        eventually("the end of the task", ended)
        return result

    def test_a_task_runs_and_has_a_result(self) -> None:
        result = self.ended(tasks.add.enqueue(1, b=2))
        self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 3, 1))
        self.assertEqual(result.errors, [])
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        again = tasks.add.get_result(result.id)
        self.assertEqual((again.args, again.kwargs, again.task), ([1], {"b": 2}, tasks.add))
        with self.assertRaises(Exception) as caught:
            tasks.fail.get_result(result.id)
        self.assertEqual(type(caught.exception).__name__, "TaskResultMismatch")
        for unknown in ("no-id", str(uuid.uuid4())):
            with self.assertRaises(_tasks.TaskResultDoesNotExist):
                tasks.add.get_result(unknown)

    def test_a_coroutine_runs(self) -> None:
        self.assertEqual(self.ended(tasks.shout.enqueue("a")).return_value, "A")

    def test_a_task_that_fails_runs_again(self) -> None:
        result = self.ended(tasks.fail_once.enqueue())
        self.assertEqual((result.return_value, result.attempts), (result.id, 2))
        self.assertEqual([error.exception_class for error in result.errors], [ValueError])
        self.assertIn("attempt 1\nTraceback", result.errors[0].traceback)

    def test_a_task_that_fails_for_good(self) -> None:
        result = self.ended(tasks.fail.enqueue())
        self.assertEqual((result.status, result.attempts), ("FAILED", 2))
        self.assertEqual([error.exception_class for error in result.errors], [KeyError, KeyError])
        self.assertIn("raise KeyError", result.errors[1].traceback)
        with self.assertRaises(ValueError):
            result.return_value  # noqa: B018
        gave_up = self.ended(tasks.give_up.enqueue())
        self.assertEqual((gave_up.attempts, gave_up.errors[0].exception_class), (1, tickr.Rejected))
        self.assertEqual(self.ended(tasks.no_json.enqueue()).errors[0].exception_class, TypeError)

    def test_a_task_runs_after_its_time(self) -> None:
        after = datetime.now(timezone.utc) + timedelta(seconds=1)
        result = self.ended(tasks.add.using(run_after=after).enqueue(1))
        self.assertGreaterEqual(result.started_at, after - timedelta(milliseconds=1))

    async def test_calls_are_awaitable(self) -> None:
        result = await tasks.add.aenqueue(1)
        self.assertEqual((await tasks.add.aget_result(result.id)).id, result.id)

    @unittest.skipUnless(os.environ.get("TICKR_MYSQL_URL"), "TICKR_MYSQL_URL is unset: no outbox to test with")
    def test_a_task_of_the_outbox_exists_exactly_if_the_transaction_was_committed(self) -> None:
        if "mysql" not in connections:
            self.skipTest("PyMySQL is not installed")
        with transaction.atomic(using="mysql"):
            kept = tasks.committed.enqueue("kept")
            with self.assertRaises(RuntimeError), transaction.atomic(using="mysql"):
                undone = tasks.committed.enqueue("undone")
                raise RuntimeError
            with self.assertRaises(_tasks.TaskResultDoesNotExist):
                tasks.committed.get_result(kept.id)

        def found() -> Any:
            try:
                return tasks.committed.get_result(kept.id)
            except _tasks.TaskResultDoesNotExist:
                return None

        self.assertEqual(self.ended(eventually("the task", found)).return_value, "kept")
        with self.assertRaises(_tasks.TaskResultDoesNotExist):
            tasks.committed.get_result(undone.id)


if __name__ == "__main__":
    unittest.main()
