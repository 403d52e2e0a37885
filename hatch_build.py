"""Compiles ``dsv4kv/core`` by mypyc into wheels; without a C compiler it runs interpreted.

``python hatch_build.py`` compiles it in place (``make core``), for an editable install.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
options = ["--follow-imports=silent", "--ignore-missing-imports", "--config-file="]
options.append("--explicit-package-bases")  # whatever is above the temporary folder
setup(name="core", packages=[], ext_modules=mypycify(
    [*options, *{files!r}], opt_level="2", group_name="dsv4kv_core"))
"""


def compile_core(target: Path) -> list[Path]:
    """Compile into ``target``; returns the libraries, relative to it.

    Raises:
        subprocess.CalledProcessError: There is no working compiler; its output holds why.
    """
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        shutil.copytree(ROOT / "dsv4kv", tree / "dsv4kv", ignore=shutil.ignore_patterns("*.so"))
        core = sorted((tree / "dsv4kv/core").glob("[!_]*.py"))
        source = sha256(b"".join(path.read_bytes() for path in core)).hexdigest()
        core.append(tree / "dsv4kv/core/compiled.py")
        core[-1].write_text(f'SOURCE = "{source}"\n')  # dsv4kv/core/__init__.py compares it
        files = [str(path.relative_to(tree)) for path in core]
        (tree / "setup.py").write_text(_SETUP.format(files=files))
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=tree,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        shutil.rmtree(tree / "build", ignore_errors=True)  # holds the same libraries
        found = [path.relative_to(tree) for path in tree.rglob(f"*{suffix}")]
        for path in found:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).unlink(missing_ok=True)  # a program that runs has it mapped
            shutil.copy(tree / path, target / path)
        return found


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled core to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile where that can be done, and say in one line where not."""
        if version == "editable" or os.environ.get("DSV4KV_CORE") == "python":
            return
        target = Path(self.directory) / "core"
        shutil.rmtree(target, ignore_errors=True)
        try:
            found = compile_core(target)
        except (subprocess.CalledProcessError, OSError) as error:
            lines = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
            self.app.display_warning(f"dsv4kv.core stays interpreted: {lines[-1]}")
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for path in found:
            build_data["force_include"][str(target / path)] = str(path)


if __name__ == "__main__":
    try:
        compile_core(ROOT)
    except subprocess.CalledProcessError as failed:
        sys.exit(f"dsv4kv.core stays interpreted: {failed.stdout.strip().splitlines()[-1]}")
