"""How runs are named."""

import re
import secrets
from datetime import UTC, datetime

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60  # a file name may have 255 bytes


def new_run_id(name: str, now: datetime) -> str:
    """Unique name of a run, safe as a file name: UTC time, config name, random suffix.

    Names sort by time: ``20261121T041903Z-default-3fa9c1``.
    """
    safe_name = _UNSAFE.sub("-", name)[:_LONGEST_NAME].strip("-.") or "run"
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{safe_name}-{secrets.token_hex(3)}"
