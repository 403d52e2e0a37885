from pathlib import Path

import pytest

from dsv4kv.files import user_cache


def test_the_cache_is_where_the_platform_has_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "dsv4kv"


def test_a_user_without_a_home_has_no_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert user_cache() is None
