"""Find the bodies of the functions in a Rust source, for tools/mutants.py. A scanner and no parser: it knows strings,
characters and comments, and counts brackets."""
import re
from typing import NamedTuple

RAW = re.compile(r'(?:br|cr|r)(#*)"')
CHARACTER = re.compile(r"'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'])'")
FUNCTION = re.compile(r"\bfn\s+[A-Za-z_]\w*")


class Body(NamedTuple):
    """Positions of the opening brace and behind the closing brace."""

    begin: int
    end: int
    is_const: bool


def blank(text):
    """Replace strings, characters and comments by spaces of the same length."""
    out = []
    at, kept = 0, 0

    def wipe(end):
        nonlocal at, kept
        out.append(text[kept:at])
        out.append(re.sub(r"[^\n]", " ", text[at:end]))
        at = kept = end

    while at < len(text):
        mark = text[at]
        if mark == "/" and text.startswith("//", at):
            end = text.find("\n", at)
            wipe(len(text) if end < 0 else end)
        elif mark == "/" and text.startswith("/*", at):
            wipe(end_of_comment(text, at))
        elif mark in "rbc" and not text[at - 1 : at].isidentifier() and (raw := RAW.match(text, at)):
            close = '"' + raw.group(1)
            end = text.find(close, raw.end())
            wipe(len(text) if end < 0 else end + len(close))
        elif mark == '"':
            end = at + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            wipe(end + 1)
        elif mark == "'" and (character := CHARACTER.match(text, at)):
            wipe(character.end())
        else:
            at += 1
    out.append(text[kept:])
    return "".join(out)


def end_of_comment(text, at):
    depth = 0
    for mark in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return at + mark.end()
    return len(text)


def bodies(text):
    """Return the bodies of all functions, nested ones included."""
    plain = blank(text)
    found = []
    for function in FUNCTION.finditer(plain):
        begin = begin_of_body(plain, function.end())
        if begin is not None:
            head = plain[max(plain.rfind(mark, 0, function.start()) for mark in ";{}") + 1 : function.start()]
            found.append(Body(begin, end_of_body(plain, begin), bool(re.search(r"\bconst\b", head))))
    return found


def begin_of_body(plain, at):
    depth = 0
    for mark in re.finditer(r"[()\[\]{;]", plain[at:]):
        if mark.group() in "([":
            depth += 1
        elif mark.group() in ")]":
            depth -= 1
        elif depth == 0:
            # A declaration in a trait has no body.
            return at + mark.start() if mark.group() == "{" else None
    return None


def end_of_body(plain, begin):
    depth = 0
    for mark in re.finditer(r"[{}]", plain[begin:]):
        depth += 1 if mark.group() == "{" else -1
        if depth == 0:
            return begin + mark.end()
    return len(plain)
