"""Phrases that make a sentence hard to read: ``make words`` lists where they stand.

README and docs must have none, docstrings and messages of the package at most ``LIMIT``.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 20
PHRASES = re.compile(
    r"\b(?:left out|so many|those of|that of|of which|of whom|told|tells|in turns?|besides?"
    r"|what of|what becomes of|nobody|somebody|whoever|meanwhile|goes? on|gives? up"
    r"|put down|comes? of|by then|likewise|thereof"
    r"|yardstick|keeps? (?:the )?books|a further token|as many as|likes of|at once|by whose"
    r"|but for|to be had|all the same|hears?|what (?:it|they|there|that|this) (?:is|are|was|were)"
    r"|what \w+ (?:is|are|was|were) (?:asked|called|like|made of|there))\b",
    re.IGNORECASE,
)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page outside its blocks of code, with their numbers."""
    block = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        block ^= line.startswith("```")
        if not block:
            yield number, re.sub(r"`[^`]*`", "", line)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and other sentences of a module, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, re.sub(r"``[^`]*``", "", line)


def find(paths: list[Path]) -> Iterator[str]:
    """Every phrase, as ``file:line: phrase``."""
    for path in paths:
        lines = prose(path) if path.suffix == ".md" else strings(path)
        for number, line in lines:
            for match in PHRASES.finditer(line):
                yield f"{path.relative_to(ROOT)}:{number}: {match[0].lower()}"


def main() -> None:
    """List the phrases, and end with 1 if there are too many."""
    pages = list(find([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]))
    code = list(find(sorted((ROOT / "dsv4kv").rglob("*.py"))))
    print(*pages, *code, sep="\n")
    for name, found in (("pages", pages), ("code", code)):
        common = Counter(each.rpartition(": ")[2] for each in found).most_common(12)
        print(f"{name}: {len(found)}: {', '.join(f'{word} {n}' for word, n in common)}")
    sys.exit(bool(pages) or len(code) > LIMIT)


if __name__ == "__main__":
    main()
