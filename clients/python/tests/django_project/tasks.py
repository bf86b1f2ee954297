"""Tasks of the project."""

from django.conf import settings

import tickr
from tickr.django import current_context

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

app = tickr.App()


@app.kind("unused-in-tests")
def unused(payload: object) -> None:
    """Stand for a kind of an App that `--app` serves."""


@task()
def add(a, b=1):
    return a + b


@task(queue_name="mail", priority=100)
async def shout(word):
    return word.upper()


@task(takes_context=True)
def fail_once(context):
    current_context().log("attempt %d", context.attempt)
    if context.attempt == 1:
        raise ValueError("the first time")
    return context.task_result.id


@task()
def fail():
    raise KeyError("always")


@task()
def give_up():
    raise tickr.Rejected("never")


@task()
def no_json():
    return object()


if "outbox" in settings.TASKS:

    @task(backend="outbox")
    def committed(word):
        return word


def no_task():
    return "must not run"
