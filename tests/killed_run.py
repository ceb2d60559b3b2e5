"""A training run for test_train to kill: python killed_run.py FOLDER. It waits near its end until it is killed."""

from __future__ import annotations

import sys
import time

import torch

from inverseflow.methods import InverseConsistency
from inverseflow.nets import NetSpec
from inverseflow.noise import Gaussian
from inverseflow.patches import Patches, allowed_operations
from inverseflow.process import Bridge
from inverseflow.settings import Settings
from inverseflow.train import Fitted, fit

STEPS = 60


def run(folder: str | None, pause: float = 0.0, *, resume: bool = False) -> Fitted:
    torch.set_num_threads(1)
    noise = Gaussian(0.3)
    images = [torch.rand(1, 20, 24, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    data = Patches(images, 16, allowed_operations(noise, 2))
    method = InverseConsistency(Bridge(noise))
    net = NetSpec("UNet", widths=(8, 16), blocks=1, embedding=16).build(seed=1)

    def slow_loss(*arguments):
        time.sleep(pause)
        while pause and arguments[2].progress > 0.93:
            time.sleep(1)
        return method.loss(*arguments)

    settings = Settings(steps=STEPS, batch_size=4, checkpoint_steps=1, log_every=5, clip=1.0)
    return fit(
        method.prepare(net, 0.3),
        slow_loss,
        data,
        settings,
        seed=5,
        folder=folder,
        resume=resume,
        device="cpu",
        progress=False,
    )


if __name__ == "__main__":
    run(sys.argv[1], pause=0.03, resume=True)
