"""Blocks done alone, by real workers, by workers that are really killed: always the same file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tifffile
import torch
import zarr
from typer.testing import CliRunner, Result

import inverseflow as ivf
from inverseflow import blocks
from inverseflow import cluster as cluster_module
from inverseflow.blockwise import folder_of
from inverseflow.cli import app

LIMIT = 900  # seconds; a machine may be slow, a run that hangs is not
RUN = Path(__file__).with_name("cluster_run.py")
SOURCE = Path(ivf.__file__).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """An image of 400 x 330 in chunks of 64, two channels, a pyramid of three levels, and a model for it."""
    folder = tmp_path_factory.mktemp("blocks")
    rng = np.random.default_rng(0)
    clean = np.kron(rng.uniform(200, 2000, (2, 20, 17)), np.ones((1, 20, 20)))[:, :, :330]
    noisy = (clean + rng.normal(0, 100, clean.shape)).clip(0).astype(np.uint16)
    known = {"levels": 3, "chunks": (1, 64, 64), "axes": "CYX"}
    size, units = {"Y": 0.2, "X": 0.2}, {"Y": "µm", "X": "µm"}
    ivf.write(folder / "in.ome.zarr", ivf.Image(noisy, "CYX", size, units, ("one", "two"), metadata=known))
    settings = ivf.Settings(steps=15, batch_size=4)
    model = ivf.Denoiser.train(noisy.astype(np.float32), ivf.Gaussian(100.0), axes="CYX", settings=settings,
                               device="cpu", progress=False)  # fmt: skip
    model.save(folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> str:
    run(place, "alone.ome.zarr", 0)
    return digest(place / "alone.ome.zarr")


def start(place: Path, target: str, workers: int, *pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, RUN, place / "in.ome.zarr", place / "model.safetensors", place / target, workers, *pause]
    return subprocess.Popen(
        [str(part) for part in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def run(place: Path, target: str, workers: int) -> str:
    process = start(place, target, workers)
    said, wrong = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, wrong[-3000:]
    return said


def digest(store: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(p for p in store.rglob("*") if p.is_file()):
        found.update(str(path.relative_to(store)).encode() + path.read_bytes())
    return found.hexdigest()


def notes(place: Path, target: str) -> set[str]:
    folder = folder_of(place / target) / blocks.NOTES
    return {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.exists() else set()


def wait_for(process: subprocess.Popen[str], place: Path, target: str, count: int) -> None:
    while len(notes(place, target)) < count:
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)


def workers_with_torch(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.memory_info().rss > 150e6:
                found.append(child)
    return found


def inverseflow(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_blocks_are_the_image(place: Path, undisturbed: str) -> None:
    result = ivf.read(place / "alone.ome.zarr")
    image = ivf.read(place / "in.ome.zarr")
    whole = ivf.Denoiser.load(place / "model.safetensors", device="cpu").denoise(np.asarray(image), axes="CYX")
    values = np.asarray(result)
    assert np.abs(values - whole).max() < 1e-3 * np.ptp(whole)
    assert (result.pixel_size, result.units, result.channel_names) == (image.pixel_size, image.units, ("one", "two"))
    group = zarr.open_group(place / "alone.ome.zarr", mode="r")
    assert [group[str(k)].shape for k in range(3)] == [(2, 400, 330), (2, 200, 165), (2, 100, 83)]
    np.testing.assert_allclose(group["1"][0, 10, 10], values[0, 20:22, 20:22].mean(), rtol=1e-6)
    half = group["1"][0, 20:22, 20:22].mean()
    np.testing.assert_allclose(group["2"][0, 10, 10], half, rtol=1e-6)
    assert not folder_of(place / "alone.ome.zarr").exists()


def test_blocks_have_no_seams(place: Path, undisturbed: str) -> None:
    """Steps across the borders of blocks are as those of the image denoised in one piece."""
    values = np.asarray(ivf.read(place / "alone.ome.zarr")).astype(np.float64)
    image = np.asarray(ivf.read(place / "in.ome.zarr"))
    whole = ivf.Denoiser.load(place / "model.safetensors", device="cpu").denoise(image, axes="CYX")
    borders = np.arange(64, 330, 64)
    steps = [np.abs(np.diff(x, axis=-1)[..., borders - 1]).mean() for x in (values, whole)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)


def test_workers_write_the_same_file(place: Path, undisturbed: str) -> None:
    assert "Dask shows the work at http" in run(place, "two.ome.zarr", 2)
    assert digest(place / "two.ome.zarr") == undisturbed


def test_killed_workers_are_replaced(place: Path, undisturbed: str) -> None:
    process = start(place, "killed.ome.zarr", 2)
    for deaths in range(3):
        wait_for(process, place, "killed.ome.zarr", 3 + 6 * deaths)
        while not (busy := workers_with_torch(process)):  # both may just be starting again
            assert process.poll() is None, process.communicate()[1][-3000:]
            time.sleep(0.02)
        busy[deaths % len(busy)].send_signal(signal.SIGKILL)
    wrong = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 0, wrong[-3000:]
    assert digest(place / "killed.ome.zarr") == undisturbed


def test_workers_leave_ctrl_c_to_the_run(place: Path, undisturbed: str) -> None:
    """A terminal sends it to all of them; theirs would be a page of tracebacks each."""
    process = start(place, "stopped.ome.zarr", 2)
    wait_for(process, place, "stopped.ome.zarr", 3)
    busy = workers_with_torch(process)
    os.killpg(process.pid, signal.SIGINT)
    said, wrong = process.communicate(timeout=LIMIT)
    assert "the same command goes on with the rest" in said
    assert "Process Dask Worker" not in wrong
    assert psutil.wait_procs(busy, timeout=LIMIT)[1] == []
    run(place, "stopped.ome.zarr", 0)
    assert digest(place / "stopped.ome.zarr") == undisturbed


def test_a_killed_run_goes_on_with_the_blocks_that_are_missing(place: Path, undisturbed: str) -> None:
    process = start(place, "again.ome.zarr", 0, 0.05)
    wait_for(process, place, "again.ome.zarr", 10)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    folder = folder_of(place / "again.ome.zarr")
    before = {name: (folder / blocks.NOTES / name).stat().st_mtime_ns for name in notes(place, "again.ome.zarr")}
    process = start(place, "again.ome.zarr", 0, 0.05)
    wait_for(process, place, "again.ome.zarr", len(before) + 3)
    after = {name: (folder / blocks.NOTES / name).stat().st_mtime_ns for name in before}
    assert after == before  # not done again
    said = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0
    assert f"{len(before)} of 58 blocks were done before." in said
    assert digest(place / "again.ome.zarr") == undisturbed


def test_an_interrupted_run_of_another_kind_is_not_mixed_with_this_one(place: Path) -> None:
    target = place / "other.ome.zarr"
    folder = folder_of(target)
    arguments = ("denoise", place / "in.ome.zarr", "-m", place / "model.safetensors", "-o", target, "--device", "cpu")
    folder.mkdir()
    (folder / blocks.JOB).write_text(json.dumps({"shape": [2, 10, 10]}))
    result = inverseflow(*arguments, "--no-audit", "--no-page")
    assert result.exit_code == 1
    assert "holds an interrupted run that differs in" in result.output
    assert "shape" in result.output
    assert not target.exists()
    assert inverseflow(*arguments, "--no-audit", "--no-page", "--force").exit_code == 0
    assert target.exists()


def test_training_and_error_bars_go_block_by_block_too(place: Path) -> None:
    target = place / "trained.ome.zarr"
    options = ("--noise", "gaussian:sigma=100", "--steps", "5", "--std", "--interval", "0.9", "--force", "--device")
    result = inverseflow("denoise", place / "in.ome.zarr", "-o", target, *options, "cpu")
    assert result.exit_code in (0, 3), result.output
    mean, std, low, high = (
        np.asarray(ivf.read(place / f"trained{tag}.ome.zarr")) for tag in ("", "_std", "_low", "_high")
    )
    assert std.min() > 0
    assert (low <= high).all()
    assert ((mean >= low) & (mean <= high)).mean() > 0.9
    assert (place / "trained.html").exists()


def test_what_workers_cannot_do_is_said(place: Path, tmp_path) -> None:
    tifffile.imwrite(tmp_path / "in.tif", np.zeros((8, 8), np.float32))
    model = ("-m", place / "model.safetensors", "--device", "cpu", "--workers", "2")
    to_tiff = inverseflow("denoise", place / "in.ome.zarr", "-o", tmp_path / "out.tif", *model)
    assert (to_tiff.exit_code, "Several workers write OME-Zarr" in to_tiff.output) == (2, True)
    draws = inverseflow("denoise", place / "in.ome.zarr", "-o", tmp_path / "out.zarr", *model, "--samples", "2")
    assert draws.exit_code != 0
    nobody = ("--scheduler", "tcp://127.0.0.1:9")
    lost = inverseflow("denoise", place / "in.ome.zarr", "-o", tmp_path / "out.zarr", *model[:4], *nobody)
    assert (lost.exit_code, "No Dask scheduler answers at tcp://127.0.0.1:9" in lost.output) == (2, True)
    assert not (tmp_path / "out.zarr").exists()


@contextmanager
def cluster(worker_path: Path, folder: Path) -> Iterator[str]:
    """A scheduler and a worker, started as an administrator would, the worker with the packages of a path."""
    address, environment = folder / "scheduler.json", {**os.environ, "PYTHONPATH": str(worker_path)}
    dask = [sys.executable, "-m", "dask"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    scheduler = subprocess.Popen([*dask, "scheduler", "--port", "0", "--dashboard-address", ":0", "--scheduler-file",
                                  address], **quiet)  # fmt: skip
    worker = subprocess.Popen([*dask, "worker", "--scheduler-file", address, "--nthreads", "1", "--no-dashboard"],
                              env=environment, **quiet)  # fmt: skip
    try:
        for _ in range(600):
            if address.exists() and (text := address.read_text()):
                break
            time.sleep(0.05)
        yield str(json.loads(text)["address"])
    finally:
        for process in (worker, scheduler):
            process.terminate()
            process.wait(20)


def test_a_cluster_with_a_scheduler(place: Path, tmp_path, undisturbed: str) -> None:
    model = ("-m", place / "model.safetensors", "--device", "cpu", "--no-audit", "--no-page")
    with cluster(SOURCE.parent, tmp_path) as address:
        result = inverseflow("denoise", place / "in.ome.zarr", "-o", place / "far.ome.zarr", *model,
                             "--scheduler", address)  # fmt: skip
        assert result.exit_code == 0, result.output
    near, far = (np.asarray(ivf.read(place / f"{name}.ome.zarr")) for name in ("alone", "far"))
    assert np.abs(near - far).max() < 1e-3 * np.ptp(near)  # blocks of another size


def test_a_worker_of_another_version_is_refused(place: Path, tmp_path) -> None:
    shutil.copytree(SOURCE, tmp_path / "old" / "inverseflow")
    text = (SOURCE / "__init__.py").read_text()
    (tmp_path / "old" / "inverseflow" / "__init__.py").write_text(text.replace(ivf.__version__, "0.0.1"))
    with cluster(tmp_path / "old", tmp_path) as address:
        result = inverseflow("denoise", place / "in.ome.zarr", "-o", tmp_path / "out.ome.zarr", "-m",
                             place / "model.safetensors", "--scheduler", address)  # fmt: skip
    assert result.exit_code == 1
    assert f"has inverseflow 0.0.1 and this is {ivf.__version__}; install the same on both." in result.output
    assert not (tmp_path / "out.ome.zarr").exists()


def test_a_full_disk_is_a_sentence_and_the_run_goes_on_later(place: Path, small_disk: Callable[[str], Path]) -> None:
    target = small_disk("200k") / "out.ome.zarr"
    command = ("denoise", place / "in.ome.zarr", "-m", place / "model.safetensors", "-o", target, "--device", "cpu")
    result = inverseflow(*command, "--no-audit", "--no-page")
    assert result.exit_code == 1
    assert "free; free some space or choose another folder" in result.output
    assert not target.exists()
    small_disk("20m")
    assert inverseflow(*command, "--no-audit", "--no-page").exit_code == 0
    assert target.exists()


def test_the_page_shows_error_bars_that_nobody_asked_for(place: Path) -> None:
    command = ("denoise", place / "in.ome.zarr", "-m", place / "model.safetensors", "-o", place / "page.ome.zarr")
    assert inverseflow(*command, "--device", "cpu", "--no-audit").exit_code == 0
    assert "Error bars" in (place / "page.html").read_text()
    assert not (place / "page_std.ome.zarr").exists()


def test_volumes_and_time_series_are_cut_along_their_own_axes(tmp_path) -> None:
    rng = np.random.default_rng(0)
    series = rng.normal(100, 10, (3, 2, 70, 50)).astype(np.float32)
    ivf.write(tmp_path / "in.ome.zarr", ivf.Image(series, "TCYX", metadata={"chunks": (2, 1, 32, 32), "axes": "TCYX"}))
    settings = ivf.Settings(steps=2, batch_size=2)
    model = ivf.Denoiser.train(series, ivf.Gaussian(10.0), axes="TCYX", settings=settings, device="cpu", progress=False)
    model.save(tmp_path / "m.safetensors")
    result = inverseflow("denoise", tmp_path / "in.ome.zarr", "-m", tmp_path / "m.safetensors", "--device", "cpu")
    assert result.exit_code in (0, 3), result.output
    found = np.asarray(ivf.read(tmp_path / "in_denoised.ome.zarr"))
    whole = model.denoise(series, axes="TCYX")
    assert np.abs(found - whole).max() < 1e-3 * np.ptp(whole)

    volume = rng.normal(100, 10, (20, 40, 36)).astype(np.float32)
    ivf.write(tmp_path / "v.ome.zarr", ivf.Image(volume, "ZYX", metadata={"chunks": (8, 16, 16), "axes": "ZYX"}))
    model = ivf.Denoiser.train([volume[None]], ivf.Gaussian(10.0), axes="CZYX", settings=settings, device="cpu",
                               progress=False)  # fmt: skip
    model.save(tmp_path / "v.safetensors")
    result = inverseflow("denoise", tmp_path / "v.ome.zarr", "-m", tmp_path / "v.safetensors", "--device", "cpu")
    assert result.exit_code in (0, 3), result.output
    found = np.asarray(ivf.read(tmp_path / "v_denoised.ome.zarr"))
    whole = model.denoise(volume[None], axes="CZYX")[0]
    assert found.shape == volume.shape
    assert np.abs(found - whole).max() < 1e-3 * np.ptp(whole)
    assert torch.isfinite(torch.from_numpy(found)).all()


def test_the_order_of_imagej_is_not_that_of_ome_zarr(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clean = 100 * np.arange(6.0).reshape(2, 3, 1, 1)
    data = rng.normal(clean, 10, (2, 3, 80, 64)).astype(np.float32)
    tifffile.imwrite(tmp_path / "hyper.tif", data, imagej=True, metadata={"axes": "ZCYX"})
    settings = ivf.Settings(steps=2, batch_size=2)
    model = ivf.Denoiser.train(data, ivf.Gaussian(10.0), axes="ZCYX", settings=settings, device="cpu", progress=False)
    model.save(tmp_path / "m.safetensors")
    command = ("denoise", tmp_path / "hyper.tif", "-m", tmp_path / "m.safetensors", "-o", tmp_path / "out.ome.zarr")
    result = inverseflow(*command, "--workers", "1", "--device", "cpu")
    assert result.exit_code in (0, 3), result.output
    assert "No audit" not in result.output
    assert (tmp_path / "out.html").exists()
    found = ivf.read(tmp_path / "out.ome.zarr")
    assert found.axes == "CZYX"
    wanted = model.denoise(data, axes="ZCYX")
    assert np.abs(np.swapaxes(np.asarray(found), 0, 1) - wanted).max() < 1e-3 * np.ptp(wanted)


def test_another_model_of_the_same_name_is_another_model(place: Path, tmp_path) -> None:
    """Workers live longer than a run, and remember the model they have loaded."""
    shutil.copy(place / "model.safetensors", tmp_path / "m.safetensors")
    results = []
    for name in ("first", "second"):
        command = (
            "denoise",
            place / "in.ome.zarr",
            "-m",
            tmp_path / "m.safetensors",
            "-o",
            tmp_path / f"{name}.ome.zarr",
        )
        assert inverseflow(*command, "--device", "cpu", "--no-audit", "--no-page").exit_code == 0
        results.append(np.asarray(ivf.read(tmp_path / f"{name}.ome.zarr")))
        model = ivf.Denoiser.load(tmp_path / "m.safetensors", device="cpu")
        with torch.no_grad():
            for parameter in model.mean.parameters():  # type: ignore[union-attr]
                parameter.mul_(0.9)
        model.save(tmp_path / "m.safetensors", overwrite=True)
    assert np.abs(results[0] - results[1]).max() > 1


def test_a_run_that_was_killed_while_its_files_were_moved_begins_again(place: Path) -> None:
    process = start(place, "moved.ome.zarr", 0, 0.05)
    wait_for(process, place, "moved.ome.zarr", 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    shutil.rmtree(folder_of(place / "moved.ome.zarr") / "image")
    assert "done before" not in run(place, "moved.ome.zarr", 0)
    assert (place / "moved.ome.zarr").exists()


def test_workers_that_come_later_get_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker at the start, eight after the first block: then more are busy than one worker had blocks in flight."""
    distributed = pytest.importorskip("distributed")
    busy: list[int] = []
    at_work: set[Any] = set()

    def slowly(_: Any, block: Any) -> None:
        at_work.add(block)
        busy.append(len(at_work))
        time.sleep(0.1)
        at_work.remove(block)

    monkeypatch.setattr(cluster_module, "do_block", slowly)
    here: dict[str, Any] = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=1, **here) as local, distributed.Client(local) as client:
        done: list[int] = []

        def report() -> None:
            done.append(len(client.ncores()))
            if len(done) == 1:
                local.scale(8)

        cluster_module.do_blocks(client, None, list(range(150)), report)  # type: ignore[arg-type]
    assert (len(done), done[-1]) == (150, 8)
    assert max(busy) > cluster_module.IN_FLIGHT
