"""Every command that reads a file of somebody else's, and good files for it."""

import gzip
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml

from dsv4kv.record.folder import STREAMS, Recording
from dsv4kv.runs.store import DIGEST, digest, dumps
from tests.bench.compare.launched import make_launched_record
from tests.budget.pasted import PASTED, PUBLISHED
from tests.commands import COMMANDS, leaves, write_files
from tests.diagnose.faults.results import SGLANG as SGLANG_RUN
from tests.diagnose.faults.results import VLLM as VLLM_RUN
from tests.engines.logs.startup import REFUSAL, SGLANG, VLLM_0_26, VLLM_0_33
from tests.fuzz import mutate as mt
from tests.profile.exports import two_replays
from tests.profile.kernel_profiles import from_kineto, make_profile
from tests.profile.traces import cpu_events, gpu_events, save
from tests.runs.records import make_case, make_record, make_sweep_cases
from tests.traces.test_formats import SAMPLES

_HERE = Path(__file__).parents[1]
SHIPPED = Path(__file__).parents[2] / "configs"
HUGGING_FACE = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "head_dim": 512,
    "num_attention_heads": 64, "num_key_value_heads": 1, "sliding_window": 128,
    "compress_ratios": [0, 0] + [4, 128] * 20 + [4] + [0], "index_head_dim": 128,
    "index_n_heads": 64, "index_topk": 512, "rms_norm_eps": 1e-6, "qk_rope_head_dim": 64,
    "rope_theta": 10000, "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1,
    "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                     "beta_fast": 32, "beta_slow": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A way to read files.

    Attributes:
        commands: FILE is the file's path.
        make: Writes a good file into a folder and returns it.
        mutations: Ways to make it odd.
        name: Of the odd file.
    """

    commands: Sequence[str]
    make: Callable[[Path, Random], Path]
    mutations: Sequence[mt.Mutation]
    name: str = "odd.json"

    def make_odd(self, folder: Path, random: Random) -> Path:
        """An odd file in the folder."""
        source, target = self.make(folder, random), folder / self.name
        mutation = random.choice(self.mutations)
        if mutation is in_database:
            mt.odd_database(source, random)
            source.rename(target)
        else:
            target.write_bytes(mutation(source.read_bytes(), random))
        return target


def in_database(content: bytes, random: Random) -> bytes:
    """Stands for changes that need the file itself."""
    raise NotImplementedError


def with_digest(content: bytes, random: Random) -> bytes:
    """A record bent by somebody who can work out its digest."""
    document = json.loads(content)
    document.pop(DIGEST)
    document = mt.bend(document, random)
    try:
        return mt.dump(document | {DIGEST: digest(document)})
    except (TypeError, ValueError, RecursionError):  # no digest of this
        return mt.dump(document)


def packed(content: bytes, random: Random) -> bytes:
    """Damage before and after packing."""
    return mt.damage(gzip.compress(mt.odd_json(content, random)), random)


def _text(*texts: str) -> Callable[[Path, Random], Path]:
    def make(folder: Path, random: Random) -> Path:
        (folder / "good").write_text(random.choice(texts))
        return folder / "good"

    return make


def _make_record(folder: Path, random: Random) -> Path:
    kind = random.randrange(4)
    if kind == 0:
        record = make_record(make_case())
    elif kind == 1:
        record = make_record(*make_sweep_cases())
    elif kind == 2:
        record = make_launched_record()
    else:
        record = make_record(make_case(profile=make_profile(from_kineto(folder))))
    (folder / "good").write_text(dumps(record))
    return folder / "good"


def _make_chrome(folder: Path, random: Random) -> Path:
    events = gpu_events() if random.random() < 0.7 else cpu_events()
    return save(folder / "good.json", events, indent=random.choice((None, 1)))


def _make_export(folder: Path, random: Random) -> Path:
    return two_replays().save(folder / "good.sqlite")


def _recorded(stream: str) -> Reader:
    """A recording, of which one stream is odd."""

    def make(folder: Path, random: Random) -> Path:
        with Recording(folder / "recording", clock=lambda: 1e9) as recording:
            for n in range(20):
                row: dict[str, Any] = {
                    "source": "proxy:0",
                    "id": n,
                    "status": 200,
                    "end": "done",
                    "grain": 64,
                }
                row |= {"arrival_s": 1e9 + n, "first_s": 1e9 + n + 0.1, "last_s": 1e9 + n + 0.5}
                row |= {"input_tokens": 256, "output_tokens": 3, "cached_tokens": 64}
                recording.write("requests", row | {"ids": [1, 2, n, n + 1]})
                event: dict[str, Any] = {
                    "stored": [n],
                    "parent": n - 1 if n else None,
                    "size": 64,
                    "chain": True,
                }
                event |= {"grain": 64, "ids": [n], "medium": "GPU", "group": 0}
                batch = {"source": "events:0", "place": [n, 1e9 + n], "ts": 1e9 + n, "rank": 0}
                batch |= {"events": [event, {"removed": [n - 9]}, {"cleared": True}][: 1 + n % 3]}
                recording.write("events", batch)
                counted = {"vllm:prefix_cache_hits_total": 64 * n, "vllm:kv_cache_usage_perc": 0.1}
                counted |= {"vllm:prefix_cache_queries_total": 256 * n}
                recording.write("metrics", {"source": "metrics:0", "values": counted})
            settings = {"block_size": "64", "num_gpu_blocks": "9999"}
            note = {"what": "server", "source": "metrics:0", "settings": settings}
            recording.write("notes", note)
        return folder / "recording" / f"{stream}.000000.jsonl"

    return Reader(
        (
            "trace convert recording out.jsonl",
            "trace info recording",
            "replay recording --against --rule vllm --memory 10GiB",
            "watch recording --seconds 0",
            "record recording --requests record/record.json --once --quiet",
        ),
        make,
        (mt.damage, mt.odd_json, mt.odd_json),
        f"recording/{stream}.000000.jsonl",
    )


def _make_dump(folder: Path, random: Random) -> Path:
    np.save(folder / "good.npy", np.ones((2, 64 * 584), np.uint8))
    return folder / "good.npy"


def _make_safetensors(folder: Path, random: Random) -> Path:
    entry = {"dtype": "U8", "shape": [2, 584], "data_offsets": [0, 1168]}
    header = mt.odd_json(json.dumps({"kv": entry}).encode(), random)
    content = len(header).to_bytes(8, "little") + header + bytes(1168)
    (folder / "good").write_bytes(content)
    return folder / "good"


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(f"INFO 09-12 10:00:0{i % 9} {line}" for i, line in enumerate(lines)) + "\n"


_YAML = tuple(path.read_text() for path in sorted((SHIPPED / "bench").glob("*.yaml")))
_REPLAY = tuple(path.read_text() for path in sorted((SHIPPED / "replay").glob("*.yaml")))
_RESULTS = "".join(json.dumps(run) + "\n" for run in (SGLANG_RUN, VLLM_RUN))
_COEFFICIENTS = yaml.safe_dump(
    yaml.safe_load((SHIPPED / "gpus" / "h200.yaml").read_text())["clock"]["fp4"]
)
_TRACE = (
    "trace info FILE",
    "trace info FILE --json",
    "trace convert FILE out.jsonl",
    "trace mrc FILE --capacity 1K,64K",
    "replay FILE --out results",
)


def odd_options(folder: Path, random: Random) -> list[str]:
    """A small run of some command with an option or argument of an odd value."""
    write_files(folder)
    (folder / "empty").touch()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / os.fsdecode(b"\xff\xfe")).write_bytes(b"\x80")
    name = random.choice(sorted(set(COMMANDS) - {"bench", "doctor", "kernels", "profile"}))
    command = leaves()[name]
    words = ["1" if word == "2" else word for word in random.choice(COMMANDS[name])]  # here alone
    for _ in range(random.choice((1, 1, 2))):
        parameter = random.choice([each for each in command.params if each.name != "processes"])
        odd = str(random.choice((*ODD_WORDS, *(str(each.name) for each in folder.iterdir()))))
        places = [n for n, word in enumerate(words) if n and not word.startswith("-")]
        if places and (parameter.param_type_name == "argument" or random.random() < 0.2):
            words[random.choice(places)] = odd
        elif getattr(parameter, "is_flag", False):
            words.append(random.choice(parameter.opts))
        else:
            key = random.choice(list(ODD_KEYS))
            words += [
                random.choice(parameter.opts),
                f"{key}={odd}" if random.random() < 0.2 else odd,
            ]
    return [words[0], *(word for word in words[1:] if word != "--write-baseline")]


ODD_WORDS = (
    "", " ", "-", "--", ".", "/dev/zero", "/dev/null", "x" * 300, "x" * 70_000,
    "y/" * 3_000, "0", "-1", "1", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 30,
    "9" * 5_000, "9" * 30 + "K", "1_0", "１２", "0x10", "1:1", "1,", ",", "a=b", "=", "null",
    "[1]", "[" * 3_000, "{a: b}", "&a [*a]", "\udcff", "\u202e", "\x1b[2J", "é", "http://", "http://[",
    "tcp://x:99999999", "1=http://\udcff", "127.0.0.1:0", "vllm:", "vllm:9.9", "\n", "%s", "{0}",
    "[/b]",
)  # fmt: skip
ODD_KEYS = (
    "cache.num_blocks",
    "engine",
    "cost.gpu",
    "gpu",
    "ttft_p99",
    "x",
    "",
    "a.b.c.d",
    "h200",
)


_ASKED: dict[str, Any] = {
    "run_id": "a", "started_utc": "2026-11-23T03:00:00+00:00", "command": "replay",
    "version": "0.1.0", "machine": None, "config_source": "default", "config_sha256": "c",
    "overrides": [], "axes": ["prefix.policy=lru,lfu"], "traces_sha256": {}, "points_sha256": "e",
    "count": 2,
}  # fmt: skip
READERS = {
    "record": Reader(
        (
            "report FILE",
            "report FILE --json",
            "report FILE --csv",
            "compare FILE FILE",
            "report list --folder .",
        ),
        _make_record,
        (with_digest, with_digest, with_digest, mt.damage, mt.odd_json),
    ),
    "page": Reader(("report FILE --html page.html",), _make_record, (with_digest,)),
    "config": Reader(
        ("config show FILE",), _text(*_YAML), (mt.damage, mt.odd_words, mt.odd_yaml), "odd.yaml"
    ),
    "replay config": Reader(
        ("replay none.jsonl --config FILE",),
        _text(*_REPLAY),
        (mt.damage, mt.odd_words, mt.odd_yaml),
        "odd.yaml",
    ),
    "model": Reader(
        ("budget --model FILE", "budget --model FILE --engine vllm:0.33"),
        _text(json.dumps(HUGGING_FACE)),
        (mt.damage, mt.odd_json, mt.odd_json),
        "config.json",
    ),
    "log": Reader(
        ("explain FILE", "explain FILE --json"),
        _text(*(_lines(lines) for lines in (VLLM_0_26, VLLM_0_33, REFUSAL, SGLANG))),
        (mt.damage, mt.odd_words, mt.odd_words),
        "start.log",
    ),
    **{
        f"trace {name}": Reader(
            _TRACE, _text(text), (mt.damage, mt.odd_json, mt.odd_words, packed), "odd"
        )
        for name, text in SAMPLES.items()
    },
    "chrome": Reader(
        ("profile FILE", "explain FILE"),
        _make_chrome,
        (mt.damage, mt.odd_json, mt.odd_json, packed),
    ),
    "nsys": Reader(
        ("profile FILE",),
        _make_export,
        (mt.damage, in_database, in_database, in_database),
        "odd.sqlite",
    ),
    "command": Reader(
        ("budget --command FILE", "explain FILE", "lint FILE", "lint FILE --json"),
        _text(*(launch.text for launch in PASTED + PUBLISHED)),
        (mt.damage, mt.odd_words, mt.odd_yaml),
        "serve.yaml",
    ),
    "results": Reader(
        ("replay calibrate FILE --gpu h200 --quiet", "lint FILE", "explain FILE"),
        _text(_RESULTS),
        (mt.damage, mt.odd_json, mt.odd_json),
        "runs.jsonl",
    ),
    **{f"recorded {stream}": _recorded(stream) for stream in STREAMS},
    "requests": Reader(
        ("record recording --requests FILE --once --quiet",),
        _text(*(path.read_text() for path in (_HERE / "record" / "logs").iterdir())),
        (mt.damage, mt.odd_json, mt.odd_words),
        "requests.log",
    ),
    "coefficients": Reader(
        ("replay builtin:chat --quiet --set cost.calibration=./FILE",),
        _text(_COEFFICIENTS),
        (mt.damage, mt.odd_words, mt.odd_yaml),
        "mine.yaml",
    ),
    "dump": Reader(
        ("inspect FILE --entries 64", "inspect FILE --table FILE --ratio 4"),
        _make_dump,
        (mt.damage, mt.damage, packed),
        "pages.npy",
    ),
    "safetensors": Reader(("inspect FILE",), _make_safetensors, (mt.damage,), "kv.safetensors"),
    "points": Reader(
        ("report list --folder .", "replay --resume FILE --quiet"),
        _text(json.dumps(_ASKED), "\n", '{"point": 0, "case": {}}\n'),
        (mt.damage, mt.odd_json),
        "a.points.jsonl",
    ),
}
