"""Ctrl-C, and what a cluster or a closed terminal sends instead: between two steps, not in the middle of one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """By a signal of this number; a plain KeyboardInterrupt is SIGINT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """As a shell says it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + getattr(stop, "number", signal.SIGINT)


@contextmanager
def as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP act like Ctrl-C: what is open is closed, what is begun is cleared away."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled(stop):
        yield


@contextmanager
def held_back() -> Iterator[Callable[[], int]]:
    """Hold the first signal back; the function it gives says which one it was, or 0. A second one acts at once."""
    asked = [0]

    def note(number: int, frame: FrameType | None) -> None:
        asked[0] = number
        _restore(before)

    with _handled(note) as before:
        yield lambda: asked[0]


def apart(_: object) -> None:
    """A process that works for another one is out of reach of what a terminal, `timeout` or a cluster sends to all at
    once: who gave it work decides what becomes of that. SIGTERM keeps its meaning, by which it is ended.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


dask_setup = apart
"""What Dask calls in a worker that it has told to load this module."""


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, object]]:
    """Gives what handled the signals before. What is ignored stays so, as under nohup; and elsewhere than in the main
    thread Python delivers no signals, so nothing is changed.
    """
    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        before |= {number: found for number in SIGNALS if (found := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        _restore(before)


def _restore(before: dict[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]
