"""Shell scripts, read and never run: statements, quotes, variables, arrays and conditions."""

import ast
import operator
import re
from bisect import bisect_left
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain

from dsv4kv.errors import ConfigError

MOST_CHARACTERS = 2**18
"""Of a text with launch commands, and of what the variables in a statement become."""
_MOST_IN_ALL = 64 * MOST_CHARACTERS  # of all statements of a script
_MOST_VARIABLES = 1_000  # that a script sets: every statement has all of them
_TOKEN = re.compile(
    r"""(?P<join>\\\r?\n) | (?P<escape>\\.?) | (?P<single>'[^']*')
    | (?P<double>"(?:\\.|[^"\\])*") | (?P<comment>(?<![^\s;&|])\#[^\n]*)
    | (?P<end>&&|\|\||[\n;&|]) | (?P<blank>[^\S\n]+)
    | (?P<substitution>\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))
    | (?P<plain>(?:[^\\'"\s;&|$]|\$(?!\())+|\$) | (?P<open>['"])""",
    re.VERBOSE | re.DOTALL,
)
_MOST_BRANCHES = 100  # within each other, as calls are
_MOST_CALLS = 1_000  # of functions
_MOST_REPEATED = 100_000  # statements of functions and loops
_RETURN, _AGAIN = "\2return", "\2again"  # after the statements of a call, of a turn of a loop
_COUNTED = {"$#", "\1#", "$1", "\x011"}
_LOCAL = {"local", "declare", "typeset"}
_LONGEST_COMPARED = 1_000  # characters: a pattern takes the product of both
_HIDDEN, _QUOTED = "\0", "\1"  # a dollar sign within single and within double quotes
_NEXT = "\x1f"  # between the elements of an array
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"(?P<mark>[$\1])(?:(?P<plain>\w+|[@*#])|\((?P<pod>\w+)\)"
    r"|\{(?P<name>\w+|[@*#])(?P<all>\[[@*]\])?(?:(?P<how>:?[-=+?])(?P<other>[^}]{0,999}))?\})"
)
_ARITHMETIC = re.compile(r"[$\1]\(\((?P<sum>[\w\s${}+*/%<>=!?:()-]{1,200})\)\)")
_KEYWORDS = {
    "exec",
    "sudo",
    "nohup",
    "time",
    "env",
    "do",
    "command",
    "$",
    "!",
    "{",
    "(",
    "eval",
    ":",
}
_DECLARE = {"export", "declare", "local", "readonly", "typeset", "-a", "-x"}
_HERE = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_INTO = re.compile(r"(?:>{1,2}\s*|\btee\s+(?:-a\s+)?)(['\"]?)([^\s'\";&|<>]+)\1")
_SHELL = re.compile(r"\b(?:(?:ba|z|da)?sh|ssh|srun)\b")
_COMPARED = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")}


class OpenQuote(ConfigError):
    """A quote that nothing closes."""


def split_statements(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield line, words and end (``;``, ``&&``) of every statement, quotes and comments resolved.

    Variables stay as they are written, hidden within quotes; an array is one word.
    """
    words: list[str] = []
    parts: list[str] = []  # of a word
    first, depth, line, counted = 1, 0, 1, 0
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup or "", match[0]
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        if kind == "open":
            raise OpenQuote(f"line {line}: a quote {token} is opened and never closed.")
        if depth and kind in ("blank", "end"):
            parts.append(_NEXT)
        elif kind in ("blank", "end"):
            words += ["".join(parts)] if parts else []
            parts = []
            if kind == "end" and words:
                yield first, words, token
                words = []
        elif kind not in ("join", "comment"):
            first = first if words or parts else line
            parts.append(_unquoted(kind, token))
            if kind == "plain" and (depth or _ARRAY.match(parts[0])):
                depth = max(0, depth + token.count("(") - token.count(")"))
    words += ["".join(parts)] if parts else []
    if words:
        yield first, words, ""


def _unquoted(kind: str, token: str) -> str:
    if kind == "escape":
        return token[1:]
    if kind == "single":
        return token[1:-1].replace("$", _HIDDEN)
    if kind == "double":
        token = re.sub(r'\\(["\\`])', r"\1", token[1:-1].replace("\\\n", ""))
        return re.sub(r"(\\?)\$", lambda m: _HIDDEN if m[1] else _QUOTED, token)
    return token


def bounded(texts: Iterable[str]) -> list[str]:
    """The texts, made one by one; ``ConfigError`` where they become longer than any command."""
    found, size = list[str](), 0
    for text in texts:
        found.append(text)
        size += len(text)
        _check_size(size, MOST_CHARACTERS)
    return found


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ConfigError(
            f"its variables become more than {most // 1024:,} KiB of text: give the command "
            "that they make, with its values."
        )


def fill_in(word: str, variables: Mapping[str, str], *, split: bool = False) -> str:
    """A word with its variables; those that nothing sets stay as they are written.

    With ``split``, blanks in values outside quotes become marks between words, as in a shell.
    """
    size = 0

    def value(match: re.Match[str]) -> str:
        nonlocal size
        found, how = variables.get(match["plain"] or match["name"] or match["pod"]), match["how"]
        if how and "+" in how:
            found = match["other"] if found else ""
        elif found is None and how and how[-1] in "-=":
            found = fill_in(match["other"], variables)
        if found is None:
            text = "$" + match[0][1:]
        else:
            whole = match["all"] or (match["plain"] or match["name"] or "").strip("@*") == ""
            text = found if whole else found.partition(_NEXT)[0]
            text = re.sub(r"\s+", _NEXT, text) if split and match["mark"] == "$" else text
        size += len(text)
        _check_size(size, MOST_CHARACTERS)
        return text

    def result(match: re.Match[str]) -> str:
        found = _calculate(match["sum"], variables)
        return "$" + match[0][1:] if found is None else str(found)

    filled = _ARITHMETIC.sub(result, _VARIABLE.sub(value, word))
    return filled.replace(_HIDDEN, "$").replace(_QUOTED, "$")


_OPERATIONS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _calculate(text: str, variables: Mapping[str, str]) -> int | None:
    """A sum of whole numbers and variables; None for another, or where one has no value."""
    condition, asks, rest = text.partition("?")
    if asks:
        decided, (yes, _, no) = _calculate(condition, variables), rest.partition(":")
        return None if decided is None else _calculate(yes if decided else no, variables)

    def solve(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(value)) if value < 10**15:
                return value
            case ast.Name(id=name) if len(variables[name]) < 16:
                return int(variables[name])
            case ast.BinOp(left=left, op=how, right=right):
                return _OPERATIONS[type(how)](solve(left), solve(right))
            case ast.Compare(left=left, ops=[how], comparators=[right]):
                return _OPERATIONS[type(how)](solve(left), solve(right))
        raise ValueError

    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text.replace("/", "//")).strip()
    try:
        return int(solve(ast.parse(plain, mode="eval").body))
    except (ArithmeticError, LookupError, RecursionError, SyntaxError, ValueError):
        return None


def expand(word: str, variables: Mapping[str, str]) -> list[str]:
    """The words that a word becomes: arrays spread, values outside quotes split."""
    found = fill_in(word, variables, split=True).split(_NEXT)
    return [each for each in found if each] if "$" in word or _QUOTED in word else found


def take_assignments(words: list[str], variables: MutableMapping[str, str]) -> list[str]:
    """The words after ``NAME=value`` and ``export``; what they set goes to ``variables``."""
    rest, size = list(words), 0
    while rest:
        if match := _ASSIGNMENT.fullmatch(rest[0]):
            name, more, text = match.groups()
            array = text.startswith("(") and text.endswith(")")
            if array:
                elements = filter(None, text[1:-1].split(_NEXT))
                text = _NEXT.join(
                    bounded(part for each in elements for part in expand(each, variables))
                )
            else:
                text = fill_in(text, variables).replace(_NEXT, " ")
            before = variables.get(name, "") if more else ""
            text = before + (_NEXT if array and before else "") + text
            _check_size(size := size + len(text), MOST_CHARACTERS)
            variables[name] = text
        elif (set_to := _VARIABLE.fullmatch(rest[0])) and (set_to["how"] or "").endswith("="):
            variables[set_to["name"]] = fill_in(rest[0], variables)  # of : ${name:=value}
        elif rest[0] not in _DECLARE and rest[0] not in _KEYWORDS:
            break
        rest.pop(0)
    return rest


@dataclass(frozen=True)
class Statement:
    """A statement that runs, with its variables; ``unset`` were read as empty in a condition."""

    line: int
    words: list[str]
    variables: Mapping[str, str]
    unset: tuple[str, ...] = ()
    called: bool = True  # not of a function that nothing here calls


def read_script(
    text: str, variables: Mapping[str, str], *, decide: bool = True
) -> Iterator[Statement]:
    """Yield the statements of a script that run; without ``decide``, of every branch.

    A variable that is set under a condition which cannot be decided has no value.
    """
    known, conditions, size = dict(variables), _Conditions(decide), 0
    given = False  # whether a statement has what is known
    source = _Source(text)
    for line, words, end in source:
        rest, closed = conditions.enter(words, end, known), end
        if not rest or conditions.runs == _NO:
            conditions.leave(end)
            continue
        own, new = known, dict[str, str]()
        if "=" in rest[0] or rest[0] in _DECLARE or rest[0] in _KEYWORDS:
            rest = take_assignments(rest, ChainMap(new, known))
            rest = rest if words[0] != ":" else []
            own = known | new if rest else known
            source.hide(words, new, known)
            size += sum(len(text) for name, text in new.items() if known.get(name) is not text)
        _check_sizes(line, len(known) + len(new) - len(variables), size)
        if rest:
            filled = bounded(part for word in rest for part in expand(word, own))
            size += sum(map(len, filled))
            changed = source.take((line, filled, end), own, known, conditions.runs == _YES)
            if changed is not None:
                (known, closed), given = changed, False
            else:
                yield Statement(line, filled, own, tuple(conditions.unset), not source.ended)
                given = given or own is known
        else:
            known, given = dict(known) if given and new else known, given and not new
            for name, value in new.items():
                if conditions.runs == _YES:
                    known[name] = value
                elif known.get(name) != value:
                    known.pop(name, None)
        conditions.leave(closed)


def _check_sizes(line: int, variables: int, characters: int) -> None:
    if variables > _MOST_VARIABLES:
        raise ConfigError(
            f"line {line}: over {_MOST_VARIABLES:,} variables are set: give the command that they "
            "make, with its values."
        )
    _check_size(characters, _MOST_IN_ALL)


def _with_arguments(variables: Mapping[str, str], arguments: list[str] | None) -> dict[str, str]:
    """The variables with ``$1``, ``$@`` and ``$#``; without them where they are not known."""
    others = {n: text for n, text in variables.items() if not (n.isdecimal() or n in "@*#")}
    if arguments is None:
        return others
    words = [each for each in arguments if each]
    numbered = {str(place): word for place, word in enumerate(words[:99], 1)}
    whole = _NEXT.join(words)
    return others | numbered | {"@": whole, "*": whole, "#": str(len(words))}


_Parts = tuple[int, list[str], str]  # a statement, as split_statements yields it


class _Source:
    """The statements of a script, a function's where it is called, or at the end."""

    def __init__(self, text: str) -> None:
        self.open: list[Iterator[_Parts]] = [split_statements(text)]
        self.functions: dict[str, list[_Parts]] = {}
        self.called: set[str] = set()
        self.hidden: list[dict[str, str | None]] = []  # values that running functions hide
        self.bodies: list[list[_Parts]] = []  # of loops over the arguments
        self.calls = self.repeated = 0
        self.ended = False  # what comes next is of functions that nothing called

    def __iter__(self) -> Iterator[_Parts]:
        while self.open:
            self.repeated += len(self.open) > 1
            if (statement := next(self.open[-1], None)) is None:
                self.open.pop()
            elif statement[1][0] == "while" and not _COUNTED.isdisjoint(statement[1]):
                self.bodies.append(self._body())
                yield statement[0], [_AGAIN], ""
            elif not self._define(statement):
                yield statement
            if self.repeated > _MOST_REPEATED:
                self.open, self.calls = self.open[:1], _MOST_CALLS
            elif not self.open:  # functions without a visible call come last
                unseen = [each for each in self.functions if each not in self.called]
                self.called.update(unseen)
                self.ended = True
                self.open += [iter(self.functions[each]) for each in reversed(unseen)]

    def _define(self, statement: _Parts) -> bool:
        line, words, end = statement
        name, *rest = words[words[0] == "function" and len(words) > 1 :]
        rest = rest[1:] if (marked := rest[:1] == ["()"]) else rest
        if not (marked or words[0] == "function" or re.fullmatch(r"[\w-]+\(\)", name)):
            return False
        body, depth = list[_Parts](), 0
        for first, parts, closed in chain([(line, rest, end)], self.open[-1]):
            if parts:
                depth += ("{" in (parts[0], parts[-1])) - (parts[0] == "}")
                inner = parts[parts[0] in ("{", "}") :]
                body += [(first, inner, closed)] if inner else []
                if depth < 1:
                    break
        self.repeated += len(body)
        self.functions.setdefault(name.removesuffix("()"), []).extend(body)  # of either branch
        return True

    def _body(self) -> list[_Parts]:
        """The statements up to the end of a loop."""
        body, depth = list[_Parts](), 1
        for statement in self.open[-1]:
            words = statement[1]
            depth += words[words[0] == "do" :][:1] in ([each] for each in _LOOPS)
            depth -= words[0] == "done"
            if depth < 1:
                break
            body.append(statement)
        self.repeated += len(body)
        return body

    def hide(self, words: list[str], names: Iterable[str], known: Mapping[str, str]) -> None:
        """Keep the values that ``local`` hides until its function ends."""
        for name in names if self.hidden and words[0] in _LOCAL else ():
            self.hidden[-1].setdefault(name, known.get(name))

    def take(
        self, statement: _Parts, own: Mapping[str, str], known: Mapping[str, str], certain: bool
    ) -> tuple[dict[str, str], str] | None:
        """Variables after a call, a loop or ``set``, and the statement's end; None for others.

        ``known`` are the script's variables, ``own`` these and the statement's own; a statement
        that is not ``certain`` may not run.
        """
        line, words, end = statement
        body, outer, first = self.functions.get(words[0]), known.get("@"), words[0]
        self.calls += 1
        if self.calls > _MOST_CALLS or len(self.open) > _MOST_BRANCHES:
            return None
        changed: dict[str, str] | None = None
        if first == _RETURN:
            hidden = self.hidden.pop()
            left = {name: text for name, text in own.items() if name not in hidden}
            left |= {name: text for name, text in hidden.items() if text is not None}
            before = hidden["@"]
            changed = _with_arguments(left, None if before is None else before.split(_NEXT))
        elif words[:2] == ["set", "--"]:
            changed = _with_arguments(own, words[2:] if certain else None)
        elif first == "shift" and outer is not None:
            count = words[1] if words[1:] and words[1].isdecimal() else "1"
            left_of = outer.split(_NEXT)[int(count[:9]) :]
            changed = _with_arguments(own, left_of if certain else None)
        elif first == _AGAIN or (first == "for" and words[2:3] == ["in"]):
            self._repeat(line, words, known)
            changed = dict(own)
        elif body is not None:
            self.called.add(first)
            new = (n for n, text in own.items() if own is not known and known.get(n) is not text)
            self.hidden.append({"@": outer} | {name: known.get(name) for name in new})
            self.open.append(iter([*body, (line, [_RETURN], end)]))
            return _with_arguments(own, words[1:]), ""
        self.calls -= changed is None
        return None if changed is None else (changed, end)

    def _repeat(self, line: int, words: list[str], variables: Mapping[str, str]) -> None:
        """Repeat the body of a loop: as long as there are arguments, or once for each value.

        Once alone where not all values are known.
        """
        if words[0] == _AGAIN:
            again = (line, [_AGAIN], "")
            goes_on = variables.get("#", "0") != "0"
            body = self.bodies[-1] if goes_on else self.bodies.pop()
            turns = [[*body, again]] if goes_on else []
        else:
            name, values, body = words[1], words[3:], self._body()
            self.calls += len(values)
            known = not any(set(each) & set("$*{(") for each in values)
            known = known and self.calls <= _MOST_CALLS
            turns = [[(line, [f"{name}={v}"], ""), *body] for v in values] if known else [body]
        self.open.append(chain.from_iterable(turns))


class _Conditions:
    """Whether a statement runs: 1, 0, or a half where that cannot be decided.

    So "and" is the least of several, "or" the greatest, and "not" the difference to 1.
    """

    def __init__(self, decide: bool) -> None:
        self.decide = decide
        self.branches: list[tuple[float, float, str | None]] = []
        """Whether this branch runs, an earlier one does; what ``case`` compares."""
        self.patterns: list[str] = []  # of one branch of ``case``, but for its last
        self.guard = self.tested = _YES  # of ``test && statement``; of ``if test``
        self.testing = False
        self.joined = ""
        self.unset: dict[str, None] = {}

    @property
    def runs(self) -> float:
        return min([self.guard, *(this for this, _, _ in self.branches)])

    def enter(self, words: list[str], end: str, variables: Mapping[str, str]) -> list[str]:
        if words[:2] == ["while", "getopts"]:  # of no options
            self.branches.append((_NO, _NO, _OPTIONS))
            return []
        if words[:1] == ["done"] and self.branches and self.branches[-1][2] is _OPTIONS:
            self.branches.pop()
        while words and (words[0] in _BRANCHES or (self.testing and words[0] == "then")):
            is_case = words[0] == "case" and len(words) > 1
            subject = fill_in(words[1], variables) if is_case and self.decide else "$"
            self._branch(words[0], subject)
            words = words[3:] if is_case else words[1:]
        if words and self.branches and self.branches[-1][2] is not None:
            words = self._match(words, end)
        if self.testing:
            found = self._test(words, variables) if words else self.tested
            if self.joined in ("&&", "||"):
                found = (min if self.joined == "&&" else max)(self.tested, found)
            self.tested, self.joined = found, end
            return []
        if words and words[0] in _TESTS and end in ("&&", "||"):
            found = self._test(words, variables)
            self.guard = min(self.guard, found if end == "&&" else 1 - found)
            return []
        return words

    def _match(self, words: list[str], end: str) -> list[str]:
        """The words without a pattern of ``case``, by which its branch is decided."""
        this, earlier, subject = self.branches[-1]
        if end == "|" and len(words) == 1:
            self.patterns.append(words[0])
            return []
        if words[1:2] == [")"]:
            words = [words[0] + ")", *words[2:]]
        is_pattern = words[0].endswith(")") and not words[0].startswith(("$(", "(("))
        if not is_pattern or _ARRAY.match(words[0]):
            self.patterns.clear()
            return words
        if subject is not None and "$" not in subject:
            patterns = [each.strip("()") for each in [*self.patterns, words[0]]]
            found = max(
                _UNKNOWN if "(" in each else _compare([subject, "=", each]) for each in patterns
            )
            this = min(1 - earlier, found)
            self.branches[-1] = this, max(this, earlier), subject
        self.patterns.clear()
        return words[1:]

    def _branch(self, word: str, subject: str) -> None:
        this, earlier, _ = self.branches[-1] if self.branches else (_YES, _NO, None)
        if word == "then":
            self.branches[-1] = min(1 - earlier, self.tested), earlier, None
            self.testing = False
        elif word in ("if", "case"):
            if len(self.branches) == _MOST_BRANCHES:
                raise ConfigError(
                    f"over {_MOST_BRANCHES} conditions are within each other: give the command "
                    "that they choose."
                )
            if word == "if":
                self.branches.append((_YES, _NO, None))
            else:  # none of its branches until a pattern matches
                self.branches.append((_UNKNOWN if "$" in subject else _NO, _NO, subject))
        elif self.branches and word in ("elif", "else"):
            before = max(this, earlier)
            self.branches[-1] = 1 - before, before, None
        elif self.branches:
            self.branches.pop()
        if word in ("if", "elif"):
            self.testing, self.tested, self.joined = True, _UNKNOWN, ""

    def leave(self, end: str) -> None:
        """After a statement; a list that ends ends its guard."""
        if self.testing:
            return
        if end == "||":
            self.guard = 1 - self.guard
        elif end != "&&":
            self.guard = _YES

    def _test(self, words: list[str], variables: Mapping[str, str]) -> float:
        if self.decide and words[0].startswith("(("):
            found = _calculate(" ".join(words).strip("() "), variables)
            return _UNKNOWN if found is None else float(found > 0)
        if self.decide and words in (["true"], ["false"]):
            return float(words == ["true"])
        inside = [word for word in words if word not in _TESTS]
        if not self.decide or words[0] not in _TESTS:
            return _UNKNOWN
        if inside[:1] == ["!"]:
            return 1 - self._test(["[", *inside[1:]], variables)
        read = []
        for text in bounded(fill_in(word, variables) for word in inside):
            if "$(" in text:  # what a program prints
                return _UNKNOWN
            for match in _VARIABLE.finditer(text):
                name = match["plain"] or match["name"] or match["pod"]
                self.unset |= {name: None} if name != "#" else {}
            read.append(_VARIABLE.sub("", text))
        return _compare(read)


_TESTS = {"[", "[[", "]", "]]", "test"}
_NO, _UNKNOWN, _YES = 0.0, 0.5, 1.0


def _compare(words: list[str]) -> float:
    if any(len(word) > _LONGEST_COMPARED for word in words):
        return _UNKNOWN
    match words:
        case ["-n" | "-z" as how, text]:
            return bool(text) == (how == "-n")
        case [left, "=" | "==" | "!=" as how, right]:
            return fnmatchcase(left, right) == (how != "!=")
        case [left, how, right] if how in _COMPARED and left.isdecimal() and right.isdecimal():
            return bool(_COMPARED[how](int(left), int(right)))
    return _UNKNOWN


_OPTIONS = "$getopts"
_LOOPS = ("for", "while", "until", "select")
_BRANCHES = {"if", "elif", "else", "fi", "case", "esac"}


def take_documents(text: str) -> tuple[str, dict[str, str]]:
    """The text with bodies of here documents left blank, and those by the file they go to."""
    lines, found, place = text.split("\n"), dict[str, str](), 0
    places = defaultdict[str, list[int]](list)  # of every line
    for number, line in enumerate(lines):
        places[line.strip()].append(number)
    while place < len(lines):
        here, into = _HERE.search(lines[place]), _INTO.search(lines[place])
        runs = _SHELL.search(lines[place])
        place += 1
        ends = places.get(here[2], []) if here and (into or not runs) else []
        if not ends or ends[-1] < place:
            continue
        end = ends[bisect_left(ends, place)]
        body, quoted = "\n".join(lines[place:end]), here and here[1]
        found[into[2] if into else ""] = body if quoted else re.sub(r"\\([\\$])", r"\1", body)
        lines[place : end + 1] = [""] * (end + 1 - place)
        place = end
    return "\n".join(lines), found
