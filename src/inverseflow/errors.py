"""What inverseflow raises. Every message is one sentence: what is wrong, where, what to do.

All are subclasses of `InverseflowError`, so one `except` catches them; each also is the built-in exception that a
reader would expect.
"""


class InverseflowError(Exception):
    """Base class of everything that inverseflow raises on purpose."""


class InputError(InverseflowError, ValueError):
    """The data cannot be used as it is: NaN, constant, wrong shape, wrong number of channels."""


class FileError(InverseflowError, OSError):
    """An image file is missing, damaged, of an unknown kind, in the way, or cannot be written."""


class UsageError(InverseflowError, ValueError):
    """The command was asked for something that does not go together."""


class NoiseError(InverseflowError, ValueError):
    """The noise model is unknown, has an impossible parameter, or contradicts the data."""


class ModelFileError(InverseflowError, ValueError):
    """A model or checkpoint file is missing, damaged, or not one of ours."""


class TrainingDiverged(InverseflowError, RuntimeError):
    """The loss stopped being a finite number; the message names the step."""
