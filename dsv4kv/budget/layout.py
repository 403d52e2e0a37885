"""How a deployment is spread over GPUs: tensor, data, pipeline and expert parallelism."""

from dataclasses import dataclass
from functools import cached_property
from math import lcm

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config

_MOST_GPUS = 2**20
NODE_GPUS = 8
"""GPUs of one server, the widest tensor parallelism that is chosen unasked."""


@dataclass(frozen=True)
class Layout:
    """A deployment of ``tp * dp * pp`` GPUs.

    A tensor parallel rank holds the whole KV of its replica; ``ep`` ranks of a stage share its
    routed experts.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.dp * self.pp

    @cached_property
    def expert_ranks(self) -> int:
        """Ranks of a stage that hold one copy of its routed experts between them."""
        return lcm(self.tp, self.ep)

    @property
    def label(self) -> str:
        """``TP8``, ``TP8 DP2 EP16``: what is more than one."""
        sizes = {"TP": self.tp, "DP": self.dp, "PP": self.pp, "EP": self.ep}
        return " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "TP1"


@dataclass(frozen=True)
class LayoutWish:
    """What was asked for; None where nothing was.

    ``all_or_none`` names a server whose ranks are all replicas, or none of them.
    """

    gpus: int | None = None
    tp: int | None = None
    dp: int | None = None
    pp: int | None = None
    ep: int | None = None
    all_or_none: str = ""


def candidate_layouts(config: DSV4Config, wish: LayoutWish, most_gpus: int) -> list[Layout]:
    """Layouts that meet a wish, from few GPUs to many; one where the GPUs are given.

    By default a replica grows by tensor parallelism to a server of eight GPUs, and more servers
    are more replicas, as engines are started; where all ranks or none are replicas, all are.
    Raises ``ConfigError`` for a wish that contradicts itself or the model.
    """
    pp = wish.pp or 1
    if pp > config.num_layers:
        raise ConfigError(f"PP{pp} is more than the {config.num_layers} layers of {config.name}.")
    if wish.gpus is not None:
        return [_finish(config, wish, *_divide(config, wish.gpus, wish, pp))]
    if wish.tp is not None and wish.dp is not None:
        pairs = [(wish.tp, wish.dp)]
    elif wish.tp is not None:
        replicas = most_gpus // (wish.tp * pp)
        counts = ((wish.tp * dp * pp, dp) for dp in range(1, replicas + 1))
        # a part of a server that experts divide into, or whole servers
        pairs = [(wish.tp, dp) for n, dp in counts if n in (1, 2, 4) or n % NODE_GPUS == 0]
    elif wish.dp is not None:
        pairs = [(tp, wish.dp) for tp in _tensor_sizes(config)]
    else:
        servers = most_gpus // (NODE_GPUS * pp)
        pairs = [(tp, 1) for tp in _tensor_sizes(config)]
        pairs += [(NODE_GPUS, dp) for dp in range(2, servers + 1)]
    if wish.all_or_none:
        both = [(1, tp * dp) for tp, dp in pairs if tp > 1 and dp > 1 and not (wish.tp or wish.dp)]
        pairs = [pair for pair in pairs if 1 in pair] + both or pairs
    return [_finish(config, wish, tp, dp, pp) for tp, dp in pairs or [(wish.tp or 1, 1)]]


def _tensor_sizes(config: DSV4Config) -> list[int]:
    return [tp for tp in (1, 2, 4, NODE_GPUS) if config.num_heads % tp == 0]


def _divide(config: DSV4Config, gpus: int, wish: LayoutWish, pp: int) -> tuple[int, int, int]:
    given = {"TP": wish.tp, "DP": wish.dp, "PP": wish.pp}
    named = " · ".join(f"{name}{size}" for name, size in given.items() if size)
    known = (wish.tp or 1) * (wish.dp or 1) * pp
    rest, left_over = divmod(gpus, known)
    complete = wish.tp is not None and wish.dp is not None
    if left_over or (complete and rest != 1):
        raise ConfigError(
            f"{named} is a layout of {known} GPUs{'' if complete else ' or a multiple'} and "
            f"--gpus is {gpus}: TP · DP · PP must equal the GPUs. Change one of them, or leave "
            "one out."
        )
    if wish.tp is not None:
        return wish.tp, wish.dp or rest, pp
    if wish.dp is not None:
        return rest, wish.dp, pp
    tp = max(size for size in _tensor_sizes(config) if rest % size == 0)
    if wish.all_or_none and tp < rest:
        tp = 1
    return tp, rest // tp, pp


def _finish(config: DSV4Config, wish: LayoutWish, tp: int, dp: int, pp: int) -> Layout:
    if tp * dp * pp > _MOST_GPUS:
        raise ConfigError(f"a layout of over {_MOST_GPUS:,} GPUs: give --gpus, --tp or --dp less.")
    if config.num_heads % tp:
        raise ConfigError(
            f"TP{tp} cannot split {config.num_heads} attention heads of {config.name}: choose a "
            "divisor of them, and spread the other GPUs over --dp or --pp."
        )
    if wish.all_or_none and tp > 1 and dp > 1:
        raise ConfigError(
            f"TP{tp} DP{dp} is no layout of one {wish.all_or_none}: its ranks hold one replica "
            f"together, or are all replicas: give --tp 1 --dp {tp * dp}, or --tp {tp} --dp 1 for "
            "one of several servers."
        )
    ep = wish.ep or (tp * dp if dp > 1 else 1)
    if (tp * dp) % ep:
        raise ConfigError(
            f"EP{ep} does not divide the {tp * dp} GPUs of a stage (TP{tp} · DP{dp}): experts are "
            "spread over all of them or over equal groups."
        )
    return Layout(tp, dp, pp, ep)
