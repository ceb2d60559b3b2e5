"""2,000 damaged files through the command, each in a process of its own: no traceback, no hang, no memory.

    python -m soak.fuzz --count 2000 --output benchmarks/results/soak_fuzz.json

A process is forked for every file from one that has imported everything, so that its memory and time are its own. Each
must end within 10 s and 1 GB with exit code 0 (the damage is harmless), 1 or 2 and, if not 0, one sentence.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .damage import damaged, make_wholes

SECONDS, MEMORY = 10, 2**30


@dataclass
class Outcome:
    """How one damaged file ended."""

    number: int
    file: str
    damage: str
    code: int  # negative: ended by this signal
    seconds: float
    memory: int
    told: str
    problem: str  # "" where all is well


def command(name: str, path: Path, folder: Path) -> list[str]:
    """What a user would do with such a file."""
    noisy, model = str(folder / "whole" / "plain.tif"), str(folder / "whole" / "model_1.safetensors")
    quick = ["--device", "cpu", "--quiet"]
    if name.startswith("model"):
        return [
            "denoise",
            noisy,
            "-m",
            str(path),
            "-o",
            str(path.parent / "out.tif"),
            "--no-page",
            "--no-audit",
            *quick,
        ]
    if name.startswith("generator"):
        return ["generate", str(path), "-n", "2", "-o", str(path.parent / "out"), *quick]
    if name.startswith("noise"):
        how = ["--noise", str(path), "--steps", "1", "--estimate", "flow", "--preset", "fast"]
        return ["train", noisy, *how, "-o", str(path.parent / "out.safetensors"), *quick]
    if name.endswith(".h5ad"):
        return ["cells", str(path), "--noise", "0.5", "--n-comps", "4", "-o", str(path.parent / "out.h5ad"), *quick]
    if name.startswith("checkpoint"):
        return ["--resume-training", str(path)]
    if name.endswith(".npy") or path.stat().st_size % 2:
        return ["info", str(path)]
    return [
        "denoise",
        str(path),
        "-m",
        model,
        "-o",
        str(path.parent / "out.npy"),
        "--no-page",
        "--no-audit",
        "--channels",
        "0",
        *quick,
    ]


def run(arguments: list[str]) -> None:
    """The command; a checkpoint is what a training goes on from."""
    from inverseflow import cli
    from inverseflow.arguments import run as told

    if arguments[0] == "--resume-training":
        told(lambda: resume(Path(arguments[1])))
    sys.argv = ["inverseflow", *arguments]
    cli.main()


def resume(path: Path) -> int:
    import torch

    import inverseflow as ivf
    from inverseflow.settings import Settings

    folder = path.parent / "run"
    (folder / "flow").mkdir(parents=True)
    shutil.copy(path, folder / "flow" / "checkpoint.safetensors")
    torch.manual_seed(0)
    net = ivf.NetSpec("UNet", channels=1, widths=(4, 8), blocks=1, embedding=8)
    from tests.store_formats import NOISE, STEPS, scene

    ivf.Denoiser.train(
        scene(), NOISE, net=net, settings=STEPS, estimate="flow", preset="fast", patch_size=16, device="cpu",
        folder=folder, resume=True, progress=False,
    )  # fmt: skip
    assert isinstance(STEPS, Settings)
    return 0


def warm() -> None:
    """Import what the commands need, so that each process has it."""
    import importlib

    import torch

    torch.set_num_threads(1)
    for name in ("anndata", "scanpy", "zarr", "ome_zarr_models", "imagecodecs", "h5py", "PIL.Image"):
        importlib.import_module(name)
    for name in ("commands", "cells_command", "generate_command", "finding", "cli", "pp", "tl", "cells.denoiser"):
        importlib.import_module(f"inverseflow.{name}")
    for name in ("ome_zarr_models.v04.multiscales", "ome_zarr_models.v05.multiscales", "imageio.plugins.pillow"):
        importlib.import_module(name)
    import inverseflow.cells.denoiser as cells

    cells.CELLS = cells.CELLS.__class__(**{**asdict(cells.CELLS), "steps": 2})


def child(arguments: list[str], log: Path) -> None:
    """In the new process: the command, all that it says in a file, and its exit code."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_AS, (24 * 2**30, 24 * 2**30))
    code = 0
    try:
        run(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as ended:
        if type(ended).__name__ == "Exit":
            code = ended.exit_code  # type: ignore[attr-defined]
        else:
            import traceback

            traceback.print_exc()
            code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def one(number: int, name: str, whole: Path, folder: Path, seed: int) -> Outcome:
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    draw = random.Random(f"{seed} {number}")
    path = place / name
    damage = damaged(whole, path, draw) if seed >= 0 else untouched(whole, path)
    arguments, log = command(name, path, folder), folder / "log"
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        child(arguments, log)
    status, usage, late = wait(pid, started)
    seconds = time.monotonic() - started
    code = os.waitstatus_to_exitcode(status)
    told = log.read_text(errors="replace").strip()
    memory = usage.ru_maxrss * 1024
    problem = judge(code, told, memory, late)
    last = told.splitlines()[-1] if told else ""
    return Outcome(
        number, name, damage, code, round(seconds, 2), memory, told[-3000:] if problem else last[:300], problem
    )


def untouched(whole: Path, path: Path) -> str:
    """Seed -1: nothing is damaged, and every exit code must be 0."""
    (shutil.copytree if whole.is_dir() else shutil.copy)(whole, path)
    return "none"


def wait(pid: int, started: float) -> tuple[int, Any, bool]:
    """Its status and what it used. Its own processor time counts, since the machine may be busy with others."""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage, False
        used = processor_seconds(pid)
        if used > SECONDS or time.monotonic() - started > 30 * SECONDS:
            os.kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            return status, usage, True
        time.sleep(0.02)


def processor_seconds(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def judge(code: int, told: str, memory: int, late: bool) -> str:
    lines = told.splitlines()
    if late:
        return "hang"
    if "Traceback (most recent call last)" in told:
        return "traceback"
    if code not in (0, 1, 2):
        return "exit code"
    if memory > MEMORY:
        return "memory"
    if code and not (lines and lines[-1].startswith("inverseflow: ") and lines[-1].endswith((".", "?"))):
        return "no sentence"
    if code and sum(not line.startswith("inverseflow: ") for line in lines):
        return "chatter"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/soak_fuzz.json"))
    parser.add_argument("--jobs", type=int, default=1, help="Processes that share the files.")
    given = parser.parse_args()
    outcomes = alone(given) if given.jobs == 1 else together(given)
    given.output.write_text(json.dumps(summary(outcomes, given), indent=2) + "\n")
    for found in outcomes:
        if found.problem:
            print(f"{found.number} {found.file} ({found.damage}): {found.problem}\n{found.told}\n")
    print(json.dumps({key: value for key, value in summary(outcomes, given).items() if key != "sentences"}, indent=2))
    return 1 if any(found.problem for found in outcomes) else 0


def together(given: Any) -> list[Outcome]:
    """Several of these commands, each with its part of the numbers."""
    with tempfile.TemporaryDirectory() as place:
        running = []
        for part in range(given.jobs):
            first, last = (given.first + given.count * n // given.jobs for n in (part, part + 1))
            output = Path(place) / str(part)
            numbers = ["--first", str(first), "--count", str(last - first), "--seed", str(given.seed)]
            words = [sys.executable, "-m", "soak.fuzz", *numbers, "--output", str(output)]
            running.append((subprocess.Popen(words), output))
        outcomes = []
        for process, output in running:
            process.wait()
            outcomes += [Outcome(**found) for found in json.loads(Path(f"{output}.all").read_text())]
    return outcomes


def alone(given: Any) -> list[Outcome]:
    warm()
    gc.freeze()  # else every process copies what it only looks at
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "whole").mkdir()
        wholes = list(make_wholes_apart(folder / "whole").items())
        for number in range(given.first, given.first + given.count):
            name, whole = wholes[number % len(wholes)]
            outcomes.append(one(number, name, whole, folder, given.seed))
            if outcomes[-1].problem:
                print(asdict(outcomes[-1]), flush=True)
    Path(f"{given.output}.all").write_text(json.dumps([asdict(found) for found in outcomes]))
    return outcomes


def make_wholes_apart(folder: Path) -> dict[str, Path]:
    """Made in a process of its own: zarr starts a thread, which a fork would not take along."""
    pid = os.fork()
    if not pid:
        make_wholes(folder)
        os._exit(0)
    os.waitpid(pid, 0)
    return {path.name: path for path in sorted(folder.iterdir())}


def summary(outcomes: list[Outcome], given: Any) -> dict[str, Any]:
    """The figures, and a few of the sentences."""
    problems = collections.Counter(found.problem for found in outcomes if found.problem)
    kinds = ("traceback", "hang", "memory", "exit code", "no sentence", "chatter")
    return {
        "command": f"python -m soak.fuzz --count {given.count} --seed {given.seed} --first {given.first}",
        "conditions": {"python": platform.python_version(), "machine": platform.machine()},
        "inputs": len(outcomes),
        "problems": {kind: problems.get(kind, 0) for kind in kinds},
        "exit_codes": dict(sorted(collections.Counter(str(found.code) for found in outcomes).items())),
        "slowest_seconds": max(found.seconds for found in outcomes),
        "largest_memory_mb": round(max(found.memory for found in outcomes) / 2**20),
        "by_file": dict(sorted(collections.Counter(found.file for found in outcomes).items())),
        "sentences": sorted(
            {re.sub(r"/\S*/case/", "", found.told) for found in outcomes if found.code and not found.problem}
        )[:: max(1, len(outcomes) // 200)][:20],
    }


if __name__ == "__main__":
    sys.exit(main())
