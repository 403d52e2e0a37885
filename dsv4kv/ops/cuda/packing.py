"""Arguments of a launch, checked and laid out as the driver reads them."""

import ctypes

from torch import Tensor

from dsv4kv.errors import DeviceError
from dsv4kv.ops.kernels.launch import Launch

Packed = ctypes.Array[ctypes.c_int64]
"""n argument words, then the n addresses of these words."""

_WORD_BYTES = 8


def device_of(launch: Launch) -> int:
    """Index of the GPU that holds every tensor; refuses any that is elsewhere or has gaps."""
    device = None
    for i, argument in enumerate(launch.arguments):
        if not isinstance(argument, Tensor):
            continue
        if not argument.is_cuda:
            raise _refusal(launch, i, f"is on {argument.device}: move it to the GPU")
        if not argument.is_contiguous():
            raise _refusal(launch, i, "has gaps between its elements: call contiguous()")
        if device not in {None, argument.device}:
            raise _refusal(launch, i, f"is on {argument.device}, others are on {device}")
        device = argument.device
    if device is None:
        raise DeviceError(f"{launch.kernel} names no tensor, so no GPU: pass it a tensor.")
    return device.index or 0


def pack(launch: Launch, parameter_bytes: tuple[int, ...]) -> Packed:
    """A 64-bit word for every argument, and the word's address.

    The driver copies each parameter by the size that the kernel declares, from the address it is
    given. Every host with CUDA is little-endian, so the first four bytes of a word are the 32-bit
    value: one packing serves ``int``, ``unsigned``, float bits, 64-bit integers and pointers.
    """
    count = len(parameter_bytes)
    if len(launch.arguments) != count:
        raise DeviceError(
            f"{launch.kernel} in {launch.module.source} takes {count} arguments, the plan passes "
            f"{len(launch.arguments)}: plan and source must agree."
        )
    words = [_word(launch, i, size) for i, size in enumerate(parameter_bytes)]
    packed = (ctypes.c_int64 * (2 * count))(*words)
    start = ctypes.addressof(packed)
    packed[count:] = list(range(start, start + count * _WORD_BYTES, _WORD_BYTES))
    return packed


def addresses_in(packed: Packed) -> int:
    """Where the addresses begin: what ``cuLaunchKernel`` calls ``kernelParams``."""
    return ctypes.addressof(packed) + ctypes.sizeof(packed) // 2


def _word(launch: Launch, index: int, size: int) -> int:
    argument = launch.arguments[index]
    if isinstance(argument, Tensor):
        if size != _WORD_BYTES:
            raise _refusal(launch, index, f"is a tensor where the kernel takes {size} bytes")
        return argument.data_ptr()
    # 32 bits are signed or not; only the kernel knows.
    most = 2**32 if size == 4 else 2**63
    if not -(2 ** (8 * size - 1)) <= argument < most:
        raise _refusal(launch, index, f"does not fit into {size} bytes")
    return argument


def _refusal(launch: Launch, index: int, problem: str) -> DeviceError:
    argument = launch.arguments[index]
    what = str(argument)
    if isinstance(argument, Tensor):
        what = f"{str(argument.dtype).removeprefix('torch.')}{list(argument.shape)}"
    return DeviceError(f"{launch.kernel}: argument {index} ({what}) {problem}.")
