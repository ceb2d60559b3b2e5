"""Where to compute: the device, the precision, how many processes, and Lightning Fabric on top of them."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import distributed as dist
from torch import nn

from .errors import InputError
from .sharding import share_out
from .team import Team, current_team

STRATEGIES = ("ddp", "fsdp")
_processes: dict[str, Any] = {"devices": 1, "plugins": [LightningEnvironment()]}
"""What Fabric is told of the processes. One for the whole process, as is the group that torch.distributed makes.
Left to itself Fabric would take one process in the job of a cluster for as many as the job has tasks.
"""


def distribute(devices: int = 1, nodes: int = 1, strategy: str = "ddp", device: str = "auto") -> Team:
    """Train in several processes from here on, one for each device: `devices` on each of `nodes` machines.

    Call it once, first of all. A script started as usual is started again for each further device; under torchrun or
    srun the processes are there already. With "ddp" each has the whole network and its part of every batch; with
    "fsdp" its part of the weights too, for networks that one device cannot train.
    """
    if devices < 1 or nodes < 1:
        raise InputError(f"A training needs at least one device on one machine, not {devices} on {nodes}.")
    if strategy not in STRATEGIES:
        raise InputError(f"The strategy must be {' or '.join(STRATEGIES)}, not {strategy!r}.")
    devices, nodes, environment = _started(devices, nodes)
    gpus = torch.cuda.device_count()
    if choose_device(device) == "cuda" and devices > gpus:
        raise InputError(f"{devices} devices were asked for, but this machine has {gpus} GPU{'s'[: gpus > 1]}.")
    if devices * nodes > 1:
        _processes.update(devices=devices, num_nodes=nodes, strategy=strategy, plugins=[environment])
        launch(device)
        atexit.register(_part)
    return current_team()


def _part() -> None:
    """End the threads that talk to the other processes while Python still runs: one of them that lets go of a tensor
    after it has ended aborts a process that had done its work.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _started(devices: int, nodes: int) -> tuple[int, int, ClusterEnvironment]:
    """How many there are on each of how many machines: torchrun and srun have counted, and started them already."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"]), TorchElasticEnvironment()
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) == 1:  # a batch script's own process is no step of its job
        return devices, nodes, LightningEnvironment()
    each = os.environ["SLURM_STEP_TASKS_PER_NODE"]  # "4", "4(x2)", or where they differ "4,3"
    if "," in each:
        raise InputError(
            f"srun has started different numbers of processes on the machines ({each}); start as many on each with "
            "--ntasks-per-node."
        )
    devices = int(each.split("(")[0])
    os.environ["SLURM_NTASKS_PER_NODE"] = str(devices)  # Lightning wants to have been told, srun sets it only if it was
    return devices, int(os.environ["SLURM_STEP_NUM_NODES"]), SLURMEnvironment()


def launch(device: str = "auto", precision: str = "auto") -> Fabric:
    """The engine; "auto" takes a GPU where there is one, and bf16 on CUDA."""
    for name in ("lightning.fabric", "lightning.pytorch", "lightning_utilities"):  # "Using bfloat16": no news to a user
        logging.getLogger(name).setLevel(logging.WARNING)
    chosen = choose_device(device)
    if precision == "auto":
        precision = "bf16-mixed" if chosen == "cuda" else "32-true"
    processes = dict(_processes)
    if processes.get("strategy") == "fsdp":
        parts = processes["devices"] * processes["num_nodes"]
        processes["strategy"] = ModelParallelStrategy(share_out, data_parallel_size=parts, tensor_parallel_size=1)
    fabric = Fabric(accelerator=chosen, precision=precision, **processes)  # type: ignore[arg-type]
    fabric.launch()
    return fabric


def choose_device(device: str = "auto") -> str:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if device not in available:
        raise InputError(f"device must be auto, cpu, cuda or mps, not {device!r}.")
    if not available[device]:
        raise InputError(f"This machine has no {device} device; use the device auto.")
    return device


def placed(model: nn.Module, device: torch.device) -> nn.Module:
    """On the device; a GPU is fastest when the channels of a pixel lie together."""
    model = model.to(device)
    if device.type == "cuda" and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@contextmanager
def fast_matmul(cuda: bool) -> Iterator[None]:
    """On a GPU, TF32 where float32 is left, and convolutions by whichever of cuDNN's ways is fastest for the one shape
    that a training has; the user's settings come back afterwards.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    if cuda:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


@contextmanager
def half_precision(device: torch.device, ours: bool) -> Iterator[None]:
    """For evaluation on a GPU: float16 in the layers of a network of ours, whose normalised values stay small."""
    with torch.autocast("cuda", torch.float16, enabled=ours and device.type == "cuda"):
        yield
