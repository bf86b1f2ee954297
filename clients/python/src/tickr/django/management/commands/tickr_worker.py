"""The command `tickr_worker`."""

from __future__ import annotations

from typing import Any, Dict, List

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tickr import App, TickrError, Worker
from tickr.django import worker
from tickr.django._tasks import task_backends
from tickr.django.backend import TickrBackend


class Command(BaseCommand):
    """Executes the tasks of a backend, and the kinds of Apps, until SIGTERM."""

    help = "Execute the tasks of a tickr backend until SIGTERM or SIGINT."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        parser.add_argument("--queues", help="queues of Django, with commas (default: QUEUES of the backend)")
        parser.add_argument("--app", action="append", default=[], help="module:name of a tickr.App to serve as well")
        parser.add_argument("--slots", type=int, default=4, help="tasks at a time (default: 4)")
        parser.add_argument("--lease-ms", type=int, default=60_000, help="time without a beat (default: 60000)")
        parser.add_argument("--grace-ms", type=int, default=25_000, help="time to end after SIGTERM (default: 25000)")
        parser.add_argument("--name", default="django", help="name of the worker (default: django)")
        parser.add_argument("--declare", action="store_true", help="declare the kinds first; needs an admin key")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        backend = task_backends[options["backend"]]
        if not isinstance(backend, TickrBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is no tickr.django.TickrBackend")
        app = worker.app_for(backend)
        queues = [backend.queue_of(name) for name in self.queues(backend, options)]
        try:
            for path in options["app"]:
                other: App = worker.import_app(path)
                app.include(other)
                # A job of a kind without a queue goes to the queue "default" of tickr.
                queues += [kind.defaults.get("queue", "default") for kind in other]
            if options["declare"]:
                app.declare(backend.client)
            kinds = ", ".join(kind.name for kind in app)
            self.stdout.write(f"Executing {kinds} of {', '.join(sorted(set(queues)))}. SIGTERM or Ctrl-C ends it.")
            self.stdout.flush()
            settings: Dict[str, Any] = {"name": options["name"], "slots": options["slots"]}
            Worker(
                app,
                url=backend.options.get("url"),
                # Tasks enqueue through the backend, which has the other key.
                token=backend.options.get("worker_token") or backend.options.get("token"),
                client=backend.client,
                queues=sorted(set(queues)),
                lease_ms=options["lease_ms"],
                grace_ms=options["grace_ms"],
                around=worker.around,
                thread_ended=worker.thread_ended,
                **settings,
            ).run()
        except (ImportError, TypeError, ValueError, TickrError) as error:
            raise CommandError(str(error)) from error

    def queues(self, backend: TickrBackend, options: Dict[str, Any]) -> List[str]:
        """Return the queues of Django to serve."""
        if options["queues"]:
            return [name.strip() for name in options["queues"].split(",") if name.strip()]
        if not backend.queues:
            raise CommandError("the backend takes tasks of any queue: name those to serve with --queues")
        return sorted(backend.queues)
