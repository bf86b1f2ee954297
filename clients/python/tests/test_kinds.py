"""Payload types, handlers without a worker, the outbox row, and ids."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import unittest
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Dict, List, Literal, Optional, Tuple, TypedDict, Union
from unittest import mock
from uuid import UUID

import tickr
from tickr import _json, outbox, payloads, testing
from tickr._ids import uuid7
from tickr.context import AttemptLog

try:
    import pydantic
except ImportError:
    pydantic = None  # type: ignore[assignment]


class Color(Enum):
    RED = "red"


@dataclass
class Address:
    city: str
    zip: Optional[str] = None


class Extra(TypedDict, total=False):
    note: str


class Line(TypedDict):
    name: str
    amount: Decimal


@dataclass
class Order:
    id: UUID
    at: datetime
    day: date
    color: Color
    lines: List[Line]
    to: Address
    extra: Extra = field(default_factory=dict)  # type: ignore[assignment]
    sizes: Dict[str, int] = field(default_factory=dict)
    pair: Tuple[int, str] = (1, "a")
    either: Union[int, str] = 0
    mode: Literal["fast", "slow"] = "fast"
    ratio: float = 1.0
    any: Any = None


ORDER = Order(
    id=UUID(int=7),
    at=datetime(2026, 11, 27, 1, 2, 3, 4000, tzinfo=timezone.utc),
    day=date(2026, 11, 27),
    color=Color.RED,
    lines=[{"name": "tea", "amount": Decimal("1.10")}],
    to=Address("Paris"),
    extra={"note": "x"},
    sizes={"a": 1},
    pair=(2, "b"),
    either="s",
    mode="slow",
    ratio=2.0,
    any=[1],
)

app = tickr.App()


@app.kind("order", queue="shop", max_attempts=3, timeout_ms=timedelta(minutes=1))
def order(job: Order, context: tickr.Context) -> Dict[str, Any]:
    """Carry out an order.

    Further lines are not part of the description.
    """
    context.progress(50, "half")
    context.log("to %s", job.to.city)
    context.save_checkpoint({"seen": context.checkpoint})
    context.enqueue("email", {"to": job.to.city}, unique_key=context.job_id)
    return {"lines": len(job.lines)}


@app.kind("nap")
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


class Payloads(unittest.TestCase):
    def test_a_value_comes_back_as_it_was(self) -> None:
        self.assertEqual(payloads.read(Order, _json.decode(_json.encode(ORDER), exact=True)), ORDER)

    def test_faults_name_their_place(self) -> None:
        good = _json.decode(_json.encode(ORDER))
        faults = {
            "/to/city is missing": {"to": {}},
            "/to must be an object": {"to": 1},
            "/lines/0/amount must be a number": {"lines": [{"name": "a", "amount": []}]},
            "/pair must have 2 elements": {"pair": [1]},
            "/either must be a whole number or /either must be a string": {"either": 1.5},
            "/mode must be one of 'fast', 'slow'": {"mode": "x"},
            "/color is no Color": {"color": "blue"},
            "/id is no UUID": {"id": 3},
            "/ratio must be a number": {"ratio": True},
            "/sizes/a must be a whole number": {"sizes": {"a": "1"}},
        }
        for fault, change in faults.items():
            with self.subTest(fault), self.assertRaises(tickr.PayloadError) as caught:
                payloads.read(Order, {**good, **change})
            self.assertEqual(str(caught.exception), fault)

    def test_fields_of_a_newer_program_are_left_out(self) -> None:
        self.assertEqual(payloads.read(Address, {"city": "a", "new": 1}), Address("a"))
        self.assertEqual(payloads.read(Extra, {"new": 1}), {})

    def test_the_schema(self) -> None:
        schema = payloads.schema(Order)
        self.assertEqual(schema["required"], ["id", "at", "day", "color", "lines", "to"])
        line = schema["properties"]["lines"]["items"]
        self.assertEqual(line["required"], ["amount", "name"])
        self.assertEqual(
            schema["properties"]["to"]["properties"]["zip"], {"anyOf": [{"type": "string"}, {"type": "null"}]}
        )
        self.assertEqual(
            order.defaults,
            {"queue": "shop", "max_attempts": 3, "timeout_ms": 60_000, "description": "Carry out an order."},
        )

    def test_handlers_are_checked(self) -> None:
        with self.assertRaises(ValueError):
            app.kind("order")(lambda payload: None)
        with self.assertRaises(TypeError):
            app.kind("none")(lambda: None)  # type: ignore[arg-type,misc]
        with self.assertRaises(TypeError):
            app.kind("odd", payload=threading.Lock)(lambda payload: None)
        self.assertIs(app.kind("untyped")(lambda payload: payload).payload_type, Any)

    @unittest.skipIf(pydantic is None, "pydantic is not installed")
    def test_a_model_of_pydantic(self) -> None:
        class Item(pydantic.BaseModel):
            name: str
            at: datetime

        @tickr.App().kind("item", payload=Item)
        def item(payload: Item) -> Any:
            return {"item": payload, "type": type(payload).__name__}

        good = Item(name="tea", at=datetime(2026, 11, 27, tzinfo=timezone.utc))
        outcome = testing.run(item, good)
        self.assertEqual(outcome.result, {"item": {"name": "tea", "at": "2026-11-27T00:00:00Z"}, "type": "Item"})
        self.assertEqual(testing.run(item, {"name": 1}).verdict, "rejected")
        self.assertEqual(item.schema()["required"], ["name", "at"])


class Doubles(unittest.TestCase):
    def test_a_handler_runs_alone(self) -> None:
        context = testing.FakeContext(checkpoint=3)
        outcome = testing.run(order, ORDER, context)
        self.assertEqual((outcome.verdict, outcome.result), ("succeeded", {"lines": 1}))
        self.assertEqual((context.percent, context.note), (50.0, "half"))
        self.assertEqual(context.saved_checkpoint, {"seen": 3})
        self.assertEqual(context.log_text, "to Paris")
        context.fake_client.assert_enqueued("email", {"to": "Paris"}, unique_key=context.job_id)
        self.assertEqual(testing.run(order, {"id": 1}).verdict, "rejected")
        self.assertEqual(testing.run(nap, 0.0).result, "slept")
        self.assertEqual(asyncio.run(testing.arun(nap, 0.0)).result, "slept")

    def test_a_handler_that_is_stopped(self) -> None:
        @tickr.App().kind("wait")
        def wait(reason: str, context: testing.FakeContext) -> None:
            context.stop(getattr(tickr, reason))
            try:
                context.sleep(60)
            except Exception:
                self.fail("a stop is no Exception")

        ends = {name: testing.run(wait, name) for name in ("Cancelled", "Lost", "Stopping", "DeadlineExceeded")}
        self.assertEqual([it.verdict for it in ends.values()], ["failed", None, "released", "failed"])
        self.assertEqual(ends["DeadlineExceeded"].error, "timed out after 300000 ms")

    def test_the_fake_client_says_what_was_enqueued(self) -> None:
        client = testing.FakeClient()
        client.assert_nothing_enqueued()
        app.client = client
        self.addCleanup(setattr, app, "client", None)
        nap.enqueue(1.5, delay_ms=timedelta(seconds=1))
        client.assert_enqueued(nap, 1.5, delay_ms=1000, times=1)
        with self.assertRaisesRegex(AssertionError, "nap 1.5"):
            client.assert_enqueued("nap", 2.5)
        with self.assertRaises(AssertionError):
            client.assert_nothing_enqueued()
        with self.assertRaises(TypeError):
            client.enqueue("nap", prio=1)
        first = client.enqueue("nap", idempotency_key="a")
        self.assertEqual(client.enqueue("nap", idempotency_key="a").id, first.id)

        async def later() -> None:
            fake = testing.FakeAsyncClient()
            await fake.enqueue("nap", 1)
            fake.assert_enqueued("nap", 1)

        asyncio.run(later())

    def test_the_log_keeps_the_newest_lines(self) -> None:
        log = AttemptLog()
        for number in range(10_000):
            log.add(f"é {number}")
        text = log.text()
        self.assertLessEqual(len(text.encode()), 16_384)
        self.assertTrue(text.endswith("é 9999"))
        log.add("é" * 20_000)
        self.assertLessEqual(len(log.text().encode()), 16_384)


class Cursor:
    def __init__(self) -> None:
        self.rows: List[Tuple[str, Tuple[Any, ...]]] = []

    def execute(self, operation: str, parameters: Any = (), /) -> None:
        self.rows.append((operation, parameters))

    def cursor(self) -> Cursor:
        return self

    def close(self) -> None:
        pass


class Outbox(unittest.TestCase):
    def test_the_row(self) -> None:
        cursor = Cursor()
        moment = datetime(2026, 11, 27, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=2)))
        id = outbox.enqueue(cursor, "email", {"to": "é"}, queue="mail", execute_at=moment, tags=["a"], delay_ms=None)
        sql, values = cursor.rows[0]
        self.assertIn("INSERT INTO tickr_outbox (id, kind, payload, queue, execute_at, options)", sql)
        self.assertEqual(values[0], UUID(id).hex)
        self.assertEqual(values[1:5], ("email", '{"to":"é"}', "mail", "2026-11-27 01:04:05.679"))
        self.assertEqual(json.loads(values[5]), {"tags": ["a"]})
        outbox.enqueue(cursor, "email", id=id, table="shop.tickr_outbox", traceparent="00-a-b-01")
        sql, values = cursor.rows[1]
        self.assertIn("INTO shop.tickr_outbox", sql)
        self.assertEqual(values[1:], ("email", "{}", None, None, '{"trace":{"traceparent":"00-a-b-01"}}'))

    def test_a_row_starts_at_no_earlier_millisecond_also_with_a_time_as_text(self) -> None:
        cursor = Cursor()
        outbox.enqueue(cursor, "email", execute_at="2026-11-27T03:04:05.678001+02:00")
        outbox.enqueue(cursor, "email", execute_at="2026-11-27T01:04:05.678Z")
        times = [values[4] for _, values in cursor.rows]
        self.assertEqual(times, ["2026-11-27 01:04:05.679", "2026-11-27 01:04:05.678"])

    def test_wrong_rows_are_refused(self) -> None:
        cursor = Cursor()
        two_times = {"execute_at": "2026-11-27T01:04:05Z", "delay_ms": 5}
        for wrong in ({"table": "a; DROP"}, {"id": str(UUID(int=1))}, {"payload": "x" * (1 << 20)}, two_times):
            with self.subTest(wrong), self.assertRaises(ValueError):
                outbox.enqueue(cursor, "email", **wrong)
        with self.assertRaises(TypeError):
            outbox.enqueue(cursor, "email", prio=1)  # type: ignore[call-arg]
        self.assertEqual(cursor.rows, [])

    def test_ids_are_unique_and_in_order(self) -> None:
        now = time.time_ns()
        for clock in ([now] * 5_000, range(now + 5_000, now, -1)):  # it stands still, and it goes back
            with mock.patch("time.time_ns", side_effect=clock):
                ids = [uuid7() for _ in range(5_000)]
            self.assertEqual(ids, sorted(set(ids)))
        self.assertEqual({(id.version, id.variant) for id in ids}, {(7, "specified in RFC 4122")})
        made = (ids[0].int >> 80) / 1000
        self.assertLess(abs(datetime.now(timezone.utc).timestamp() - made), 5)
        seen: List[UUID] = []
        threads = [threading.Thread(target=lambda: seen.extend(uuid7() for _ in range(500))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(seen)), 2_000)


if __name__ == "__main__":
    unittest.main()
