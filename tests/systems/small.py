"""Systems that run in a second or two."""

from typing import Any

from dsv4kv.bench.systems import Model
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.model.config import build_schedule
from dsv4kv.model.presets import load_model

MODEL = Model(build_schedule(load_model("v4-flash"), layers=(1, 2, 3, 4)))
CHAT = {"users": 5, "begin": 3, "turns": 3, "system_tokens": 40, "question_tokens": 20}
SETTINGS = [
    *(f"chat.{key}={value}" for key, value in (CHAT | {"answer_tokens": 12}).items()),
    "pools.requests=1",
    "pools.decode_steps=1",
    "slots.slots=3",
    "blocks.rank_blocks=[14, 11]",
    "blocks.paused_blocks=4",
]


def small(**sections: Any) -> SystemsConfig:
    """A small configuration; ``sections`` are laid over it."""
    values: dict[str, Any] = {"chat": CHAT | {"answer_tokens": 12}, "slots": {"slots": 3}}
    values["blocks"] = {"rank_blocks": (14, 11), "paused_blocks": 4}
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return SystemsConfig(**values)
