"""``dsv4kv calibrate``: a clock that goes by a user's own measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.cli.records import as_settings, write_json
from dsv4kv.cli.targets import to_file
from dsv4kv.files import user_calibrations
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.clock.coefficients import Coefficients

EPILOG = """\
[bold]Examples[/bold]

dsv4kv calibrate runs.jsonl --gpu h200 --gpus 8 --name mine   for cost.calibration

dsv4kv calibrate c1.json c64.json --gpus 8 --set cost.dp=8    a server with data parallelism
"""


def calibrate(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="What sglang.bench_serving --output-file or vllm bench serve --save-result "
            "wrote, several concurrencies if you can, one for 1.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="The model that was served.",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="On which GPU.")] = None,
    gpus: Annotated[int | None, typer.Option(help="On how many.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the server, as of dsv4kv replay: cost.dp=8.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A replay's configuration that has them."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Store the calibration: as a name, or a .yaml."),
    ] = None,
    json_: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write what was found; - prints it.",
            callback=to_file,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Fit the clock of replay to measured runs of your own server.

    Says which coefficients the runs determine, and how far runs that were left out are off.
    """
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.errors import ConfigError
    from dsv4kv.fitting.fit import dumps, fit_runs, open_scenes
    from dsv4kv.fitting.results import read_results
    from dsv4kv.view.calibrate import report_fit
    from dsv4kv.view.terminal import show

    silent, target = quiet or json_ == "-", _target(name)
    given = as_settings(
        {"model": "model.preset", "gpu": "cost.gpu", "gpus": "cost.gpus"},
        model=model, gpu=gpu, gpus=gpus,
    )  # fmt: skip
    scenes = open_scenes(config, [*(set_ or []), *given], read_results(results))
    with Watcher(open_console(stderr=True, quiet=silent), "calibrate", "replays") as watcher:
        found = fit_runs(scenes, watcher.reach)
    if not silent:
        show(report_fit(found))
    if json_:
        write_json(dumps(found), json_)
    if target is not None and found.doubts:
        raise ConfigError(f"--name {name}: not stored: {found.doubts[0]}")
    if target is not None:
        _store(target, found.coefficients)
        if not silent:
            say(f"stored: {target}, for --set cost.calibration={name}")


def _target(name: str | None) -> Path | None:
    """Where a calibration goes; refused before anything is replayed."""
    from dsv4kv.errors import ConfigError

    if name is None or name.endswith((".yaml", ".yml")):
        return None if name is None else Path(name)
    folder = user_calibrations()
    if folder is None or Path(name).name != name or Path(name).suffix:
        raise ConfigError(f"--name {name}: give a plain name, or a file that ends in .yaml.")
    return folder / f"{name}.yaml"


def _store(path: Path, coefficients: "Coefficients") -> None:
    import yaml

    from dsv4kv.errors import ConfigError
    from dsv4kv.files import write_named

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--name: {path.parent} cannot be made: {error.strerror}.") from error
    text = yaml.safe_dump(coefficients.model_dump(), sort_keys=False, width=99)
    write_named(path, text, "--name")
