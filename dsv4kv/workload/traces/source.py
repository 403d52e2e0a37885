"""Where a trace comes from: a file, or one that the toolkit ships."""

import hashlib
from pathlib import Path

from dsv4kv.errors import TraceError
from dsv4kv.resources import shipped
from dsv4kv.workload.traces.weka import conversation_files

_BUILTIN = "builtin:"
_SUFFIX = ".jsonl.gz"
_LISTED = 6


def resolve_trace(source: str | Path) -> Path:
    """Return the file behind a path or ``builtin:NAME``; a folder of conversations is a trace.

    Raises:
        TraceError: There is no such file; the sentence lists what there is.
    """
    if isinstance(source, str) and source.startswith(_BUILTIN):
        return _resolve_builtin(source)
    path = Path(source)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from None
    if is_folder and not conversation_files(path):
        raise TraceError(
            f"{path} is a folder without conversations (*.json, *.json.gz): name one trace "
            f"file{_list_files(path)}."
        )
    if path.exists() and not is_folder and not is_file:
        raise TraceError(
            f"{path}: it is a pipe or a device, and a trace is read more than once: write it to a "
            "file."
        )
    if not is_folder and not is_file:
        raise TraceError(
            f"{path}: there is no such trace file; shipped: "
            f"{', '.join(_builtins())}{_list_files(path.parent)}."
        )
    return path


def trace_sha256(path: Path) -> str:
    """Return the hexadecimal digest of the file's bytes, as they are on disk.

    That of a folder is of its conversations' digests and names, in order of their names.
    """
    if path.is_dir():
        named = (f"{trace_sha256(file)}  {file.name}\n" for file in conversation_files(path))
        return hashlib.sha256("".join(named).encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from None


def _resolve_builtin(source: str) -> Path:
    if source not in _builtins():
        raise TraceError(f"{source} is not shipped; there is: {', '.join(_builtins())}.")
    return shipped("configs") / "traces" / (source.removeprefix(_BUILTIN) + _SUFFIX)


def _builtins() -> list[str]:
    files = (shipped("configs") / "traces").glob(f"*{_SUFFIX}")
    return sorted(_BUILTIN + file.name.removesuffix(_SUFFIX) for file in files)


def _list_files(folder: Path) -> str:
    """Say which traces lie in a folder, as the end of a sentence; empty if none do."""
    suffixes = (".jsonl", ".json", ".csv", ".gz")
    names = sorted(file.name for file in folder.glob("*") if file.name.endswith(suffixes))
    if not names:
        return ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"; in {folder}: {', '.join(names[:_LISTED])}{more}"
