"""Private servers on sockets in folders of their own. Every one syncs each commit before it answers, except the Redis
that is only an index."""

import glob
import os
import shutil
import signal
import socket
import subprocess

from processes import Failed, Process

DATABASE = "peers"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
POSTGRES = "/usr/lib/postgresql/*/bin"


def find(*names):
    """Return the path of the first of these programs that is on this machine, or None."""
    newest = sorted(glob.glob(POSTGRES), key=lambda path: int(path.split("/")[4]), reverse=True)
    places = ":".join([os.environ.get("PATH", ""), SBIN, *newest])
    return next(filter(None, (shutil.which(name, path=places) for name in names)), None)


def version(program):
    """Return what a server says of itself, as short as it can be."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    words = said.replace("v=", "").replace(",", "").split()
    return next((word for word in words if word[0].isdigit()), "?")


class Server:
    """One server. `pids` is what is summed up as its CPU time."""

    def __init__(self, folder, logs, name):
        self.dir, self.log, self.name = f"{folder}/{name}", f"{logs}/{name}.log", name
        self.socket = f"{self.dir}/socket"
        self.process = None

    def spawn(self, command, user=None, ready_s=60):
        self.process = Process(self.name, command, dict(os.environ), self.log, self.dir, user=user)
        self.process.wait_until(self.answers, ready_s)

    def stop(self):
        if self.process:
            self.process.stop(self.stop_signal, seconds=30)
            self.process = None

    stop_signal = signal.SIGTERM

    @property
    def pids(self):
        return [self.process.pid]


class Redis(Server):
    """Redis. `durable` syncs each write to its append-only file before the answer; otherwise nothing is on disk."""

    def __init__(self, folder, logs, durable):
        super().__init__(folder, logs, "redis" if durable else "index")
        self.durable = durable
        self.env = {"PEER_REDIS_SOCKET": self.socket}

    def described(self):
        return f"Redis {version(self.program())} {'that syncs each write' if self.durable else 'as an index'}"

    @staticmethod
    def program():
        return find("redis-server", "valkey-server", "redis-check-rdb")

    def start(self):
        """Start without data. A new process has neither the heap nor the file of the last run."""
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir, mode=0o700)
        # Debian's redis-check-rdb is the server, when its name says so.
        program = f"{self.dir}/redis-server"
        os.symlink(self.program(), program)
        self.spawn([program, "--port", "0", "--unixsocket", self.socket, "--dir", self.dir, "--save", "",
                    "--appendonly", "yes" if self.durable else "no", "--appendfsync", "always",
                    "--auto-aof-rewrite-percentage", "0", "--daemonize", "no"])

    def reset(self):
        self.stop()
        self.start()

    def ask(self, command):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(self.socket)
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(65536).decode()

    def answers(self):
        try:
            return self.ask("PING").startswith("+PONG")
        except OSError:
            return False

    def requests(self):
        """Return the number of commands since the start."""
        stats = dict(line.split(":") for line in self.ask("INFO stats").splitlines() if line.count(":") == 1)
        return int(stats["total_commands_processed"])


class MariaDB(Server):
    """MariaDB, which syncs its log at each commit."""

    def __init__(self, folder, logs):
        super().__init__(folder, logs, "mariadb")
        self.env = {"PEER_MYSQL_SOCKET": self.socket, "PEER_MYSQL_DATABASE": DATABASE}

    def described(self):
        return f"MariaDB {version(find('mariadbd')).split('-')[0]}"

    def start(self):
        flags = ["--no-defaults", f"--datadir={self.dir}/data", *(["--user=root"] if os.getuid() == 0 else [])]
        if not os.path.isdir(f"{self.dir}/data"):
            os.makedirs(self.dir, mode=0o700)
            run(self.log, [find("mariadb-install-db"), *flags, "--auth-root-authentication-method=normal",
                           "--skip-test-db"])
        self.spawn([find("mariadbd"), *flags, f"--socket={self.socket}", f"--tmpdir={self.dir}", "--skip-networking",
                    "--skip-log-bin", "--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=1G",
                    "--innodb-log-file-size=1G", "--max-connections=500", "--character-set-server=utf8mb4",
                    "--collation-server=utf8mb4_bin"])

    def sql(self, statement):
        command = [find("mariadb"), "--no-defaults", f"--socket={self.socket}", "-uroot", "-N", "-e", statement]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def answers(self):
        return self.sql("SELECT 1").returncode == 0

    def reset(self):
        done = self.sql(f"DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE}")
        if done.returncode:
            raise Failed(f"the database of {self.name} cannot be made: {done.stderr}")

    def requests(self):
        """Return the number of statements since the start."""
        return int(self.sql("SHOW GLOBAL STATUS LIKE 'Questions'").stdout.split()[1])


class Postgres(Server):
    """PostgreSQL, which syncs its log at each commit."""

    # Fast shutdown.
    stop_signal = signal.SIGINT

    def __init__(self, folder, logs):
        super().__init__(folder, logs, "postgres")
        # PostgreSQL refuses to run as root.
        self.user = "postgres" if os.getuid() == 0 else None
        self.env = {"PEER_POSTGRES_URL": f"postgres://peers@localhost/{DATABASE}?host={self.dir}"}

    def described(self):
        return f"PostgreSQL {version(find('postgres'))}"

    def start(self):
        if not os.path.isdir(f"{self.dir}/data"):
            os.makedirs(self.dir, mode=0o700)
            if self.user:
                shutil.chown(self.dir, self.user, self.user)
            run(self.log, [find("initdb"), "-D", f"{self.dir}/data", "-U", "peers", "-A", "trust", "-E", "UTF8"],
                user=self.user, cwd=self.dir)
        settings = {"listen_addresses": "", "unix_socket_directories": self.dir, "fsync": "on",
                    "synchronous_commit": "on", "shared_buffers": "1GB", "max_wal_size": "4GB",
                    "max_connections": "200"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.spawn([find("postgres"), "-D", f"{self.dir}/data", *flags], user=self.user)

    def sql(self, statement, database="postgres"):
        command = [find("psql"), "-X", "-A", "-t", "-q", "-h", self.dir, "-U", "peers", "-d", database]
        return subprocess.run([*command, "-c", statement], capture_output=True, text=True, check=False)

    def answers(self):
        return self.sql("SELECT 1").returncode == 0

    def reset(self):
        for statement in f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)", f"CREATE DATABASE {DATABASE}":
            done = self.sql(statement)
            if done.returncode:
                raise Failed(f"the database of {self.name} cannot be made: {done.stderr}")

    def requests(self):
        """Return the number of transactions since the start."""
        counted = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database"
        return int(self.sql(counted).stdout)


def run(log, command, user=None, cwd="/"):
    """Run a program that prepares a server to its end."""
    process = Process(os.path.basename(command[0]), command, dict(os.environ), log, cwd, user=user)
    try:
        if process.popen.wait(120):
            process.check()
    except subprocess.TimeoutExpired:
        raise Failed(f"{process.name} takes more than two minutes") from None
    finally:
        process.stop()
