# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""The stand-ins that ``dsv4kv conform`` takes, for an environment without dsv4kv."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "diagnose" / "conform"))
from driven import bare_package, stand_in  # noqa: F401
