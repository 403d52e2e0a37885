"""Python that starts servers, read and never run: constructors of engines, commands in lists."""

import ast
import json
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

_CONSTRUCTORS = {
    "LLM": "vllm",
    "EngineArgs": "vllm",
    "AsyncEngineArgs": "vllm",
    "LLMConfig": "vllm",  # Ray's
    "Engine": "sglang",
    "ServerArgs": "sglang",
}
_GPU_WORDS = ("gpu", "gpu_type", "gpu_type_id", "accelerator", "accelerator_type")
_RAYS = ("model_loading_config", "engine_kwargs", "runtime_env")
_MOST_PARTS = 100_000  # of lists and mappings that names stand for, which may double each time
_LONGEST = 10_000  # characters of a text, items of a list that is made of others
_LARGEST = 10**15
_MOST_BITS = 64  # of a shift, and the highest power
_MOST_WORK = 200_000  # statements and values of all loops and calls
_MOST_STARTED = 256  # servers that loops and calls start
_DEEPEST = 20  # calls within each other
_MOST_COMMANDS = 100  # that are compared with one
_PRINTS = re.compile(
    r"print|debug|info|log|warn(?:ing)?|error|write|exit|ArgumentParser|Markdown|join|format"
    r"|\w*(?:Exit|Error|Exception)"
)
_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.BitOr: operator.or_, ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}  # fmt: skip

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_SUMMED = {ast.Add: (int, str, list), ast.BitOr: (dict,)}

Server = tuple[int, dict[str, Any]]
"""Its line, from 1, and what YAML would say of it."""


def read_code(text: str, environment: Mapping[str, str]) -> list[Server]:
    """The servers that Python code starts; none where the text is no Python.

    A constructor's arguments are flags of an ``engine``; a list or a text that is given to a
    function is a ``command``.
    """
    is_trtllm = re.search(r"(?m)^[^\S\n]*(?:from|import) tensorrt_llm", text) is not None
    try:
        tree = ast.parse(text)
        try:
            reader = _Reader(environment, is_trtllm)
            reader.visit(tree)
        except _TooMuchError:
            reader = _Reader(environment, is_trtllm, follows=False)
            reader.visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = reader.servers or reader.commands
    return [
        (
            line,
            {"env": reader.set}
            | ({} if _names_gpu(server) else {"gpu_type": reader.gpu})
            | server,
        )
        for line, server in found
    ]


def _names_gpu(server: Mapping[str, Any]) -> bool:
    return not server.keys().isdisjoint(_GPU_WORDS)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _LeaveError(Exception):
    """A function returns, or a loop's round ends: ``return``, ``break``, ``continue``."""


class _TooMuchError(Exception):
    """Loops and calls that take longer than they are worth."""


class _Reader(ast.NodeVisitor):
    """Values of names in the order of the text; what has none is ``$name``, as in a shell.

    It ``follows`` loops and calls, or reads every statement once.
    """

    def __init__(
        self, environment: Mapping[str, str], is_trtllm: bool, *, follows: bool = True
    ) -> None:
        self.follows, self.work = follows, 0
        self.set: dict[str, str] = {}  # of the environment, by the code
        self.environment, self.is_trtllm = ChainMap(self.set, dict(environment)), is_trtllm
        self.values: dict[str, Any] = {"__name__": "__main__"}
        self.functions: dict[str, _Function] = {}
        self.called, self.running = set[str](), list[str]()
        self.results: dict[ast.expr, Any] = {}  # of calls of these functions
        self.returned: list[Any] = []
        self.globals = set[str]()
        self.undecided = 0  # branches around what is read
        self.parts = 0
        self.servers, self.commands = list[Server](), list[Server]()
        self.gpu: str | None = None

    def visit(self, node: ast.AST) -> None:
        self._spend(1)
        super().visit(node)

    def _spend(self, steps: int) -> None:
        self.work += steps
        started = len(self.servers) + len(self.commands)
        if self.follows and (self.work > _MOST_WORK or started > _MOST_STARTED):
            raise _TooMuchError

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            found = self._value(node.value)
            names, values = [target], [found]
            if isinstance(target, ast.Tuple) and isinstance(found, list):
                names, values = target.elts, found
            for each, value in zip(names, values, strict=False):
                self._assign(each, value)
            if isinstance(node.value, ast.Call) and _last(node.value.func) == "parse_args":
                args = {key: value for key, value in self.values.items() if key[:5] == "args."}
                self.values |= {f"{_name(target)}.{k[5:]}": value for k, value in args.items()}

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            name, key = _name(target.value), _text(self._value(target.slice))
            if name == "os.environ":
                self.set[key] = _text(value)
            elif isinstance(self.values.get(name), dict):
                self.values[name][key] = value
        else:
            self.values[_name(target)] = value

    def visit_For(self, node: ast.For) -> None:
        """Go round for every known item; once with the names unknown where there is none."""
        self.visit(node.iter)
        values = self._value(node.iter) if self.follows else None
        several = isinstance(node.target, ast.Tuple)
        names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        unknown, is_sure = [f"${_name(each)}" for each in names], isinstance(values, list)
        for item in values if isinstance(values, list) else [None]:
            parts = item if several else [item]
            known = parts if is_sure and isinstance(parts, list) else unknown
            for name, value in zip(names, known, strict=False):
                self._assign(name, value)
            try:
                self._read(node.body, is_sure=is_sure)
            except _LeaveError as left:
                if left.args == ("break",):
                    break
                if left.args == ("return",):
                    raise

    def visit_Break(self, node: ast.Break) -> None:
        self._leave("break")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._leave("continue")

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        self.returned.append(self._value(node.value) if node.value else None)
        self._leave("return")

    def _leave(self, how: str) -> None:
        if not self.undecided and (self.running or how != "return"):
            raise _LeaveError(how)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._read([*node.body, *node.orelse], is_sure=False)

    def visit_If(self, node: ast.If) -> None:
        """Read the branch that is taken; both where that is not known."""
        self.visit(node.test)
        is_true = self._truth(node.test)
        parts = [*node.body * (is_true is not False), *node.orelse * (is_true is not True)]
        self._read(parts, is_sure=is_true is not None)

    def visit_Match(self, node: ast.Match) -> None:
        subject, patterns = self._value(node.subject), [each.pattern for each in node.cases]
        fits = [
            self._value(each.value) == subject
            if isinstance(each, ast.MatchValue)
            else not vars(each).get("pattern")
            for each in patterns
        ]
        sure = _is_known(subject) and all(
            isinstance(each, ast.MatchValue | ast.MatchAs) for each in patterns
        )
        taken = node.cases[fits.index(True) :][:1] if sure and True in fits else node.cases
        self._read([part for each in taken for part in each.body], is_sure=sure)

    def visit_Try(self, node: ast.Try) -> None:
        self._read(node.body, is_sure=True)
        self._read([part for each in node.handlers for part in each.body], is_sure=False)
        self._read([*node.orelse, *node.finalbody], is_sure=True)

    def _read(self, parts: list[ast.stmt], *, is_sure: bool) -> None:
        self.undecided += not is_sure
        for each in parts:
            self.visit(each)
        self.undecided -= not is_sure

    def _truth(self, test: ast.expr) -> bool | None:
        known: Any = "$"
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._truth(operand)
                return None if inner is None else not inner
            case ast.BoolOp(op=how, values=parts):
                found, decides = {self._truth(each) for each in parts}, isinstance(how, ast.Or)
                return decides if decides in found else None if None in found else not decides
            case ast.Compare(left=left, ops=[how], comparators=[right]) if type(how) in _COMPARED:
                one, other = self._value(left), self._value(right)
                if _is_known(one) and _is_known(other):
                    with suppress(TypeError):
                        known = _COMPARED[type(how)](one, other)
            case ast.Call(func=ast.Name("isinstance"), args=[value, ast.Name("bool")]):
                one = self._value(value)
                known = isinstance(one, bool) if _is_known(one) else one
            case ast.Name() | ast.Attribute() | ast.Constant():
                known = self._value(test)
        return bool(known) if _is_known(known) else None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value:
            self.values[_name(node.target)] = self._value(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        own, more = self.values.get(_name(node.target)), self._value(node.value)
        if isinstance(own, list) and isinstance(more, list) and isinstance(node.op, ast.Add):
            own += more[:_LONGEST]  # its other names have it, too
        else:
            self.values[_name(node.target)] = self._sum(node.target, node.op, node.value)

    def visit_Module(self, node: ast.Module) -> None:
        self.generic_visit(node)
        for name in [each for each in self.functions if each not in self.called]:
            self._run(name, self._defaults(self.functions[name]) | self.values)

    def visit_FunctionDef(self, node: "_Function") -> None:
        """Keep a function for its calls; read a method, which any object may have, here."""
        for each in node.decorator_list:
            self.visit(each)
        is_method = [each.arg for each in node.args.args[:1]] in (["self"], ["cls"])
        if self.follows and not is_method:
            self.functions[node.name] = node
        else:
            self.values = self._defaults(node) | self.values
            self._read(node.body, is_sure=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def _defaults(self, function: "_Function") -> dict[str, Any]:
        own = function.args
        pairs = [*zip(own.args[::-1], own.defaults[::-1], strict=False)]
        pairs += [
            (key, value)
            for key, value in zip(own.kwonlyargs, own.kw_defaults, strict=True)
            if value
        ]
        return {each.arg: self._value(value) for each, value in pairs}

    def _call(self, name: str, call: ast.Call, given: list[Any], words: dict[str, Any]) -> Any:
        function = self.functions[name]
        names = [each.arg for each in function.args.args]
        values = {
            **self.values,
            **self._defaults(function),
            **dict(zip(names, given, strict=False)),
            **words,
        }
        for own, outer in zip(names, call.args, strict=False):
            if isinstance(self.values.get(_name(outer)), list | dict):
                values[own] = self.values[_name(outer)]  # itself, which a function may change
            before = f"{_name(outer)}."  # fields of an object
            fields = [key for key in self.values if before != "." and key.startswith(before)]
            values |= {f"{own}.{key.removeprefix(before)}": self.values[key] for key in fields}
            self._spend(len(values) // 10)
        self._spend(len(values) // 10)
        return self._run(name, values)

    def _run(self, name: str, values: dict[str, Any]) -> Any:
        """What a function returns, if that is one value; its own values end with it."""
        if name in self.running or len(self.running) == _DEEPEST:
            return None
        self.called.add(name)
        self.running.append(name)
        outer, before = self.values, (self.returned, self.undecided)
        self.values, self.returned, self.undecided = values, [], 0
        with suppress(_LeaveError):
            self._read(self.functions[name].body, is_sure=True)
        self.running.pop()
        kept = {name: self.values[name] for name in self.globals if name in self.values}
        self.values = outer | kept
        found = self.returned
        self.returned, self.undecided = before
        return found[0] if found and all(each == found[0] for each in found) else None

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        owner, name = _name(node.func).rpartition(".")[0], _last(node.func)
        given = [self._value(each) for each in node.args]
        words: dict[str, Any] = {}
        for each in node.keywords:
            value = self._value(each.value)
            words |= {each.arg: value} if each.arg else value if isinstance(value, dict) else {}
        for value in filter(None, map(words.get, _GPU_WORDS)):
            first = value[0] if isinstance(value, list) else value
            self.gpu = self.gpu or (first.partition(":")[0] if isinstance(first, str) else None)
        if name in self.functions and not owner:
            self.results[node] = self._call(name, node, given, words)
        elif name in ("append", "extend", "update"):
            self._change(name, self.values.get(owner), given, words)
        elif name == "add_argument":
            self._add_argument(given, words)
        elif name in _CONSTRUCTORS:
            words = {"model": given[0]} | words if given and name == "LLM" else words
            family = "trtllm" if self.is_trtllm and name == "LLM" else _CONSTRUCTORS[name]
            inner = [words.pop(each, None) for each in _RAYS]
            loading, own, env = (each if isinstance(each, dict) else {} for each in inner)
            if isinstance(set_ := env.get("env_vars"), dict):
                own["env"] = self.set | set_
            model = loading.get("model_source") or loading.get("model_id")
            words |= own | ({"model": model} if model else {})
            if words:
                self.servers.append((node.lineno, words | {"engine": family}))
        elif not _PRINTS.fullmatch(name):
            self._start(node.lineno, name, given, words)

    def _add_argument(self, given: list[Any], words: dict[str, Any]) -> None:
        long = [each for each in map(str, given) if each.startswith("--")]
        option = str(words.get("dest") or [*long, *given, ""][0]).lstrip("-").replace("-", "_")
        switch = {"store_true": False, "store_false": True}.get(str(words.get("action")))
        if long and not words.get("required"):
            self.values[f"args.{option}"] = words.get("default", switch)

    def _change(self, how: str, changed: Any, given: list[Any], words: dict[str, Any]) -> None:
        for each in (*given, words):
            if how == "update" and isinstance(changed, dict):
                changed |= each if isinstance(each, dict) else {}
            elif isinstance(changed, list) and each is not words:
                changed += [each] if how == "append" else each if isinstance(each, list) else []

    def _start(self, line: int, name: str, given: list[Any], words: dict[str, Any]) -> None:
        if name == "create_subprocess_exec":
            given = [given]
        elif name.startswith(("execv", "spawn")) or not given:
            given = [each for each in (*given, words.get("args")) if isinstance(each, list)]
        if given and isinstance(given[0], str | list):
            listed = given[0] if isinstance(given[0], str) else [*map(_text, given[0])]
            if all(listed != each["command"] for _, each in self.commands[-_MOST_COMMANDS:]):
                env = words.get("env")
                set_ = {"env": self.set | env} if isinstance(env, dict) else {}
                self.commands.append((line, {"command": listed} | set_))

    def _value(self, node: ast.expr) -> Any:
        self._spend(1)
        found: Any = None
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                found = self._sequence(parts)
            case ast.Dict():
                found = self._mapping(node)
            case ast.JoinedStr(values=parts):
                texts = [
                    self._value(part.value if isinstance(part, ast.FormattedValue) else part)
                    for part in parts
                ]
                found = "".join(map(_text, texts))[:_LONGEST]
            case ast.BinOp():
                found = self._sum(node.left, node.op, node.right)
            case ast.Compare() | ast.UnaryOp(op=ast.Not()):
                found = self._truth(node)
            case ast.Subscript():
                found = self._item(node)
            case ast.Call() | ast.Await() | ast.IfExp() | ast.BoolOp():
                found = self._result(node)
            case ast.Name() | ast.Attribute() if _name(node) in self.values:
                return self._copied(self.values[_name(node)])
        return f"${_last(node) or 'expression'}" if found is None else found

    def _either(self, node: ast.BoolOp) -> Any:
        """The first that is true of ``or``, or false of ``and``; else the last."""
        for part in node.values:
            value = self._value(part)
            if not _is_known(value) or bool(value) == isinstance(node.op, ast.Or):
                break
        return value if _is_known(value) else None

    def _sequence(self, parts: list[ast.expr]) -> list[Any]:
        found = list[Any]()
        for part in parts:
            value = self._value(part.value if isinstance(part, ast.Starred) else part)
            spread = isinstance(part, ast.Starred) and isinstance(value, list)
            self.parts += len(value) if spread else 0
            found += value if spread and self.parts < _MOST_PARTS else [value]
        return found

    def _item(self, node: ast.Subscript) -> Any:
        place = self._value(node.slice)
        if _name(node.value) == "os.environ":
            return self._from_environment(place)
        whole = self._value(node.value)
        with suppress(LookupError, TypeError):
            return whole[place] if isinstance(whole, dict | list) else None
        return None

    def _result(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Await):
            return self._value(node.value)
        if isinstance(node, ast.BoolOp):
            return self._either(node)
        if isinstance(node, ast.IfExp):
            is_true = self._truth(node.test)
            both = [self._value(node.body), self._value(node.orelse)]
            return both[not is_true] if is_true is not None or both[0] == both[1] else None
        if node in self.results or not isinstance(node, ast.Call):
            return self._copied(self.results.get(node))
        words = {each.arg: self._value(each.value) for each in node.keywords if each.arg}
        return self._called(node.func, [self._value(each) for each in node.args], words)

    def _mapping(self, node: ast.Dict) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self._value(each)
            spread = value if isinstance(value, dict) else {}  # of **each
            found |= {_text(self._value(key)): value} if key else spread
        return found

    def _copied(self, value: Any) -> Any:
        self.parts += 1
        if self.parts > _MOST_PARTS:
            return None
        if isinstance(value, list):
            return [self._copied(each) for each in value]
        if isinstance(value, dict):
            return {name: self._copied(each) for name, each in value.items()}
        return value

    def _sum(self, left: ast.expr, how: ast.operator, right: ast.expr) -> Any:
        one, other = self._value(left), self._value(right)
        kinds = _SUMMED.get(type(how), (int,))
        if type(one) is type(other) and type(one) in kinds and type(how) in _OPERATIONS:
            if isinstance(how, ast.LShift | ast.Pow) and not 0 <= other <= _MOST_BITS:
                return "$expression"
            with suppress(ArithmeticError):
                made = _OPERATIONS[type(how)](one, other)
                if isinstance(made, int):
                    return made if abs(made) < _LARGEST else "$expression"
                return made if isinstance(made, dict) else made[:_LONGEST]
        return "$expression"

    def _called(self, func: ast.expr, given: list[Any], words: dict[str, Any]) -> Any:
        match _name(func), given:
            case (("os.environ.get" | "os.getenv"), [name, *otherwise]):
                return self._from_environment(name, *otherwise)
            case ("str" | "int" | "shlex.split" | "json.dumps") as name, [value]:
                return _CONVERSIONS[name](value)
            case name, [] if words:  # dict, or an object of settings
                kind, is_drafts, _ = name.rpartition(".")[2].partition("DecodingConfig")
                return words | ({"decoding_type": kind} if is_drafts else {})
        separator = self._value(func.value) if isinstance(func, ast.Attribute) else None
        if isinstance(separator, dict | str) and not given:
            how = isinstance(separator, dict), _last(func)
            with suppress(KeyError):
                return _METHODS[how](separator)
        if isinstance(separator, str) and given and isinstance(given[0], list):  # of join
            return separator.join(map(_text, given[0]))[:_LONGEST]
        return f"${_last(func) or 'expression'}"

    def _from_environment(self, name: Any, otherwise: Any = None) -> Any:
        return self.environment.get(_text(name), otherwise or f"${_text(name)}")


def _is_known(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_known, value))
    return not (isinstance(value, str) and "$" in value)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else "$expression"


_METHODS: dict[tuple[bool, str], Callable[[Any], Any]] = {  # whether of a mapping, name
    (True, "items"): lambda pairs: [[*each] for each in pairs.items()],
    (False, "split"): str.split,
}
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": lambda value: value,
    "shlex.split": lambda value: _text(value).split(),
    "json.dumps": lambda value: json.dumps(value, default=str)[:_LONGEST],
}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return _name(node).rpartition(".")[2]
