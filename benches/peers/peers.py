"""The peers: how each is started, on which servers, with which settings. The README says how to add one."""

import json
import re
import subprocess
from dataclasses import dataclass, field
from typing import Callable, Optional
from urllib.parse import quote

from places import BUILD, DRIVERS, NODE, ROOT
from servers import MariaDB, Postgres, Redis


@dataclass(frozen=True)
class Need:
    """A program, or the pattern of a file, and the package of Debian that brings it. Bars part alternatives."""

    file: str
    package: str


@dataclass(frozen=True)
class Peer:
    """One product with one setting."""

    name: str
    # Name and version, for the remarks below the table.
    product: Callable[[], str]
    # Its setting in a few words, for the same place.
    setting: str
    # Makes the servers: those whose CPU counts as the server's.
    servers: Callable[[str, str], list]
    # Command of the driver, to which `prepare` and `enqueue` are added.
    driver: list
    # Command of one worker process.
    work: list
    # Jobs at a time in one worker process, and number of processes.
    workers: int
    processes: int
    # Jobs that are enqueued in bulk before the drain.
    backlog: int
    needs: list
    # Part of the build: `cargo`, `tickr`, `npm` or none.
    build: Optional[str] = None
    env: dict = field(default_factory=dict)
    # Largest backlog that the product can drain.
    most_backlog: Optional[int] = None
    # A process with an HTTP API, which also makes the tables; and whether producers use it.
    api: Optional[list] = None
    through_api: bool = False


def environment(peer, servers, port):
    """Return the variables by which the driver and the workers of a peer find its servers."""
    env = dict(peer.env, PEER_WORKERS=str(peer.workers))
    for server in servers:
        env.update(server.env)
    if peer.api:
        mysql, redis = env["PEER_MYSQL_SOCKET"], env["PEER_REDIS_SOCKET"]
        env.update(
            TICKR_MYSQL_URL=f"mysql://root@localhost/{env['PEER_MYSQL_DATABASE']}?socket={quote(mysql)}",
            TICKR_REDIS_URL=f"redis+unix://{quote(redis)}", TICKR_HTTP_ADDR=f"127.0.0.1:{port}",
            TICKR_WORKERS=str(peer.workers), TICKR_SHUTDOWN_NOTICE="0s")
    if peer.through_api:
        env["PEER_API"] = f"http://127.0.0.1:{port}"
    return env


def durable_redis(folder, logs):
    return [Redis(folder, logs, durable=True)]


def mariadb(folder, logs):
    return [MariaDB(folder, logs)]


def postgres(folder, logs):
    return [Postgres(folder, logs)]


def mariadb_and_index(folder, logs):
    """MySQL is the truth of tickr. Its Redis may lose everything, so it writes nothing to the disk."""
    return [MariaDB(folder, logs), Redis(folder, logs, durable=False)]


def locked(crate):
    """Return the version of a crate in the lock file of the drivers."""
    with open(f"{DRIVERS}/rust/Cargo.lock", encoding="utf-8") as lock:
        return re.search(rf'name = "{crate}"\nversion = "(.*)"', lock.read()).group(1)


def tickr():
    said = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                          check=False)
    return f"tickr {said.stdout.strip() or 'without git'}"


def bullmq():
    with open(f"{DRIVERS}/node/package.json", encoding="utf-8") as file:
        wanted = json.load(file)["dependencies"]["bullmq"]
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return f"BullMQ {wanted} (Node {node.lstrip('v')})"


def packaged(title, package):
    """Return a function for the version of a package of Debian."""
    def product():
        said = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True,
                              check=False)
        return f"{title} {re.split('[+-]', said.stdout)[0] or 'of unknown version'}"
    return product


CARGO = Need("cargo", "")
MARIADB = [Need("mariadbd", "mariadb-server-core"), Need("mariadb-install-db", "mariadb-server-core"),
           Need("mariadb", "mariadb-client-core")]
REDIS = [Need("redis-server|valkey-server|redis-check-rdb", "redis-tools")]
POSTGRES = [Need("postgres", "postgresql"), Need("initdb", "postgresql"), Need("psql", "postgresql")]
PHP = [Need("php", "php-cli"), Need("/etc/php/*/mods-available/pdo_mysql.ini", "php-mysql"), *(
    Need(f"/usr/share/php/Illuminate/{folder}/autoload.php", f"php-illuminate-{folder.lower()}")
    for folder in ("Bus", "Database", "Events", "Queue"))]

OURS = [f"{BUILD}/release/peer-tickr"]


def ours(name, workers, setting, through_api=False):
    return Peer(name, tickr, setting, mariadb_and_index, driver=OURS, work=OURS, workers=workers, processes=1,
                backlog=200_000, needs=[CARGO, *MARIADB, *REDIS], build="tickr", api=OURS, through_api=through_api)


def graphile(name, refetch_ms, setting):
    return Peer(name, lambda: f"graphile_worker {locked('graphile_worker')} (Rust)", setting, postgres,
                driver=[f"{BUILD}/release/peer-graphile-worker"],
                work=[f"{BUILD}/release/peer-graphile-worker", "work"], workers=24, processes=1, backlog=200_000,
                needs=[CARGO, *POSTGRES], build="cargo", env={"PEER_REFETCH_MS": str(refetch_ms)})


PEERS = [
    ours("tickr", 64, "callers use the crate"),
    ours("tickr-http", 64, "callers use the HTTP API", through_api=True),
    ours("tickr-1024", 1024, "callers use the crate"),
    Peer("bullmq", bullmq, "ended jobs are removed", durable_redis, driver=["node", f"{DRIVERS}/node/bullmq.cjs"],
         work=["node", f"{DRIVERS}/node/bullmq.cjs", "work"], workers=200, processes=1, backlog=100_000,
         needs=[Need("node", "nodejs"), Need("npm", "npm"), *REDIS], build="npm",
         env={"NODE_PATH": f"{NODE}/node_modules", "NODE_ENV": "production"}),
    Peer("apalis-redis", lambda: f"apalis-redis {locked('apalis-redis')}", "fetches of 500 jobs", durable_redis,
         driver=[f"{BUILD}/release/peer-apalis-redis"], work=[f"{BUILD}/release/peer-apalis-redis", "work"],
         workers=200, processes=1, backlog=100_000, needs=[CARGO, *REDIS], build="cargo",
         # One Lua call moves all due jobs at once, and fails beyond about 8,000: the worker ends.
         most_backlog=7_000),
    graphile("graphile-rs", 0, "no pause after a fetch without jobs"),
    graphile("graphile-rs-delay", 100, "a pause of 100 ms after a fetch without jobs"),
    Peer("sidekiq", packaged("Sidekiq", "ruby-sidekiq"), "10 threads in a process", durable_redis,
         driver=["ruby", f"{DRIVERS}/ruby/sidekiq.rb"],
         work=["sidekiq", "-r", f"{DRIVERS}/ruby/sidekiq.rb", "-q", "noop", "-c", "10", "-t", "1"],
         workers=10, processes=2, backlog=100_000, needs=[Need("sidekiq", "ruby-sidekiq"), *REDIS],
         env={"RUBYOPT": "-W0"}),
    Peer("laravel", packaged("Laravel queue", "php-illuminate-queue"), "driver `database`", mariadb,
         driver=["php", f"{DRIVERS}/php/laravel.php"], work=["php", f"{DRIVERS}/php/laravel.php", "work"], workers=1,
         processes=8, backlog=3_000, needs=[*PHP, *MARIADB]),
]
