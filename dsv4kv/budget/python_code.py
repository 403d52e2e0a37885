"""Python that starts servers, read and never run: constructors of engines, commands in lists."""

import ast
import json
import operator
import re
from collections import ChainMap
from collections.abc import Mapping
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
_MOST_PARTS = 100_000  # of lists and mappings that names stand for, which may double each time
_LONGEST = 10_000  # characters of a text, items of a list that is made of others
_LARGEST = 10**15
_MOST_ROUNDS = 1_000  # of all loops
_MOST_COMMANDS = 100  # that are compared with one
_PRINTS = re.compile(
    r"print|debug|info|log|warn(?:ing)?|error|write|exit|ArgumentParser|Markdown|join|format"
    r"|\w*(?:Exit|Error|Exception)"
)
_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.BitOr: operator.or_,
}  # fmt: skip

_COMPARED = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_SUMMED = {ast.Add: (int, str, list), ast.BitOr: (dict,)}

Server = tuple[int, dict[str, Any]]
"""Its line, from 1, and what YAML would say of it."""


def read_code(text: str, environment: Mapping[str, str]) -> list[Server]:
    """The servers that Python code starts; none where the text is no Python.

    A constructor's arguments are flags of an ``engine``; a list or a text that is given to a
    function is a ``command``.
    """
    try:
        is_trtllm = re.search(r"(?m)^[^\S\n]*(?:from|import) tensorrt_llm", text) is not None
        reader = _Reader(environment, is_trtllm)
        reader.visit(ast.parse(text))
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


class _Reader(ast.NodeVisitor):
    """Values of names in the order of the text; what has none is ``$name``, as in a shell."""

    def __init__(self, environment: Mapping[str, str], is_trtllm: bool) -> None:
        self.set: dict[str, str] = {}  # of the environment, by the code
        self.environment, self.is_trtllm = ChainMap(self.set, dict(environment)), is_trtllm
        self.values: dict[str, Any] = {}
        self.parts = self.rounds = 0
        self.servers, self.commands = list[Server](), list[Server]()
        self.gpu: str | None = None

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for each, value in pairs:
                self._assign(each, self._value(value))
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
        values = self._value(node.iter)
        names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        for item in values if isinstance(values, list) else [None]:
            self.rounds += 1
            if self.rounds > _MOST_ROUNDS:
                return
            parts = item if isinstance(node.target, ast.Tuple) else [item]
            known = parts if isinstance(parts, list) else [None] * len(names)
            for name, value in zip(names, known, strict=False):
                self._assign(name, f"${_name(name)}" if value is None else value)
            for each in node.body:
                self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        """Read the branch that is taken; both where that is not known."""
        self.visit(node.test)
        is_true = self._truth(node.test)
        for each in [*node.body * (is_true is not False), *node.orelse * (is_true is not True)]:
            self.visit(each)

    def _truth(self, test: ast.expr) -> bool | None:
        known: Any = "$"
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._truth(operand)
                return None if inner is None else not inner
            case ast.Compare(left=left, ops=[how], comparators=[right]) if type(how) in _COMPARED:
                one, other = self._value(left), self._value(right)
                if _is_known(one) and _is_known(other):
                    known = _COMPARED[type(how)](one, other)
            case ast.Call(func=ast.Name("isinstance"), args=[value, ast.Name("bool")]):
                one = self._value(value)
                known = isinstance(one, bool) if _is_known(one) else one
            case ast.Name() | ast.Attribute():
                known = self._value(test)
        return bool(known) if _is_known(known) else None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value:
            self.values[_name(node.target)] = self._value(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        self.values[_name(node.target)] = self._sum(node.target, node.op, node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        self.generic_visit(node)
        for argument, value in zip(node.args[::-1], node.defaults[::-1], strict=False):
            self.values.setdefault(argument.arg, self._value(value))

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
        if name in ("append", "extend", "update"):
            self._change(name, self.values.get(owner), given, words)
        elif name == "add_argument" and given and "default" in words:
            option = str(given[0]).lstrip("-").replace("-", "_")
            self.values[f"args.{option}"] = words["default"]
        elif name in _CONSTRUCTORS:
            words = {"model": given[0]} | words if given and name == "LLM" else words
            family = "trtllm" if self.is_trtllm and name == "LLM" else _CONSTRUCTORS[name]
            inner = [words.pop(each, None) for each in ("model_loading_config", "engine_kwargs")]
            loading, own = (each if isinstance(each, dict) else {} for each in inner)
            model = loading.get("model_source") or loading.get("model_id")
            words |= own | ({"model": model} if model else {})
            if words:
                self.servers.append((node.lineno, words | {"engine": family}))
        elif not _PRINTS.fullmatch(name):
            self._start(node.lineno, name, given, words)

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
                self.commands.append((line, {"command": listed}))

    def _value(self, node: ast.expr) -> Any:
        found: Any = None
        match node:
            case ast.Constant():
                found = node.value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                found = []
                for part in parts:
                    spread = isinstance(part, ast.Starred)
                    value = self._value(part.value if isinstance(part, ast.Starred) else part)
                    found += value if spread and isinstance(value, list) else [value]
            case ast.Dict():
                found = self._mapping(node)
            case ast.JoinedStr():
                inner = (getattr(part, "value", part) for part in node.values)
                parts = [
                    part if isinstance(part, ast.expr) else ast.Constant(part) for part in inner
                ]
                found = "".join(_text(self._value(part)) for part in parts)[:_LONGEST]
            case ast.BinOp():
                found = self._sum(node.left, node.op, node.right)
            case ast.Subscript() if _name(node.value) == "os.environ":
                found = self._from_environment(self._value(node.slice))
            case ast.Call(func=func, args=args, keywords=keywords):
                words = {each.arg: self._value(each.value) for each in keywords if each.arg}
                found = self._called(func, [self._value(each) for each in args], words)
            case ast.Name() | ast.Attribute() if _name(node) in self.values:
                found = self._copied(self.values[_name(node)])
        plain = isinstance(node, ast.Constant)
        return f"${_last(node) or 'expression'}" if found is None and not plain else found

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
            with suppress(ArithmeticError):
                made = _OPERATIONS[type(how)](one, other)
                if isinstance(made, int):
                    return made if abs(made) < _LARGEST else "$expression"
                return made if isinstance(made, dict) else made[:_LONGEST]
        return "$expression"

    def _called(self, func: ast.expr, given: list[Any], words: dict[str, Any]) -> Any:
        owner = self.values.get(_name(func).rpartition(".")[0])
        match _name(func), given:
            case name, [] if _last(func) == "items" and isinstance(owner, dict):
                return [[key, value] for key, value in owner.items()]
            case (("os.environ.get" | "os.getenv"), [name, *otherwise]):
                return self._from_environment(name, *otherwise)
            case ("str" | "int" | "json.dumps") as name, [value]:
                plain = value if name == "int" else json.dumps(value, default=str)[:_LONGEST]
                return _text(value) if name == "str" else plain
            case name, [] if words:  # dict, or an object of settings
                kind, is_drafts, _ = name.rpartition(".")[2].partition("DecodingConfig")
                return words | ({"decoding_type": kind} if is_drafts else {})
        separator = self._value(func.value) if isinstance(func, ast.Attribute) else None
        if isinstance(separator, str) and given and isinstance(given[0], list):  # of join
            return separator.join(map(_text, given[0]))[:_LONGEST]
        return f"${_last(func) or 'expression'}"

    def _from_environment(self, name: Any, otherwise: Any = None) -> Any:
        return self.environment.get(_text(name), otherwise or f"${_text(name)}")


def _is_known(value: Any) -> bool:
    return not (isinstance(value, str) and value.startswith("$"))


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else "$expression"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return _name(node).rpartition(".")[2]
