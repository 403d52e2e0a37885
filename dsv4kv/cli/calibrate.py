"""``dsv4kv replay calibrate``: a clock that goes by a user's own measurements."""

from pathlib import Path
from typing import Any

import yaml

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.files import make_folder, user_calibrations, write_named
from dsv4kv.view.console import say

EPILOG = examples(
    "dsv4kv replay calibrate runs.jsonl --gpu h200 --gpus 8 --name mine   for cost.calibration",
    "dsv4kv replay calibrate c1.json c64.json --gpus 8 --set cost.dp=8    a server with DP",
)
_RESULTS = (
    "What sglang.bench_serving --output-file, vllm bench serve --save-result, AIPerf or guidellm "
    "wrote, several concurrencies if you can, one for 1."
)
SHORTHANDS = {
    "model": opt.Row(opt.MODELS, "NAME|FILE", "v4-flash", key="model.preset"),
    "gpu": opt.Row(opt.GPU, "NAME", "h200", key="cost.gpu"),
    "gpus": opt.Row("Number of GPUs.", "N", "2", kind=int, key="cost.gpus"),
}
"""Options that stand for settings."""


@opt.takes(SHORTHANDS)
def calibrate(
    given: dict[str, Any],
    results: list[Path] = opt.required(_RESULTS),
    set_: opt.Texts = opt.SET_RARE,
    config: opt.Text = opt.option("Replay config with these settings.", "FILE", rare=True),
    name: opt.Text = opt.option("Store the calibration: as a name, or a .yaml.", "NAME|FILE"),
    json_: opt.Text = opt.JSON,
    quiet: bool = opt.QUIET,
) -> None:
    """Fit the step times of replay to measured runs of your own server.

    Prints which coefficients the runs determine, and the error on held-out runs.
    """
    from dsv4kv.replay.clock.fit import dumps, fit_runs, open_scenes
    from dsv4kv.replay.clock.measured import read_results
    from dsv4kv.view.calibrate import report_fit
    from dsv4kv.view.render import show

    silent, target = quiet or json_ == "-", _target(name)
    settings = [*(set_ or []), *opt.as_settings(SHORTHANDS, given)]
    scenes = open_scenes(config, settings, read_results(results))
    with opt.watch("calibrate", "replays", quiet=silent) as watcher:
        found = fit_runs(scenes, watcher.reach)
    if not silent:
        show(report_fit(found))
    if json_:
        opt.write_json(dumps(found), json_)
    if target is None:
        return
    if found.doubts:
        raise ConfigError(f"--name {name}: not stored: {found.doubts[0]}")
    try:
        make_folder(target.parent)
    except OSError as error:
        raise ConfigError(f"--name: {target.parent} cannot be made: {error.strerror}.") from error
    text = yaml.safe_dump(found.coefficients.model_dump(), sort_keys=False, width=99)
    write_named(target, text, "--name")
    if not silent:
        say(f"stored: {target}, for --set cost.calibration={name}")


def _target(name: str | None) -> Path | None:
    """Where a calibration goes; refused before anything is replayed."""
    if name is None or name.endswith((".yaml", ".yml")):
        return None if name is None else Path(name)
    folder = user_calibrations()
    if folder is None or Path(name).name != name or Path(name).suffix:
        raise ConfigError(f"--name {name}: give a plain name, or a file that ends in .yaml.")
    return folder / f"{name}.yaml"
