"""What cannot be a configuration, and the sentences that say so: ``refused.txt``.

``|`` begins a line of the file, ``--set`` and ``--axis`` options, ``!`` a line of the refusal.
``python -m tests.config.test_refused`` writes the refusals anew, to be looked at as a diff.
"""

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dsv4kv.config.load import expand_axes, load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError

REFUSED = Path(__file__).with_name("refused.txt")


def cases() -> Iterator[tuple[list[str], list[str]]]:
    """The lines that are given, and those of the refusal."""
    for block in REFUSED.read_text("utf-8").rstrip("\n").split("\n\n"):
        lines = block.split("\n")
        yield (
            [line for line in lines if line[0] != "!"],
            [line for line in lines if line[0] == "!"],
        )


def refusal(given: list[str]) -> list[str]:
    """Load the file with the options, in the current folder."""
    text = "\n".join(line[2:] for line in given if line[0] == "|")
    Path("bench.yaml").write_text(text, "utf-8")
    sets, axes = (
        [line.removeprefix(f"{option} ") for line in given if line.startswith(f"{option} ")]
        for option in ("--set", "--axis")
    )
    try:
        expand_axes(load_config("bench.yaml", sets), sets, axes)
    except ConfigError as error:
        return [f"! {line}" for line in str(error).splitlines()]
    return []


@pytest.mark.parametrize(("given", "told"), list(cases()), ids=[" ".join(g) for g, _ in cases()])
def test_a_configuration_is_refused_with_its_sentences(
    given: list[str], told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = refusal(given)
    assert found
    assert found == told
    assert not [word for word in ("pydantic", "http", "Input", "extra_") if word in str(told)]


BEYOND_SENSE = """
cost.gpus=1000000 fleet.transfer.gbps=1e-308 fleet.transfer.setup_ms=1e308
fleet.transfer.descriptor_us=1e308 fleet.slo.ttft_ms=1e308 fleet.gpu_hour_price=1e308
tiers.host.ratio=1e308 tiers.disk.write_gbps=1e-308 tiers.remote.latency_us=1e308
workload.speed=1e-308 workload.synthetic.requests=100000000 workload.synthetic.input.sigma=1e308
workload.synthetic.arrival_rate=1e-308 workload.synthetic.prefix_depth=100000000
"""


@pytest.mark.parametrize("setting", BEYOND_SENSE.split())
def test_a_number_beyond_sense_is_refused_with_its_range(setting: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(ConfigError, match=rf"{key} is .*{value[-3:]}'?: give an? .*at most"):
        load_config(None, [setting], ReplayConfig)


def main() -> None:
    """Write anew what every configuration is refused with."""
    with TemporaryDirectory() as folder, chdir(folder):
        blocks = ["\n".join([*given, *refusal(given)]) for given, _ in cases()]
    REFUSED.write_text("\n\n".join(blocks) + "\n", "utf-8")


if __name__ == "__main__":
    main()
