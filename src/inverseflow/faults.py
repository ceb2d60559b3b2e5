"""What a device or its memory does to a computation, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .errors import DeviceError, InverseflowError

# The last two are what oneDNN says on a CPU.
_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "could not create a memory object",
    "could not create a primitive",
)
_LOST = ("CUDA error", "HIP error", "CUDNN_STATUS", "CUBLAS_STATUS", "MPS backend", "device-side assert")
_ACCELERATOR = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)


def lacks_memory(error: BaseException) -> bool:
    """PyTorch says it for a GPU by a class of its own, for the host in words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def lost_device(error: BaseException) -> bool:
    """Did a GPU fail, or disappear?"""
    if isinstance(error, InverseflowError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, _ACCELERATOR) or any(words in str(error) for words in _LOST)


def in_a_sentence(error: BaseException, where: str, remedy: str) -> DeviceError | None:
    """None if it is something else."""
    if lacks_memory(error):
        return too_large(where, remedy)
    if lost_device(error):
        first = str(error).partition("\n")[0].rstrip(". ")
        return DeviceError(f"The device failed in {where} ({first}); look at it, or compute with --device cpu.")
    return None


def too_large(where: str, remedy: str) -> DeviceError:
    return DeviceError(f"The memory did not suffice for {where}; {remedy}.")


@contextmanager
def in_words(where: Callable[[], str], remedy: str, kept: Callable[[], str]) -> Iterator[None]:
    """Failures of the device as a DeviceError that also says what is kept."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        told = None if isinstance(error, InverseflowError) else in_a_sentence(error, where(), remedy)
        if told is None:
            raise
        if kept():
            told.add_note(kept())
        raise told from error
