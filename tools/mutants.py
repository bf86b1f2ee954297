#!/usr/bin/env python3
"""Take out all safeguards in a few builds, and run the tests of each by itself.

    python3 tools/mutants.py                     all safeguards of tests/mutations.sh
    python3 tools/mutants.py canary              those whose name or test matches this expression
    python3 tools/mutants.py --at-once 6         six tests at a time instead of three

`make mutants` takes one safeguard out at a time, and each build takes minutes. Here the first build holds nearly all of
them: each function that has a safeguard also has a second body without it, and the environment variable
WITHOUT_SAFEGUARD names the safeguard whose body runs. (The idea is that of mutant schemata: Untch, Offutt and Harrold,
"Mutation analysis using mutant schemata", 1993.) Safeguards outside of functions, such as constants and scripts, follow
in builds of up to twenty that change different files.

Each test also runs once with all safeguards in place, in the same build: a test that is red there proves nothing.

It works in a worktree of HEAD in target/mutants, and appends its results to target/mutants/results.tsv. Safeguards that
this file has are not run again, so an interrupted run goes on. Remove the file to begin anew. Python 3.8 or newer.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rust_bodies import bodies

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "target" / "mutants"
TREE = PLACE / "tree"
RESULTS = PLACE / "results.tsv"
SWITCH = "WITHOUT_SAFEGUARD"
# Tests that start examples, as in tests/mutations.sh.
STARTS_EXAMPLES = re.compile(
    "rollout::|examples::|embedding|a_binary_with_kinds_of_its_own|panics::a_check_that_panics|metrics::samples_take_no_memory|"
    "leases::handlers_that_block"
)
# Safeguards in one build without switches.
GROUP = 20
# Longest time of the tests of one safeguard, in seconds.
PATIENCE = 600


class Safeguard(collections.namedtuple("Safeguard", "number name cuts tests")):
    """`cuts` are (files, old text, new text)."""

    def files(self):
        return {file for files, _, _ in self.cuts for file in files}


def safeguards():
    """Let a shell read the list, which is a script: each is a name, cuts of (files, old text, new text), and tests."""
    script = (ROOT / "tests" / "mutations.sh").read_text()
    body = script.split("\nmutants() {\n", 1)[1]
    body = re.split(r"\n}\n+(?:#[^\n]*\n)*[a-z]+\(\) \{\n", body, maxsplit=1)[0]
    listing = "mutant() { printf '%s\\0' \"$@\" @END@; }\nmutants() {\n" + body + "\n}\nmutants\n"
    said = subprocess.run(["sh"], input=listing.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    found, words = [], []
    for word in said.split("\0"):
        if word != "@END@":
            words.append(word)
            continue
        name, rest, cuts = words[0], words[1:], []
        while len(rest) >= 3 and rest[0].startswith(("internal/", "cmd/", "tools/")):
            cuts.append((rest[0].split(), rest[1], rest[2]))
            rest = rest[3:]
        found.append(Safeguard(len(found) + 1, name, cuts, rest))
        words = []
    return found


class Source:
    """A Rust file in which functions get bodies without a safeguard."""

    def __init__(self, name):
        self.name = name
        self.text = (TREE / name).read_text()
        self.bodies = bodies(self.text)
        # The bodies without a safeguard, by the position of the brace: {body: {number: text}}.
        self.others = collections.defaultdict(dict)
        # The lines of the written file that belong to a safeguard: (first, last, number).
        self.lines = []

    def without(self, one, old, new):
        """Give each function that says `old` a body that says `new`. Return false where `old` is outside of functions."""
        at, found = self.text.find(old), collections.defaultdict(list)
        while at >= 0:
            around = [body for body in self.bodies if body.begin <= at and at + len(old) <= body.end]
            if not around or max(around).is_const:
                return False
            found[max(around)].append(at)
            at = self.text.find(old, at + len(old))
        for body in found:
            text = self.others[body].get(one.number, self.text[body.begin : body.end])
            if old not in text:
                return False
            self.others[body][one.number] = text.replace(old, new)
        return bool(found)

    def forget(self, number):
        for others in self.others.values():
            others.pop(number, None)

    def write(self):
        out, self.lines = self.render(0, len(self.text)), []
        line = 1
        for part, number in out:
            end = line + part.count("\n")
            if number:
                self.lines.append((line, end, number))
            line = end
        text = "".join(part for part, _ in out)
        if (TREE / self.name).read_text() != text:
            (TREE / self.name).write_text(text)

    def render(self, begin, end, inside=None):
        """Return the text between two positions as parts with the number of the safeguard that each leaves out."""
        parts, at = [], begin
        for body in sorted(body for body, others in self.others.items() if others and body != inside):
            if body.begin < at or body.end > end:
                continue
            parts.append((self.text[at : body.begin], None))
            parts.append(("{\n", None))
            for number, other in sorted(self.others[body].items()):
                is_out = f'::std::env::var_os("{SWITCH}").is_some_and(|out| out == "{number}")'
                parts += [(f"if {is_out} ", None), (other, number), ("\nelse ", None)]
            parts += self.render(body.begin, body.end, body)
            parts.append(("\n}", None))
            at = body.end
        parts.append((self.text[at:end], None))
        return parts


def git(*words):
    return subprocess.run(["git", *words], cwd=TREE, check=True, stdout=subprocess.PIPE, text=True).stdout


def restore():
    changed = git("diff", "--name-only").split()
    if changed:
        git("checkout", "--", *changed)
    for name in changed:
        # The source must be newer than the build of the mutant, so that cargo builds it again.
        os.utime(TREE / name)


def build(tests):
    """Build the suite, the program and the examples that these tests start. Return (path of the suite, errors)."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(PLACE / "together"), CARGO_PROFILE_DEV_DEBUG="0")
    suite, errors = None, []
    wanted = [["build", "--test", "suite"]]
    if any(STARTS_EXAMPLES.search(test) for test in tests):
        wanted.append(["build", "--examples"])
    for words in wanted:
        said = subprocess.run(
            ["cargo", *words, "--keep-going", "--message-format=json"], cwd=TREE, env=env, capture_output=True, text=True
        )
        (PLACE / "build.log").write_text(said.stdout + said.stderr)
        for line in said.stdout.splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("executable") and told.get("target", {}).get("name") == "suite":
                suite = told["executable"]
            if told.get("reason") == "compiler-message" and told["message"]["level"] == "error":
                errors.append(told["message"])
        if said.returncode:
            return None, errors or [{"rendered": said.stderr[-2000:], "spans": []}]
    return suite, []


def build_with_switches(chosen):
    """Build all of them that are inside functions, and leave out those that do not build so. Return (suite, those in it)."""
    sources, ready = {}, []
    for one in chosen:
        if all(file.endswith(".rs") for file in one.files()):
            done = True
            for files, old, new in one.cuts:
                for file in files:
                    source = sources.setdefault(file, Source(file))
                    done = source.without(one, old, new) and done
            if done:
                ready.append(one)
            else:
                for file in one.files():
                    sources[file].forget(one.number)
    while ready:
        for source in sources.values():
            source.write()
        began = time.monotonic()
        suite, errors = build([test for one in ready for test in one.tests])
        print(f"built {len(ready)} with switches in {time.monotonic() - began:.0f} s", flush=True)
        if suite:
            return suite, ready
        guilty = set()
        for error in errors:
            for span in error["spans"]:
                source = sources.get(span["file_name"])
                if source:
                    guilty |= {
                        number for first, last, number in source.lines
                        if first <= span["line_end"] and span["line_start"] <= last
                    }
        if not guilty:
            sys.exit("the build fails, and no safeguard is the cause:\n" + "\n".join(e["rendered"] for e in errors))
        for number in guilty:
            for source in sources.values():
                source.forget(number)
        ready = [one for one in ready if one.number not in guilty]
    return None, []


def groups_of(chosen):
    """Share the safeguards out, so that those of one group cut different files."""
    groups = []
    for one in chosen:
        for group in groups:
            if len(group) < GROUP and not any(one.files() & other.files() for other in group):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def cut(one):
    """Change the sources. Return what is wrong with the entry, if anything is."""
    for files, old, new in one.cuts:
        for name in files:
            text = (TREE / name).read_text()
            if old not in text:
                return f"{name} does not say {old}"
            (TREE / name).write_text(text.replace(old, new))
    return None


def tell(one, verdict, why=""):
    with RESULTS.open("a") as results:
        results.write("\t".join([one.name, verdict, " ".join(one.tests), why]) + "\n")
    print(f"{verdict:8} {one.name}  {why}", flush=True)


def run_tests(suite, tests, number, log):
    """Run the tests. Return how many passed, how many failed, and where the first one failed."""
    # Without CARGO the suite takes the programs that were built with the safeguards taken out.
    env = {key: value for key, value in os.environ.items() if key != "CARGO"}
    env.update({"RUST_BACKTRACE": "0"}, **({SWITCH: str(number)} if number else {}))
    path = PLACE / "logs" / (re.sub(r"[^a-z0-9]+", "-", log.lower()) + ".log")
    path.parent.mkdir(exist_ok=True)
    try:
        said = subprocess.run(
            [suite, "--exact", *tests], cwd=TREE, env=env, timeout=PATIENCE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        ).stdout
    except subprocess.TimeoutExpired:
        return None, None, f"no end within {PATIENCE} s"
    path.write_text(said)
    counts = re.search(r"(\d+) passed; (\d+) failed", said)
    where = re.search(r"panicked at ([^\n]*)\n([^\n]*)", said)
    why = f"{where.group(1)} {where.group(2)}"[:200] if where else ""
    return (int(counts.group(1)), int(counts.group(2)), why) if counts else (None, None, why)


def judge(suite, one, number, whole):
    """Run the tests of a safeguard without it. `whole` has the tests that pass while every safeguard is in place."""
    passed, failed, why = run_tests(suite, one.tests, number, one.name)
    if whole is not None and not set(one.tests) <= whole:
        return tell(one, "unclear", "red with all safeguards in place: " + " ".join(set(one.tests) - whole))
    if passed is None:
        return tell(one, "no end", why)
    return tell(one, "red" if failed == len(one.tests) else "in part" if failed else "GREEN", why)


def passing(suite, tests, pool):
    """The tests that pass with every safeguard in place, at the second try if need be."""
    def passes(test):
        return any(run_tests(suite, [test], None, f"whole {test}")[0] == 1 for _ in range(2))

    return {test for test, good in zip(tests, pool.map(passes, tests)) if good}


def results():
    return [line.split("\t") for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def main():
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("which", nargs="?", default="", help="an expression; the safeguards whose name or test matches")
    asked.add_argument("--at-once", type=int, default=3, help="tests at a time")
    asked = asked.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    known = {line[0] for line in results()}
    matches = re.compile(asked.which)
    chosen = [one for one in safeguards() if one.name not in known and matches.search(" ".join([one.name, *one.tests]))]
    print(f"{len(chosen)} safeguards", flush=True)
    if not TREE.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(TREE), "HEAD"], cwd=ROOT, check=True)
    restore()
    # A tree that an interrupted run left may be of an older commit.
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    git("checkout", "--quiet", "--detach", head.stdout.decode().strip())
    with ThreadPoolExecutor(asked.at_once) as pool:
        suite, ready = build_with_switches(chosen)
        tests = sorted({test for one in ready for test in one.tests})
        whole = passing(suite, tests, pool)
        print(f"{len(whole)} of {len(tests)} tests pass with every safeguard in place", flush=True)
        list(pool.map(lambda one: judge(suite, one, one.number, whole), ready))
        waiting = groups_of([one for one in chosen if one not in ready])
        while waiting:
            group = waiting.pop(0)
            restore()
            ready = []
            for one in group:
                wrong = cut(one)
                if wrong:
                    tell(one, "no cut", wrong)
                else:
                    ready.append(one)
            suite, errors = build([test for one in ready for test in one.tests]) if ready else (None, [])
            print(f"built {len(ready)} together", flush=True)
            if suite:
                list(pool.map(lambda one: judge(suite, one, None, None), ready))
            elif len(ready) > 1:
                # One of them does not build. Halve the group until it is alone.
                waiting[:0] = [ready[: len(ready) // 2], ready[len(ready) // 2 :]]
            elif ready:
                tell(ready[0], "no build", errors[0]["rendered"].splitlines()[0])
    restore()
    bad = [line for line in results() if line[1] != "red"]
    if bad:
        print("to be looked at:", *("\t".join(line) for line in bad), sep="\n", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
