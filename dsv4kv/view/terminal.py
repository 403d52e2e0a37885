"""Moved to ``dsv4kv.view.render``."""

from dsv4kv.view.render import Drawing, show

__all__ = ["Drawing", "show"]
