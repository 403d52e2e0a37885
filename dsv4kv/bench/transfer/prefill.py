"""One side of a transfer: a cache, what fills it and decodes from it; and the prefill process.

``python -m dsv4kv.bench.transfer.prefill PIPE FILE`` is that process: two descriptors, a duplex
connection of ``multiprocessing`` and the file that its pools are to be in.
"""

import sys
from dataclasses import replace
from hashlib import blake2b
from multiprocessing.connection import Connection

import numpy as np
import torch

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.bench.serve.executor import Recorder, Requests, StepTokens
from dsv4kv.bench.serve.inputs import EntryChooser, StepInputs
from dsv4kv.bench.serve.operations import Call
from dsv4kv.bench.transfer.memory import Memory, make_manifest, share
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import SideSection, TransferConfig
from dsv4kv.errors import Dsv4kvError
from dsv4kv.ops.registry import resolve_backend


def cache_of(config: TransferConfig, section: SideSection, requests: int) -> BenchConfig:
    """A side's cache as ``dsv4kv bench`` would be asked for it."""
    tokens = max(config.tokens + config.decode_steps, config.timed_tokens) + section.draft_tokens
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": config.model,
            "cache": {
                "block_tokens": section.block_tokens,
                "max_context_tokens": tokens,
                "num_slots": requests,
                "state": config.state,
            },
            "workload": {
                "concurrency": requests,
                "step_tokens": config.chunk_tokens,
                "step": "gather",
                "speculative": {"draft_tokens": section.draft_tokens},
            },
            "measure": {"seed": config.seed},
        }
    )


class Side(Requests):
    """A cache, filled with what is drawn from a seed: equal on both sides."""

    def __init__(
        self, config: BenchConfig, *, file: int | None = None, crowded: bool = False
    ) -> None:
        """Build it; raises ``ConfigError``, or ``StoreFull`` for too little shared memory.

        ``file``: its pools are in this one, at ``places``. ``crowded``: another prompt is
        interleaved with each, so that blocks are scattered.
        """
        torch.set_num_threads(1)
        plan = plan_from(config)
        check_data_path(plan)
        self._seed, self._chunk_tokens = config.measure.seed, config.workload.step_tokens
        manager, self._crowded = build_manager(config, plan, None), crowded
        shared = None if file is None else share(manager, file)
        self.memory = Memory(manager)
        self.places = [] if shared is None else self.memory.places(shared)
        drive = build_drive(config, manager, Recorder(), resolve_backend("cpu", "cpu"))
        super().__init__(manager, drive.executor)

    def prefill(self, serial: int | None, tokens: int) -> int:
        """Compute a prompt in a slot of its own.

        Without a serial nothing is computed: the request has blocks with arbitrary bytes.
        """
        slot, other = self.admit(), self.admit() if self._crowded else None
        for start in range(0, tokens, self._chunk_tokens):
            end = min(start + self._chunk_tokens, tokens)
            if other is not None:
                prepare_forward(self.manager, [other], [start], [end])
            if serial is None:
                prepare_forward(self.manager, [slot], [start], [end])
            else:
                self.compute(slot, serial, end)
        if other is not None:
            self.release(other)
        return slot

    def draw(self) -> None:
        """Fill all pages with random bytes: unwritten memory has no physical pages."""
        random = np.random.default_rng(self._seed)
        for region in self.memory.regions:
            pool = np.frombuffer(region, dtype=np.uint8)
            pool[:] = np.frombuffer(random.bytes(len(pool)), dtype=np.uint8)

    def go_on(self, slot: int, serial: int, steps: int) -> str:
        """Decode some steps; returns a digest of all they read and of the rows at the end."""
        found = blake2b(digest_size=16)

        def look(step: StepTokens, call: Call, inputs: StepInputs) -> None:
            found.update(call.tensors["out"].view(torch.uint8).numpy().data)

        chooser = EntryChooser(self.executor.outputs.index_topk, self._seed)
        executor = replace(self.executor, observer=look, chooser=chooser)
        Requests(self.manager, executor).decode(slot, serial, steps, observed=True)
        memory, tokens = self.memory, int(self.manager.tokens[slot])
        for family in memory.families.values():
            rows, ids = memory.rows(family, tokens), memory.units(family, slot, tokens)
            # of all together, whatever pages they are in
            found.update("".join(memory.digests(family, ids, rows, tokens + 1)).encode())
        return found.hexdigest()


def serve(pipe: Connection, file: int) -> None:
    """Compute, hold and decode a request as the other process asks, while it is there."""
    try:
        config: TransferConfig = pipe.recv()
        side = Side(cache_of(config, config.prefill, 2), file=file, crowded=True)
        side.draw()
        pipe.send(side.places)
        while True:
            match pipe.recv():
                case "compute":
                    slot = side.prefill(0, config.tokens)
                    pipe.send(make_manifest(side.memory, slot, config.tokens))
                case "hold":
                    slot = side.prefill(None, config.timed_tokens)
                    pipe.send(make_manifest(side.memory, slot, config.timed_tokens))
                case "decode and release":
                    pipe.send(side.go_on(slot, 0, config.decode_steps))
                    side.release(slot)
    except Dsv4kvError as error:
        pipe.send(error)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
