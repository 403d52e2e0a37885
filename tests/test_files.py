"""A file appears whole or not at all."""

import errno
import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path

import pytest

from dsv4kv import files
from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError, mask_secrets, mask_url
from dsv4kv.files import make_folder
from tests.fuzz.mutate import BOMB, MERGES


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "run.json"
    target.write_bytes(b"old")

    def fail(file: BufferedWriter) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(error), files.replacing(target) as file:
        fail(file)
    assert names(tmp_path) == ["run.json"]
    assert target.read_bytes() == b"old"


def test_a_link_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(b"other")
    (tmp_path / "run.json").symlink_to("other.json")
    with files.replacing(tmp_path / "run.json") as file:
        file.write(b"new")
    assert (tmp_path / "other.json").read_bytes() == b"other"
    assert (tmp_path / "run.json").read_bytes() == b"new"


def test_a_file_that_an_option_named_is_written_or_refused_with_the_option(tmp_path: Path) -> None:
    files.write_named(tmp_path / "a.csv", "ä\n", "--csv")
    assert (tmp_path / "a.csv").read_bytes() == "ä\n".encode()
    target = tmp_path / "gone" / "a.csv"
    sentence = f"--csv {target}: cannot be written (No such file or directory): name a file in a "
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        files.write_named(target, "", "--csv")
    assert names(tmp_path) == ["a.csv"]
    (tmp_path / "link").symlink_to("a.csv")
    files.write_named(tmp_path / "link", "new\n", "--csv")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.csv").read_bytes() == b"new\n"
    full = r"--csv /dev/full: cannot be written \(No space left on device\): make room, or name a"
    with pytest.raises(ConfigError, match=full):
        files.write_named(Path("/dev/full"), "a", "--csv")


def test_a_process_that_is_killed_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    program = (
        "import os; from pathlib import Path; from dsv4kv.files import make_folder, replacing\n"
        f"with replacing(Path({str(target)!r})) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    if hasattr(os, "O_TMPFILE"):
        assert names(tmp_path) == []


def test_where_files_must_have_names_they_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.O_TMPFILE", raising=False)
    with files.replacing(tmp_path / "run.json") as file:
        file.write(b"all of it")
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == b"all of it"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"), files.replacing(tmp_path / "pipe"):
        pass
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with files.replacing(tmp_path / "pipe") as file:
        file.write(b"x" * 10)
    assert os.read(reader, 99) == b"x" * 10
    os.close(reader)


def test_a_document_is_read_up_to_its_limit_and_refused_beyond(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"x" * 2**20)
    assert len(files.read_document(path, 2**20)) == 2**20
    with path.open("ab") as file:
        file.write(b"x")
    for read in (files.read_document, files.read_json):
        with pytest.raises(OSError, match="it is larger than 1 MiB") as caught:
            read(path, 2**20)
        assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("make", "reason"),
    [(os.mkfifo, "it is a pipe or a device, not a file"), (os.mkdir, "Is a directory")],
)
def test_what_is_no_file_is_refused_not_waited_for_and_left_closed(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "given")
    descriptors = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(OSError, match=reason) as refused:
        files.read_document(tmp_path / "given")
    assert refused.value.filename == str(tmp_path / "given")
    assert len(list(Path("/dev/fd").iterdir())) == descriptors


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="the kernel's log is not ours")
def test_a_file_of_the_kernel_is_not_waited_for() -> None:
    with pytest.raises(BlockingIOError, match="nothing to read yet"):
        files.read_document(Path("/proc/kmsg"))  # its end never comes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 5_000, "nested too deeply, or a number of thousands"),
        ("9" * 5_000, "nested too deeply, or a number of thousands"),
        (f"[{'[],' * 2**21}[]]", "JSON of over 2,097,152 lists and objects"),
        (f"[{'1,' * 2**24}1,1]", "JSON of over 16,777,216 values"),
    ],
    ids=["deep", "digits", "lists", "values"],
)
def test_what_no_parser_reads_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(files.Unparsable, match=sentence):
        files.parse_json(text)


def test_a_text_of_code_may_have_millions_of_brackets() -> None:
    code = 'if a[\\"b\\\\\\"[0]\\"] == {}:' * 2**20
    assert len(files.parse_json(f'[{{"text": "{code}"}}]')[0]["text"]) > 2**20


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGES,
        b"- &a " + b"x" * 2**19 + b"\n- *a" * 100,
        b"a: &a\n  b: *a\n",
        b"[" * 5_000,
        b"!!python/x y",
    ],
)
def test_yaml_that_holds_more_than_it_says_is_refused(text: bytes) -> None:
    with pytest.raises(files.Unparsable, match="YAML"):
        files.load_yaml(text.decode())


@pytest.mark.parametrize(
    "number", [":".join(["59"] * 3_000), ":".join(["59"] * 3_000) + ".5", "0x" + "f" * 5_000]
)
def test_yaml_with_a_number_that_nothing_can_print_is_refused(number: str, tmp_path: Path) -> None:
    text = f"workload:\n  concurrency: {number}\n"
    with pytest.raises(files.Unparsable, match="no YAML"):
        files.load_yaml(text)
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"x\.yaml:2: workload\.concurrency is "):
        load_config(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://user:hunter2@host:1/0", "https://***@host:1/0"),
        ("X=https://:hunter2@h vllm serve m", "X=https://***@h vllm serve m"),
        ("http://host/a@b host:6379 a@b", "http://host/a@b host:6379 a@b"),
        ("a\n--events user:hunter2@host:1: no", "a\n--events ***@host:1: no"),
        ("http://user:hunt/er\\@2@host vllm/x:1@sha256:2", "http://***@host vllm/x:1@sha256:2"),
        ('{"password":"hunter 2", "max_tokens": "5"}', '{"password":"***", "max_tokens": "5"}'),
        ("{'access-token': 'hunter2'}", "{'access-token': '***'}"),
        ("HF_TOKEN=hunter2 vllm serve m --api-key hunter3 --api-key=h4 --max-tokens=5",
         "HF_TOKEN=*** vllm serve m --api-key *** --api-key=*** --max-tokens=5"),
    ],
)  # fmt: skip
def test_users_and_passwords_of_urls_are_masked_in_every_document(text: str, kept: str) -> None:
    assert mask_secrets(text) == kept
    assert files.whole_json({"a": [text]}) == {"a": [kept]}


def test_an_address_is_told_without_its_secrets() -> None:
    told = {
        "http://host:1/path": "http://host:1/path",
        "http://user:hunt/er@2@host:1/path?key=hunter2#x": "http://***@host:1/path?***",
        "8001=http://user:hunter2@host": "8001=http://***@host",
        "user:hunter2@host": "***@host",
        "http://host/?to=http://user:hunter2@host": "***@host",
    }
    assert {url: mask_url(url) for url in told} == told


def test_a_thousand_folders_within_each_other_are_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name too long"):
        make_folder(tmp_path / ("a/" * 1900))


def test_gzip_that_unpacks_to_very_much_is_refused_before_it_is(tmp_path: Path) -> None:
    """Equal prompts of a trace are packed 120 times at most, equal bytes a thousand times."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2**28)))
    with files.open_regular(tmp_path / "a.gz") as file:
        with pytest.raises(gzip.BadGzipFile, match="it unpacks to over 200 times its size"):
            files.unpack(file).read(2**28)
        assert file.tell() < 2**16
    ids = b",".join(b"%d" % number for number in range(100_000, 104_000))
    (tmp_path / "b.gz").write_bytes(gzip.compress(ids * 500))
    with files.open_regular(tmp_path / "b.gz") as file:
        assert len(files.unpack(file).read()) == 500 * len(ids)


def test_the_cache_is_where_the_platform_has_caches_and_nowhere_without_a_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.user_cache() == tmp_path / "dsv4kv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert files.user_cache() is None
