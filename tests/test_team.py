"""Real processes that train one model: the same gradient as one process, and a checkpoint that any number can go on
with.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tifffile
import torch

import inverseflow as ivf
from inverseflow.sharding import share_out
from inverseflow.team import Team

MEMBER = Path(__file__).with_name("team_member.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def members(count: int, *arguments: Any, killed: bool = False, strategy: str = "ddp", optimizer: str = "adamw") -> None:
    start = TORCHRUN if count == 2 else [sys.executable]
    command = [*start, MEMBER, *map(str, arguments)]
    where = os.environ | {"STRATEGY": strategy, "OPTIMIZER": optimizer}
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode != 0) == killed, done.stderr[-2000:]


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path)
    return found


def differ(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_two_processes_have_the_gradient_of_one(tmp_path) -> None:
    members(1, tmp_path, "gradient", 1)
    members(2, tmp_path, "gradient", 2)  # and each goes through its half in two parts
    assert [(tmp_path / f"end_{rank}").read_text() for rank in (0, 1)] == ["parted", "parted"]
    alone = load(tmp_path / "gradient_1_0.pt")
    both = [load(tmp_path / f"gradient_2_{rank}.pt") for rank in (0, 1)]
    assert torch.equal(torch.cat([one["x"] for one in both]), alone["x"])
    size = max(float(g.abs().max()) for g in alone["gradient"].values())
    assert size > 1e-3
    for one in both:
        assert differ(one["gradient"], alone["gradient"]) < 1e-6


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_arrive_where_one_does_and_any_number_goes_on(tmp_path, strategy: str, optimizer: str) -> None:
    how: dict[str, Any] = {"strategy": strategy, "optimizer": optimizer}
    members(1, tmp_path, "whole", optimizer=optimizer)
    members(2, tmp_path, "whole", **how)
    alone, first, second = (load(tmp_path / name) for name in ("1_0.pt", "2_0.pt", "2_1.pt"))
    assert differ(first["weights"], second["weights"]) == 0
    assert differ(first["weights"], alone["weights"]) < 1e-5
    assert differ(alone["weights"], alone["start"]) > 2e-4  # all have gone far
    assert len(alone["x"]) == 50
    for key in ("x", "noise"):  # each its own crops and its own noise
        assert not any(torch.equal(a, b) for a, b in zip(first[key], second[key], strict=True))
    weights = sum(whole for whole, _ in first["held"])
    held = [sum(part for _, part in one["held"]) for one in (first, second)]
    if strategy == "fsdp":
        assert sum(held) == weights
        assert max(held) < 0.6 * weights
    else:
        assert held == [weights, weights]

    for name in ("1_0.pt", "2_0.pt", "2_1.pt"):
        (tmp_path / name).unlink()
    members(2, tmp_path, "killed", 17, killed=True, **how)  # the checkpoint is that of step 15
    members(1, tmp_path, "killed", 12, killed=True, optimizer=optimizer)  # goes on to step 27: that of step 25
    members(2, tmp_path, "resumed", **how)
    found = load(tmp_path / "2_0.pt")
    assert len(found["x"]) == 25
    assert differ(found["weights"], alone["weights"]) < 1e-5


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_command_trains_with_two_processes(tmp_path, strategy: str) -> None:
    rng = np.random.default_rng(0)
    clean = np.kron(rng.uniform(50, 200, (12, 12)), np.ones((8, 8)))
    tifffile.imwrite(tmp_path / "noisy.tif", (clean + rng.normal(0, 20, clean.shape)).astype(np.float32))
    command = [
        sys.executable,
        "-m",
        "inverseflow",
        "train",
        "noisy.tif",
        "--noise",
        "gaussian:sigma=20",
        "--axes",
        "YX",
    ]
    interrupted = tmp_path / ".m.safetensors.training"  # removed by one of the two, so that they do not race
    interrupted.mkdir()
    for number in range(500):
        (interrupted / f"{number}").touch()
    command += ["--strategy", strategy, "--force"]
    command += ["--device", "cpu", "--steps", "60", "--devices", "2", "--accumulate", "2", "-o", "m.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Wrote m.safetensors") == 1  # only the leader talks
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name or path.is_dir()] == []
    noisy = tifffile.imread(tmp_path / "noisy.tif")
    result = ivf.Denoiser.load(tmp_path / "m.safetensors", device="cpu").denoise(noisy, axes="YX")
    assert np.square(result - clean).mean() < 0.6 * np.square(noisy - clean).mean()


def srun(*arguments: Any, strategy: str = "ddp", alone: bool = False) -> list[int]:
    """What SLURM tells the processes of `srun -n 2` on one machine, and a free port; their exit codes. With `alone`,
    first of a batch script's own process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    job |= {"SLURM_NODELIST": "localhost", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "STRATEGY": strategy}
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NUM_NODES": "1"}
    ranks = [step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in (0, 1)]
    command = [sys.executable, MEMBER, *map(str, arguments)]
    started = [subprocess.Popen(command, env=os.environ | job | mine) for mine in ([{}] if alone else []) + ranks]
    return [process.wait(300) for process in started]


def test_processes_of_srun_are_a_team_and_that_of_a_batch_script_is_not(tmp_path) -> None:
    assert srun(tmp_path, "gradient", "1", alone=True) == [0, 0, 0]
    alone, *both = (load(tmp_path / f"gradient_{name}.pt") for name in ("1_0", "2_0", "2_1"))
    assert torch.equal(torch.cat([one["x"] for one in both]), alone["x"])
    assert all(differ(one["gradient"], alone["gradient"]) < 1e-6 for one in both)


def test_one_process_that_ends_is_a_sentence_for_the_others(tmp_path) -> None:
    assert srun(tmp_path, "fail", "gone") == [0, 1]
    kind, said, kept = (tmp_path / "told_0").read_text().split("\n")
    assert kind == "DeviceError"
    assert said.startswith("The processes of this training lost each other during step 17 of training (")
    assert kept.startswith("The checkpoint of step 15 is in ")


def test_a_loss_that_is_not_finite_in_one_process_ends_all(tmp_path) -> None:
    assert srun(tmp_path, "fail", "nan", strategy="fsdp") == [0, 0]
    for rank in (0, 1):
        assert (
            (tmp_path / f"told_{rank}")
            .read_text()
            .startswith("TrainingDiverged\nThe loss is not finite at step 17 of training; ")
        )


def test_srun_with_more_processes_on_one_machine_than_on_another(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2,1")
    with pytest.raises(ivf.InputError, match=r"different numbers of processes on the machines \(2,1\)"):
        ivf.distribute(device="cpu")


def test_batches_that_cannot_be_shared_and_devices_that_are_not_there() -> None:
    with pytest.raises(ivf.InputError, match="batch of 9 cannot be shared equally by 2"):
        Team(0, 2).share(9)
    with pytest.raises(ivf.InputError, match="at least one device"):
        ivf.distribute(0)
    with pytest.raises(ivf.InputError, match="must be ddp or fsdp, not 'dp'"):
        ivf.distribute(2, strategy="dp")


def test_a_torch_without_sharding_is_a_sentence(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("older"))
    with pytest.raises(ivf.InputError, match="fsdp needs torch"):
        share_out(torch.nn.Linear(2, 2), {})


class Odd(torch.nn.Module):
    """Blocks in a list of lists, and in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.pairs = nn.ModuleList(nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3))]) for _ in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 4)})


def test_blocks_are_what_lists_and_dictionaries_hold(monkeypatch) -> None:
    """torch refuses the lists and dictionaries themselves, which no pass goes through."""
    shared: list[torch.nn.Module] = []
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda module, **_: shared.append(module))
    net = Odd()
    share_out(net, {"data_parallel": None})
    blocks = [*net.pairs[0], *net.pairs[1], *net.heads.values()]  # type: ignore[misc]
    assert set(shared[:-1]) == set(blocks)
    assert len(shared) == 7
    assert shared[-1] is net


def test_weights_that_cannot_be_shared_out_are_named() -> None:
    net = Odd()
    net.heads["b"].size = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ivf.InputError, match=r"cannot share out heads\.b\.size, a single number; give it the shape"):
        share_out(net, {})
    net = Odd()
    net.heads["b"].bias = net.pairs[0][0].bias  # type: ignore[index, union-attr]
    with pytest.raises(ivf.InputError, match=r"heads\.b\.bias, which is pairs\.0\.0\.bias too; use ddp"):
        share_out(net, {})
