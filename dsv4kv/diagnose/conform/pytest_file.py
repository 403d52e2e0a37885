"""A failing sequence as a pytest file that needs the engine alone."""

import re
from pathlib import Path

from dsv4kv.diagnose.conform.check import INVARIANTS, Failure

_PARTS = {
    "vllm": ("stand_ins", "broken", "offloading", "vllm"),
    "sglang": ("stand_ins", "broken", "hicache", "sglang"),
}
_DRIVEN = Path(__file__).parent / "driven"
_RELATIVE = re.compile(r"^from \.\w+ import .*\n", re.MULTILINE)
_HEADER = re.compile(r"\A(# .*\n)*")

_TEST = '''

SETTINGS = {settings}
OPERATIONS = [
{operations}
]


def test_{kind}():
    """{invariant}.

    Seen with {engine} {version}: {says}.
    """
    engine = load(os.environ.get("PACKAGE"))
    broken, _ = run(NAME, lambda: Session(engine, SETTINGS), OPERATIONS)
    assert not broken, broken
'''


def test_file(engine: str, version: str, failure: Failure) -> str:
    """The text of the file: stand-ins, the driver and the sequence."""
    parts = [(_DRIVEN / f"{name}.py").read_text("utf-8") for name in _PARTS[engine]]
    code = "\n\n".join(_RELATIVE.sub("", _HEADER.sub("", part)) for part in parts)
    sequence = failure.sequence
    test = _TEST.format(
        settings=repr(sequence.settings),
        operations="\n".join(f"    {operation!r}," for operation in sequence.operations),
        kind=failure.kind,
        invariant=INVARIANTS[failure.kind].capitalize(),
        engine=engine,
        version=version,
        says=failure.says.replace("\\", "/"),
    )
    about = (
        f'"""{engine}\'s own cache manager without tensors: pytest this file where {engine} is '
        "installed.\n\nWhere it is only unpacked, PACKAGE names the folder. Made by dsv4kv "
        'conform.\n"""\n\nimport os\n'
    )
    return about + code + test
