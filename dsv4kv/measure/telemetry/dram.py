"""How busy a GPU's memory is by its own counters (GPM, from Hopper on): an independent witness."""

from typing import Any


class DramWitness:
    """DRAM bandwidth utilisation between one call and the next."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        """Begin; raises ``NVMLError`` where the GPU or driver has no such counters."""
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._gpu = nvml, gpu
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(gpu, self._newer)

    def percent(self) -> float:
        """Mean since the last call (or since the beginning), of the memory's full rate."""
        nvml = self._nvml
        self._older, self._newer = self._newer, self._older
        nvml.nvmlGpmSampleGet(self._gpu, self._newer)
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        question.sample1, question.sample2 = self._older, self._newer
        question.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = nvml.nvmlGpmMetricsGet(question).metrics[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return float(answer.value)
