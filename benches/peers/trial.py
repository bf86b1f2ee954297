"""One repetition of one peer: a backlog that is enqueued and drained, then workers that wait, keep up, and start jobs
at their time."""

import http.client
import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass

from executions import Executions, faults, percentile, rate
from peers import environment
from processes import Failed, Process, cpu_seconds

CALLERS = 32
BULK_CALLERS = 4
BATCH = 500
# First ids of the jobs of each part, so that one file of executions tells them apart.
SINGLE, BULK, WARM_UP, FLOW, LATE = (part * 1_000_000_000 for part in range(5))
PART = 1_000_000_000
ENDLESS = PART
# Time after the last start in which a second start of a job would show itself.
SETTLE_S = 0.5
# Time for which jobs are waited for after the last one was due.
LATE_LIMIT_S = 20


@dataclass(frozen=True)
class Sizes:
    """Amounts of work."""

    enqueue_s: float = 5
    flow_s: float = 6
    # Factor for the backlogs.
    backlog: float = 1
    drain_limit_s: float = 90
    idle_s: float = 10
    late_jobs: int = 2_000
    late_within_s: float = 20


SMOKE = Sizes(enqueue_s=0.5, flow_s=1, backlog=0.01, drain_limit_s=60, idle_s=1, late_jobs=100, late_within_s=3)


class Trial:
    """The run. `result` holds what has been measured so far, `faults` what went wrong, `notes` what was left out."""

    def __init__(self, peer, sizes, folder, logs):
        self.peer, self.sizes, self.folder, self.logs = peer, sizes, folder, logs
        self.servers = peer.servers(folder, logs)
        self.port = free_port()
        self.running, self.files = [], []
        self.result, self.faults, self.notes = {}, [], []

    def run(self):
        """Measure everything. A part that fails leaves its figures out, and the next part begins anew."""
        try:
            for server in self.servers:
                server.start()
            for part in self.measure_backlog, self.measure_live:
                try:
                    part()
                except Failed as failed:
                    self.faults.append(f"{part.__name__.removeprefix('measure_')}: {failed}")
                finally:
                    self.stop_processes()
        except Failed as failed:
            self.faults.append(str(failed))
        finally:
            self.stop_processes()
            for server in reversed(self.servers):
                server.stop()
        return dict(self.result, faults=self.faults, notes=self.notes)

    # The parts.

    def measure_backlog(self):
        single, bulk = self.fill("single", "bulk")
        jobs = single["jobs"] + bulk["jobs"]
        if self.peer.most_backlog:
            jobs = self.fill(None, "refill", most=self.peer.most_backlog)[1]["jobs"]
            self.notes.append(f"drain of {jobs:,} jobs only; those of the enqueue columns were not run")
        self.drain(jobs)

    def fill(self, single, bulk, most=None):
        """Enqueue into an empty store, one by one and then in batches. Note the rates under these names."""
        self.prepare(keep_api=self.peer.through_api)
        reports = [None, None]
        if single:
            reports[0] = self.enqueue(CALLERS, 1, SINGLE, seconds=self.sizes.enqueue_s)
            self.result[single] = reports[0]["jobs"] / reports[0]["seconds"]
        jobs = max(BATCH * BULK_CALLERS, int(self.peer.backlog * self.sizes.backlog))
        reports[1] = self.enqueue(BULK_CALLERS, BATCH, BULK, jobs=min(jobs, most or jobs))
        self.result[bulk] = reports[1]["jobs"] / reports[1]["seconds"]
        self.stop_processes()
        return reports

    def drain(self, jobs):
        executions, workers = self.work()
        begin = None
        deadline = time.monotonic() + self.sizes.drain_limit_s
        while (count := executions.count()) < jobs and time.monotonic() < deadline:
            if count and begin is None:
                begin = count, self.cpu(workers)
            for worker in workers:
                worker.check()
            time.sleep(0.01)
        end = count, self.cpu(workers)
        time.sleep(SETTLE_S)
        starts = executions.read(range(SINGLE, WARM_UP))
        self.result["drain"] = rate(starts)
        self.result["drained"] = len(starts)
        if begin and end[0] - begin[0] >= jobs / 2:
            for name, before, after in zip(("worker_cpu_ms", "server_cpu_ms"), begin[1], end[1]):
                self.result[name] = (after - before) * 1e6 / (end[0] - begin[0])
        self.faults += faults("drain", starts, jobs, f"{self.sizes.drain_limit_s} s")

    def measure_live(self):
        self.prepare()
        executions, workers = self.work()
        if self.peer.through_api:
            # The workers have the API now.
            workers[0].wait_until(lambda: is_ready(self.port), 60)
        self.enqueue(1, 1, WARM_UP, jobs=1)
        self.until_ran(executions, workers, 1, 60)
        time.sleep(SETTLE_S)
        self.rest(workers)
        flow = self.flow(executions, workers)
        self.lateness(executions, workers, flow + 1)

    def rest(self, workers):
        """Measure workers that have nothing to do."""
        requests = sum(server.requests() for server in self.servers)
        cpu = self.cpu(workers)
        time.sleep(self.sizes.idle_s)
        spent = sum(self.cpu(workers)) - sum(cpu)
        # The questions about their number are few.
        requests = sum(server.requests() for server in self.servers) - requests
        self.result["idle_cpu"] = spent * 100 / self.sizes.idle_s
        self.result["idle_requests"] = requests / self.sizes.idle_s

    def flow(self, executions, workers):
        report = self.enqueue(CALLERS, 1, FLOW, seconds=self.sizes.flow_s)
        self.until_ran(executions, workers, report["jobs"] + 1, self.sizes.drain_limit_s)
        time.sleep(SETTLE_S)
        starts = executions.read(range(FLOW, LATE))
        self.result["flow"] = rate(starts, report["began_us"])
        self.faults += faults("flow", starts, report["jobs"], f"{self.sizes.drain_limit_s} s after the last enqueue")
        return len(starts)

    def lateness(self, executions, workers, before):
        jobs = self.sizes.late_jobs
        # Twice the time that enqueueing takes by the rate of the flow, and that of the driver's start.
        lead_s = 4 + 2 * jobs / (self.result["flow"] or 200)
        due_us = int((time.time() + lead_s) * 1e6)
        within_us = int(self.sizes.late_within_s * 1e6)
        self.enqueue(CALLERS, 1, LATE, jobs=jobs, due_us=due_us, within_us=within_us)
        if time.time() * 1e6 > due_us:
            self.faults.append("lateness: the first jobs were due before all were enqueued")
        last_s = due_us / 1e6 - time.time() + self.sizes.late_within_s
        self.until_ran(executions, workers, before + jobs, last_s + LATE_LIMIT_S)
        time.sleep(SETTLE_S)
        starts = executions.read(range(LATE, LATE + PART))
        late_ms = [(at_us - due_at(job - LATE, due_us, within_us)) / 1000 for job, at_us in starts]
        self.result["late_p50"], self.result["late_p99"] = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
        self.faults += faults("lateness", starts, jobs, f"{LATE_LIMIT_S} s after the last due time")
        early = sum(1 for late in late_ms if late < 0)
        if early:
            self.faults.append(f"lateness: {early} jobs started early, by {-min(late_ms):.1f} ms at most")

    # The processes.

    def prepare(self, keep_api=False):
        """Empty the servers and make the tables. An API that makes the tables may stay, for the producers."""
        for server in self.servers:
            server.reset()
        if not self.peer.api:
            self.drive("prepare", {}, 60)
            return
        # It takes jobs and runs none, because the queue that it serves has none.
        api = self.start("api", self.peer.api, {"TICKR_QUEUES": "elsewhere"})
        api.wait_until(lambda: is_ready(self.port), 60)
        if not keep_api:
            self.stop_processes()

    def work(self):
        """Start the workers. Return their file of executions and their processes."""
        executions = Executions(f"{self.folder}/executions-{len(self.files)}")
        self.files.append(executions)
        env = {"PEER_EXECUTIONS": executions.path}
        return executions, [self.start("worker", self.peer.work, env) for _ in range(self.peer.processes)]

    def start(self, role, command, env):
        process = Process(f"{role} of {self.peer.name}", command, self.environment(env),
                          f"{self.logs}/{self.peer.name}-{role}.log", self.folder)
        self.running.append(process)
        return process

    def enqueue(self, callers, batch, first, jobs=ENDLESS, seconds=3600, due_us=0, within_us=0):
        """Let the driver enqueue, and return its report."""
        load = {"CALLERS": callers, "BATCH": batch, "FIRST": first, "JOBS": jobs, "SECONDS": seconds,
                "DUE_US": due_us, "DUE_WITHIN_US": within_us}
        return self.drive("enqueue", {f"PEER_{name}": str(value) for name, value in load.items()},
                          120 + (seconds if jobs == ENDLESS else 0))

    def drive(self, word, env, limit_s):
        process = Process(f"driver of {self.peer.name}", [*self.peer.driver, word], self.environment(env),
                          f"{self.logs}/{self.peer.name}-driver.log", self.folder, stdout=subprocess.PIPE)
        self.running.append(process)
        try:
            said, _ = process.popen.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{process.name} was not done with `{word}` after {limit_s} s") from None
        finally:
            process.stop()
            self.running.remove(process)
        if process.popen.returncode:
            process.check()
        return json.loads(said) if said.strip() else None

    def environment(self, more):
        """Return the variables of a process, without the user's settings of tickr and proxies."""
        foreign = "TICKR_", "PEER_", "OTEL_"
        own = {name: value for name, value in os.environ.items()
               if not name.startswith(foreign) and not name.lower().endswith("_proxy")}
        return dict(own, **environment(self.peer, self.servers, self.port), **more)

    def stop_processes(self):
        while self.running:
            self.running.pop().stop()
        while self.files:
            executions = self.files.pop()
            executions.close()
            os.remove(executions.path)

    # Waiting and counting.

    def until_ran(self, executions, workers, jobs, limit_s):
        """Wait until that many jobs have started, or for the limit."""
        deadline = time.monotonic() + limit_s
        while executions.count() < jobs and time.monotonic() < deadline:
            for worker in workers:
                worker.check()
            time.sleep(0.01)

    def cpu(self, workers):
        """Return the CPU seconds of the workers and of the servers."""
        servers = [pid for server in self.servers for pid in server.pids]
        return cpu_seconds([worker.pid for worker in workers]), cpu_seconds(servers)


def due_at(place, due_us, within_us):
    """Return when a job is due. The drivers calculate the same."""
    return due_us + (place * 2_654_435_761 & 0xFFFF_FFFF) * within_us // 2**32


def free_port():
    """Return a port that is free now, for the one API among the peers. Everything else is on sockets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
