"""Made-up runs of every kind that a page can show, and the pages of them, built once."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dsv4kv.bench.compare.comparison import Comparison, compare
from dsv4kv.bench.compare.verdict import Verdict
from dsv4kv.budget.sweep import parse_axis, run_sweep
from dsv4kv.config.load import expand_axes, load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.model.presets import load_model
from dsv4kv.profile.read import load_profile, record_of_profile
from dsv4kv.replay.fleet.case import serve_point
from dsv4kv.replay.mrc import Question, measure_trace
from dsv4kv.replay.plan import question as plans
from dsv4kv.replay.plan.question import parse_slos, poisson
from dsv4kv.replay.plan.search import Search, Tally, list_kinds, plan
from dsv4kv.replay.run import run_replay
from dsv4kv.runs.points import Invocation
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.traces import load_paths
from dsv4kv.view.budget import sweep_page
from dsv4kv.view.compare import comparison_page
from dsv4kv.view.html import render_page
from dsv4kv.view.plan import plan_page
from dsv4kv.view.plots import Bar, bars
from dsv4kv.view.runs import run_page, runs_page
from dsv4kv.view.table import Page, Section
from dsv4kv.view.trace import mrc_page
from tests.bench.compare.launched import make_launched_record, make_side
from tests.profile.exports import two_replays
from tests.profile.kernel_profiles import from_nsys, make_profile
from tests.runs import records
from tests.runs.telemetries import make_gpu_samples, make_telemetry, make_window
from tests.runs.test_gpu_record import make_gpu_case

ATTACK = '<script>alert("1")</script> & <img src=x onerror=alert(2)>'


def make_comparison(before: str = "main", after: str = "change") -> Comparison:
    """Launches of two sides; one operation is slower."""
    sides = (
        make_side(before, make_launched_record(seed=1)),
        make_side(after, make_launched_record(seed=2, factors={"flush": 1.1})),
    )
    return compare(*sides, 0.01)


def make_gpu_record() -> RunRecord:
    """A GPU with telemetry, throttled in the middle, and a profile."""
    window = make_window(1)
    capped = make_gpu_samples(
        3, reasons=lambda at: 0x4 * (window.started_ns <= at <= window.ended_ns)
    )
    with TemporaryDirectory() as folder:
        profile = make_profile(from_nsys(Path(folder)))
    case = make_gpu_case(telemetry=make_telemetry(gpu_samples=capped), profile=profile)
    return records.make_record(case, environment=records.make_environment(gpu=records.H200))


def make_hostile_record() -> RunRecord:
    """Texts that a browser must not take for markup, wherever a record has texts."""
    failed: Case = records.make_failed_case(ATTACK, axis={"trace": ATTACK})
    environment = records.make_environment(cpu=ATTACK, variables={"OMP": ATTACK})
    return records.make_record(
        records.make_case(axis={"trace": "a"}),
        failed,
        environment=environment,
        reproduce=ATTACK,
        config_source=ATTACK,
    ).model_copy(update={"run_id": ATTACK})


def make_replay_record(*axes: str, replicas: int = 0) -> RunRecord:
    """A replay of a few requests, or a sweep."""
    overrides = ["workload.trace=builtin:chat", "workload.limit=12"]
    overrides += [f"fleet.replicas={replicas}"] if replicas else []
    loaded = load_config(None, overrides, ReplayConfig)
    points = expand_axes(loaded, overrides, axes)
    invocation = Invocation(["dsv4kv", "replay"], loaded, points, overrides, axes)
    return run_replay(invocation, lambda done, total: None, serve_point)


def make_plain() -> RunRecord:
    """A run without operations and times: its page is drawn soon."""
    return records.make_record(records.make_case(operations=[], memcpy=None, latencies=[]))


LONG = "/data/of/many/traces" * 12 + "/conversation.jsonl"


def make_long_names() -> RunRecord:
    """A sweep over lists and over paths that no line and no axis has room for."""
    settings = [([0, 2], LONG), ([0, 2, 3], LONG), ([0], "builtin:chat")]
    cases = [
        records.make_case(axis={"model.layers": layers, "workload.trace": trace}, operations=[])
        for layers, trace in settings
    ]
    return records.make_record(*cases, config_source=LONG, trace_source=LONG)


RECORDS: dict[str, list[RunRecord]] = {
    "one case": [records.make_record(records.make_case())],
    "bookkeeping": [records.make_record(records.make_case(operations=[], memcpy=None))],
    "a sweep": [records.make_record(*records.make_sweep_cases())],
    "launches": [make_launched_record(3)],
    "a GPU": [make_gpu_record()],
    "a failure": [records.make_record(records.make_failed_case())],
    "no case": [records.make_record(status="incomplete").model_copy(update={"cases": []})],
    "two runs": [make_plain(), make_gpu_record()],
    "long names": [make_long_names()],
    "hostile texts": [make_hostile_record()],
    "a replay": [make_replay_record()],
    "replays alike": [make_replay_record("cache.checkpoint_share=0.05,0.15")],
    "a fleet": [make_replay_record("fleet.router=round_robin,cache_aware", replicas=3)],
    "choices": [make_replay_record("prefix.strategy=full,zero,ends+junctions")],
}


def make_server_profile() -> Page:
    """A server's profile, read from an export of nsys."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "server.sqlite"
        export = two_replays()
        export.kernel("_fused_kv_compress_norm_rope_insert_hca_kernel", 100, 70_000, 90_000)
        source = load_profile(export.save(path), "step")
        return run_page(record_of_profile(source.profile, path, "step", ["dsv4kv"]))


def make_budget() -> Page:
    """A sweep of contexts and GPUs."""
    axes = [parse_axis("context=4K,1M"), parse_axis("gpu=h200,b200")]
    return sweep_page(run_sweep({"gpus": "8"}, axes))


def make_curve() -> Page:
    """Hit rates of a trace by capacity."""
    model = load_model("v4-flash")
    asked = Question(model=model, strategies=("zero", "ends"), rules=("vllm-v4:semantic",))
    return mrc_page("builtin:chat", model.name, measure_trace(load_paths("builtin:chat"), asked))


def make_plan() -> Page:
    """A plan for a steady rate."""
    slos = parse_slos(["ttft_p90=2s"])
    requests = poisson(1000, 20, 1.0, 0, slos)
    asked, tally = plans.Question(requests, slos, most_gpus=4), Tally()
    settings = ["model.preset=v4-flash"]
    kinds = list_kinds(asked, settings, "sglang", ["b200"], ["round_robin"], "v4-flash", tally)
    answer = plan(Search(asked, kinds, requests, tally))
    return plan_page(answer, asked, gpus=["b200"], trace="day.jsonl", settings=settings)


def make_charts() -> Page:
    """Charts whose names and ticks are close to each other."""
    rates = [Bar(f"operation {n}", 10.0**n / 1e9, "0.011 ± 0.010") for n in range(6, 12)]
    charts = [
        bars("Rates", rates, unit="GB/s", dots=True, lines={"memcpy": 21.2, "datasheet": 40.0}),
    ]
    return Page("Charts", ["of close values"], [Section("Charts", charts)])


OTHERS = {
    "charts": make_charts,
    "a server": make_server_profile,
    "a budget": make_budget,
    "a curve": make_curve,
    "a plan": make_plan,
}
COMPARISONS = {"a comparison": ("main", "change"), "a comparison of long names": (LONG, LONG)}
RUNS = [*RECORDS, *COMPARISONS, *OTHERS]


@cache
def page_of(name: str) -> Page:
    """The page of one of ``RUNS``."""
    if name in RECORDS:
        return runs_page(RECORDS[name])
    if name in OTHERS:
        return OTHERS[name]()
    comparison = make_comparison(*COMPARISONS[name])
    return comparison_page(comparison, Verdict.SLOWER)


@cache
def html_of(name: str) -> str:
    """Its HTML."""
    return render_page(page_of(name))
