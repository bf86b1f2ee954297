"""Run the tests of django-tasks, or of Django itself, against the backend of this package.

    TICKR_URL=http://127.0.0.1:7070 python tests/upstream.py FOLDER

FOLDER has the sources of django-tasks from its repository, as its package on PyPI lacks the tests, or those of Django 6
from PyPI. The tests for the dummy and the immediate backend run with two subclasses of `TickrBackend` in the place of
these: one that only enqueues, and one that waits until a worker in this process has executed the task. It is no part of
`test.sh`.

Four tests are expected to fail. Two change a result in the memory of the dummy backend, and this one has none; one
wants the immediate backend to refuse `run_after`, which this one supports; one wants a KeyboardInterrupt of a task in
the program that enqueued it.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import unittest
import uuid
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, List

folder = Path(sys.argv[1]).resolve()
is_django = (folder / "tests" / "tasks" / "test_dummy_backend.py").exists()
sys.path[0] = str(folder / "tests" if is_django else folder)
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "src"))
os.environ["DJANGO_SETTINGS_MODULE"] = "test_sqlite" if is_django else "tests.settings"
os.environ["IN_TEST"] = "1"

import django
from django.conf import settings

if is_django:
    settings.INSTALLED_APPS = ["tasks"]
django.setup()

from asgiref.sync import async_to_sync
from django.test.utils import get_runner

import tickr
from tickr.django import worker
from tickr.django._tasks import TaskResultDoesNotExist
from tickr.django.backend import TickrBackend

KIND = f"upstream-{uuid.uuid4().hex[:10]}"


class Base(TickrBackend):
    """The backend with a kind of this run, without options."""

    def __init__(self, alias: str, params: Dict[str, Any]):
        super().__init__(alias, params)
        self.kind, self.queue_prefix = KIND, f"{KIND}."
        self.job_options = {"max_attempts": 1}


class EnqueueOnly(Base):
    """Stands for the dummy backend, which keeps results. It has no worker: its queues are others."""

    def __init__(self, alias: str, params: Dict[str, Any]):
        super().__init__(alias, params)
        self.queue_prefix = f"{KIND}.idle."
        self.results: List[Any] = []

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        result = super().enqueue(*args, **kwargs)
        self.results.append(result)
        return deepcopy(result)

    def clear(self) -> None:
        while self.results:
            id = self.results.pop().id
            try:
                self.client.cancel(id)
            except tickr.ApiError as error:
                assert error.code == "wrong_state", error
            self.client.request("POST", "/v1/operations", {"action": "delete", "filter": {"kind": KIND}})
            until = time.monotonic() + 15
            while not self.is_gone(id):
                assert time.monotonic() < until, "the job was not deleted"
                time.sleep(0.02)

    def is_gone(self, id: str) -> bool:
        try:
            self.get_result(id)
        except TaskResultDoesNotExist:
            return True
        return False


class EnqueueAndWait(Base):
    """Stands for the immediate backend."""

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        result = super().enqueue(*args, **kwargs)
        self.client.wait(result.id, 30)
        return super().get_result(result.id)

    def get_result(self, result_id: str) -> Any:
        # The immediate backend has no results to get, and its tests say so.
        raise NotImplementedError("This backend does not support retrieving or refreshing results.")


root = "django.tasks" if is_django else "django_tasks"
import_module(f"{root}.backends.dummy").DummyBackend = EnqueueOnly  # type: ignore[attr-defined]
import_module(f"{root}.backends.immediate").ImmediateBackend = EnqueueAndWait  # type: ignore[attr-defined]

tests = "tasks" if is_django else "tests.tests"
DummyBackendTestCase = import_module(f"{tests}.test_dummy_backend").DummyBackendTestCase
ImmediateBackendTestCase = import_module(f"{tests}.test_immediate_backend").ImmediateBackendTestCase

for case, name in (
    (DummyBackendTestCase, "test_refresh_result"),
    (DummyBackendTestCase, "test_refresh_result_async"),
    (ImmediateBackendTestCase, "test_cannot_pass_run_after"),
    (ImmediateBackendTestCase, "test_throws_keyboard_interrupt"),
):
    method = getattr(case, name)
    # Django wraps a coroutine in a function that does not have the mark.
    function = async_to_sync(method) if inspect.iscoroutinefunction(method) else method
    setattr(case, name, unittest.expectedFailure(lambda test, function=function: function(test)))

serving = EnqueueAndWait("default", {"QUEUES": []})
app = worker.app_for(serving)
app.declare()
runner = tickr.Worker(
    app,
    name="upstream",
    queues=[serving.queue_of("default"), serving.queue_of("queue-1")],
    lease_ms=10_000,
    capture_logs=False,
    around=worker.around,
    thread_ended=worker.thread_ended,
)
thread = threading.Thread(target=runner.run, daemon=True)
thread.start()
labels = sys.argv[2:] or [tests.partition(".")[0]]
failures = get_runner(settings)(verbosity=1).run_tests(labels)
runner.stop()
thread.join(30)
serving.client.request("DELETE", f"/v1/kinds/{KIND}")
sys.exit(bool(failures))
