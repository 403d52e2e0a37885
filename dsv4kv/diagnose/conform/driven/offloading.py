# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""vLLM's own offloading connector, both of its sides, over copies that the driver ends.

What is real: the connector, its scheduler's and its worker's side, the manager of host chunks.
What stands in is the one class that copies bytes. A copy is followed instead: from its submission
on its target holds nothing, at its end what its source has held all the while.
Source: vLLM 0.33.0, ``distributed/kv_transfer/kv_connector/v1/offloading``, ``v1/kv_offload/cpu``;
the calls of a step and their order follow ``v1/worker/gpu/kv_connector.py``.
"""

import importlib
import logging
from types import SimpleNamespace

from .broken import check_left, check_pool, note

CHUNK_BYTES = 4096


def load_offloading(connectors="vllm.distributed.kv_transfer.kv_connector"):
    """The engine's classes; None for a version in which they are others."""
    try:
        base = importlib.import_module("vllm.v1.kv_offload.base")
        importlib.import_module("vllm.v1.kv_offload.cpu.manager")
        output = importlib.import_module("vllm.v1.core.sched.output").SchedulerOutput
        found = SimpleNamespace(
            config=importlib.import_module("vllm.config.kv_transfer").KVTransferConfig,
            factory=importlib.import_module(f"{connectors}.factory").KVConnectorFactory,
            roles=importlib.import_module(f"{connectors}.v1").KVConnectorRole,
            output=importlib.import_module("vllm.v1.outputs").KVConnectorOutput,
            result=base.TransferResult,
            group_of=base.get_offload_group_idx,
        )
    except (ImportError, AttributeError):
        return None
    logging.getLogger("vllm").setLevel(logging.ERROR)  # every connector warns of itself
    return found if "has_sync_kv_loads" in output.__dataclass_fields__ else None


def configure(offloading, settings):
    """What ``--kv-transfer-config`` says."""
    return offloading.config(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id="1",
        kv_connector_extra_config={
            "cpu_bytes_to_use": settings["host_chunks"] * CHUNK_BYTES,
            "eviction_policy": settings["host_policy"],
            "store_threshold": settings["host_threshold"],
            "offload_prompt_only": settings["host_prompts_only"],
            "sync_load_budget_bytes": settings["host_sync_bytes"],
        },
    )


class Copies:
    """Stands in for ``OffloadingWorker``: copies between blocks and chunks, each with its content.

    ``content`` holds, by block number: group, place, chain and the end of its tokens.
    """

    def __init__(self, result, content):
        self._result, self._content = result, content
        self._host, self._ended = {}, []
        self.under_way = {}  # by job: whether it stores, and of every copy source, target, content
        self.wanted = {}  # by job and target: group, place, and the name of the tokens

    def submit_store(self, job_id, src_spec, dst_spec):
        """Asked for by the engine: blocks to chunks."""
        return self._submit(job_id, src_spec, dst_spec, stores=True)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        """Asked for by the engine: chunks to blocks."""
        return self._submit(job_id, src_spec, dst_spec, stores=False)

    def get_finished(self):
        """Transfers that ended since the last call."""
        ended, self._ended = self._ended, []
        return [self._result(job_id=job, success=True) for job in ended]

    def wait(self, job_ids):
        """Asked for by the engine: these end now."""
        for job in sorted(job_ids):
            if job in self.under_way:
                self._land(job)

    def land(self, number):
        """One of the copies under way ends, if there are any."""
        jobs = sorted(self.under_way)
        if jobs:
            self._land(jobs[number % len(jobs)])

    def land_all(self):
        """All do, the last first."""
        while self.under_way:
            self._land(max(self.under_way))

    def _land(self, job):
        """A copy ends; its source must be unchanged."""
        stores, copies = self.under_way.pop(job)
        source, target = self._sides(stores)
        for begin, end, held in copies:
            if source.get(begin) != held:
                note("reads", f"{self._name(stores, begin)} changes under a copy of it")
            target[end] = held
        self._ended.append(job)

    def blocks(self, *, stores=True):
        """Blocks that a load under way writes, and those that a store reads."""
        return {
            begin if kind else end
            for kind, copies in self.under_way.values()
            if stores or not kind
            for begin, end, _ in copies
        }

    def _submit(self, job, src_spec, dst_spec, *, stores):
        source, target = self._sides(stores)
        pairs = zip(src_spec.block_ids.tolist(), dst_spec.block_ids.tolist(), strict=True)
        busy = {
            end if kind == stores else begin
            for kind, under_way in self.under_way.values()
            for begin, end, _ in under_way
        }
        copies, wanted = [], self.wanted.pop(job, {})
        for begin, end in pairs:
            if end in busy:
                note("reads", f"{self._name(not stores, end)} has another copy under way")
            held = source.get(begin)
            if end in wanted:
                self._check(self._name(stores, begin), held, wanted[end])
            target.pop(end, None)
            copies.append((begin, end, held))
        self.under_way[job] = stores, copies
        return True

    def _sides(self, stores):
        return (self._content, self._host) if stores else (self._host, self._content)

    @staticmethod
    def _name(stores, number):
        return f"block {number}" if stores else f"chunk {number} of host memory"

    @staticmethod
    def _check(name, held, wanted):
        """What is copied are whole entries of the group, the place and the tokens it is for."""
        group, place, end, token_name, grain = wanted
        if not held or held[:2] != (group, place) or held[3] < end:
            what = "nothing of them"
        elif held[2][end // grain - 1] != token_name:
            what = "another prompt's"
        else:
            return
        asked = f"{name} is copied as tokens to {end} of group {group}"
        note("reads", f"{asked}, and holds {what}")


class Host:
    """Host memory behind a scheduler.

    ``chain_of`` gives by a request's name what is known of its tokens, ``grain`` by ``grain``.
    """

    def __init__(self, offloading, scheduler, content, spans, grain, chain_of):
        self._offloading, self._spans, self._grain = offloading, spans, grain
        self._chain_of = chain_of
        self._side = scheduler.connector.connector_scheduler
        self._manager = self._side.manager
        self._worker = offloading.factory.create_connector(
            config=scheduler.vllm_config,
            role=offloading.roles.WORKER,
            kv_cache_config=scheduler.kv_cache_config,
        )
        self.copies = Copies(offloading.result, content)
        self._worker.connector_worker.worker = self.copies

    def before(self, output):
        """The worker's calls before a step is computed."""
        meta = output.kv_connector_metadata
        self._expect(meta)
        self._worker.handle_preemptions(meta)
        self._worker.bind_connector_metadata(meta)
        if output.has_sync_kv_loads:
            self._worker.start_load_kv(None)

    def after(self, output):
        """The worker's calls after a step; returns its report to the scheduler."""
        worker = self._worker
        if not output.has_sync_kv_loads:
            worker.start_load_kv(None)
        worker.wait_for_save()
        ended = worker.get_transfer_results(output.finished_req_ids)
        report = self._offloading.output(
            finished_sending=ended.finished_sending or None,
            finished_recving=ended.finished_recving or None,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return report

    def _expect(self, meta):
        """What the copies that a step asks for must find."""
        for job, entry in meta.store_jobs.items():
            states, wanted = self._side._req_status[entry.req_id], {}
            for key in self._side._jobs[job].keys:
                end = states.req_context.get_offload_key_position(key)
                chunk = self._manager._policy.get(key).chunk_id
                wanted[chunk] = self._want(entry.req_id, self._offloading.group_of(key), end)
            self.copies.wanted[job] = wanted
        for job, entry in meta.load_jobs.items():
            blocks, wanted = iter(entry.dst_spec.block_ids.tolist()), {}
            sizes = zip(entry.dst_spec.group_sizes, entry.dst_spec.block_indices, strict=True)
            for group, (size, first) in enumerate(sizes):
                for place in range(first, first + size):
                    end = (place + 1) * self._spans[group]
                    wanted[next(blocks)] = self._want(entry.req_id, group, end)
            self.copies.wanted[job] = wanted

    def _want(self, rid, group, end):
        name = self._chain_of(rid)[end // self._grain - 1]
        return group, end // self._spans[group] - 1, end, name, self._grain

    def check(self, free):
        """Chunks are free or held, and counted; no block that a load writes is given back."""
        given = self.copies.blocks(stores=False) & {*free}
        if given:
            note("blocks", f"block {min(given)} is free, and a load writes it")
        chunks, manager = self._chunks(), self._manager
        made = manager._num_allocated_chunks
        held = (chunk.chunk_id for chunk in chunks.values())
        counted = manager._get_num_free_chunks() - (manager._num_chunks - made)
        name = "chunk {} of host memory"
        check_pool(name, made, held, manager._free_list, counted, first=0)
        self._check_uses(chunks)

    def _check_uses(self, chunks):
        """A chunk knows how many copies of it are under way."""
        uses = dict.fromkeys(chunks, 0)
        for job in self._side._jobs.values():
            for key in job.keys:
                if key not in uses:
                    note("blocks", "a copy under way has lost its chunk of host memory")
                    return
                uses[key] = -1 if job.is_store else uses[key] + 1
        for key, chunk in chunks.items():
            if chunk.ref_cnt != uses[key]:
                what = f"chunk {chunk.chunk_id} of host memory says {chunk.ref_cnt} copies"
                note("blocks", f"{what}, and {uses[key]} are under way")
        idle = sum(not chunk.ref_cnt for chunk in chunks.values())
        counted = self._manager._num_evictable_cache_chunks
        if counted != idle:
            what = f"{counted} chunks of host memory are counted as idle"
            note("blocks", f"{what}, and {idle} are")

    def _chunks(self):
        policy = self._manager._policy
        return policy.chunks if hasattr(policy, "chunks") else policy.t1 | policy.t2

    def check_end(self):
        """Every store is readable or dropped, and nothing is kept of any request."""
        side = self._side
        check_left(
            {
                "copies": side._jobs,
                "requests": side._req_status,
                "fences of blocks": side._block_id_to_pending_jobs,
                "chunks said to be loaded": side._chunks_being_loaded,
                "copies flushed by a reset": side._reset_fence,
                "unreadable chunks": [
                    each for each in self._chunks().values() if not each.is_ready
                ],
            }
        )
