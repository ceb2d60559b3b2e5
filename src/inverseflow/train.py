"""The training loop, the only one. It minimises loss(model, batch, moment) and keeps an average of the weights.

Every draw comes from two generators seeded from `seed`, one on the host (which samples) and one on the device (noise
and times); both are in the checkpoint, so that a run that was killed goes on as if nothing had happened, bit for bit on
a CPU.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import flatten_optimizer, prefixed, read_tensors, restore_optimizer, under, write_tensors
from .engine import fast_matmul, launch
from .errors import InputError, ModelFileError, TrainingDiverged
from .interrupt import held_back
from .logs import MetricsLog, ProgressBar
from .losses import Field
from .methods import Batch, Moment
from .patches import Data

Loss = Callable[[nn.Module, Batch, Moment], Tensor]
Watch = Callable[[Field], float]
"""A figure of the averaged network that falls as long as there is something to learn."""
CHECKPOINT = "checkpoint.safetensors"
LOOKS, PATIENCE, FALL, HURRY = 20, 5, 0.03, 0.25
"""Looks at the figure in a whole training; how many of them without a fall of 3 % end it; and how fast it then ends."""
COMPILE_PAYS_AFTER = (180.0, 3000)  # seconds or steps of training; compiling costs 20 to 40 seconds


@dataclass(frozen=True)
class Settings:
    """How long and how to train. Give `steps` (repeatable) or `seconds` (the clock decides), or both: the first reached
    ends it.
    """

    steps: int | None = 1000
    seconds: float | None = None
    batch_size: int = 8
    lr: float = 1e-3
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
        for name in ("steps", "seconds", "batch_size", "lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} must be greater than 0, not {value}.")
        if self.schedule not in ("cosine", "constant", "step"):
            raise InputError(f"schedule must be cosine, constant or step, not {self.schedule!r}.")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema must be in [0, 1), not {self.ema}.")

    def progress(self, step: int, elapsed: float) -> float:
        """The part of the budget that is spent, 0 to 1."""
        parts = [step / self.steps if self.steps else 0.0, elapsed / self.seconds if self.seconds else 0.0]
        return min(1.0, max(parts))

    def rate(self, progress: float) -> float:
        """The learning rate when the part `progress` of the training is done."""
        warm = min(1.0, (progress + 1e-3) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return self.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        return self.lr * warm * (0.5 if self.schedule == "step" and progress >= 0.5 else 1.0)


@dataclass
class Fitted:
    """The result of `fit`: the averaged model on its device, and how it got there."""

    model: nn.Module
    history: list[dict[str, float]]
    steps: int
    seconds: float


def fit(
    model: nn.Module,
    loss: Loss,
    data: Data,
    settings: Settings,
    *,
    seed: int = 0,
    device: str = "auto",
    folder: str | Path | None = None,
    resume: bool = False,
    identity: dict[str, Any] | None = None,
    watch: Watch | None = None,
    progress: bool = True,
    title: str = "training",
) -> Fitted:
    """Train `model` in place and return its averaged copy. With a `folder`: checkpoints, metrics.jsonl, TensorBoard.

    `identity` says in plain values what is trained; a checkpoint is not resumed into something else. When the figure of
    `watch` no longer falls, the rest of the schedule is gone through in a quarter of the steps done so far.
    """
    fabric = launch(device, settings.precision)
    cuda = fabric.device.type == "cuda"
    model = model.to(fabric.device)
    if cuda and _is_image_net(model):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.99), weight_decay=settings.weight_decay, fused=True
    )
    run = _Run(model, average, optimizer, fabric.device, seed, Path(folder) if folder else None, settings, identity)
    compiled: Any = torch.compile(model) if _compile_pays(settings, cuda) else model
    wrapped, optimizer = fabric.setup(compiled, optimizer)
    run.open(resume)
    data = data.to(fabric.device)
    log = MetricsLog(run.folder, run.step, run.elapsed)
    bar = ProgressBar(title, settings.steps, settings.seconds, enabled=progress)
    total, bad_step = torch.zeros((), device=fabric.device), torch.full((), -1, device=fabric.device)

    def averaged(x: Tensor, t: Tensor) -> Tensor:
        with fabric.autocast():
            output: Tensor = average(x, t)
        return output.to(x.dtype)

    with log, bar, fast_matmul(cuda), held_back() as interrupted:
        while (done := run.progress) < 1:
            optimizer.param_groups[0]["lr"] = settings.rate(done)
            value = loss(wrapped, data.draw(settings.batch_size, run.host), Moment(done, run.noise, averaged)).mean()
            optimizer.zero_grad()
            fabric.backward(value)
            if settings.clip:
                fabric.clip_gradients(wrapped, optimizer, max_norm=settings.clip, error_if_nonfinite=False)
            optimizer.step()
            run.advance()
            total += value.detach()
            # Noted on the device; read, which waits for it, only before something is logged or kept.
            bad_step = torch.where((bad_step < 0) & ~torch.isfinite(value), run.step, bad_step)
            if watch and run.is_look_due():
                run.look(watch(averaged))
            over = run.progress >= 1
            due = over or run.is_save_due()
            if (over or due or run.step % settings.log_every == 0) and int(bad_step) >= 0:
                raise TrainingDiverged(
                    f"The loss is not finite at step {int(bad_step)} of {title}; check that the noise is that of the"
                    f" data, or lower the learning rate ({settings.lr:g}) or the clip ({settings.clip})."
                )
            if over or run.step % settings.log_every == 0:
                rate, mean = log.add(run.step, run.elapsed, float(total), optimizer.param_groups[0]["lr"])
                bar.update(run.step, run.elapsed, mean, rate)
                total.zero_()
            if due or interrupted():
                run.save()
            if interrupted():
                raise KeyboardInterrupt
    return Fitted(average, log.rows, run.step, run.elapsed)


class _Run:
    """What a checkpoint holds: weights, their average, the optimiser, both generators, the step and the time used."""

    def __init__(
        self,
        model: nn.Module,
        average: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        seed: int,
        folder: Path | None,
        settings: Settings,
        identity: dict[str, Any] | None,
    ) -> None:
        self.model, self.average, self.optimizer = model, average, optimizer
        self.folder, self.settings = folder, settings
        self.host = torch.Generator().manual_seed(seed)
        self.noise = torch.Generator(device).manual_seed(seed + 1)
        self.step = 0
        self.looks: list[float] = []
        self.hurried: tuple[int, float] | None = None  # from this step and this part of the schedule on
        self.started = self.saved = time.monotonic()
        unimportant = ("seconds", "log_every", "checkpoint_seconds", "checkpoint_steps")
        self.identity = {k: v for k, v in asdict(settings).items() if k not in unimportant} | {"seed": seed}
        self.identity |= identity or {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def progress(self) -> float:
        """The part of the schedule that is done, 0 to 1."""
        planned = self.settings.progress(self.step, self.elapsed)
        if self.hurried:
            first, done = self.hurried
            planned = max(planned, done + (1 - done) * (self.step - first) / max(1.0, HURRY * first))
        return min(1.0, planned)

    def is_look_due(self) -> bool:
        return not self.hurried and int(LOOKS * self.progress) > len(self.looks)

    def look(self, figure: float) -> None:
        self.looks.append(figure)
        if len(self.looks) > PATIENCE and min(self.looks[-PATIENCE:]) > (1 - FALL) * min(self.looks[:-PATIENCE]):
            self.hurried = (self.step, self.progress)

    @torch.no_grad()
    def advance(self) -> None:
        """Count the step and move the average towards the weights; its memory grows with the run up to `ema`."""
        self.step += 1
        keep = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)

    def is_save_due(self) -> bool:
        if self.settings.checkpoint_steps:
            return self.step % self.settings.checkpoint_steps == 0
        return self.folder is not None and time.monotonic() - self.saved > self.settings.checkpoint_seconds

    def save(self) -> None:
        for mine, theirs in zip(self.average.buffers(), self.model.buffers(), strict=True):
            mine.copy_(theirs)
        if not self.folder:
            return
        tensors = {
            **prefixed("model.", self.model.state_dict()),
            **prefixed("average.", self.average.state_dict()),
            **prefixed("optimizer.", flatten_optimizer(self.optimizer)),
            "generator.host": self.host.get_state(),
            "generator.noise": self.noise.get_state(),
        }
        header = {"kind": "checkpoint", "step": self.step, "elapsed": self.elapsed, "settings": self.identity}
        header |= {"looks": self.looks, "hurried": self.hurried}
        write_tensors(self.folder / CHECKPOINT, tensors, header)
        self.saved = time.monotonic()

    def open(self, resume: bool) -> None:
        """Make the folder; go on from its checkpoint if asked to, and never write over one."""
        if not self.folder:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / CHECKPOINT
        if path.exists() and not resume:
            raise ModelFileError(
                f"{self.folder} holds the checkpoint of an earlier run; resume it, or give another folder."
            )
        if path.exists():
            self._load(path)

    def _load(self, path: Path) -> None:
        tensors, header = read_tensors(path, "checkpoint")
        differing = [k for k, v in self.identity.items() if header.get("settings", {}).get(k) != v]
        if differing:
            raise ModelFileError(
                f"{path} belongs to a run with other settings ({', '.join(differing)}); "
                "use another folder, or the same settings."
            )
        try:
            self.model.load_state_dict(under("model.", tensors))
            self.average.load_state_dict(under("average.", tensors))
            restore_optimizer(self.optimizer, under("optimizer.", tensors))
            self.host.set_state(tensors["generator.host"])
            self.noise.set_state(tensors["generator.noise"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise ModelFileError(
                f"{path} does not fit this network; it belongs to another run, so use another folder."
            ) from error
        self.step = int(header["step"])
        self.looks, hurried = header.get("looks", []), header.get("hurried")
        self.hurried = (int(hurried[0]), float(hurried[1])) if hurried else None
        self.started = time.monotonic() - float(header["elapsed"])


def _compile_pays(settings: Settings, cuda: bool) -> bool:
    if settings.compile != "auto":
        return bool(settings.compile)
    seconds, steps = COMPILE_PAYS_AFTER
    return cuda and ((settings.seconds or 0) > seconds or (not settings.seconds and (settings.steps or 0) > steps))


def _is_image_net(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())
