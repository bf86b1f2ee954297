"""The file in which workers write a line for each start of a handler, and what it proves."""

from collections import Counter


class Executions:
    """The file. Workers append `ID MICROSECONDS`; this end counts the lines meanwhile, and reads them afterwards."""

    def __init__(self, path):
        self.path = path
        self.counted = 0
        self.file = open(path, "w+b")

    def count(self):
        """Return the number of complete lines so far."""
        while part := self.file.read(1 << 20):
            self.counted += part.count(b"\n")
        return self.counted

    def read(self, ids):
        """Return the starts of these jobs, as pairs of id and microseconds, in the order of time."""
        with open(self.path, encoding="ascii") as file:
            starts = (line.split() for line in file if line.endswith("\n"))
            found = [(int(start[0]), int(start[1])) for start in starts if int(start[0]) in ids]
        return sorted(found, key=lambda start: start[1])

    def close(self):
        self.file.close()


def faults(what, starts, jobs, limit):
    """Return what keeps these starts from being one for each of that many jobs, as sentences. The wait had a limit.

    Each job has an id of its own, and only acknowledged jobs are counted: so equal numbers mean equal sets.
    """
    times = Counter(job for job, _ in starts)
    repeated = sum(1 for count in times.values() if count > 1)
    found = []
    if len(times) < jobs:
        found.append(f"{what}: {jobs - len(times):,} of {jobs:,} jobs did not run within {limit}")
    if len(times) > jobs:
        found.append(f"{what}: {len(times) - jobs:,} more jobs ran than the {jobs:,} that were acknowledged")
    if repeated:
        found.append(f"{what}: {repeated:,} of {jobs:,} jobs ran more than once")
    return found


def rate(starts, began_us=None):
    """Return jobs per second, from a beginning or from the first start to the last one."""
    if len(starts) < 2:
        return None
    first = starts[0][1] if began_us is None else began_us
    counted = len(starts) - (1 if began_us is None else 0)
    return counted * 1e6 / max(1, starts[-1][1] - first)


def percentile(values, share):
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
