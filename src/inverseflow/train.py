"""The training loop, the only one. It minimises loss(model, batch, moment) and keeps an average of the weights.

Every draw comes from two generators seeded from `seed`, one on the host (which samples) and one on the device (noise
and times); both are in the checkpoint, so that a run that was killed goes on as if nothing had happened, bit for bit on
a CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from collections.abc import Generator as Stream
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from .engine import fast_matmul, launch, placed
from .errors import TrainingDiverged
from .interrupt import Stopped, held_back
from .logs import MetricsLog, ProgressBar
from .losses import Field
from .methods import Batch, Moment
from .optimizer import make_optimizer, set_rate, suited
from .patches import Data, batches
from .replay import Phase, Replay, own_stream
from .settings import Settings
from .sharding import gathered, is_part, shared_like
from .state import State
from .team import current_team

Loss = Callable[[nn.Module, Batch, Moment], Tensor]
Watch = Callable[[Field], float]
"""A figure of the averaged network that falls as long as there is something to learn."""


class Renewal(Protocol):
    """Data that the averaged network makes anew during its training."""

    def due(self, progress: float) -> int:
        """How many times by now."""

    def renew(self, average: Field, number: int) -> None: ...


COMPILING = 25.0  # seconds that compiling a network takes
SAVED = 9e-10  # seconds that a compiled network saves per feature of a training step, on one H200; others save more


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
    renewal: Renewal | None = None,
    phase: Phase | None = None,
    progress: bool = True,
    title: str = "training",
    pace: float = 1.0,
) -> Fitted:
    """Train `model` in place and return its averaged copy. With a `folder`: checkpoints, metrics.jsonl, TensorBoard.

    `identity` says in plain values what is trained; a checkpoint is not resumed into something else. When the figure of
    `watch` no longer falls, the rest of the schedule is gone through in a quarter of the steps done so far. A `renewal`
    changes `data` as it goes. With a `phase` the steps may be recorded and replayed on a GPU (see `replay`). `pace` is
    the part of Muon's learning rate that the loss bears, for settings that leave the rate open.
    """
    cuda = (fabric := launch(device, settings.precision)).device.type == "cuda"
    model, settings = placed(model, fabric.device), suited(settings, model, pace)
    average, last_good = (copy.deepcopy(model).requires_grad_(False) for _ in range(2))
    wrapped = fabric.setup_module(_compiled(model, settings, data, cuda))  # from here on `model` may be shared out
    average, plain = shared_like(average, model), make_optimizer(model, settings, cuda)
    mine = (team := current_team()).share(settings.batch_size)
    place = fabric.device, seed, Path(folder) if folder else None
    run = State(model, average, plain, *place, settings, identity, team)
    optimizer: Any = fabric.setup_optimizers(plain)
    run.open(resume)
    good = LastGood(run, title, last_good)
    data = data.to(fabric.device)
    log = MetricsLog(run.folder if team.leads else None, run.step, run.elapsed)
    bar = ProgressBar(title, settings.steps, settings.seconds, enabled=progress and team.leads)
    total = torch.zeros((), device=fabric.device)
    steps, bad_step = torch.tensor([run.step, -1], device=fabric.device)
    averaged = _in_precision(average, fabric)

    def step(batch: Batch, done: float) -> None:
        optimizer.zero_grad()
        value = _backward(fabric, wrapped, loss, batch, Moment(done, run.noise, averaged), settings.accumulate)
        if settings.clip:
            fabric.clip_gradients(wrapped, optimizer, max_norm=settings.clip, error_if_nonfinite=False)
        optimizer.step()
        total.add_(value)
        steps.add_(1)
        # Noted on the device; read, which waits for it, only before something is logged or kept.
        bad_step.copy_(torch.where((bad_step < 0) & ~torch.isfinite(value), steps, bad_step))

    take = Replay(step, phase, run.noise) if cuda and phase and team.size == 1 else step
    drawing = closing(_drawn(data, mine, run, renewal, averaged))
    with run.under_way(title), log, bar, drawing as drawn, fast_matmul(cuda), own_stream(cuda), held_back() as asked:
        while (done := run.progress) < 1:
            rate = settings.rate(done)
            set_rate(optimizer, rate)
            take(next(drawn), done)
            run.advance()
            if watch and run.is_look_due():
                run.look(team.agree(watch(averaged), fabric.device))
            over = run.progress >= 1
            due = over or run.is_save_due()
            if over or due or run.step % settings.log_every == 0:
                good.look(team.first(bad_step, fabric.device), log.rows)
            if over or run.step % settings.log_every == 0:
                speed, mean = log.add(run.step, run.elapsed, float(total), rate)
                bar.update(run.step, run.elapsed, mean, speed)
                total.zero_()
            stop = int(team.agree(asked(), fabric.device)) if run.meets else 0
            if due or stop:
                run.save()
            if stop:
                raise Stopped(stop)
    return Fitted(good.keep().to(fabric.device), log.rows, run.step, run.elapsed)


def _drawn(data: Data, mine: slice, run: State, renewal: Renewal | None, average: Field) -> Stream[Batch, None, None]:
    """This process's part of every batch, of data that is renewed first where that is due."""
    with closing(batches(data, run.settings.batch_size, run.host, mine)) as draws:
        while True:
            if renewal and (number := renewal.due(run.progress)) > run.renewed:
                run.renewed_now(number)
                renewal.renew(average, number)
            elif renewal and run.stale:
                with run.as_renewed():
                    renewal.renew(average, run.renewed)
            yield next(draws)


def _backward(fabric: Fabric, model: Any, loss: Loss, batch: Batch, moment: Moment, parts: int) -> Tensor:
    """The gradient of the mean loss, part by part of the batch; a team adds up its gradients with the last one."""
    value, done = torch.zeros((), device=fabric.device), 0
    for x, origin in zip(batch.x.chunk(parts), batch.origin.chunk(parts), strict=True):
        more = done + len(x) < len(batch.x)
        with fabric.no_backward_sync(model) if more and fabric.world_size > 1 else nullcontext():
            one = loss(model, Batch(x, origin), moment).mean() * (len(x) / len(batch.x))
            fabric.backward(one)
        value += one.detach()
        done += len(x)
    return value


def as_function(model: nn.Module, settings: Settings, data: Data, device: str) -> Field:
    """A trained network as `fit` would evaluate it: in the same precision, compiled where that pays."""
    fabric = launch(device, settings.precision)
    return _in_precision(_compiled(model, settings, data, fabric.device.type == "cuda"), fabric)


def _in_precision(model: nn.Module, fabric: Fabric) -> Field:
    def evaluate(x: Tensor, t: Tensor) -> Tensor:
        with fabric.autocast():
            output: Tensor = model(x, t)
        return output.to(x.dtype)

    return evaluate


def all_finite(model: nn.Module) -> bool:
    """Asked of the device once."""
    values = [p.detach() for p in gathered(dict(model.named_parameters())).values() if p.numel()]
    return not values or bool(torch.stack([torch.isfinite(p).all() for p in values]).all())


class LastGood:
    """The averaged network as it was when last looked at and all was well."""

    def __init__(self, run: State, title: str, model: nn.Module) -> None:
        self.run, self.title = run, title
        if any(map(is_part, run.average.parameters())):
            model = model.cpu()
        self.fitted = Fitted(model, [], run.step, run.elapsed)
        self.keep()

    def look(self, bad_step: int, rows: list[dict[str, float]]) -> None:
        run = self.run
        if bad_step < 0 and all_finite(run.model) and all_finite(run.average):
            self.keep()
            self.fitted.steps, self.fitted.seconds, self.fitted.history = run.step, run.elapsed, list(rows)
            return
        error = TrainingDiverged(
            f"The loss is not finite at step {bad_step if bad_step >= 0 else run.step + 1} of {self.title}; check that"
            f" the noise is that of the data, or lower the learning rate ({run.settings.lr:g}) or the clip"
            f" ({run.settings.clip})."
        )
        error.fitted = self.fitted if self.fitted.steps else None
        raise error

    def keep(self) -> nn.Module:
        """Of an average that is shared out the whole is kept, by the host."""
        self.fitted.model.load_state_dict(gathered(self.run.average.state_dict()))
        return self.fitted.model


def _compiled(model: nn.Module, settings: Settings, data: Data, cuda: bool) -> nn.Module:
    """The network compiled, if it is to be or if the training is long enough for it to pay."""
    wanted = settings.compile is True
    if settings.compile == "auto" and cuda:
        features = getattr(getattr(model, "net", None), "features_per_pixel", 0) * data.values_per_sample
        saved = SAVED * features * settings.batch_size * settings.steps if settings.steps else math.inf
        wanted = saved > COMPILING and (settings.seconds or math.inf) > 2.5 * COMPILING
    return cast(nn.Module, torch.compile(model)) if wanted else model
