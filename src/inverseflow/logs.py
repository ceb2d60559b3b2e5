"""What a run says while it runs: metrics.jsonl, TensorBoard if installed, a progress bar with the time left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .disk import writing
from .whole import write_whole


class MetricsLog:
    """Rows in memory and, with a folder, in metrics.jsonl (rows after the resumed step are dropped) and TensorBoard."""

    def __init__(self, folder: Path | None, step: int, elapsed: float) -> None:
        self.rows: list[dict[str, float]] = []
        self._last = (step, elapsed)
        self._file: BinaryIO | None = None
        self._board: Any = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        kept = [row for row in _read_rows(path) if row["step"] <= step] if step else []
        write_whole(path, "".join(json.dumps(row) + "\n" for row in kept).encode(), overwrite=True)
        self.rows.extend(kept)
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed in __exit__)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder), purge_step=step)

    def add(self, step: int, elapsed: float, total: float, lr: float) -> tuple[float, float]:
        """Record the mean loss since the last row; returns (steps per second, mean loss)."""
        steps, seconds = step - self._last[0], elapsed - self._last[1]
        mean, rate = total / max(steps, 1), steps / max(seconds, 1e-9)
        row = {"step": step, "seconds": round(elapsed, 3), "loss": mean, "lr": lr, "steps_per_second": round(rate, 3)}
        self._last = (step, elapsed)
        self.rows.append(row)
        if self._file:
            with writing(self._path):
                self._file.write(f"{json.dumps(row)}\n".encode())
        if self._board:
            with writing(self._path.parent):
                self._board.add_scalar("loss", mean, step)
                self._board.add_scalar("lr", lr, step)
        return rate, mean

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()
        if self._board:
            with suppress(OSError):  # of a disk that has become full: the rows are in the other file too
                self._board.close()


class ProgressBar:
    """One line with the loss, the rate and the time left; silent when the output is not a terminal."""

    def __init__(self, title: str, steps: int | None, seconds: float | None, *, enabled: bool) -> None:
        self._steps, self._seconds = steps, seconds
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=console, disable=not (enabled and console.is_terminal))
        self._task = self._progress.add_task(title, total=1.0, note="")

    def update(self, step: int, elapsed: float, loss: float, rate: float) -> None:
        ends = [(self._steps - step) / max(rate, 1e-9)] if self._steps else []
        ends += [self._seconds - elapsed] if self._seconds else []
        left = max(0, round(min(ends)))
        done = max(step / self._steps if self._steps else 0, elapsed / self._seconds if self._seconds else 0)
        note = f"loss {loss:.4g} · {rate:.1f} steps/s · {left // 60}:{left % 60:02d} left"
        self._progress.update(self._task, completed=min(done, 1.0), note=note)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


@contextmanager
def bar(title: str, *, enabled: bool) -> Iterator[Callable[..., None]]:
    """A bar for work other than training, told the part that is done (0 to 1), and in words if you like; silent where
    there is no terminal.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (enabled and console.is_terminal)) as progress:
        task = progress.add_task(title, total=1.0, note="")
        yield lambda part, note="": progress.update(task, completed=part, note=note)


def _read_rows(path: Path) -> list[dict[str, float]]:
    """The whole rows of a metrics file; a kill may have cut the last one."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
