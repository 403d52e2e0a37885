"""Names are found as people type them; an unknown one is answered with the nearest."""

import pytest

from dsv4kv.errors import ConfigError, find_name

NAMES = ["a100-40gb", "a100-80gb", "h100", "h200", "l40s", "rtx-pro-6000"]


@pytest.mark.parametrize(
    ("given", "found"),
    [("h200", "h200"), (" H200 ", "h200"), ("RTX PRO_6000", "rtx-pro-6000")],
)
def test_case_spaces_and_underscores_do_not_matter(given: str, found: str) -> None:
    assert find_name(given, NAMES, "GPU") == found


def test_the_start_of_one_name_is_enough() -> None:
    assert find_name("rtx-pro", NAMES, "GPU") == "rtx-pro-6000"


def test_the_start_of_several_names_is_refused_with_them() -> None:
    with pytest.raises(ConfigError, match="'a100' is more than one GPU: give a100-40gb or a100-8"):
        find_name("a100", NAMES, "GPU")


def test_an_unknown_name_is_refused_with_the_nearest_and_with_all() -> None:
    with pytest.raises(ConfigError) as refusal:
        find_name("h300", NAMES, "GPU", ", or --hbm 141GiB")
    assert str(refusal.value) == (
        "no GPU 'h300' (did you mean h200 or h100?): give one of a100-40gb, a100-80gb, h100, "
        "h200, l40s, rtx-pro-6000, or --hbm 141GiB."
    )
