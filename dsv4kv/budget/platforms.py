"""What other tools write around a launch command, as a shell or a container would have it.

Units of systemd and supervisord, Markdown, Dockerfiles, make, just, notebooks, Slurm, KServe.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dsv4kv.budget import shell

_TEMPLATED = re.compile(
    r"\$?\{\{-? *(?:env\.)?([A-Za-z_]\w*) *(\|[^{}]*)?\}\}"  # of Jinja, just and GitHub
    r"|(?<!%)%\((?:ENV_)?(\w+)\)s"
)
UNIT = re.compile(r"(?m)^\[(?:Service|Container|program:.*)\]")
ENVIRONMENTS = ("environment", "env", "envs")


def fill_templates(text: str) -> str:
    """The text with variables of templates as a shell's."""

    def variable(match: re.Match[str]) -> str:
        said = re.search(
            r"\bdefault\(\s*(?:'([^']*)'|\"([^\"]*)\"|([\d.]+))\s*[,)]", match[2] or ""
        )
        default = ":-" + next(filter(None, said.groups()), "") if said else ""
        return f"${{{match[1] or match[3]}{default}}}"

    return _TEMPLATED.sub(variable, text)


def slurm_variables(text: str) -> dict[str, str]:
    """The variables that Slurm sets by the options of a batch script."""
    nodes = re.search(r"(?m)^#SBATCH\s+(?:--nodes[= ]|-N ?)(\d{1,6})", text)
    names = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    return dict.fromkeys(names, nodes[1]) if nodes else {}


def notebook_code(cell: Any) -> str:
    """The code of a notebook's cell; what it gives to a shell is a call."""
    source = value_at(cell, "source") if value_at(cell, "cell_type") == "code" else ""
    code = "".join(map(str, source)) if isinstance(source, list) else str(source)
    if code.startswith("%%"):
        return f"run({code.partition(chr(10))[2]!r})"
    code = re.sub(r"(?m)^([^\S\n]*)[!%]((?:.*\\\n)*.*)", _as_call, code)
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return code


def _as_call(match: re.Match[str]) -> str:
    """A line for a shell with values of Python in it: ``{NAME}`` and ``$NAME``."""
    parts = re.split(r"(?:(?<!\$)\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*))", match[2])
    texts = [repr(part) for part in parts[::3]]
    names = [f"str({one or other})" for one, other in zip(parts[1::3], parts[2::3], strict=True)]
    joined = [text for pair in zip(texts, [*names, ""], strict=True) for text in pair if text]
    return f"{match[1]}run({' + '.join(joined)})"


def as_shell(text: str) -> str:
    """A unit of systemd, Quadlet or supervisord as shell, of Markdown the code; lines kept."""
    text = re.sub(r"(?m)(?<=\s)[`^][^\S\n]*$\n(?=\s|-)", "\\\\\n", text)  # continued as on Windows
    if re.search(r"(?m)^> ?```", text):
        text = re.sub(r"(?m)^> ?", "", text)
    if len(re.findall(r"(?m)^[^\S\n]*```", text)) > 1:
        parts = re.split(r"(?m)^([^\S\n]*```.*)$", text)
        prose = {n for n in range(len(parts)) if n % 4 != 2}  # text, fence, code, fence
        text = "".join(
            "\n" * part.count("\n") if n in prose else part for n, part in enumerate(parts)
        )
    if re.match(r"(?:[^\S\n]*+(?:#.*)?\n)*+(?:FROM|ARG)\s", text) and re.search(_STARTS, text):
        return _of_dockerfile(text)
    heads = re.finditer(rf"(?m){_JUST}", text)
    if re.search(r"(?m)^\w+ *(?::|\?)= ", text) or any("=" in head[0] for head in heads):
        return _of_makefile(text)
    if not UNIT.search(text):
        return text
    image = re.search(r"(?m)^Image=(\S+)", text)
    others = r"(?m)^Exec(?:StartPre|StartPost|Stop\w*|Reload|Condition)=.*(?:\\\n.*)*"
    text = re.sub(others, lambda match: "\n" * match[0].count("\n"), text)
    text = re.sub(r"(?mi)^environment=", "export ", text)
    text = re.sub(r"(?m)^(?:ExecStart|command)=[-@:+!|]*", "", text)
    return re.sub(r"(?m)^Exec=", f"podman run {image[1]} " if image else "", text)


_JUST = r"""^@?[\w-]+(?: +[*+$]?\w+(?:=(?:"[^"\n]*"|'[^'\n]*'|[\w./-]*))?)+ *:(?!=)"""
"""The head of a recipe of just with parameters."""


def _of_makefile(text: str) -> str:
    """What make or just sets and starts, as a shell would; a target's own values from there on."""
    made: list[tuple[str, str]] = []  # names and settings, again where a target changes a part

    def assign(match: re.Match[str]) -> str:
        target, name, how, text = match.groups()
        value = text.replace("\\\n", " ").partition(" #")[0].strip()
        default = re.match(r"env\w*\(.\w+., *(.*)\)$", value)
        plain = (default[1] if default else value).replace('"', "")
        setting = f'{name}+=" {plain}"' if how == "+" else f'{name}="{plain}"'
        uses = {own for own, each in made if f"$({name})" in each or f"${{{name}}}" in each}
        if not target:
            made.append((name, setting))
        again = [each for own, each in made if target and own in uses - {name}]
        return "; ".join([setting, *again]) + "\n" * text.count("\n")

    def defaults(match: re.Match[str]) -> str:
        """Of a recipe of just: ``serve tp="8" *extra:``."""
        texts = re.findall(r"\w+=(?:\"[^\"]*\"|'[^']*'|[^\s:]+)", match[0])
        return "; ".join(re.sub(r"=([A-Za-z_]\w*)$", r'="${\1}"', text) for text in texts)

    text = re.sub(r"(?m)^(?:([\w.-]+): *)?(\w+) *(::?|\?|\+)?= *((?:.*\\\n)*.*)$", assign, text)
    text = re.sub(rf"(?m){_JUST}.*$", defaults, text)
    return re.sub(r"(?m)^(\t| {4})(?:@|-(?!-))+", r"\1", text)


_STARTS = r"(?m)^(ENTRYPOINT|CMD)\s+((?:.*\\\n)*.*)"


def _of_dockerfile(text: str) -> str:
    """What a Dockerfile sets and starts, as a shell would; lines kept as far as they go."""
    image = re.findall(r"(?m)^FROM\s+(?:--\S+\s+)*(\S+)", text)[-1:]
    given = dict(re.findall(_STARTS, text))
    words: list[str] = []
    for text_of in (given.get("ENTRYPOINT", ""), given.get("CMD", "")):
        plain = text_of.replace("\\\n", " ").strip()
        with suppress(ValueError, RecursionError):
            plain = shlex.join(map(str, json.loads(plain))) if plain.startswith("[") else plain
        words.append(plain)
    run = " ".join(filter(None, ["docker run", *image, *words]))
    sets = re.sub(r"(?m)^ENV\s+(\w+)[^\S\n]+(?!=)", r"export \1=", text)
    sets = re.sub(r"(?m)^(?:ENV|ARG)\s+(?=\w+=)", "export ", sets)
    others = r"(?m)^(?:FROM|RUN|COPY|ADD|WORKDIR|EXPOSE|LABEL|USER|ENTRYPOINT|CMD)\b(?:.*\\\n)*.*"
    return re.sub(others, lambda match: "\n" * match[0].count("\n"), sets) + f"\n{run}"


def resolve_documents(documents: Sequence[dict[Any, Any]]) -> Iterator[Mapping[Any, Any]]:
    """The documents as mappings of servers.

    A service of KServe's has what its runtime says, an override of a recipe what its base does;
    a container that Docker shows has keys as compose writes them.
    """
    for document in documents:
        if isinstance(base := document.get("base"), dict) and "backend" in base:
            yield from (_merge(base, own) for name, own in document.items() if name != "zip")
        elif isinstance(shown := document.get("Config"), dict) and "Image" in shown:
            yield {str(key).lower(): value for key, value in shown.items()}
    yield from _kserve([each for each in documents if not value_at(each, "base", "backend")])


def _merge(base: Any, own: Any, depth: int = 10) -> Any:
    if not (depth and isinstance(base, dict) and isinstance(own, dict)):
        return own
    changed = {key: _merge(base.get(key), value, depth - 1) for key, value in own.items()}
    return {**base, **changed}


def _kserve(documents: Sequence[dict[Any, Any]]) -> Iterator[Mapping[Any, Any]]:
    """KServe's documents as containers: of a service with its runtime, or with vLLM."""
    runtimes = {
        str(value_at(each, "metadata", "name")): _container(value_at(each, "spec"))
        for each in documents
        if str(each.get("kind")).endswith("ServingRuntime")
    }
    models = [value_at(each, "spec", "predictor", "model") for each in documents]
    used = {str(value_at(model, "runtime")) for model in models}
    for document, model in zip(documents, models, strict=True):
        name, spec = str(value_at(document, "metadata", "name")), document.get("spec")
        if runtime := runtimes.get(str(value_at(model, "runtime"))):
            args = [*words_of(runtime.get("args")), *words_of(model.get("args"))]
            yield {**model, **runtime, "args": args}
        elif "huggingface" in str(value_at(model, "modelFormat")):
            yield {**model, "modelCommand": "vllmServe"}
        elif document.get("kind") == "LLMInferenceService" and isinstance(spec, dict):
            yield {"decode" if "prefill" in spec else "": _vllm_of(spec, spec)}
            if isinstance(prefill := spec.get("prefill"), dict):
                yield {"prefill": _vllm_of(spec, prefill)}
        elif name not in used or name not in runtimes:
            yield document


def _container(spec: Any) -> dict[Any, Any]:
    containers = value_at(spec, "containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    return first if isinstance(first, dict) else {}


def _vllm_of(spec: Mapping[Any, Any], side: Mapping[Any, Any]) -> dict[Any, Any]:
    """A side of a service as a container that starts vLLM, with KServe's variable of flags."""
    main, own = _container(value_at(side, "template")), {**spec, **side}
    more = words_of(environment_of(main).get("VLLM_ADDITIONAL_ARGS"))
    args = [*words_of(main.get("args")), *more]
    own.pop("prefill", None)
    return {**own, **main, "modelCommand": "vllmServe", "args": args}


def value_at(document: Any, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def scalar_texts(document: Mapping[Any, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in document.items() if isinstance(v, str | int | float)}


def environment_of(document: Mapping[Any, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in ENVIRONMENTS:
        value = document.get(key)
        if isinstance(value, dict):
            found |= {str(name): str(text) for name, text in value.items()}
        for each in value if isinstance(value, list) else ():
            if isinstance(each, dict) and "name" in each:
                found[str(each["name"])] = str(each.get("value", ""))
            elif isinstance(each, str) and "=" in each:
                name, _, text = each.partition("=")
                found[name] = text
    return found


def words_of(value: Any) -> list[str]:
    """The words of a container; ``$$`` stands for ``$`` there."""
    if isinstance(value, str):
        value = re.sub(
            r"\\?\n[^\S\n]*(?=--?[A-Za-z])", " ", value
        )  # no command begins with a flag
        value = value.replace("$$", "$")
        statements = [words for _, words, _ in shell.split_statements(value)]
        return statements[0] if len(statements) == 1 else [value]
    return [str(each).replace("$$", "$") for each in value] if isinstance(value, list) else []
