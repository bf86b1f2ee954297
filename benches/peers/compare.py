#!/usr/bin/env python3
"""Compare tickr with other job runners: the same work, the same durability, one machine, one run. `make compare` calls
this; the README beside it says what is measured.

- `peers.py`: the peers and their settings
- `install.py`: what they need
- `servers.py`, `processes.py`: private servers, and child processes that end with this one
- `trial.py`: one repetition of one peer
- `executions.py`: the file of executions, and what it proves
- `report.py`: the table
- `places.py`: folders
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from install import install
from peers import PEERS
from places import OUTPUT, ROOT
from report import number, report
from trial import SMOKE, Sizes, Trial

# Space for the data and the logs of the servers of one peer.
SPACE_GB = 5


def arguments():
    parser = argparse.ArgumentParser(prog="make compare", description="Compare tickr with other job runners.")
    parser.add_argument("--only", metavar="NAME,…", type=named, default=PEERS,
                        help=f"only these peers: {', '.join(peer.name for peer in PEERS)}")
    parser.add_argument("--reps", metavar="N", type=positive, default=3, help="repetitions, in turns (default: 3)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see whether everything works")
    parser.add_argument("--data", metavar="FOLDER", type=folder, default="/var/tmp",
                        help=f"where the servers keep their data for the time of the run: a disk with {SPACE_GB} GB "
                             "(default: /var/tmp)")
    parser.add_argument("--output", metavar="FOLDER", default=OUTPUT,
                        help="where results and logs are kept (default: target/compare)")
    return parser.parse_args()


def named(text):
    known = {peer.name: peer for peer in PEERS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(text.split(","))]


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return int(text)


def folder(text):
    if not os.path.isdir(text) or not os.access(text, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} is no folder that can be written")
    with open("/proc/mounts", encoding="utf-8") as file:
        mounts = {words[1]: words[2] for words in map(str.split, file)}
    path = os.path.realpath(text)
    while path not in mounts:
        path = os.path.dirname(path)
    if mounts[path] in ("tmpfs", "ramfs"):
        raise argparse.ArgumentTypeError(f"{text} is in memory, where a sync costs nothing")
    if shutil.disk_usage(text).free < SPACE_GB << 30:
        raise argparse.ArgumentTypeError(f"{text} has less than {SPACE_GB} GB of space")
    return os.path.realpath(text)


def say(text):
    """Tell the user. Standard output has the report alone."""
    print(f"compare: {text}", file=sys.stderr, flush=True)


def main():
    args = arguments()
    if not sys.platform.startswith("linux"):
        sys.exit("compare: this needs Linux, because it counts CPU time in /proc")
    # Unwind through every `finally`, so that children are stopped and folders removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: stopped"))
    peers, left_out = install(args.only, say)
    for name, reason in left_out.items():
        say(f"{name} is left out: {reason}")
    if not peers:
        sys.exit("compare: no peer is left")
    kept = f"{os.path.abspath(args.output)}/{time.strftime('%Y%m%d-%H%M%S')}"
    os.makedirs(kept)
    # Short, because a path of a socket has at most 107 characters; and open for PostgreSQL's account.
    data = tempfile.mkdtemp(prefix="tickr-compare-", dir=args.data)
    os.chmod(data, 0o711)
    runs = {peer.name: [] for peer in peers}
    try:
        compare(args, peers, runs, data, kept)
    finally:
        for sign in signal.SIGINT, signal.SIGTERM:
            signal.signal(sign, signal.SIG_IGN)
        shutil.rmtree(data, ignore_errors=True)
    text = report(head(args), peers, runs, left_out)
    with open(f"{kept}/report.md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text, end="")
    say(f"every run, and the logs: {os.path.relpath(kept)}")


def compare(args, peers, runs, data, kept):
    """Run the repetitions in turns, so that a slow minute of the machine does not hit one peer alone."""
    for repetition in range(1, args.reps + 1):
        for peer in peers:
            began = time.time()
            result = Trial(peer, SMOKE if args.smoke else Sizes(), data, kept).run()
            runs[peer.name].append(result)
            line = {"peer": peer.name, "repetition": repetition, "at": round(began), "smoke": args.smoke, **result}
            with open(f"{kept}/runs.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            rates = (f"{name} {number(result[name])}" for name in ("single", "bulk", "drain", "flow")
                     if result.get(name))
            say(f"{repetition}/{args.reps} {peer.name}: {', '.join(rates) or 'nothing'}; "
                f"{time.time() - began:.0f} s")
            for fault in result["faults"]:
                say(f"  {fault}")


def head(args):
    """Return the conditions of the comparison."""
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(file.readline().split()[1]) / 2**20
    load = " Tiny sizes: the figures mean nothing." if args.smoke else ""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    return (f"{time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}, {os.cpu_count()} cores, {memory:.0f} GiB, "
            f"{args.reps} repetition{'s in turns' if args.reps > 1 else ''}.{load}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("compare: stopped")
