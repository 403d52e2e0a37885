"""Git revisions as folders, for as long as they are measured."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.processes import temporary_folder

HERE = "."


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with the files of a revision; ``.`` is the source tree as it is now.

    The folder is gone when the block ends, however it ends.

    Raises:
        ConfigError: Not a revision, not in a source tree of dsv4kv, or git refuses.
    """
    top = _git("rev-parse", "--show-toplevel", doing="find the source tree")
    if revision == HERE:
        yield _with_package(Path(top), revision)
        return
    doing = f"find the revision {revision}"
    commit = _git(
        "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}", doing=doing
    )
    with temporary_folder("dsv4kv-revision-") as folder:
        tree, doing = folder / commit[:12], f"check out {revision}"
        # not a work tree: a process that is killed would leave its name in the repository
        _git("clone", "--shared", "--no-checkout", top, str(tree), doing=doing)
        _git("-C", str(tree), "checkout", "--detach", commit, doing=doing)
        yield _with_package(tree, revision)


def _with_package(tree: Path, revision: str) -> Path:
    if not (tree / "dsv4kv" / "__main__.py").is_file():
        raise ConfigError(
            f"{revision} holds no dsv4kv: run --ab with revisions in a clone of dsv4kv, or name "
            "two configurations or backends."
        )
    return tree


def _git(*arguments: str, doing: str) -> str:
    try:
        done = _run_git(*arguments)
    except OSError as error:
        raise ConfigError(f"git cannot be run ({error.strerror}): install it.") from None
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise ConfigError(f"git could not {doing}: {told[-1] if told else 'it does not say why'}.")
    return done.stdout.strip()


def _run_git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # Inside a git hook, GIT_DIR and GIT_INDEX_FILE would point git elsewhere.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ("git", *arguments), capture_output=True, env=environment, text=True, check=False
    )
