"""What a device or its memory does to a computation, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist

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
_READER = "DataLoader worker"
_PARTED = getattr(dist, "DistError", torch.OutOfMemoryError)
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


def lost_process(error: BaseException) -> bool:
    """Did another process of a team end? gloo says it in words, after the place in its own source."""
    return isinstance(error, _PARTED) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def lost_reader(error: BaseException) -> bool:
    """Did a process die that reads files ahead? Torch may notice, or first the end of its connection."""
    return isinstance(error, ConnectionError | EOFError) or (isinstance(error, RuntimeError) and _READER in str(error))


def in_a_sentence(error: BaseException, where: str, remedy: str) -> DeviceError | None:
    """None if it is something else."""
    if lacks_memory(error):
        return too_large(where, remedy)
    if lost_process(error):
        return DeviceError(
            f"The processes of this training lost each other during {where} ({_gist(error)}); one has ended, and what "
            "it said, or what ended it, tells why."
        )
    if lost_reader(error):
        return DeviceError(
            f"A process that reads the files died during {where} ({_gist(error)}); perhaps the memory did not suffice: "
            "end other programs."
        )
    if lost_device(error):
        return DeviceError(f"The device failed in {where} ({_gist(error)}); look at it, or compute with --device cpu.")
    return None


def _gist(error: BaseException) -> str:
    """The first line, without a place in a source and without advice."""
    return re.sub(r"^\[.*?\] ", "", str(error).partition("\n")[0]).partition(". ")[0].rstrip(". ")


def too_large(where: str, remedy: str) -> DeviceError:
    return DeviceError(f"The memory did not suffice for {where}; {remedy}.")


@contextmanager
def in_words(where: Callable[[], str], remedy: str, kept: Callable[[], str]) -> Iterator[None]:
    """Failures of the device as a DeviceError that also says what is kept."""
    try:
        yield
    except (MemoryError, RuntimeError, ConnectionError, EOFError) as error:
        told = None if isinstance(error, InverseflowError) else in_a_sentence(error, where(), remedy)
        if told is None:
            raise
        if kept():
            told.add_note(kept())
        raise told from error
