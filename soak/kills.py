"""Kill runs with SIGKILL at random, 200 times: is any output damaged, any input lost, does the same command go on?

    python -m soak.kills --count 200 --store

One process imports everything once and forks a child for every run, which is killed for real: half of them at a random
time, half at a random one of their own operations on files (an open, a rename, a removal), so that the moments between
writing and renaming are met as well. After each kill every output must be whole, and the right one or the older one
that was there, or absent; then the same command runs again, undisturbed, must end well, with the result of a run that
was never killed, and leave nothing else behind.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import inverseflow as ivf
from inverseflow import blocks, checkpoint, learning, recipe
from inverseflow.commands import denoise_files, train_model
from inverseflow.options import Options

from .common import SIGMA, noisy_image, store

SIDE = 64  # pixels of a block
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
PATIENCE = 900  # seconds for a run that nobody disturbs
ANY: dict[str, Any] = {"device": "cpu", "quiet": True, "force": True, "resume": True}


@dataclass(frozen=True)
class Job:
    """A command, the files that it makes in the folder it runs in, and whether older ones may be there."""

    work: Callable[[Path], int]
    outputs: tuple[str, ...]


def train(inputs: Path) -> int:
    noise = [f"gaussian:sigma={SIGMA}"]
    return train_model(Options([str(inputs / "in.ome.tif")], output=Path("m.safetensors"), noise=noise, steps=4, **ANY))


def denoise(source: str, target: str, **more: Any) -> Callable[[Path], int]:
    def work(inputs: Path) -> int:
        options = {**ANY, "model": inputs / "model.safetensors", "audit": False, **more}
        return denoise_files(Options([str(inputs / source)], output=Path(target), **options))

    return work


def save(inputs: Path) -> int:
    model = ivf.Denoiser.load(inputs / "model.safetensors", device="cpu")
    for _ in range(10):
        model.save("m.safetensors", overwrite=True)
    return 0


JOBS = {
    "train": Job(train, ("m.safetensors",)),
    "model save": Job(save, ("m.safetensors",)),
    "denoise to TIFF": Job(
        denoise("in.ome.tif", "out.ome.tif", std=True), ("out.ome.tif", "out_std.ome.tif", "out.html")
    ),
    "denoise to Zarr": Job(denoise("in.ome.tif", "out.ome.zarr", page=False), ("out.ome.zarr",)),
    "denoise to Zarr by blocks": Job(denoise("in.ome.zarr", "out.ome.zarr", page=False), ("out.ome.zarr",)),
    "denoise to Zarr by workers": Job(denoise("in.ome.zarr", "out.ome.zarr", page=False, workers=2), ("out.ome.zarr",)),
}
SHARES = {"denoise to Zarr by workers": 0.02}  # of the kills; the others share the rest: workers import everything anew


def make_small() -> None:
    """Networks and trainings so small that most of a run is files; lazy imports come before the forks."""
    for module in ("zarr", "ome_zarr_models.v05.multiscales", "ome_zarr_models.v05.axes", "torch.utils.tensorboard"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    short = {n: replace(s, steps=2, batch_size=2, checkpoint_steps=1) for n, s in recipe.PRESETS.items()}
    recipe.PRESETS.update(short)
    recipe.SMALL_NET.update(widths=(4, 8), blocks=1)
    learning.CALIBRATION_VALUES = 2**10
    blocks.SIDE = SIDE


# --- a run in a child


def child(work: Callable[[], int], folder: Path, said: Path, kill_at: int = 0, count_into: Path | None = None) -> int:
    """Fork; the child does the work in `folder`, as a session of its own, and kills itself at that file operation."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        text = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(text, 1)
        os.dup2(text, 2)
        seen = watch_files(kill_at)
        code = work()
        if count_into:
            count_into.write_text(str(seen["events"]))
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def watch_files(kill_at: int) -> Counter[str]:
    seen: Counter[str] = Counter()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and (event != "open" or writes(arguments)):
            seen["events"] += 1
            if seen["events"] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def writes(arguments: tuple[Any, ...]) -> bool:
    """Is it an open for writing?"""
    return bool(isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))


def wait(number: int, seconds: float) -> int | None:
    """The exit code of a child (negative: its signal), or None if it is not over by then."""
    limit = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            return None
        time.sleep(0.002)


def end_session(number: int) -> None:
    """Whoever is left of it: workers of a run that was killed."""
    try:
        os.killpg(number, signal.SIGKILL)
    except ProcessLookupError:
        return


def undisturbed(name: str, inputs: Path, folder: Path, place: Path) -> tuple[int | None, float, int]:
    """Exit code, seconds and file operations of a run."""
    started, counted = time.monotonic(), place / "count"
    counted.write_text("0")
    number = child(lambda: JOBS[name].work(inputs), folder, place / "said", count_into=counted)
    code = wait(number, PATIENCE)
    end_session(number)
    if code is None:
        wait(number, PATIENCE)
    return code, time.monotonic() - started, int(counted.read_text())


# --- what is found afterwards


def digest(path: Path) -> str:
    """Of what does not change from run to run: of a model its tensors, of a page that it is whole."""
    found = hashlib.sha256()
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            found.update(str(file.relative_to(path)).encode() + file.read_bytes())
    elif path.suffix == ".safetensors":
        checkpoint.read_tensors(path, "model")
        for name, tensor in sorted(load_file(path).items()):
            found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    elif path.suffix == ".html":
        text = path.read_text(encoding="utf-8").strip()
        found.update(f"{text.startswith('<!doctype html>')} {text.endswith('</html>')}".encode())
    else:
        found.update(path.read_bytes())
    return found.hexdigest()


def state(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The digests of the outputs that are there."""
    found = {}
    for name in names:
        if (folder / name).exists():
            try:
                found[name] = digest(folder / name)
            except Exception as error:
                found[name] = f"damaged: {error}"
    return found


def prepare(place: Path) -> Path:
    """The inputs: an image as TIFF and as OME-Zarr, and a model."""
    inputs = place / "inputs"
    inputs.mkdir()

    def work() -> int:
        known = {"levels": 2, "chunks": (1, SIDE, SIDE), "axes": "CYX"}
        image = ivf.Image(noisy_image(2, 120, 100), "CYX", {"Y": 0.2, "X": 0.2}, metadata=known)
        for name in ("in.ome.tif", "in.ome.zarr"):
            ivf.write(inputs / name, image)
        old = image.replace(image.data // 2)
        for name in ("old.ome.tif", "old.ome.zarr"):
            ivf.write(place / name, old)
        code = train(inputs)
        shutil.copy("m.safetensors", inputs / "model.safetensors")
        return code

    folder = place / "prepare"
    folder.mkdir()
    if wait(child(work, folder, place / "said"), PATIENCE) != 0:
        raise SystemExit((place / "said").read_text())
    return inputs


def begin_with_old(place: Path, inputs: Path, folder: Path, outputs: tuple[str, ...]) -> None:
    """Other files in the place of the outputs, which --force may replace and a kill may not damage."""
    for name in outputs:
        if name.endswith(".zarr"):
            shutil.copytree(place / "old.ome.zarr", folder / name)
        elif name.endswith(".tif"):
            shutil.copy(place / "old.ome.tif", folder / name)
        elif name.endswith(".safetensors"):
            shutil.copy(inputs / "model.safetensors", folder / name)


def run(count: int, seed: int, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    chance, totals = random.Random(seed), Counter[str]()
    make_small()
    by_job: dict[str, Counter[str]] = {name: Counter() for name in JOBS}
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        place = Path(temporary)
        inputs = prepare(place)
        known = digest(inputs)
        right: dict[str, dict[str, str]] = {}
        length: dict[str, tuple[float, int]] = {}
        for trial in range(count):
            name = choose(chance, trial, count)
            if name not in right:
                folder = fresh(place)
                code, seconds, events = undisturbed(name, inputs, folder, place)
                right[name], length[name] = state(folder, JOBS[name].outputs), (seconds, events)
                if code != 0 or len(right[name]) < len(JOBS[name].outputs):
                    raise SystemExit(f"{name} fails even undisturbed:\n{(place / 'said').read_text()}")
            folder = fresh(place)
            if chance.random() < 0.5:
                begin_with_old(place, inputs, folder, JOBS[name].outputs)
            before = state(folder, JOBS[name].outputs)
            how = kill(name, inputs, folder, place, length[name], chance)
            what = f"{name}, kill {trial + 1} {how}"
            by_job[name]["kills"] += 1
            after = state(folder, JOBS[name].outputs)
            for output, found in after.items():
                if found not in (right[name][output], before.get(output)):
                    problems.append(f"{what}: {output} is {found}")
                    totals["corrupt outputs"] += 1
            totals["older outputs set aside"] += len(before.keys() - after.keys())
            code, _, _ = undisturbed(name, inputs, folder, place)
            if code != 0 or state(folder, JOBS[name].outputs) != right[name]:
                problems.append(f"{what}: exit code {code} afterwards: {(place / 'said').read_text()[-2000:]}")
                totals["failures to go on"] += 1
            if left := {path.name for path in folder.iterdir()} - set(JOBS[name].outputs):
                problems.append(f"{what}: {sorted(left)} left behind")
                totals["files left behind"] += len(left)
            if digest(inputs) != known:
                problems.append(f"{what}: the inputs changed")
                totals["lost inputs"] += 1
                inputs = prepare(fresh(place))
                known = digest(inputs)
            say(f"{trial + 1} of {count}: {what}, {len(problems)} problems")
    names = ("corrupt outputs", "lost inputs", "failures to go on", "files left behind", "older outputs set aside")
    return {
        "kills": count,
        **{name.replace(" ", "_"): totals[name] for name in names},
        "by_job": {name: dict(found) for name, found in by_job.items()},
        "seed": seed,
        "problems": problems,
    }


def choose(chance: random.Random, trial: int, count: int) -> str:
    """Each kind of run in turn; workers, which are slow to start, now and then."""
    rare = {name: max(1, round(share * count)) if count > 10 else 0 for name, share in SHARES.items()}
    for name, times in rare.items():
        if times and trial % (count // times) == count // times - 1:
            return name
    usual = [name for name in JOBS if name not in SHARES]
    return usual[trial % len(usual)]


def fresh(place: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=place))


def kill(name: str, inputs: Path, folder: Path, place: Path, length: tuple[float, int], chance: random.Random) -> str:
    """Start a run and kill it; if it was over before, again and earlier. Says where it was killed."""
    seconds, events = length
    while True:
        by_file = chance.random() < 0.5
        at = chance.randint(1, max(1, events)) if by_file else 0
        number = child(lambda: JOBS[name].work(inputs), folder, place / "said", kill_at=at)
        moment = chance.uniform(0, seconds)
        code = wait(number, PATIENCE if by_file else moment)
        if code is None:
            os.kill(number, signal.SIGKILL)
            code = wait(number, PATIENCE)
        if chance.random() < 0.5:  # else workers see for themselves that nobody wants them any more
            end_session(number)
        if code == -signal.SIGKILL:
            return f"at file operation {at} of {events}" if by_file else f"after {moment:.2f} of {seconds:.2f} s"
        seconds, events = 0.9 * seconds, max(1, int(0.9 * events))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/soak_kills.json")
    asked = parser.parse_args()
    started = time.monotonic()
    found = run(asked.count, asked.seed, lambda text: print(text, flush=True))
    found["minutes"] = round((time.monotonic() - started) / 60, 1)
    print("\n".join(found["problems"]))
    print(
        f"{found['kills']} kills in {found['minutes']} min (seed {found['seed']}): {found['corrupt_outputs']} corrupt "
        f"outputs, {found['lost_inputs']} lost inputs, {found['failures_to_go_on']} failures to go on, "
        f"{found['files_left_behind']} files left behind"
    )
    if asked.store:
        store("kills", found)
    raise SystemExit(bool(found["problems"]))


if __name__ == "__main__":
    main()
