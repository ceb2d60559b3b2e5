"""What goes wrong under a run: full, failing and read-only disks, memory, devices, signals, odd names, two at once.

Each ends in a sentence and the right exit code, with inputs and older outputs as they were, and nothing left behind.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from typer.testing import CliRunner, Result

import inverseflow as ivf
from inverseflow import imaging, learning, whole
from inverseflow.checkpoint import read_tensors, write_tensors
from inverseflow.cli import app
from inverseflow.interrupt import Stopped, exit_code
from inverseflow.io import lazy
from inverseflow.noise.file import write_noise
from inverseflow.outputs import run_folder
from inverseflow.patches import Rows
from inverseflow.report import Report, write_report
from inverseflow.state import CHECKPOINT
from inverseflow.whole import hidden, locked, whole_or_absent, write_whole
from test_train import DATA, Line, line_loss

LIMIT = 900  # seconds for a process that does its work; a machine may be slow
QUICK = ("--noise", "gaussian:sigma=20", "--steps", "2", "--device", "cpu", "--no-audit")


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def noisy(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(500, 20, shape).clip(0).astype(np.uint16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one that knows error bars, for planes of one channel."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    spec, settings = ivf.NetSpec("UNet", widths=(4, 8), blocks=1), ivf.Settings(steps=2, batch_size=2)
    noise = ivf.Gaussian(20.0)
    data = noisy(64, 64).astype(np.float32)
    more: dict[str, Any] = {"axes": "YX", "device": "cpu", "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "CALIBRATION_VALUES", 2**12)
        ivf.Denoiser.train(data, noise, net=spec, settings=settings, **more).save(path)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- a full disk, at every place that writes


def a_report(path: Path) -> None:
    image = np.random.default_rng(0).random((200, 200)).astype(np.float32)
    write_report(path, Report("x", image, image, "YX"), overwrite=True)


def an_estimate(path: Path) -> None:
    write_noise(path, ivf.CorrelatedGaussian(20.0, np.random.default_rng(0).random((61, 61)).tolist()), overwrite=True)


def a_table_of_cells(path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="cells need anndata")
    with whole_or_absent(path, overwrite=True) as temporary:
        anndata.AnnData(np.random.default_rng(0).random((300, 100)).astype(np.float32)).write_h5ad(temporary)


def an_image(path: Path) -> None:
    ivf.write(path, ivf.Image(noisy(300, 300), "YX"), overwrite=True)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.ome.tif": an_image,
    "a.npy": an_image,
    "a.npz": an_image,
    "a.png": an_image,
    "a.ome.zarr": an_image,
    "a.safetensors": lambda path: write_tensors(path, {"x": torch.rand(200, 200)}, {"kind": "model"}),
    "a.html": a_report,
    "a.yaml": an_estimate,
    "a.h5ad": a_table_of_cells,
}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_full_disk_leaves_the_older_file_and_says_what_is_missing(
    small_disk: Callable[[str], Path], name: str
) -> None:
    path = small_disk("64k") / name
    if name.endswith(".zarr"):
        ivf.write(path, ivf.Image(noisy(32, 32), "YX"))
        before = sorted((p.name, p.read_bytes()) for p in path.rglob("*") if p.is_file())
    else:
        path.write_text("older")
    with pytest.raises(ivf.FileError, match=r"the disk is full: it needs .*B and .* are free; free some space") as told:
        WRITERS[name](path)
    assert str(path) in str(told.value)
    assert "What was there before is as it was." in str(told.value)
    assert listing(path.parent) == {name}
    if path.is_dir():
        assert sorted((p.name, p.read_bytes()) for p in path.rglob("*") if p.is_file()) == before
    else:
        assert path.read_text() == "older"
    small_disk("4m")
    WRITERS[name](path)
    assert listing(path.parent) == {name}


def test_a_full_disk_under_a_training(small_disk: Callable[[str], Path]) -> None:
    """Checkpoint and metrics: what was kept before is whole, and the training goes on when there is room."""
    disk = small_disk("4m")
    settings = ivf.Settings(steps=400, batch_size=20, checkpoint_steps=5, log_every=5)
    filling = disk / "other"

    def loss(model: Any, batch: Any, moment: Any) -> torch.Tensor:
        if moment.progress > 0.5 and not filling.exists():
            with open(filling, "wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
        return line_loss(model, batch, moment)

    with pytest.raises(ivf.FileError, match="the disk is full"):
        ivf.fit(Line(), loss, DATA, settings, folder=disk / "run", device="cpu", progress=False)
    filling.unlink()
    resumed = ivf.fit(Line(), line_loss, DATA, settings, folder=disk / "run", resume=True, device="cpu", progress=False)
    assert resumed.steps == 400
    assert [row["step"] for row in resumed.history] == list(range(5, 401, 5))


def test_room_for_large_results_is_taken_before_the_work(
    small_disk: Callable[[str], Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory map on a disk that becomes full would kill the process without a word."""
    disk = small_disk("300k")
    tifffile.imwrite(tmp_path / "a.tif", noisy(300, 300))
    monkeypatch.setattr(imaging, "IN_MEMORY", 1000)
    result = run("denoise", tmp_path / "a.tif", "-m", model, "-o", disk / "b.tif", "--no-page", "--no-audit")
    assert result.exit_code == 1, result.output
    assert "a scratch file could not be written: the disk is full: it needs 360 kB and 30" in result.output
    assert listing(disk) == set()
    small_disk("20m")
    command = ("denoise", tmp_path / "a.tif", "-m", model, "-o", disk / "b.tif", "--no-audit", "--std")
    assert run(*command).exit_code == 0
    assert listing(disk) == {"b.tif", "b.html", "b_std.tif"}


def test_a_plot_on_a_full_disk(here: Path, small_disk: Callable[[str], Path]) -> None:
    tifffile.imwrite("a.tif", noisy(128, 128))
    disk = small_disk("4k")
    result = run("noise", "a.tif", "--plot", disk / "p.png")
    assert (result.exit_code, "p.png could not be written: the disk is full" in result.output) == (1, True)
    assert listing(disk) == set()
    wrong = run("noise", "a.tif", "--plot", "p.doc")
    assert (wrong.exit_code, "has no suffix of a picture" in wrong.output) == (2, True)


# --- a read-only disk, long names, links, inputs


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """A folder that can be filled, and after the call only be read, even by root."""
    folder = tmp_path / "ro"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk could not be mounted: {done.stderr.strip()}")

    def lock() -> Path:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        return folder

    yield lock
    subprocess.run(["umount", "-l", str(folder)], check=True)


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_inputs_on_a_read_only_disk_are_enough(
    tmp_path: Path, model: Path, read_only: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ro"
    tifffile.imwrite(folder / "a.tif", noisy(96, 96))
    ivf.write(folder / "a.ome.zarr", ivf.Image(noisy(96, 96), "YX"))
    (folder / "m.safetensors").write_bytes(model.read_bytes())
    before = hashes(folder)
    read_only()
    for name in ("a.tif", "a.ome.zarr"):
        commands: tuple[tuple[Any, ...], ...] = (
            ("info", f"ro/{name}"),
            ("noise", f"ro/{name}", "-o", f"{name}.yaml"),
            (
                "denoise",
                f"ro/{name}",
                "-m",
                "ro/m.safetensors",
                "-o",
                f"out_{name}",
                "--std",
                "--no-audit",
                "--no-page",
            ),
            ("audit", f"ro/{name}", f"out_{name}", "-m", "ro/m.safetensors"),
            ("report", f"ro/{name}", f"out_{name}", "--force"),
        )
        for command in commands:
            result = run(*command)
            assert result.exit_code in (0, 3), (command, result.output)
    assert hashes(folder) == before
    result = run("denoise", "ro/a.tif", *QUICK)
    assert (result.exit_code, "that disk is read-only; choose another folder" in result.output) == (1, True)
    assert "Learning" not in result.output  # said before the work
    assert hashes(folder) == before


def test_an_input_is_never_written_over(here: Path, model: Path) -> None:
    tifffile.imwrite("a.tif", noisy(64, 64))
    ivf.write("b.ome.zarr", ivf.Image(noisy(64, 64), "YX"))
    (here / "link.tif").symlink_to("a.tif")
    (here / "same.tif").hardlink_to("a.tif")  # another name for one file, as under two mounts of one disk
    before = hashes(here)
    names = [("a.tif", "a.tif"), ("a.tif", "link.tif"), ("link.tif", "a.tif"), ("a.tif", "same.tif")]
    for source, target in (*names, ("b.ome.zarr", "b.ome.zarr")):
        result = run("denoise", source, "-m", model, "-o", target, "--force")
        assert (result.exit_code, "is an input, which is never written over" in result.output) == (2, True), target
    for command in (("noise", "a.tif", "-o", "a.tif"), ("train", "a.tif", *QUICK[:-1], "-o", "a.tif")):
        assert run(*command, "--force").exit_code == 2
    assert hashes(here) == before


def test_a_link_is_replaced_and_what_it_points_to_stays(here: Path) -> None:
    (here / "mine.npy").write_text("mine")
    (here / "link.npy").symlink_to("mine.npy")
    (here / "nowhere.npy").symlink_to("absent.npy")
    image = ivf.Image(noisy(32, 32), "YX")
    for name in ("link.npy", "nowhere.npy"):
        with pytest.raises(ivf.FileError, match="exists"):
            ivf.write(name, image)
        ivf.write(name, image, overwrite=True)
        assert not (here / name).is_symlink()
        assert np.array_equal(np.load(name), image.data)
    assert (here / "mine.npy").read_text() == "mine"
    assert not (here / "absent.npy").exists()


def test_an_existing_zarr_image_is_replaced_and_not_written_into(here: Path, model: Path) -> None:
    tifffile.imwrite("a.tif", noisy(64, 64))
    ivf.write("out.ome.zarr", ivf.Image(noisy(32, 32), "YX"))
    command = ("denoise", "a.tif", "-m", model, "-o", "out.ome.zarr", "--no-page", "--no-audit")
    assert "out.ome.zarr exists" in run(*command).output
    assert run(*command, "--force").exit_code == 0
    assert ivf.read("out.ome.zarr").shape == (64, 64)
    assert listing(here) == {"a.tif", "out.ome.zarr"}


def test_pipes_and_devices_are_refused(here: Path) -> None:
    os.mkfifo("pipe.tif")
    (here / "null.tif").symlink_to("/dev/null")
    for name in ("pipe.tif", "null.tif"):
        result = run("info", name)
        assert (result.exit_code, "is a pipe or a device" in result.output) == (1, True)


NAMES = ("with space", "µm ñ 細胞", 'quote\'s "both"', "a[1]", "new\nline", "-dash", "per%cent {x} $y", "l" * 230)


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(here: Path, model: Path, name: str) -> None:
    tifffile.imwrite(here / f"{name}.tif", noisy(64, 64))
    more = ("-m", model, "--no-audit", "--quiet", "--", f"{name}.tif")
    result = run("denoise", *more)
    assert (result.exit_code, result.output) == (0, "")
    assert listing(here) == {f"{name}{end}" for end in (".tif", "_denoised.tif", "_denoised.html")}


def test_a_name_that_is_too_long_is_said_before_the_work(here: Path, model: Path) -> None:
    tifffile.imwrite(here / f"{'l' * 251}.tif", noisy(64, 64))
    result = run("denoise", f"{'l' * 251}.tif", *QUICK)
    assert (result.exit_code, "that name is too long; choose a shorter one" in result.output) == (1, True)
    assert "Learning" not in result.output
    more = ("-m", model, "--no-audit", "-o", f"{'k' * 250}.tif")
    assert run("denoise", f"{'l' * 251}.tif", *more).exit_code == 0
    assert listing(here) == {f"{'l' * 251}.tif", f"{'k' * 250}.tif", f"{'k' * 250}.html"}
    assert all(len(os.fsencode(hidden(Path("ä" * 127), end).name)) <= 143 for end in ("training", "0123456789ab.tmp"))


def test_a_locale_without_utf8(here: Path, model: Path) -> None:
    size, units = {"Y": 0.2, "X": 0.2}, {"Y": "µm", "X": "µm"}
    ivf.write("µ.ome.tif", ivf.Image(noisy(64, 64), "YX", size, units))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    (here / "words.py").write_text(
        "import os; from inverseflow.cli import app\n"
        "name = os.fsdecode('µ.ome.tif'.encode())  # as a shell would hand it over\n"
        f"common = ['-m', {str(model)!r}, '--std', '--no-audit']\n"
        "for words in (['info', name], ['noise', name, '-o', 'n.yaml'],"
        " ['denoise', name, *common], ['denoise', '--help']):\n"
        "    try: app(words)\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "words.py"], env=os.environ | plain, capture_output=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"\\xb5m" in done.stdout  # the micrometres of the image, in what such a terminal can show
    assert "µm" in (here / "µ_denoised.html").read_text(encoding="utf-8")
    assert ivf.read("µ_denoised.ome.tif").units["X"] == "µm"


# --- two runs, and what a killed one leaves


HOLD = """
import sys
from pathlib import Path
from inverseflow.whole import whole_or_absent
with whole_or_absent(Path(sys.argv[1]), overwrite=True) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that is writing this file."""
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "writing\n"
    return process


def test_two_runs_into_one_output_and_what_a_killed_one_leaves(here: Path, model: Path) -> None:
    tifffile.imwrite("a.tif", noisy(64, 64))
    (here / "b.tif").write_text("older")
    (here / ".b.tif.mine.tmp").write_text("not ours")
    with hold(here / "b.tif") as process:
        for words in (["-m", model], QUICK):
            result = run("denoise", "a.tif", *words, "-o", "b.tif", "--force", "--no-page")
            assert result.exit_code == 1
            assert f"b.tif is being written by another run (process {process.pid} on " in result.output
            assert "Learning" not in result.output
        assert len([name for name in listing(here) if name.endswith(".tmp")]) == 2
        process.kill()
    assert {".b.tif.lock", "b.tif"} < listing(here)
    assert (here / "b.tif").read_text() == "older"
    assert run("denoise", "a.tif", "-m", model, "-o", "b.tif", "--force", "--no-page", "--no-audit").exit_code == 0
    assert listing(here) == {"a.tif", "b.tif", ".b.tif.mine.tmp"}


def as_somebody_else(work: Callable[[], None]) -> str:
    """What it says in a process that has no right but those of everybody."""
    reading, writing = os.pipe()
    if not os.fork():
        said = "done"
        try:
            if not os.geteuid():
                os.setuid(65534)
            work()
        except BaseException as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        return answer.read()


def test_a_lock_that_another_user_s_killed_run_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders let nobody else in
        folder = Path(name)
        folder.chmod(0o777)
        path, lock = folder / "a.txt", folder / ".a.txt.lock"
        for mode, said in ((0o444, "done"), (0o000, f"another user's run; if it has ended, remove {lock}")):
            lock.write_text("process 1 on another machine")
            lock.chmod(mode)
            assert said in as_somebody_else(lambda: write_whole(path, b"whole", overwrite=True))
            assert lock.exists() == (said != "done")
        assert path.read_text() == "whole"


def test_files_are_synced_while_they_may_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to sync a file that is open for reading."""
    modes = []

    def sync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            modes.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)

    monkeypatch.setattr(os, "fsync", sync)
    ivf.write("a.tif", ivf.Image(noisy(32, 32), "YX"))
    ivf.write("a.ome.zarr", ivf.Image(noisy(32, 32), "YX"))
    assert len(modes) > 2
    assert set(modes) == {os.O_RDWR}


def test_two_trainings_in_one_folder(here: Path) -> None:
    settings = ivf.Settings(steps=5, batch_size=20)
    with hold(here / "run" / "checkpoint.safetensors") as process:
        with pytest.raises(ivf.FileError, match="being written by another"):
            ivf.fit(Line(), line_loss, DATA, settings, folder=here / "run", device="cpu", progress=False)
        process.kill()
    ivf.fit(Line(), line_loss, DATA, settings, folder=here / "run", device="cpu", progress=False)


def test_a_folder_that_was_moved_aside_comes_back(here: Path) -> None:
    """A kill between the two renames that replace an OME-Zarr image."""
    path = here / "a.ome.zarr"
    ivf.write(path, ivf.Image(noisy(32, 32), "YX"))
    before = hashes(path)
    token = f"{whole._HERE}01234567"
    path.rename(hidden(path, f"{token}.old"))
    hidden(path, f"{token}.tmp").mkdir()
    with locked(path):
        assert hashes(path) == before
    assert listing(here) == {"a.ome.zarr"}


def test_disks_without_locks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(whole.fcntl, "flock", none)
    leftover = hidden(here / "a.txt", f"{whole._HERE}01234567.tmp")
    leftover.write_text("perhaps of a run on another machine")
    write_whole(here / "a.txt", b"whole", overwrite=False)
    assert (here / "a.txt").read_text() == "whole"
    assert listing(here) == {"a.txt", leftover.name}


# --- memory, devices, reading


def test_memory_of_the_host_that_does_not_suffice_makes_tiles_smaller(model: Path) -> None:
    """The host's own allocator refuses: a tile above 256 x 256 asks for more bytes than an address can name.

    A limit on the memory of the process would not do: what a network of a given size takes differs between processors.
    """
    loaded, sizes = ivf.Denoiser.load(model, device="cpu"), []
    image = noisy(448, 448)
    whole = loaded.denoise(image, axes="YX")

    def take(_: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        sizes.append(max(arguments[0].shape[2:]))
        if sizes[-1] > 256:
            torch.empty(2**60, dtype=torch.uint8)

    assert loaded.mean is not None
    with loaded.mean.register_forward_pre_hook(take):
        result = loaded.denoise(image, axes="YX", tile_size=416)
    assert sizes[0] == 416
    assert sizes[1] <= 208
    # The edge of a piece is no edge of the image, so that they differ a little, as any two sizes of tiles do.
    assert np.abs(result - whole).max() < 0.01 * (whole.max() - whole.min())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("could not create a primitive"),
    ],
    ids=["python", "gpu", "host", "convolution"],
)
def test_memory_in_a_training_is_a_sentence(tmp_path: Path, error: Exception) -> None:
    settings = ivf.Settings(steps=20, batch_size=20, checkpoint_steps=7)
    with pytest.raises(ivf.DeviceError, match="did not suffice for step 11 of training; take a smaller batch") as told:
        fail_at(11, error, tmp_path, settings)
    assert told.value.__notes__ == [f"The checkpoint of step 7 is in {tmp_path}: go on with --resume (resume=True)."]


def fail_at(step: int, error: Exception, folder: Path, settings: ivf.Settings, **more: Any) -> Any:
    calls = 0

    def loss(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == step:
            raise error
        return line_loss(*arguments)

    return ivf.fit(Line(), loss, DATA, settings, folder=folder, device="cpu", progress=False, **more)


def test_a_gpu_that_disappears_is_a_sentence_and_the_training_goes_on(tmp_path: Path) -> None:
    settings = ivf.Settings(steps=20, batch_size=20, checkpoint_steps=7)
    error = RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported")
    with pytest.raises(ivf.DeviceError, match=r"failed in step 11 of training \(CUDA error: unspecified launch fail"):
        fail_at(11, error, tmp_path, settings)
    resumed = fail_at(99, error, tmp_path, settings, resume=True)
    whole_run = ivf.fit(Line(), line_loss, DATA, settings, device="cpu", progress=False)
    assert torch.equal(resumed.model.w, whole_run.model.w)
    with pytest.raises(RuntimeError, match="no device is to blame"):  # what is a mistake of ours stays one
        fail_at(3, RuntimeError("no device is to blame"), tmp_path / "other", settings)


def test_a_device_that_fails_under_a_command(here: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite("a.tif", noisy(64, 64))

    def lost(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: no CUDA-capable device is detected")

    monkeypatch.setattr(imaging, "denoise_image", lost)
    result = run("denoise", "a.tif", "-m", model)
    assert result.exit_code == 1
    assert "The device failed in this (CUDA error: no CUDA-capable device is detected)" in result.output
    assert listing(here) == {"a.tif"}


def test_a_page_of_a_stack_that_cannot_be_read(here: Path, model: Path) -> None:
    stack = noisy(10, 64, 64)
    tifffile.imwrite("a.tif", stack, compression="zlib", metadata={"axes": "TYX"}, imagej=False, ome=False)
    with tifffile.TiffFile("a.tif") as file:
        place, count = file.pages[6].dataoffsets[0], file.pages[6].databytecounts[0]
    with open("a.tif", "r+b") as raw:
        raw.seek(place)
        raw.write(bytes(count))
    (here / "b.tif").write_text("older")
    result = run("denoise", "a.tif", "-m", model, "--axes", "TYX", "-o", "b.tif", "--force", "--no-audit")
    assert result.exit_code == 1, result.output
    assert "a.tif" in result.output
    assert (here / "b.tif").read_text() == "older"
    assert listing(here) == {"a.tif", "b.tif"}


def test_a_disk_that_fails_while_it_is_read(here: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite("a.tif", noisy(10, 64, 64), metadata={"axes": "TYX"}, ome=True)
    image = ivf.read("a.tif")
    fill, reads = lazy.fill, 0

    def failing(*arguments: Any) -> None:
        nonlocal reads
        reads += 1
        if reads == 7:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fill(*arguments)

    monkeypatch.setattr(lazy, "fill", failing)
    result = run("denoise", "a.tif", "-m", model, "-o", "b.tif", "--no-audit")
    assert result.exit_code == 1
    assert "a.tif changed or disappeared while it was read (Input/output" in result.output
    assert listing(here) == {"a.tif"}
    monkeypatch.undo()
    os.chdir(here)
    os.truncate("a.tif", 3 * 64 * 64)  # under a reader: a memory map would end in SIGBUS
    with pytest.raises(ivf.FileError, match=r"while it was read \(it is shorter than it was\)"):
        np.asarray(image)


@pytest.mark.parametrize("order", ["C", "F"])
def test_any_box_of_a_file_is_read(here: Path, order: Any) -> None:
    array = np.asfortranarray(noisy(5, 7, 9)) if order == "F" else noisy(5, 7, 9)
    np.save("a.npy", array)
    data = ivf.read("a.npy", axes="ZYX").data
    boxes = np.s_[1:4, 2:6, 3:8], np.s_[:, 3:4, :], np.s_[2:3], np.s_[..., 4:5], np.s_[:, 1:7:2, ::3], np.s_[4, 6, 8]
    for box in boxes:
        assert np.array_equal(data[box], array[box])


# --- signals and clocks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_held_back_until_the_step_is_over(tmp_path: Path, number: signal.Signals) -> None:
    def loss(model: Any, batch: Any, moment: Any) -> torch.Tensor:
        if moment.progress == 0.5:
            os.kill(os.getpid(), number)
        return line_loss(model, batch, moment)

    settings = ivf.Settings(steps=20, batch_size=20)
    with pytest.raises(Stopped) as stop:
        ivf.fit(Line(), loss, DATA, settings, folder=tmp_path, device="cpu", progress=False)
    assert exit_code(stop.value) == 128 + number
    assert read_tensors(tmp_path / CHECKPOINT, "checkpoint")[1]["step"] == 11


def test_a_cluster_that_ends_a_command_leaves_an_exact_checkpoint(here: Path) -> None:
    tifffile.imwrite("a.tif", noisy(64, 64))
    command = [sys.executable, "-m", "inverseflow", "denoise", "a.tif", *QUICK[:2], "--device", "cpu", "--no-audit"]
    command += ["--steps", "100000", "--no-page"]
    metrics = run_folder(here / "a_denoised.tif") / "flow" / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        limit = time.monotonic() + LIMIT
        while not (metrics.exists() and metrics.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < limit
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, said
    assert "interrupted; what was begun is not written. An interrupted training goes on with --resume." in said
    assert "Traceback" not in said
    assert (metrics.parent / "checkpoint.safetensors").exists()
    assert listing(here) == {"a.tif", run_folder(here / "a_denoised.tif").name}


def test_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards by a year and forwards again, at every look at it."""
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (1 + next(jumps) % 2))
    data = Rows(torch.rand(100, 2))
    fitted = ivf.fit(Line(), line_loss, data, ivf.Settings(steps=None, seconds=0.3), device="cpu", progress=False)
    assert 0.3 <= fitted.seconds < LIMIT
    assert all(row["steps_per_second"] > 0 for row in fitted.history)
