"""How long and how to train, in plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Settings:
    """How long and how to train. Give `steps` (repeatable) or `seconds` (the clock decides), or both: the first reached
    ends it.
    """

    steps: int | None = 1000
    seconds: float | None = None
    batch_size: int = 8  # of a step, over all processes
    accumulate: int = 1  # parts in which a process goes through its batch, where memory holds no more
    optimizer: str = "auto"  # "muon" where the network has convolutions, else "adamw"
    lr: float | None = None  # None: 0.003 with muon, 0.001 with adamw
    schedule: str = "cosine"  # or "constant", or "step": half of lr in the second half
    warmup: float = 0.02  # part of the training over which lr rises from 0
    ema: float = 0.999
    weight_decay: float = 0.0
    clip: float | None = 0.1  # largest norm of the gradient
    precision: str = "auto"  # bf16 on CUDA, else float32
    compile: bool | str = "auto"
    log_every: int = 20
    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise InputError("Training needs a budget: give steps or seconds.")
        for name in ("steps", "seconds", "batch_size", "accumulate", "lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be greater than 0, not {value}.")
        if self.schedule not in ("cosine", "constant", "step"):
            raise InputError(f"schedule must be cosine, constant or step, not {self.schedule!r}.")
        if self.optimizer not in ("auto", "muon", "adamw"):
            raise InputError(f"optimizer must be auto, muon or adamw, not {self.optimizer!r}.")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema must be in [0, 1), not {self.ema}.")

    def progress(self, step: int, elapsed: float) -> float:
        """The part of the budget that is spent, 0 to 1."""
        parts = [step / self.steps if self.steps else 0.0, elapsed / self.seconds if self.seconds else 0.0]
        return min(1.0, max(parts))

    def rate(self, progress: float) -> float:
        """The learning rate when the part `progress` of the training is done."""
        assert self.lr, "`suited` has chosen one"
        warm = min(1.0, (progress + 1e-3) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return self.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        return self.lr * warm * (0.5 if self.schedule == "step" and progress >= 0.5 else 1.0)
