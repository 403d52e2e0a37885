"""A GPU through NVML, over a library that answers, refuses or has gone."""

from typing import Any

import pynvml
import pytest

from dsv4kv.measure.telemetry.process import FACTS, OFTEN, SELDOM, GpuGone, NvmlGpu
from dsv4kv.runs.telemetry import GpuChecks, GpuSamples, GpuState
from tests.measure.telemetry.fake_nvml import (
    OTHER_UUID,
    OWN_PID,
    UUID,
    FakeNvml,
    field_value,
    refuse,
)


def open_gpu(nvml: FakeNvml, uuid: str = UUID) -> NvmlGpu:
    return NvmlGpu(nvml, uuid, OWN_PID)


def test_everything_that_is_asked_has_a_field_in_the_record() -> None:
    besides = {"other_processes", "dram_percent"}
    assert set(OFTEN) == set(GpuSamples.model_fields) - {"at_ns"}
    assert set(SELDOM) | besides == set(GpuChecks.model_fields) - {"at_ns"}
    assert set(FACTS) == set(GpuState.model_fields) - {"uuid"}


def test_a_gpu_tells_its_state() -> None:
    gpu = open_gpu(FakeNvml(reasons=0x4, violation_ns={pynvml.NVML_PERF_POLICY_THERMAL: 9}))
    assert gpu.often() == {
        "sm_clock_mhz": 1_980,
        "memory_clock_mhz": 3_201,
        "reasons": 0x4,
        "power_mw": 512_000,
        "energy_mj": 7_000_000_000_000,
        "temperature_c": 61,
        "power_violation_ns": 0,
        "thermal_violation_ns": 9,
        "board_violation_ns": 0,
        "reliability_violation_ns": 0,
    }
    assert gpu.absent == {}


def test_what_changes_seldom_is_told_too() -> None:
    gpu = open_gpu(FakeNvml(pids=[OWN_PID, 7, 8]))
    assert gpu.seldom() == {
        "memory_used_bytes": 12 << 30,
        "pcie_generation": 5,
        "pcie_width": 16,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "other_processes": 2,
        "dram_percent": 87.5,
    }
    assert gpu.absent == {"pcie_replays": "Not Supported"}


def test_facts_are_told_and_those_refused_are_absent_with_the_reason() -> None:
    gpu = open_gpu(FakeNvml())
    facts = gpu.facts()
    assert (facts["name"], facts["power_limit_mw"], facts["ecc"]) == ("NVIDIA H200", 700_000, 1)
    assert "mig" not in facts
    assert gpu.absent["mig"] == "Not Supported"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "Not Supported"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"),
    ],
)
def test_what_is_refused_for_good_is_asked_once_and_the_rest_goes_on(
    code: int, reason: str
) -> None:
    nvml = FakeNvml(answers={"nvmlDeviceGetTemperature": refuse(code)})
    gpu = open_gpu(nvml)
    for _ in range(3):
        answers = gpu.often()
        assert "temperature_c" not in answers
        assert answers["sm_clock_mhz"] == 1_980
    assert nvml.calls.count("nvmlDeviceGetTemperature") == 1
    assert gpu.absent == {"temperature_c": reason}


def test_what_fails_at_times_is_asked_again_and_counted() -> None:
    failing = [True, False, True]

    def temperature(*_: Any) -> int:
        if failing.pop(0):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return 61

    gpu = open_gpu(FakeNvml(answers={"nvmlDeviceGetTemperature": temperature}))
    assert ["temperature_c" in gpu.often() for _ in range(3)] == [False, True, False]
    assert gpu.absent == {"temperature_c": "Timeout, 2 times"}


def test_a_package_without_a_function_is_said_and_the_rest_goes_on() -> None:
    gpu = open_gpu(FakeNvml(lacking={"nvmlDeviceGetViolationStatus", "nvmlGpmQueryDeviceSupport"}))
    assert gpu.often()["sm_clock_mhz"] == 1_980
    assert "nvmlDeviceGetViolationStatus" in gpu.absent["power_violation_ns"]
    assert "nvmlGpmQueryDeviceSupport" in gpu.absent["dram_percent"]


def test_an_answer_of_another_form_is_said_and_the_rest_goes_on() -> None:
    gpu = open_gpu(FakeNvml(answers={"nvmlDeviceGetEccMode": lambda _: 1}))
    facts = gpu.facts()
    assert facts["name"] == "NVIDIA H200"
    assert "not subscriptable" in gpu.absent["ecc"]


@pytest.mark.parametrize("way", ["package", "library"])
def test_an_older_library_tells_reasons_under_their_older_name(way: str) -> None:
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    nvml = FakeNvml(answers={"nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x40})
    if way == "package":
        nvml.lacking.add(name)
    else:
        nvml.answers[name] = refuse(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert open_gpu(nvml).often()["reasons"] == 0x40


def test_a_field_that_carries_an_error_is_absent() -> None:
    def fields(_gpu: Any, ids: list[int]) -> list[Any]:
        answer = field_value("uiVal", 1, 0)
        answer.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return [answer] * len(ids)

    gpu = open_gpu(FakeNvml(answers={"nvmlDeviceGetFieldValues": fields}))
    assert not {"power_mw", "energy_mj"} & set(gpu.often())
    assert gpu.absent == {"power_mw": "Not Supported", "energy_mj": "Not Supported"}


@pytest.mark.parametrize("how", ["refused", "unsupported", "metric"])
def test_without_the_counters_of_hopper_dram_utilisation_is_absent(how: str) -> None:
    def metrics(question: Any) -> Any:
        question.metrics[0].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return question

    not_supported = refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
    unsupported = pynvml.c_nvmlGpmSupport_t()
    answers: dict[str, dict[str, Any]] = {
        "refused": {"nvmlGpmQueryDeviceSupport": not_supported},
        "unsupported": {"nvmlGpmQueryDeviceSupport": lambda _: unsupported},
        "metric": {"nvmlGpmMetricsGet": metrics},
    }
    gpu = open_gpu(FakeNvml(answers=answers[how]))
    assert "dram_percent" not in gpu.seldom()
    assert gpu.absent["dram_percent"] == "Not Supported"


def test_dram_utilisation_is_between_the_last_two_samples() -> None:
    taken: list[Any] = []
    asked: list[tuple[Any, Any]] = []

    def sample(_gpu: Any, sample: Any) -> Any:
        taken.append(id(sample))
        return sample

    def metrics(question: Any) -> Any:
        asked.append((len(taken), question))
        return question

    gpu = open_gpu(FakeNvml(answers={"nvmlGpmSampleGet": sample, "nvmlGpmMetricsGet": metrics}))
    for _ in range(3):
        gpu.seldom()
    assert [count for count, _ in asked] == [2, 3, 4]  # one before the first answer
    assert taken[0] == taken[2] != taken[1] == taken[3]  # the older one is taken anew


def test_a_run_that_the_driver_does_not_know_by_its_id_knows_no_others() -> None:
    gpu = open_gpu(FakeNvml(pids=[7]))
    assert gpu.seldom()["other_processes"] is None
    assert "own process id" in gpu.absent["other_processes"]


def test_the_gpu_is_found_by_its_uuid_with_or_without_prefix() -> None:
    for uuid in (UUID, UUID.removeprefix("GPU-")):
        assert open_gpu(FakeNvml(), uuid).often()["sm_clock_mhz"] == 1_980


def test_a_part_of_a_split_gpu_is_found_by_its_own_prefix() -> None:
    def find(uuid: str) -> str:
        if uuid.startswith("MIG-"):
            return "instance"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    nvml = FakeNvml(answers={"nvmlDeviceGetHandleByUUID": find})
    assert open_gpu(nvml, "11111111-2222").often()["sm_clock_mhz"] == 1_980


def test_a_gpu_that_nvml_does_not_know_is_gone() -> None:
    with pytest.raises(GpuGone, match=f"^NVML knows no GPU {OTHER_UUID}$"):
        open_gpu(FakeNvml(), OTHER_UUID)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML: NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML: Driver Not Loaded"),
    ],
)
def test_without_library_or_driver_the_gpu_is_gone_with_the_reason(code: int, reason: str) -> None:
    with pytest.raises(GpuGone, match=f"^{reason}$"):
        open_gpu(FakeNvml(answers={"nvmlInit": refuse(code)}))


def test_a_gpu_that_falls_off_the_bus_is_gone() -> None:
    nvml = FakeNvml()
    gpu = open_gpu(nvml)
    gpu.often()
    nvml.gone = True
    with pytest.raises(GpuGone, match="GPU is lost"):
        gpu.often()
    with pytest.raises(GpuGone, match="GPU is lost"):
        gpu.seldom()
