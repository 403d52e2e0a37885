"""Files that others wrote are read up to a size, and nothing that need not end is waited for."""

import errno
import os
from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError
from dsv4kv.reading import Unparsable, load_yaml, parse_json, read_document, read_json
from tests.fuzz.mutate import BOMB, MERGES


def test_a_document_is_read_up_to_its_limit_and_refused_beyond(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"x" * 2**20)
    assert len(read_document(path, 2**20)) == 2**20
    with path.open("ab") as file:
        file.write(b"x")
    for read in (read_document, read_json):
        with pytest.raises(OSError, match="it is larger than 1 MiB") as caught:
            read(path, 2**20)
        assert caught.value.errno == errno.EFBIG


def test_a_configuration_of_megabytes_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="it is larger than 1 MiB"):
        load_config(str(path))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
        read_document(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["[" * 5_000, "9" * 5_000])
def test_what_no_parser_reads_is_a_sentence(text: str) -> None:
    with pytest.raises(Unparsable, match="nested too deeply, or a number of thousands"):
        parse_json(text)


@pytest.mark.parametrize(
    "text", [BOMB, MERGES, b"a: &a\n  b: *a\n", b"[" * 5_000, b"!!python/x y"]
)
def test_yaml_that_holds_more_than_it_says_is_refused(text: bytes) -> None:
    with pytest.raises(Unparsable, match="YAML"):
        load_yaml(text.decode())


def test_yaml_with_aliases_and_several_documents_is_read() -> None:
    text = "x: &x {a: 1}\ny: {<<: *x, b: 2}\n---\n[3]\n"
    assert load_yaml(text) == [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}, [3]]
