"""What a real cache consists of, and how it is driven."""

from dataclasses import dataclass

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.measure.recorder import Recorder
from dsv4kv.ops.contract import Backend
from dsv4kv.replay.data.check import ReuseCheck
from dsv4kv.replay.data.shared import SharedBlocks
from dsv4kv.replay.data.windows import KeptWindows
from dsv4kv.workload.contents import PromptContents
from dsv4kv.workload.executor import StepExecutor


@dataclass(frozen=True)
class Parts:
    """What a real cache consists of.

    Attributes:
        config: The cache as ``dsv4kv bench`` would be asked for it.
        manager: Slots, tables and pools.
        backend: Copies pages.
        recorder: Tells the time, without what is left out of it.
        executor: Runs the operations.
        contents: What prompts have in common.
        shared: Blocks of the prefix index.
        pool: Room for checkpoints.
        windows: Those that are kept.
        check: Compares what is gathered.
    """

    config: BenchConfig
    manager: KVCacheManager
    backend: Backend
    recorder: Recorder
    executor: StepExecutor
    contents: PromptContents
    shared: SharedBlocks
    pool: CheckpointPool
    windows: KeptWindows
    check: ReuseCheck

    def save_blank(self) -> int:
        """A checkpoint of nothing, for requests that bring nothing back."""
        slot = self.manager.admit_request()
        blank = self.pool.save(slot)
        self.manager.release_request(slot)
        return blank


@dataclass(frozen=True)
class Rules:
    """How the data is driven.

    Attributes:
        shared_tokens: Tokens of a shared block.
        block_tokens: Tokens of a block.
        restores: Requests resume from checkpoints; else they compute a stretch again.
        every_block: A checkpoint is kept behind every shared block.
        verify_every: Compare every so many steps; 0 never.
        spare_blocks: Blocks that the scheduler does not count.
    """

    shared_tokens: int
    block_tokens: int
    restores: bool
    every_block: bool
    verify_every: int
    spare_blocks: int
