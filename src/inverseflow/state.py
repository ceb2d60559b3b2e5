"""A training under way: what a checkpoint holds, how far it is, and when it has learned enough."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import flatten_optimizer, packed, prefixed, read_tensors, restore_optimizer, under, write_tensors
from .errors import ModelFileError
from .faults import in_words
from .header import FORMATS, check_keys
from .settings import Settings
from .sharding import gathered, parts_of
from .team import Team
from .whole import locked

OTHER_NOISE = 1_000_003  # apart are the seeds of the processes of a team
CHECKPOINT = "checkpoint.safetensors"
SMALLER = "take a smaller batch, or let it go through the network in parts (--accumulate 2)"
NEEDED = {"step": int, "elapsed": float, "settings": {str: object}, "looks": [float]}
LOOKS, PATIENCE, FALL, HURRY = 20, 5, 0.03, 0.25
"""Looks at the figure in a whole training; how many of them without a fall of 3 % end it; and how fast it then ends."""


class State:
    """The weights, their average, the optimiser, both generators, the step, the time used, the looks."""

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
        team: Team,
    ) -> None:
        self.model, self.average, self.optimizer = model, average, optimizer
        self.folder, self.settings, self.team, self.device, self.seed = folder, settings, team, device, seed
        self.host = torch.Generator().manual_seed(seed)  # all draw the same crops, of which each reads its own
        self.noise = torch.Generator(device).manual_seed(seed + 1 + OTHER_NOISE * team.rank)
        self._lock = ExitStack()
        self.step = self.saved_step = 0
        self._agreed = 0.0
        self.looks: list[float] = []
        self.hurried: tuple[int, float] | None = None  # from this step and this part of the schedule on
        self.renewed = 0  # times that the data was made anew, the last time by these weights of the average
        self._renewed_by: dict[str, Tensor] = {}
        self.stale = False  # has an earlier process made the data anew, and this one not yet?
        self.started, self.saved = time.monotonic(), 0.0
        unimportant = ("seconds", "log_every", "checkpoint_seconds", "checkpoint_steps", "accumulate")
        self.identity = {k: v for k, v in asdict(settings).items() if k not in unimportant} | {"seed": seed}
        self.identity |= identity or {}

    @property
    def elapsed(self) -> float:
        """Seconds of training; in a team by the leader's clock, read where all of them read it."""
        return self._agreed if self.team.size > 1 else time.monotonic() - self.started

    @property
    def meets(self) -> bool:
        """Is this a step after which the team speaks with each other?"""
        return self.team.size == 1 or self.settings.seconds is not None or self.step % self.settings.log_every == 0

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

    def renewed_now(self, number: int) -> None:
        self.renewed, self.stale = number, False
        self._renewed_by = {name: value.clone() for name, value in self.average.state_dict().items()}

    @contextmanager
    def as_renewed(self) -> Iterator[None]:
        """The average as it was when it last made the data anew."""
        now = {name: value.clone() for name, value in self.average.state_dict().items()}
        self.average.load_state_dict(self._renewed_by)
        try:
            yield
        finally:
            self.average.load_state_dict(now)
            self.stale = False

    @torch.no_grad()
    def advance(self) -> None:
        """Count the step and move the average towards the weights; its memory grows with the run up to `ema`."""
        self.step += 1
        keep = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        if self.team.size > 1 and self.meets:
            self._agreed = self.team.agree(time.monotonic() - self.started, self.device)

    def is_save_due(self) -> bool:
        if self.settings.checkpoint_steps:
            return self.step % self.settings.checkpoint_steps == 0
        return self.folder is not None and self.elapsed - self.saved > self.settings.checkpoint_seconds

    def save(self) -> None:
        for mine, theirs in zip(self.average.buffers(), self.model.buffers(), strict=True):
            mine.copy_(theirs)
        self.saved = self.elapsed
        noises = self.team.gather(self.noise.get_state(), self.device)
        if not self.folder:
            return
        tensors = {
            **prefixed("model.", gathered(self.model.state_dict())),
            **prefixed("average.", gathered(self.average.state_dict())),
            **prefixed("renewed_by.", gathered(self._renewed_by)),
            **prefixed("optimizer.", gathered(flatten_optimizer(self.optimizer))),
            "generator.host": self.host.get_state(),
            **{f"generator.noise.{rank}": state for rank, state in enumerate(noises)},
        }
        if self.team.leads:
            self._write(tensors)
        self.team.wait()  # Lightning kills the leader when another ends before it, also one that is writing
        self.saved_step = self.step

    def _write(self, tensors: dict[str, Tensor]) -> None:
        assert self.folder
        header = {
            "kind": "checkpoint",
            "format": FORMATS["checkpoint"],
            "step": self.step,
            "elapsed": self.elapsed,
            "settings": self.identity,
        }
        header |= {"looks": self.looks, "hurried": self.hurried, "renewed": self.renewed}
        write_tensors(self.folder / CHECKPOINT, tensors, header)

    def open(self, resume: bool) -> None:
        """Make the folder; go on from its checkpoint if asked to, and never write over one."""
        if not self.folder:
            return
        path = self.folder / CHECKPOINT
        packed(path, self.identity)  # refused now, not at the first checkpoint
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.team.leads:
            self._lock.enter_context(locked(path))
        if path.exists() and not resume:
            raise ModelFileError(
                f"{self.folder} holds the checkpoint of an earlier run; resume it, or give another folder."
            )
        if path.exists():
            self._load(path)
        self.team.wait()  # nobody writes before all have looked

    @contextmanager
    def under_way(self, title: str) -> Iterator[None]:
        """Until the end nobody else goes on with it; what a device does to it is said in words, with what is kept."""

        def kept() -> str:
            if not self.folder or not (self.folder / CHECKPOINT).exists():
                return ""
            return f"The checkpoint of step {self.saved_step} is in {self.folder}: go on with --resume (resume=True)."

        with self._lock, in_words(lambda: f"step {self.step + 1} of {title}", SMALLER, kept):
            yield

    def _load(self, path: Path) -> None:
        tensors, header = read_tensors(path, "checkpoint")
        check_keys(path, header, NEEDED, {"hurried": object, "renewed": int})
        theirs = {"optimizer": "adamw"} | header["settings"]  # older ones do not say, as there was no other
        differing = [k for k, v in self.identity.items() if theirs.get(k) != v]
        if differing:
            raise ModelFileError(
                f"{path} belongs to a run with other settings ({', '.join(differing)}); "
                "use another folder, or the same settings."
            )
        try:
            self.model.load_state_dict(parts_of(under("model.", tensors), self.model))
            self.average.load_state_dict(parts_of(under("average.", tensors), self.average))
            self.renewed = header.get("renewed", 0)
            if self.renewed:
                self.stale = True
                self._renewed_by = parts_of(under("renewed_by.", tensors), self.average)
            restore_optimizer(self.optimizer, under("optimizer.", tensors))
            self.host.set_state(tensors["generator.host"])
            mine = tensors.get(f"generator.noise.{self.team.rank}")
            if mine is None:  # there are more processes than before
                self.noise.manual_seed(self.seed + 1 + OTHER_NOISE * self.team.rank + header["step"])
            else:
                self.noise.set_state(mine)
            hurried = header.get("hurried")
            self.hurried = (int(hurried[0]), float(hurried[1])) if hurried else None
        except (RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
            raise ModelFileError(
                f"{path} does not fit this network; it belongs to another run, so use another folder."
            ) from error
        self.step = self.saved_step = header["step"]
        self.looks = header["looks"]
        self.started = time.monotonic() - float(header["elapsed"])
        self._agreed = self.saved = float(header["elapsed"])
