"""Candidate servers: their launch commands, and bounds of their latency and throughput."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsv4kv.budget.launch import launch_command
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.engines.names import family_of, replayed_engines
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.files import whole_text
from dsv4kv.model.presets import load_model
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.replay.clock.steps import ModelTimes
from dsv4kv.replay.memory import check_fit
from dsv4kv.replay.plan.question import Question

SIZES = (1, 2, 4, 8)  # GPUs of a replica: up to one machine


def layouts_of(preset: str) -> list[Layout]:
    """Return every layout of a replica over the GPUs of a machine; experts as engines do."""
    model, found = load_model(preset), []
    for gpus in SIZES:
        for dp in (size for size in SIZES if size <= gpus):
            try:
                wish = LayoutWish(gpus=gpus, dp=dp, tp=gpus // dp)
                found += candidate_layouts(model, wish, gpus)
            except ConfigError:  # more ranks than heads, or than divide them
                continue
    return found


def name_args(texts: Sequence[str]) -> dict[str, str]:
    """Return alternatives by name: ``args 2`` is the second; an empty one has no name."""
    texts = list(map(whole_text, texts))
    if len(texts) < 2:
        return {"": " ".join(texts)}
    return {f"args {place}" if text else "": text for place, text in enumerate(texts, 1)}


@dataclass(frozen=True)
class Server:
    """One replica that starts and holds the longest request; ``variant`` names its ``--args``."""

    gpu: str
    layout: Layout
    config: ReplayConfig
    command: str
    variant: str
    parts: Parts

    @property
    def label(self) -> str:
        """``h200 TP8``."""
        return f"{self.gpu} {self.layout.label}"

    @property
    def times(self) -> ModelTimes:
        return self.parts.times


def open_server(
    question: Question,
    settings: Sequence[str],
    engine: str,
    gpu: str,
    layout: Layout,
    variant: str = "",
    args: str = "",
) -> Server:
    """Size a server, with ``args`` in its command; raises ``DoesNotFit``, ``ConfigError``."""
    asked = load_config(None, settings, ReplayConfig).config
    family = family_of(engine)
    if family is None or not family.rules:
        known = " or ".join(replayed_engines())
        raise ConfigError(f"--engine {engine}: choose {known}, or a version of theirs.")
    drafts = asked.scheduler.speculative.draft_tokens
    command = launch_command(engine, asked.model.preset, layout, drafts, args)
    cost = asked.cost.model_copy(update={"gpu": gpu, "gpus": layout.gpus})
    server = asked.server.model_copy(update={"engine": engine, "command": command})
    config = asked.model_copy(update={"cost": cost, "server": server})
    longest = max(question.requests, key=lambda each: each.total_tokens)
    parts = find_parts(config, [longest])
    if (started := parts.times.layout) != layout:
        raise ConfigError(
            f"--args {args!r} makes {layout.label} {started.label}: layouts are searched; leave "
            "their flags out."
        )
    check_fit(parts.config.cost, parts.memory, parts.weights)
    needed, memory = parts.memory.group.blocks_for(longest.total_tokens), parts.memory
    if needed > memory.num_blocks or longest.total_tokens > memory.max_context_tokens:
        raise DoesNotFit(f"the longest request, {longest.total_tokens:,} tokens, does not fit")
    return Server(gpu, layout, config, command, variant, parts)


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of every deployment of a server, for any router and number of replicas.

    The times of ``clock.steps`` grow with everything in a step, and by less the fuller it is. So
    no prompt is faster than alone with the best cache there can be, no token than alone after the
    shortest prompt, and no work is done for less than in a full step.
    """

    server: Server  # the server
    question: Question  # limits and requests

    @property
    def _step_tokens(self) -> int:
        return self.server.parts.config.scheduler.step_tokens // self.server.layout.dp

    @cached_property
    def _unseen(self) -> list[int]:
        config, question = self.server.config, self.question
        if not config.prefix.reuse:
            return [each.input_tokens for each in question.requests]
        mixes = config.fleet.sessions == "think" or bool(config.fleet.shared_tiers)
        return question.unseen_in_any_order if mixes else question.unseen

    @cached_property
    def ttft_s(self) -> list[float]:
        """Least time to the first token of every request."""
        times, step_tokens = self.server.times, self._step_tokens
        full_s = times.prompt_s(step_tokens)
        tails = {tokens % step_tokens for tokens in self._unseen} - {0}
        tail_s = {tokens: times.prompt_s(tokens) for tokens in tails} | {0: 0.0}
        return [
            times.client_s + tokens // step_tokens * full_s + tail_s[tokens % step_tokens]
            for tokens in self._unseen
        ]

    @cached_property
    def tpot_s(self) -> float:
        """Lower bound of TPOT: a decode pass, or a chunk that takes the token along."""
        shortest = min(each.input_tokens for each in self.question.requests)
        drafts = self.server.parts.config.scheduler.speculative.draft_tokens
        times = self.server.times
        alone_s = times.decode_s(1, shortest, drafts)
        return min(alone_s, times.prompt_s(1)) / (1 + drafts)

    @cached_property
    def least_s(self) -> dict[str, float]:
        return {
            slo.label: self.tpot_s
            if slo.name == "tpot"
            else float(np.percentile(self.ttft_s, slo.percent, method="lower"))
            for slo in self.question.slos
        }

    def broken(self) -> str | None:
        """Return the time of the first limit that even a request alone breaks, if any."""
        for slo in self.question.slos:
            if self.least_s[slo.label] > slo.limit_s:
                return slo.name if slo.name == "tpot" else "ttft"
        return None

    @cached_property
    def work_s(self) -> float:
        """Least seconds of a replica for prompts within the percentile, without the most work."""
        step_tokens, times = self._step_tokens, self.server.times
        dp = self.server.layout.dp
        token_s = times.prompt_s(step_tokens, ranks=dp) / (step_tokens * dp)
        percent = max(slo.percent for slo in self.question.slos if slo.name != "tpot")
        bound = sorted(self._unseen)[: math.floor(percent / 100 * (len(self._unseen) - 1))]
        return sum(bound) * token_s

    def replicas(self, speed: float) -> int:
        """The fewest that compute these prompts in time; 1 where late answers delay others."""
        if self.server.config.fleet.sessions == "think":
            return 1
        late_s = max(slo.limit_s for slo in self.question.slos if slo.name != "tpot")
        return max(1, math.ceil(self.work_s / (self.question.span_s / speed + late_s)))
