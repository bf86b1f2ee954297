"""The conformance program: serves the kinds `conformance.*` with the library. See the environment below."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

import tickr

app = tickr.App()


@app.kind("conformance.echo")
def echo(payload: Any) -> Any:
    return payload


@app.kind("conformance.fail")
def fail(payload: Any) -> None:
    raise tickr.Failed(payload["message"], payload.get("delay_ms"))


@app.kind("conformance.reject")
def reject(payload: Any) -> None:
    raise tickr.Rejected(payload["message"])


@app.kind("conformance.snooze")
def snooze(payload: Any) -> None:
    raise tickr.Snoozed(payload["message"], payload["delay_ms"])


@app.kind("conformance.release")
def release(_: Any) -> None:
    raise tickr.Released


@app.kind("conformance.throw")
def throw(payload: Any) -> None:
    raise RuntimeError(payload["message"])


@app.kind("conformance.block")
def block(payload: Any) -> None:
    time.sleep(payload["ms"] / 1000)


@app.kind("conformance.log")
def log(payload: Any, context: tickr.Context) -> None:
    for line in payload["lines"]:
        context.log(line)


@app.kind("conformance.big")
def big(payload: Any) -> str:
    return "x" * int(payload["bytes"])


if os.environ.get("TICKR_CONFORMANCE_ASYNC"):

    @app.kind("conformance.sleep")
    async def sleep_async(payload: Any) -> Any:
        await asyncio.sleep(payload["ms"] / 1000)
        return {"slept": True}

    @app.kind("conformance.progress")
    async def progress_async(payload: Any, context: tickr.Context) -> Any:
        context.progress(payload["percent"], payload["note"])
        context.save_checkpoint(payload["checkpoint"])
        await asyncio.sleep(payload["ms"] / 1000)
        return {"began_with": context.checkpoint}

    @app.kind("conformance.enqueue")
    async def enqueue_async(payload: Any, context: tickr.Context) -> Any:
        client = tickr.AsyncClient(client=context.client)
        options = {"queue": payload["queue"]} if payload.get("queue") else {}
        enqueued = await client.enqueue(payload["kind"], payload["payload"], **options)
        return {"id": enqueued.id}

else:

    @app.kind("conformance.sleep")
    def sleep(payload: Any, context: tickr.Context) -> Any:
        context.sleep(payload["ms"] / 1000)
        return {"slept": True}

    @app.kind("conformance.progress")
    def progress(payload: Any, context: tickr.Context) -> Any:
        context.progress(payload["percent"], payload["note"])
        context.save_checkpoint(payload["checkpoint"])
        context.sleep(payload["ms"] / 1000)
        return {"began_with": context.checkpoint}

    @app.kind("conformance.enqueue")
    def enqueue(payload: Any, context: tickr.Context) -> Any:
        enqueued = context.enqueue(payload["kind"], payload["payload"], queue=payload.get("queue"))
        return {"id": enqueued.id}


def main() -> None:
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", "INFO"), stream=sys.stderr)
    settings: Any = {
        "name": "conformance-python",
        "queues": os.environ.get("TICKR_QUEUES", "conformance").split(","),
        "slots": int(os.environ.get("TICKR_SLOTS", "4")),
        "grace_ms": int(os.environ.get("TICKR_GRACE_MS", "5000")),
        "lease_ms": int(os.environ.get("TICKR_LEASE_MS", "10000")),
        "wait_ms": int(os.environ.get("TICKR_WAIT_MS", "30000")),
        # Numbers are read as Decimal, so that echo loses no digit.
        "exact": True,
    }
    if os.environ.get("TICKR_CONFORMANCE_ASYNC"):
        asyncio.run(tickr.AsyncWorker(app, **settings).run())
    else:
        tickr.Worker(app, **settings).run()


if __name__ == "__main__":
    main()
