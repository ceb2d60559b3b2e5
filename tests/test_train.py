"""The loop: resume after a real kill -9, budgets, averaging, divergence, atomic files, logs."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import killed_run
from inverseflow.checkpoint import read_tensors, write_tensors
from inverseflow.engine import choose_device
from inverseflow.errors import InputError, ModelFileError, TrainingDiverged
from inverseflow.methods import Batch, Moment
from inverseflow.patches import Rows
from inverseflow.settings import Settings
from inverseflow.state import CHECKPOINT
from inverseflow.train import fit


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.w * x


def line_loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
    return (model(batch.x, batch.x[:, 0]) - 3 * batch.x).square().mean(1)


DATA = Rows(torch.rand(100, 2, generator=torch.Generator().manual_seed(0)) + 0.5)


def test_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """A process is killed with SIGKILL at random steps, twice, and resumed; its weights equal those of a run left in
    peace.
    """
    whole = killed_run.run(None)
    seed = int.from_bytes(os.urandom(2))
    chance = random.Random(seed)
    kills = sorted(chance.sample(range(3, killed_run.STEPS - 5), 2))
    path = tmp_path / "run" / CHECKPOINT
    for kill_at in kills:
        process = subprocess.Popen([sys.executable, killed_run.__file__, str(path.parent)])
        deadline = time.monotonic() + 900
        while not (path.exists() and read_tensors(path, "checkpoint")[1]["step"] >= kill_at):
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    resumed = killed_run.run(str(path.parent), resume=True)
    assert resumed.steps == killed_run.STEPS, f"kills at {kills}, seed {seed}"
    for (name, a), b in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"{name} differs after kills at {kills}, seed {seed}"
    rows = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert rows[-1]["step"] == killed_run.STEPS


def test_same_seed_same_weights() -> None:
    a, b = (killed_run.run(None).model.state_dict() for _ in range(2))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_it_learns_and_averages() -> None:
    fitted = fit(Line(), line_loss, DATA, Settings(steps=400, lr=0.05, batch_size=20), progress=False)
    assert float(fitted.model.w) == pytest.approx(3.0, abs=0.02)
    assert [row["step"] for row in fitted.history] == list(range(20, 401, 20))


def test_average_is_the_documented_one() -> None:
    """Constant gradient and plain steps: replay the average with its formula min(ema, (1 + n) / (10 + n)); the
    loss sees the average as it stands.
    """
    seen: list[float] = []
    averages: list[float] = []

    def loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        value = model(torch.ones(1, 1), torch.ones(1))
        seen.append(float(value.detach()))
        averages.append(float(moment.average(torch.ones(1, 1), torch.ones(1))))
        return value.flatten()

    model = Line()
    fitted = fit(model, loss, DATA, Settings(steps=30, lr=0.1, ema=0.6, batch_size=1), progress=False)
    weights, average = [*seen[1:], float(model.w.detach())], 0.0
    for n, w in enumerate(weights, start=1):
        keep = min(0.6, (1 + n) / (10 + n))
        assert averages[n - 1] == pytest.approx(average, rel=1e-5)
        average = keep * average + (1 - keep) * w
    assert float(fitted.model.w) == pytest.approx(average, rel=1e-5)


def test_seconds_are_a_budget() -> None:
    started = time.monotonic()
    fitted = fit(Line(), line_loss, DATA, Settings(steps=None, seconds=0.5), progress=False)
    assert 0.5 <= fitted.seconds <= time.monotonic() - started
    assert fitted.steps > 1
    assert fit(Line(), line_loss, DATA, Settings(steps=5, seconds=100), progress=False).steps == 5


class Partly(Line):
    """Of its weights one is frozen, and nothing depends on another."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(torch.full((1,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x, t) + self.fixed


def test_frozen_and_unused_weights_do_not_stop_a_run_from_going_on(tmp_path: Path) -> None:
    settings = Settings(steps=30, checkpoint_steps=10)
    whole = fit(Partly(), line_loss, DATA, settings, progress=False)

    def stops(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        if moment.progress > 0.5:
            raise KeyboardInterrupt
        return line_loss(model, batch, moment)

    with pytest.raises(KeyboardInterrupt):
        fit(Partly(), stops, DATA, settings, folder=tmp_path, progress=False)
    resumed = fit(Partly(), line_loss, DATA, settings, folder=tmp_path, resume=True, progress=False)
    assert resumed.steps == 30
    assert float(resumed.model.w) == float(whole.model.w)
    assert float(resumed.model.fixed) == 0.5


def test_schedules() -> None:
    cosine, step = Settings(lr=1.0, warmup=0.1), Settings(lr=1.0, schedule="step", warmup=0.0)
    assert cosine.rate(0.05) < cosine.rate(0.1)
    assert cosine.rate(0.5) == pytest.approx(0.01 + 0.99 * 0.5)
    assert cosine.rate(1.0) == pytest.approx(0.01)
    assert (step.rate(0.49), step.rate(0.51)) == (1.0, 0.5)


def test_divergence_names_the_step(tmp_path: Path) -> None:
    calls = 0

    def loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        nonlocal calls
        calls += 1
        return line_loss(model, batch, moment) * (math.inf if calls == 33 else 1.0)

    with pytest.raises(TrainingDiverged, match="step 33"):
        fit(Line(), loss, DATA, Settings(steps=200, checkpoint_steps=7), folder=tmp_path, progress=False)
    weights = read_tensors(tmp_path / CHECKPOINT, "checkpoint")[0]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())  # what was kept is from before


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    fit(Line(), line_loss, DATA, Settings(steps=5), folder=tmp_path, progress=False)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(ModelFileError, match="resume it, or give another folder"):
        fit(Line(), line_loss, DATA, Settings(steps=5), folder=tmp_path, progress=False)
    with pytest.raises(ModelFileError, match=r"other settings \(lr\)"):
        fit(Line(), line_loss, DATA, Settings(steps=5, lr=0.5), folder=tmp_path, resume=True, progress=False)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    again = fit(Line(), line_loss, DATA, Settings(steps=5), folder=tmp_path, resume=True, progress=False)
    assert again.steps == 5


def test_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    fit(Line(), line_loss, DATA, Settings(steps=5), folder=tmp_path, progress=False)
    (tmp_path / CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(ModelFileError, match="is not an inverseflow checkpoint, or it is damaged"):
        fit(Line(), line_loss, DATA, Settings(steps=5), folder=tmp_path, resume=True, progress=False)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(1)}, {"kind": "model"})

    def full(*arguments: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_tensors(path, {"x": torch.zeros(1)}, {"kind": "model"})
    assert float(read_tensors(path, "model")[0]["x"]) == 1.0
    assert list(tmp_path.iterdir()) == [path]


def test_tensorboard_is_written_where_installed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    fit(Line(), line_loss, DATA, Settings(steps=40), folder=tmp_path, progress=False)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [20, 40]


def test_progress_bar_shows_loss_rate_and_time_left() -> None:
    """In a real terminal (a pty): the bar is drawn on stderr with its three figures."""
    import pty

    code = "from test_train import *; fit(Line(), line_loss, DATA, Settings(steps=2000), title='learning')"
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=slave,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parent,
        env=environment,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait() == 0
    text = shown.decode()
    assert "learning" in text
    assert "loss" in text
    assert "steps/s" in text
    assert "left" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": None}, "budget"),
        ({"steps": 0}, "greater than 0"),
        ({"lr": -1}, "greater than 0"),
        ({"schedule": "linear"}, "cosine"),
        ({"ema": 1.0}, "ema"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Settings(**arguments)


def test_devices_by_name() -> None:
    assert choose_device("cpu") == "cpu"
    with pytest.raises(InputError, match="auto, cpu, cuda or mps"):
        choose_device("tpu")
