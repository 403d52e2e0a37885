"""What an engine stores: by its version, the GPU's architecture, its backend and its layout.

What is in no row keeps the model's own formats.
Source: vLLM 0.33.0 (``models/deepseek_v41/nvidia/model.py`` and ``attention.py``,
``v1/attention/backends/mla/indexer.py``, ``utils/deep_gemm.py``); SGLang 0.5.23 (``arg_groups``:
``deepseek_v4_hook.py`` and ``overrides.py``; ``mem_cache/deepseek_v4_memory_pool.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from dsv4kv.engines.names import ENGINES
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import Place

PLACES: tuple[Place, ...] = ("main", "window", "indexer")


@dataclass(frozen=True)
class Site:
    """What decides the formats of a cache; ``split`` runs prefill and decode apart.

    Backend and dtype (``--kv-cache-dtype``) are as the engine names them.
    """

    engine: str
    model: DSV4Config
    arch: str | None
    tp: int = 1
    split: bool = False
    backend: str | None = None
    dtype: str = "auto"

    @property
    def family(self) -> str:
        return self.engine.partition(":")[0]

    @property
    def version(self) -> Any:
        """The engine's row of its version; None where it has no versions."""
        return ENGINES[self.engine][1]

    @property
    def sm100(self) -> bool:
        """A datacenter Blackwell: B200, B300 and their Grace kin."""
        return self.arch in ("sm_100", "sm_103")

    @property
    def plain(self) -> bool:
        """FlashInfer in vLLM, which on a datacenter Blackwell stores plain rows."""
        return self.sm100 and "FLASHINFER" in (self.backend or "").upper()

    @property
    def mega(self) -> bool:
        """Mega attention of vLLM for V4.1: a rank has 8 heads for each of its output groups."""
        fits = self.tp in (1, 2, 4, 8) and self.backend in (None, "FLASHMLA_MEGA_ATTN_DSV41")
        return self.sm100 and fits and self.dtype in ("auto", "fp8", "nvfp4_ds_mla")

    @property
    def sglang_mega(self) -> bool:
        """SGLang's ``flashmla_mega`` for V4.1, which tensor-parallel attention turns off."""
        unshared = self.split or self.tp == 1
        chosen = self.backend == "flashmla_mega" or (self.backend is None and unshared)
        return self.sm100 and chosen and self.dtype in ("auto", "fp8_e4m3")


class Stored(NamedTuple):
    """Formats by place, and why; an empty name is the model's own."""

    main: str
    window: str
    indexer: str
    reason: str


_ENTRY, _PLAIN = "fp8_ds_mla", "plain rows, which FlashInfer's backend stores on SM100"
_AS_SM100 = "as on SM100: which GPU it is is not known"
_WHOLE, _HALF = "fp8_group32_interleaved", "fp4_interleaved"

_T = TypeVar("_T")
_Table = tuple[tuple[str, tuple[str, ...], Callable[[Site], bool], _T], ...]
"""By engine and generations of models; the first row that applies counts."""
_TABLE: _Table[Stored] = (
    ("vllm", ("v41",), lambda s: s.arch is None, Stored(_HALF, _WHOLE, "fp8", _AS_SM100)),
    ("vllm", ("v41",), lambda s: not s.version.sm100_formats,
     Stored(_ENTRY, _ENTRY, "fp8", "V4's record, on every GPU up to 0.30")),
    ("vllm", ("v4", "v41"), lambda s: s.plain and s.dtype.startswith("fp8"),
     Stored("fp8", "fp8", "fp8", _PLAIN)),
    ("vllm", ("v4", "v41"), lambda s: s.plain, Stored("bf16", "bf16", "fp8", _PLAIN)),
    ("vllm", ("v4",), lambda _: True, Stored(_ENTRY, _ENTRY, "fp8", "vLLM's for V4 on every GPU")),
    ("vllm", ("v41",), lambda s: s.mega,
     Stored(_HALF, _WHOLE, "fp8", "nvfp4_ds_mla of mega attention, vLLM's on SM100 up to TP8")),
    ("vllm", ("v41",), lambda s: s.sm100,
     Stored(_WHOLE, _WHOLE, "fp8", "vLLM's V4.1 records on SM100 without mega attention")),
    ("vllm", ("v41",), lambda _: True,
     Stored(_ENTRY, _ENTRY, "fp8", "V4's record: V4.1's are read on SM100 only")),
    ("vllm", ("flat",), lambda s: s.dtype == "nvfp4_ds_mla",
     Stored("nvfp4", "", "fp8", "nvfp4_ds_mla, on SM100")),
    ("vllm", ("flat",), lambda s: s.dtype.startswith("fp8"),
     Stored(_ENTRY, "", "fp8", "as given")),
    ("vllm", ("flat",), lambda _: True,
     Stored("bf16", "", "fp8", "vLLM's auto for V3.2; --kv-cache-dtype fp8 stores 656 B")),
    ("sglang", ("v4",), lambda s: s.backend == "trtllm",
     Stored("fp8", "fp8", "fp8", "uniform FP8 for the backend trtllm")),
    ("sglang", ("v4",), lambda _: True,
     Stored(_ENTRY, _ENTRY, "fp8", "SGLang's SGLANG_DSV4_KV_LAYOUT=v4, on every GPU")),
    ("sglang", ("v41",), lambda s: s.arch is None,
     Stored("fp4", "fp8_group32", "mxfp4", _AS_SM100)),
    ("sglang", ("v41",), lambda s: not s.version.v41_pages,
     Stored(_ENTRY, _ENTRY, "mxfp4", "V4's record: SGLANG_DSV4_KV_LAYOUT=v4 up to 0.5.22")),
    ("sglang", ("v41",), lambda s: s.sglang_mega,
     Stored("fp4", "fp8_group32", "mxfp4", "flashmla_mega: SM100, attention not tensor parallel")),
    ("sglang", ("v41",), lambda s: s.sm100,
     Stored(_ENTRY, _ENTRY, "mxfp4", "V4's record: tensor parallel attention")),
    ("sglang", ("v41",), lambda _: True,
     Stored(_ENTRY, _ENTRY, "mxfp4", "V4's record: V4.1's are read on SM100 and gfx950")),
    ("sglang", ("flat",), lambda s: s.sm100 and s.dtype != "bfloat16",
     Stored("fp8", "", "fp8", "SGLang's backend trtllm on SM100 keeps 576 e4m3")),
    ("sglang", ("flat",), lambda s: s.dtype.startswith("fp8"),
     Stored(_ENTRY, "", "fp8", "as given")),
    ("sglang", ("flat",), lambda _: True,
     Stored("bf16", "", "fp8", "SGLang's for V3.2 below SM100")),
)  # fmt: skip

_FP8 = ("fp8", "fp8_e4m3")
_DTYPES: _Table[tuple[str, ...]] = (
    ("vllm", ("v4", "v41"), lambda s: s.plain, ("bfloat16", *_FP8)),
    ("vllm", ("v4",), lambda _: True, (*_FP8, "fp8_ds_mla")),
    ("vllm", ("v41",), lambda s: s.mega, ("fp8", "fp8_ds_mla", "nvfp4_ds_mla")),
    ("vllm", ("v41",), lambda _: True, ("fp8", "fp8_ds_mla")),
    ("vllm", ("flat",), lambda s: s.sm100, ("bfloat16", *_FP8, "fp8_ds_mla", "nvfp4_ds_mla")),
    ("vllm", ("flat",), lambda _: True, ("bfloat16", *_FP8, "fp8_ds_mla")),
    ("sglang", ("v4", "v41"), lambda _: True, ("fp8_e4m3",)),
    ("sglang", ("flat",), lambda _: True, ("bfloat16", "fp8_e4m3")),
)
"""Values of ``--kv-cache-dtype`` other than ``auto``. Source: vLLM 0.33.0
(``_resolve_dsv4_kv_cache_dtype`` of either model), SGLang 0.5.23 (``overrides.py``)."""

_SM100 = ("sm_100", "sm_103")
_KEPT: tuple[tuple[str, Callable[[Any], bool], dict[str, tuple[str, ...]]], ...] = (
    ("vllm", lambda s: s.model.kind == "flat", {"mxfp4": ()}),  # no insert writes it
    ("vllm", lambda s: bool(s.version.sm100_formats),
     {"mxfp4": (*_SM100, "gfx950"), "fp8_group32": (), "fp4": ()}
     | dict.fromkeys(("fp8_ue8m0x4", _WHOLE, _HALF), _SM100)),
    ("vllm", lambda _: True, {"mxfp4": _SM100}),  # asserted by 0.22.1 and 0.23.0
    ("sglang", lambda s: "v41" in s.version.kinds,
     {"mxfp4": (*_SM100, "sm_120", "sm_121", "gfx950"), "fp8_ue8m0x4": ()}),
    ("sglang", lambda s: bool(s.version.v41_pages),
     dict.fromkeys((_WHOLE, _HALF), _SM100)
     | dict.fromkeys(("fp8_group32", "fp4"), (*_SM100, "gfx950"))),
)  # fmt: skip
"""Where versions of an engine keep a format; any other they keep wherever they keep the place."""


def stored_formats(site: Site, asked: Mapping[Place, str | None]) -> dict[Place, tuple[str, str]]:
    """Name and reason of the format of every place; no reason where it was asked for.

    Raises ``ConfigError`` for a format or dtype that the engine does not keep on such a GPU.
    """
    family, own, there = site.family, site.model.formats, replace(site, dtype="auto")
    dtypes = _first(_DTYPES, there)
    if dtypes and site.dtype not in ("auto", *dtypes):
        backend = f" and {site.backend}" if site.backend else ""
        raise ConfigError(
            f"--kv-cache-dtype {site.dtype}: {site.engine} keeps {site.model.name} on "
            f"{site.arch or 'such a GPU'}{backend} in auto, {', '.join(dtypes)}: choose one "
            "of these."
        )
    found = _first(_TABLE, site) or Stored("", "", "", "the model's own")
    if family == "vllm" and site.version.sm100_formats and site.sm100:
        found = found._replace(indexer="fp8_ue8m0x4")
    chosen: dict[Place, tuple[str, str]] = {}
    for place in PLACES:
        name = asked.get(place)
        if name is None:
            chosen[place] = (getattr(found, place) or getattr(own, place), found.reason)
            continue
        _check(site, place, name)
        chosen[place] = (name, "")
        if name == "mxfp4" and family == "vllm" and site.version.half_keys:
            chosen[place] = ("fp8", "MXFP4 keys fill the first half of FP8's bytes up to 0.28")
    return chosen


def _first(table: _Table[_T], site: Site) -> _T | None:
    found = (
        value
        for family, kinds, applies, value in table
        if family == site.family and site.model.kind in kinds and applies(site)
    )
    return next(found, None)


def _check(site: Site, place: Place, name: str) -> None:
    found = (rows.get(name) for family, of, rows in _KEPT
             if family == site.family and of(site))  # fmt: skip
    where = next((each for each in found if each is not None), None)
    forced = site.family == "sglang" and site.model.kind == "v41" and place == "indexer"
    if where is None or site.arch is None or site.arch in where or forced:
        return
    on = f"only on {', '.join(where)}, and this GPU is {site.arch}" if where else "on no GPU"
    raise ConfigError(
        f"{site.engine} keeps {name} of {site.model.name} {on}: leave --{place}-format out for "
        "its own, or choose another."
    )
