from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4kv.config.load import LoadedConfig, load_config
from dsv4kv.errors import ConfigError

Write = Callable[[str | bytes], str]
Load = Callable[..., LoadedConfig]
Refuse = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write ``bench.yaml`` in an empty working folder and return its name."""
    monkeypatch.chdir(tmp_path)

    def to_file(content: str | bytes) -> str:
        data = content.encode() if isinstance(content, str) else content
        Path("bench.yaml").write_bytes(data)
        return "bench.yaml"

    return to_file


@pytest.fixture
def load(write: Write) -> Load:
    """Load a configuration text with overrides."""
    return lambda content, *overrides: load_config(write(content), overrides)


@pytest.fixture
def refuse(load: Load) -> Refuse:
    """Load a configuration that must be refused and return the lines of the refusal."""

    def lines(content: str | bytes, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as refusal:
            load(content, *overrides)
        return str(refusal.value).splitlines()

    return lines
