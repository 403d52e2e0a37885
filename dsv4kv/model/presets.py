"""Models by name: the shipped presets and Hugging Face ``config.json`` files."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.huggingface import config_from_huggingface
from dsv4kv.reading import Unparsable, read_json
from dsv4kv.resources import shipped


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    return sorted(path.stem for path in (shipped("configs") / "models").glob("*.yaml"))


def load_model(name: str) -> DSV4Config:
    """Load a shipped preset (``v4-flash``) or a Hugging Face config.json (by path, or folder).

    Raises:
        ConfigError: No such preset or file, or a file that does not describe such a model.
    """
    if name in preset_names():
        text = (shipped("configs") / "models" / f"{name}.yaml").read_text(encoding="utf-8")
        return DSV4Config(**yaml.safe_load(text))
    path = config_file(name)
    if path is None:
        raise ConfigError(
            f"no model {name!r}: give a preset ({', '.join(preset_names())}) "
            "or the path of a Hugging Face config.json."
        )
    try:
        return config_from_huggingface(read_config(path), name=_model_name(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        problems = "; ".join(f"{_where(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {problems}.") from None


def _model_name(path: Path) -> str:
    """A checkpoint folder's name for its ``config.json``, else the file's own."""
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "config"


def config_file(name: str) -> Path | None:
    """The ``config.json`` that a name is the path of, or the folder of; None if there is none."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return path if path.exists() else None


def read_config(path: Path) -> dict[str, Any]:
    """Read a Hugging Face ``config.json``; raises ``ConfigError``, without the path."""
    try:
        document = read_json(path)
    except Unparsable as error:
        raise ConfigError(f"not JSON: {error}: give a Hugging Face config.json.") from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror}).") from None
    if not isinstance(document, dict):
        raise ConfigError("a Hugging Face config.json is a JSON object.")
    return document
