"""What inverseflow raises. Every message is one sentence: what is wrong, where, what to do.

All are subclasses of `InverseflowError`, so one `except` catches them; each also is the built-in exception that a
reader would expect.
"""

import warnings
from typing import Any


class InverseflowError(Exception):
    """Base class of everything that inverseflow raises on purpose."""


class InputError(InverseflowError, ValueError):
    """The data cannot be used as it is: NaN, constant, wrong shape, wrong number of channels."""


class FileError(InverseflowError, OSError):
    """A file is missing, damaged, of an unknown kind, in the way, in use by another run, or cannot be written."""


class UsageError(InverseflowError, ValueError):
    """The command was asked for something that does not go together."""


class NoiseError(InverseflowError, ValueError):
    """The noise model is unknown, has an impossible parameter, or contradicts the data."""


class ModelFileError(InverseflowError, ValueError):
    """A model or checkpoint file is missing, damaged, or not one of ours."""


class DeviceError(InverseflowError, RuntimeError):
    """The memory did not suffice, or the device failed; a note says what is kept."""


class TrainingDiverged(InverseflowError, RuntimeError):
    """A loss or a weight stopped being a finite number; the message names the step.

    `fitted` holds the averaged network as it was when last looked at, `denoiser` (of `Denoiser.train`) what can be had
    from it and the stages before; each is None if nothing was learned.
    """

    fitted: Any = None
    denoiser: Any = None


def deprecated(old: str, new: str, since: str) -> None:
    """Warn who calls what calls this: `old` still works, and goes with the next major version."""
    warnings.warn(
        f"{old} is deprecated since {since} and goes with the next major version; use {new}.",
        FutureWarning,
        stacklevel=3,
    )
