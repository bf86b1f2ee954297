"""The table, in Markdown: medians and ranges of the repetitions."""

import math
import statistics

# Columns: title, and the figure of a run as a number or None.
THROUGHPUT = [
    ("enqueue, one by one", lambda run: run.get("single")),
    ("enqueue, batches of 500", lambda run: run.get("bulk")),
    ("drain", lambda run: run.get("drain")),
    ("flow", lambda run: run.get("flow")),
]
COST = [
    ("late p50, ms", lambda run: run.get("late_p50")),
    ("late p99, ms", lambda run: run.get("late_p99")),
    ("CPU ms per 1,000 drained", lambda run: total(run.get("worker_cpu_ms"), run.get("server_cpu_ms"))),
    ("of it servers", lambda run: run.get("server_cpu_ms")),
    ("idle CPU %", lambda run: run.get("idle_cpu")),
    ("idle requests/s", lambda run: run.get("idle_requests")),
]


def report(head, peers, runs, left_out):
    """Return the whole report. `runs` has a list of results for each name of a peer."""
    lines = [head, "", "Jobs per second, medians of the repetitions (ranges):", ""]
    lines += table(peers, runs, THROUGHPUT)
    lines += ["", "Lateness of jobs that are due at a time, and costs:", ""]
    lines += table(peers, runs, COST)
    lines += ["", *remarks(peers, runs, left_out)]
    return "\n".join(lines) + "\n"


def table(peers, runs, columns):
    yield "| | " + " | ".join(title for title, _ in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for peer in peers:
        cells = (cell([figure(run) for run in runs[peer.name]]) for _, figure in columns)
        yield f"| {peer.name} | " + " | ".join(cells) + " |"


def cell(figures):
    figures = [figure for figure in figures if figure is not None]
    if not figures:
        return "–"
    middle, least, most = (number(f) for f in (statistics.median(figures), min(figures), max(figures)))
    return middle if len(figures) == 1 else f"{middle} ({least}–{most})"


def number(figure):
    """Return a number with three significant digits."""
    rounded = float(f"{figure:.3g}")
    digits = 0 if rounded == 0 else 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"


def total(one, other):
    return None if one is None or other is None else one + other


def remarks(peers, runs, left_out):
    """Say what the peers are, whether each job ran exactly once, and what is missing."""
    for peer in peers:
        servers = " and ".join(server.described() for server in peer.servers("", ""))
        yield f"- {peer.name}: {peer.product()} on {servers}; {peer.processes} × {peer.workers} workers; {peer.setting}"
    found = False
    for peer in peers:
        for text, times in counted(peer, runs, "faults").items():
            found = True
            yield f"- **{peer.name}**, {times}: {text}"
        for text, times in counted(peer, runs, "notes").items():
            yield f"- {peer.name}, {times}: {text}"
    if not found:
        yield "- every job ran exactly once, in every run"
    yield from (f"- left out: {name}: {reason}" for name, reason in left_out.items())


def counted(peer, runs, kind):
    """Return the texts of the runs, each with the repetitions in which it was found."""
    found = {}
    for place, run in enumerate(runs[peer.name], 1):
        for text in run.get(kind, []):
            found.setdefault(text, []).append(str(place))
    return {text: f"repetition {', '.join(places)}" for text, places in found.items()}
