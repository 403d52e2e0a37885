"""What vLLM holds other than weights and cache is what its own dummy runs ask for."""

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.vllm.sizes import hca_index_bytes, workspace_bytes
from dsv4kv.model.plan import choose_formats
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.planned import model_of
from tests.engines.oracles.workspaces import SETTINGS, ask_workspaces, read_workspaces


def test_the_workspace_has_the_bytes_that_vllms_dummy_runs_ask_for() -> None:
    """To the byte, on V4, V4.1 and V3.2."""
    rows = read_workspaces()
    assert len(rows) == SETTINGS
    unlike = []
    for asked in rows:
        model = model_of(asked["model"])
        deployment = Deployment(
            model,
            choose_formats(model, indexer="mxfp4" if asked["mxfp4"] else "fp8"),
            max_context_tokens=asked["context"],
            in_flight_tokens=asked["step"],
        )
        found = {
            "workspace": workspace_bytes(deployment, asked["step"]),
            "hca": hca_index_bytes(deployment, asked["step"]) if asked["kind"] == "v4" else 0,
        }
        if found != asked["answer"]:
            unlike.append((asked, found))
    assert unlike == []


@needs_engines
def test_the_dummy_runs_ask_as_recorded() -> None:
    assert ask_workspaces() == read_workspaces()
