"""Crops read from files: the right pixels, the same whoever reads them, and enough to learn from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow import imaging
from inverseflow.checkpoint import read_tensors
from inverseflow.cli import app
from inverseflow.methods import Batch
from inverseflow.patches import allowed_operations
from inverseflow.samples import Scaling
from inverseflow.state import CHECKPOINT
from inverseflow.streaming import DiskPatches

LIMIT = 300  # seconds for a process that does its work; a machine may be slow
ROWS, COLUMNS = 90, 70
UNSCALED = Scaling(torch.zeros(1), torch.ones(1))


def numbered(folder: Path, kind: str) -> ivf.Files:
    """Two frames in which every pixel has its own number."""
    values = np.arange(2 * ROWS * COLUMNS, dtype=np.float32).reshape(2, ROWS, COLUMNS)
    path = folder / f"in.{kind}"
    if kind == "tif":
        tifffile.imwrite(path, values, metadata={"axes": "TYX"})
    else:
        ivf.write(path, ivf.Image(values, "TYX", metadata={"chunks": (1, 40, 40), "axes": "TYX"}))
    return ivf.Files((str(path),), ("TYX",), "YX", workers=0)


def crops(files: ivf.Files, size: int = 16) -> DiskPatches:
    return files.patches(UNSCALED, size, allowed_operations(ivf.Gaussian(1.0), 2))


def draws(data: DiskPatches, count: int, seed: int = 0, part: slice = slice(None)) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [data.draw(8, generator, part) for _ in range(count)]


@pytest.mark.parametrize("kind", ["ome.zarr", "tif"])
def test_crops_are_parts_of_the_image(tmp_path, kind: str) -> None:
    seen: Counter[int] = Counter()
    turned = set()
    for batch in draws(crops(numbered(tmp_path, kind)), 250):
        assert batch.x.shape == (8, 1, 16, 16)
        for crop, frame in zip(batch.x[:, 0].long(), batch.origin.tolist(), strict=True):
            down, right = int(crop[1, 0] - crop[0, 0]), int(crop[0, 1] - crop[0, 0])
            assert {abs(down), abs(right)} == {1, COLUMNS}  # neighbours are neighbours, flipped or turned
            expected = crop[0, 0] + down * torch.arange(16)[:, None] + right * torch.arange(16)
            assert torch.equal(crop, expected)
            assert (crop // (ROWS * COLUMNS) == frame).all()
            seen.update(crop.flatten().tolist())
            turned.add((down, right))
    assert len(turned) == 8
    inside = np.array([seen[k] for k in range(ROWS * COLUMNS)]).reshape(ROWS, COLUMNS)
    assert (inside[8:-8, 8:-8] > 0).mean() > 0.95  # the seams between chunks are seen less often
    halves = [inside[:45].sum(), inside[45:].sum(), inside[:, :35].sum(), inside[:, 35:].sum()]
    assert max(halves) < 1.5 * min(halves)


def test_reading_ahead_changes_nothing(tmp_path) -> None:
    """Other processes, and a training that goes on, see the batches of one that reads as it needs them."""
    files = numbered(tmp_path, "ome.zarr")
    expected = [batch.x for batch in draws(crops(files), 6)]
    generator = torch.Generator().manual_seed(0)
    ahead = crops(ivf.Files(files.paths, files.axes, "YX", workers=2)).ahead(8, generator)
    found = [batch.x for batch in islice(ahead, 4)]
    ahead.close()  # type: ignore[attr-defined]
    state = generator.get_state()  # as a checkpoint keeps it
    resumed = torch.Generator()
    resumed.set_state(state)
    found += [batch.x for batch in islice(crops(files).ahead(8, resumed), 2)]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_parts_of_a_batch_make_the_batch(tmp_path) -> None:
    data = crops(numbered(tmp_path, "ome.zarr"))
    whole = draws(data, 3)
    parts = [draws(data, 3, part=slice(k, k + 4)) for k in (0, 4)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(batch.x, torch.cat([first.x, second.x]))
        assert torch.equal(batch.origin, torch.cat([first.origin, second.origin]))


def noisy_file(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    clean = np.kron(rng.uniform(50, 200, (20, 24)), np.ones((8, 8))).astype(np.float32)
    noisy = (clean + rng.normal(0, 20, clean.shape)).astype(np.float32)
    ivf.write(folder / "in.ome.zarr", ivf.Image(noisy, "YX", metadata={"chunks": (64, 64), "axes": "YX"}))
    return clean, noisy


def test_learning_from_files(tmp_path) -> None:
    clean, noisy = noisy_file(tmp_path)
    files = ivf.Files((str(tmp_path / "in.ome.zarr"),), ("YX",), "YX", workers=0)
    settings = ivf.Settings(steps=120, batch_size=4)
    part = [torch.from_numpy(noisy[None, :64, :64])]
    model = ivf.Denoiser.train(
        part, ivf.Gaussian(20.0), axes="CYX", source=files, settings=settings, patch_size=32, device="cpu",
        progress=False,
    )  # fmt: skip
    result = model.denoise(noisy, axes="YX")
    assert np.square(result - clean).mean() < 0.4 * np.square(noisy - clean).mean()


TRAINING = """
import multiprocessing, os, signal, sys, time
import torch
import inverseflow as ivf
from inverseflow.interrupt import Stopped, exit_code
from inverseflow.patches import allowed_operations
from inverseflow.samples import Scaling

def loss(model, batch, moment):
    if len(sys.argv) > 3 and moment.progress == 0.5:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    elif moment.progress == 0.5:
        print(*(process.pid for process in multiprocessing.active_children()), flush=True)
        for _ in range(30):
            time.sleep(0.1)  # the word of a reader that dies would come in here
    return model(batch.x.flatten(1)[:, :4]).square().mean(1)

if __name__ == "__main__":
    files = ivf.Files((sys.argv[1],), ("TYX",), "YX", workers=2)
    data = files.patches(Scaling(torch.zeros(1), torch.ones(1)), 16, allowed_operations(ivf.Gaussian(1.0), 2))
    settings = ivf.Settings(steps=20 if len(sys.argv) < 4 else 100, batch_size=8, checkpoint_steps=5)
    try:
        ivf.fit(torch.nn.Linear(4, 4), loss, data, settings, folder=sys.argv[2], device="cpu", progress=False)
    except Stopped as stop:
        sys.exit(exit_code(stop))
    except ivf.InverseflowError as error:
        sys.exit(" ".join([f"{type(error).__name__}:", str(error), *error.__notes__]))
"""


def is_running(process: int) -> bool:
    """What has ended may wait for a parent to take note of it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs process groups, and /proc to look at processes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_all_processes_waits_for_the_step_and_its_checkpoint(tmp_path, number: signal.Signals) -> None:
    """As a closed terminal, Ctrl-C, `timeout` and a cluster send it. The readers end with their training in any case,
    also if it was killed.
    """
    (tmp_path / "training.py").write_text(TRAINING)
    numbered(tmp_path, "tif")
    command = [sys.executable, str(tmp_path / "training.py"), str(tmp_path / "in.tif"), str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as p:
        assert p.stdout
        readers = [int(word) for word in p.stdout.readline().split()]
        for reader in readers:  # some send it to each process, and not to the group
            os.kill(reader, signal.SIGINT)
            os.kill(reader, signal.SIGHUP)
        os.killpg(p.pid, number)
        _, said = p.communicate(timeout=LIMIT)
    assert len(readers) == 2, said
    limit = time.monotonic() + LIMIT
    while any(map(is_running, readers)):
        assert time.monotonic() < limit
        time.sleep(0.1)
    if number != signal.SIGKILL:
        assert p.returncode == 128 + number, said
        assert read_tensors(tmp_path / "run" / CHECKPOINT, "checkpoint")[1]["step"] == 11
        assert not said


def test_a_reader_that_is_killed_is_a_sentence(tmp_path) -> None:
    """As the system does it when the memory is used up."""
    (tmp_path / "training.py").write_text(TRAINING)
    numbered(tmp_path, "tif")
    command = [sys.executable, str(tmp_path / "training.py"), str(tmp_path / "in.tif"), str(tmp_path / "run"), "kill"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    first, _, last = done.stderr.strip().rpartition("\n")
    assert "Traceback" not in first
    assert last.startswith("DeviceError: A process that reads the files died during step 5")
    assert "The checkpoint of step 50 is in " in last


def test_what_a_reader_finds_damaged_is_one_sentence(tmp_path) -> None:
    files = numbered(tmp_path, "ome.zarr")
    for chunk in (tmp_path / "in.ome.zarr" / "0" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"damaged")
    data = crops(ivf.Files(files.paths, files.axes, "YX", workers=1))
    with pytest.raises(ivf.FileError, match=r"^\S+in.ome.zarr has a chunk that cannot be unpacked; [^\n]*$"):
        next(data.ahead(8, torch.Generator().manual_seed(0)))


def test_the_command_reads_large_files_as_it_trains(tmp_path, monkeypatch) -> None:
    noisy_file(tmp_path)
    used = []
    whole = DiskPatches.ahead
    monkeypatch.setattr(imaging, "TRAIN_PIXELS", 1000)
    monkeypatch.setattr(DiskPatches, "ahead", lambda self, *rest: used.append(self.files) or whole(self, *rest))
    arguments = [
        "train",
        str(tmp_path / "in.ome.zarr"),
        "--noise",
        "gaussian:sigma=20",
        "--steps",
        "3",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "m.safetensors")])
    assert result.exit_code == 0, result.output
    assert used[0].paths == (str((tmp_path / "in.ome.zarr").resolve()),)
    assert len(used) == 3  # map, mean, error bars

    tifffile.imwrite(tmp_path / "a.tif", np.zeros((40, 40), np.uint8))
    import imageio.v3 as imageio

    imageio.imwrite(tmp_path / "b.png", np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))
    arguments[1] = str(tmp_path / "b.png")
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "n.safetensors")])
    assert result.exit_code == 0, result.output
    assert "b.png cannot be read in parts" in result.output
