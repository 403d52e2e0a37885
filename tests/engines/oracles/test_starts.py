"""What SGLang prints of its pools when it starts, or why it does not, is what it prints."""

from collections import Counter

from dsv4kv.engines.names import find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.planned import deployment_of
from tests.engines.oracles.starts import STARTS, VERSIONS, ask_starts, read_starts

PRINTED = ("DSV4 pool PP slice", "DSV4 memory calculation")


def test_starts_print_or_refuse_what_sglangs_own_configurator_does() -> None:
    """Word for word: prefixes off, no overlap, ranks of pipelines, limits that do not divide."""
    unlike = []
    for asked in read_starts():
        engine, told = find_engine(f"sglang:{asked['version']}"), asked["answer"]
        assert isinstance(engine, SglangEngine)
        capacity = engine.capacity(deployment_of(asked), asked["memory"])
        lines = [line for line in told["lines"] if line.startswith(PRINTED)]
        lines += [told["refusal"]] if told["refusal"] else []
        if list(capacity.log_lines) != lines or capacity.printed_tokens != told["full"]:
            unlike.append((asked, capacity.log_lines))
    assert unlike == []


def test_the_starts_are_of_every_kind() -> None:
    starts = read_starts()
    assert len(starts) == STARTS * len(VERSIONS) >= 360
    words = Counter(str(asked["answer"]["refusal"]).split(" (")[0] for asked in starts)
    assert min(words.values()) > 20
    assert set(words) == {"None", "SWA pool", "The DSV4 SWA pool cap"}
    for name, value in (("overlap", False), ("prefix_cache", False), ("dp", 8), ("stages", 3)):
        assert sum(asked[name] == value for asked in starts) > 30


@needs_engines
def test_the_starts_are_as_recorded() -> None:
    assert ask_starts() == list(read_starts())
