"""What each process of tests/test_team.py does: python team_member.py OUT TASK, alone or under torchrun.

With STRATEGY=fsdp in the environment the processes share out the weights too; with OPTIMIZER=muon they train with that,
in small steps, as it makes as much of what is weak in a gradient as of what is strong, of rounding too.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

import inverseflow as ivf
from inverseflow.engine import distribute, launch
from inverseflow.methods import Batch, InverseConsistency, Moment
from inverseflow.patches import Patches, allowed_operations
from inverseflow.process import Bridge
from inverseflow.team import current_team
from inverseflow.tensors import ones, sample_mean
from inverseflow.train import _backward

BATCH = 8
NOISE = ivf.Gaussian(0.3)


def data() -> Patches:
    images = [torch.rand(1, 24, 28, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    return Patches(images, 16, allowed_operations(NOISE, 2))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = ivf.NetSpec("UNet", widths=(8, 16), blocks=1).build(0)
    for parameter in net.parameters():  # a network that starts at zero has hardly any gradient
        nn.init.normal_(parameter, std=0.1)
    return InverseConsistency(Bridge(NOISE)).prepare(net, 0.3)


def exact_loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
    """Nothing in it is random, so that it is the same in any number of processes."""
    return sample_mean((model(batch.x, ones(batch.x)) - 0.5 * batch.x).square())


def gradient(out: Path, accumulate: int) -> None:
    fabric, team, model = launch("cpu"), current_team(), network()
    wrapped, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    host = torch.Generator().manual_seed(3)
    batch = data().draw(BATCH, host, team.share(BATCH))
    _backward(fabric, wrapped, exact_loss, batch, Moment(0.0, torch.Generator(), wrapped), accumulate)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.save({"gradient": found, "x": batch.x}, out / f"gradient_{team.size}_{team.rank}.pt")


def train(out: Path, first: int | None, folder: Path | None = None) -> None:
    """50 steps; with `first` the process is killed after that many."""
    seen: list[Tensor] = []
    noises: list[Tensor] = []
    team, held = current_team(), []

    def loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        seen.append(batch.x)
        if first and len(seen) > first:
            os.kill(os.getpid(), signal.SIGKILL)
        noises.append(NOISE.sample(torch.zeros(4), generator=moment.generator))
        held[:] = [(parameter.numel(), in_memory(parameter)) for parameter in model.parameters()]
        return exact_loss(model, batch, moment)

    optimizer = os.environ.get("OPTIMIZER", "adamw")
    rate = 2e-5 if optimizer == "muon" else 1e-3
    settings = ivf.Settings(steps=50, batch_size=BATCH, checkpoint_steps=5, log_every=10, optimizer=optimizer, lr=rate)
    fitted = ivf.fit(
        network(), loss, data(), settings, device="cpu", folder=folder, resume=folder is not None, progress=False
    )
    found = {"weights": fitted.model.state_dict(), "x": seen, "noise": noises, "held": held}
    found["start"] = network().state_dict()
    torch.save(found, out / f"{team.size}_{team.rank}.pt")


def fail(out: Path, how: str) -> None:
    """At step 17 the second process ends, or its loss is not finite; each writes down what it is told."""
    team, steps = current_team(), 0

    def loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        nonlocal steps
        steps += 1
        if team.rank == 1 and steps == 17:
            if how == "gone":
                os._exit(1)
            return exact_loss(model, batch, moment) * torch.nan
        return exact_loss(model, batch, moment)

    settings = ivf.Settings(steps=50, batch_size=BATCH, checkpoint_steps=5, log_every=10)
    try:
        ivf.fit(network(), loss, data(), settings, device="cpu", folder=out / "run", progress=False)
    except ivf.InverseflowError as error:
        said = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        (out / f"told_{team.rank}").write_text("\n".join(said))


def in_memory(parameter: Any) -> int:
    """How many of a weight's values this process has between two passes."""
    return int((parameter.to_local() if hasattr(parameter, "to_local") else parameter).numel())


def note_the_end(out: Path) -> None:
    (out / f"end_{os.environ.get('RANK', '0')}").write_text("connected" if dist.is_initialized() else "parted")


if __name__ == "__main__":
    place, task, *more = sys.argv[1:]
    torch.set_num_threads(1)
    atexit.register(note_the_end, Path(place))  # the first to be registered is the last to run
    distribute(device="cpu", strategy=os.environ.get("STRATEGY", "ddp"))
    if task == "gradient":
        gradient(Path(place), int(more[0]))
    elif task == "fail":
        fail(Path(place), more[0])
    elif task == "killed":
        train(Path(place), int(more[0]), Path(place) / "run")
    else:
        train(Path(place), None, Path(place) / "run" if task == "resumed" else None)
