import pytest

from dsv4kv.config.keys import keys, nearest_key


@pytest.mark.parametrize("path", keys())
def test_a_key_with_one_letter_missing_is_recognised(path: str) -> None:
    section, dot, name = path.rpartition(".")
    for letter in range(len(name)):
        misspelt = f"{section}{dot}{name[:letter]}{name[letter + 1 :]}"
        assert nearest_key(misspelt) == (misspelt if misspelt in keys() else path)
