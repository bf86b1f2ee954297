#!/usr/bin/env python3
"""Measure the shape of a tree of Rust sources: lines, functions, folders, comments, documents.

    tools/figures.py                 the working copy
    tools/figures.py COMMIT ...      commits of this repository, one column each, beside the working copy

Comments and strings are masked before anything but comments is counted, and `#[cfg(test)] mod` blocks are cut off, as
are files that only such a line declares. A function's length is the number of lines from its `fn` to its last brace.
"""

import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRODUCT = ("internal", "cmd")
PRONOUNS = re.compile(r"\b(whoever|whomever|nobody|somebody|everybody|anybody)\b", re.I)
QUESTION = re.compile(r"^(What|Who|Whom|Whose|How|When|Where|Why|Which|Whether)\b")


def masked(text):
    """Return the text with comments, strings and characters blanked, line breaks kept."""
    out, at, end = list(text), 0, len(text)

    def blank(start, stop):
        for i in range(start, min(stop, end)):
            if out[i] != "\n":
                out[i] = " "

    while at < end:
        two = text[at : at + 2]
        if two == "//":
            stop = text.find("\n", at)
            stop = end if stop < 0 else stop
            blank(at, stop)
            at = stop
        elif two == "/*":
            depth, stop = 1, at + 2
            while depth and stop < end:
                if text[stop : stop + 2] == "/*":
                    depth, stop = depth + 1, stop + 2
                elif text[stop : stop + 2] == "*/":
                    depth, stop = depth - 1, stop + 2
                else:
                    stop += 1
            blank(at, stop)
            at = stop
        elif raw := re.compile(r'\b(?:b|c)?r(#*)"').match(text, at):
            stop = text.find('"' + raw.group(1), raw.end())
            stop = end if stop < 0 else stop + 1 + len(raw.group(1))
            blank(raw.end(), stop - 1 - len(raw.group(1)))
            at = stop
        elif text[at] == '"':
            stop = at + 1
            while stop < end and text[stop] != '"':
                stop += 2 if text[stop] == "\\" else 1
            blank(at + 1, stop)
            at = stop + 1
        elif char := re.compile(r"b?'(\\.[^']*|[^'\\])'").match(text, at):
            blank(at + 1, char.end() - 1)
            at = char.end()
        else:
            at += 1
    return "".join(out)


def block_end(code, start):
    """Return the position after the brace that closes the first one at or after `start`; None for a `;` before it."""
    depth = 0
    for at in range(start, len(code)):
        c = code[at]
        if c == ";" and depth == 0:
            return None
        if c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def without_tests(text):
    """Return the text without `#[cfg(test)] mod … { … }`, and the names of modules that are declared for tests only."""
    code, cut, named = masked(text), [], []
    for found in re.finditer(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*([;{])", code):
        if found.group(2) == ";":
            named.append(found.group(1))
            cut.append((found.start(), found.end()))
        elif end := block_end(code, found.end() - 1):
            cut.append((found.start(), end))
    for start, end in reversed(cut):
        text = text[:start] + text[end:]
    return text, named


def below(folder, extension):
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in ("target", "vendor", ".git"))
        for name in sorted(names):
            if name.endswith(extension):
                yield os.path.join(path, name)


def rank(numbers, share):
    numbers = sorted(numbers)
    return numbers[min(len(numbers) - 1, int(len(numbers) * share))] if numbers else 0


def measure(root):
    texts, tests = {}, set()
    for part in PRODUCT:
        for path in below(os.path.join(root, part), ".rs"):
            with open(path, encoding="utf-8") as file:
                texts[path], named = without_tests(file.read())
            home = os.path.dirname(path)
            if os.path.basename(path) not in ("mod.rs", "lib.rs", "main.rs"):
                home = path[: -len(".rs")]
            tests.update(os.path.join(home, name + ".rs") for name in named)
    texts = {path: text for path, text in texts.items() if path not in tests}

    lengths, functions, folders = [], [], {}
    counts = dict.fromkeys(["comments", "docs", "pieces", "questions", "pronouns"], 0)
    words = dict.fromkeys(["unwrap", "expect(", "allow", "expect", "unsafe", "todo"], 0)
    positions = names = 0
    for path, text in texts.items():
        code, lines = masked(text), text.splitlines()
        lengths.append(len(lines))
        folders[os.path.dirname(path)] = folders.get(os.path.dirname(path), 0) + 1
        for found in re.finditer(r"\bfn\s+\w+", code):
            if end := block_end(code, found.end()):
                functions.append(code.count("\n", found.start(), end) + 1)
        in_doc = False
        for line in lines:
            line = line.strip()
            doc = line.startswith(("///", "//!"))
            if line.startswith("//"):
                counts["comments"] += 1
                counts["pronouns"] += len(PRONOUNS.findall(line))
                if doc:
                    counts["docs"] += 1
                    if not in_doc:
                        counts["pieces"] += 1
                        counts["questions"] += bool(QUESTION.match(line[3:].strip()))
            in_doc = doc
        words["unwrap"] += len(re.findall(r"\.unwrap\(\)", code))
        words["expect("] += len(re.findall(r"\.expect\(", code))
        words["allow"] += len(re.findall(r"#!?\[allow", code))
        words["expect"] += len(re.findall(r"#!?\[expect", code))
        words["unsafe"] += len(re.findall(r"\bunsafe\b", code))
        words["todo"] += len(re.findall(r"\b(?:TODO|FIXME)\b", text))
        positions += len(re.findall(r"try_get(?:::<[^(]*>)?\(\d", code))
        names += len(re.findall(r'try_get(?:::<[^(]*>)?\("', code))

    def size(name):
        path = os.path.join(root, name)
        if not os.path.exists(path):
            return "none"
        with open(path, "rb") as file:
            data = file.read()
        lines = data.count(b"\n")
        return f"{lines} lines, {len(data) / 1024:.1f} KB"

    scripts = [line for path in below(os.path.join(root, "internal/dashboard/assets"), ".js") for line in open(path, encoding="utf-8")]
    total = sum(lengths)
    long = sum(n > 60 for n in functions)
    share = lambda part, whole: f"{100 * part / max(whole, 1):.1f} %"
    return [
        ("production lines / files", f"{total:,} / {len(lengths)}"),
        ("file lines: median, p90, max", f"{rank(lengths, .5)}, {rank(lengths, .9)}, {max(lengths)}"),
        ("function lines: median, p90, p95, max", f"{rank(functions, .5)}, {rank(functions, .9)}, {rank(functions, .95)}, {max(functions)}"),
        ("functions > 60 lines", f"{long} of {len(functions):,} ({share(long, len(functions))})"),
        ("files > 500 lines", str(sum(n > 500 for n in lengths))),
        ("comment share (of it doc)", f"{share(counts['comments'], total)} ({share(counts['docs'], total)})"),
        ("`unwrap` / `expect(` outside tests", f"{words['unwrap']} / {words['expect(']}"),
        ("`#[allow]` / `#[expect]`", f"{words['allow']} / {words['expect']}"),
        ("`unsafe`, TODO or FIXME", f"{words['unsafe']}, {words['todo']}"),
        ("files per folder: median, largest", f"{rank(list(folders.values()), .5)}, {max(folders.values())}"),
        ("doc comments that open with a question word", f"{share(counts['questions'], counts['pieces'])} ({counts['questions']} of {counts['pieces']:,})"),
        ("pronoun actors per 1,000 comment lines", f"{1000 * counts['pronouns'] / max(counts['comments'], 1):.1f}"),
        ("columns by position / by name", f"{positions} / {names}"),
        ("README", size("README.md")),
        ("ARCHITECTURE", size("ARCHITECTURE.md")),
        ("dashboard: lines of JavaScript, > 120 columns", f"{len(scripts):,}, {sum(len(line.rstrip()) > 120 for line in scripts)}"),
    ]


def main():
    columns = []
    for commit in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            columns.append((commit, measure(folder)))
    columns.append(("working copy", measure(ROOT)))
    print("| | " + " | ".join(name for name, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for row in zip(*(figures for _, figures in columns)):
        print(f"| {row[0][0]} | " + " | ".join(value for _, value in row) + " |")


main()
