"""What catches waits for the GPU stands torch's own warning, and puts back what it set."""

import warnings

import pytest
import torch

from tests.cuda.waiting import PROTOTYPE, forbidding_waits


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """The modes set, by a torch that warns the first time, as the real one does."""
    found: list[int | str] = []

    def set_mode(mode: int | str) -> None:
        if not found:
            text = f"{PROTOTYPE} and does not yet detect all synchronizing operations"
            warnings.warn(text, UserWarning, stacklevel=2)
        found.append(mode)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    return found


def test_torchs_warning_that_the_mode_is_a_prototype_is_no_error(modes: list[int | str]) -> None:
    with forbidding_waits():
        assert modes == ["error"]
    assert modes == ["error", 0]


def test_the_mode_is_put_back_after_a_failure(modes: list[int | str]) -> None:
    with pytest.raises(RuntimeError, match="waited"), forbidding_waits():
        raise RuntimeError("waited")
    assert modes == ["error", 0]


@pytest.mark.usefixtures("modes")
def test_other_warnings_stay_errors() -> None:
    with pytest.raises(UserWarning, match="another"), forbidding_waits():
        warnings.warn("another", UserWarning, stacklevel=1)
