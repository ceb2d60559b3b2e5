"""A training step recorded once on a GPU, then replayed.

A step of a small network is a thousand small kernels, and launching them takes the host several times as long as the
GPU needs to run them. A CUDA graph launches them all at once. What is recorded must be the same sequence of operations
every time and read nothing back, so it is done where every part is known to be so (`phase_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .methods import Batch
from .nets import NetSpec
from .noise import NUMBERS_ALONE, WITH_ARRAYS, Noise, Scaled
from .noise.base import stages

Step = Callable[[Batch, float], None]
Phase = Callable[[float], Hashable]
"""Of the progress (0 to 1), that on which a loss depends: while it stays the same, so do the operations of a step."""
ORDINARY_STEPS = 3  # before a recording: libraries choose their algorithms, the optimiser makes its state


def phase_of(part: Any, net: Any, noise: Noise) -> Phase | None:
    """The phase of a method, if it has one, its network is one of ours, and so is the noise."""
    return getattr(part, "phase", None) if isinstance(net, NetSpec) and can_replay(noise) else None


def can_replay(noise: Noise) -> bool:
    """Our own noises draw from the generator alone and never look at what they drew; a user's function may do both."""
    if isinstance(noise, Scaled):
        return can_replay(noise.noise)
    return all(type(stage) in (*NUMBERS_ALONE, *WITH_ARRAYS) for stage in stages(noise))


class Replay:
    """step(batch, progress), recorded anew when the phase or the shape of the batch changes.

    The step leaves what is wanted of it in tensors that stay where they are.
    """

    def __init__(self, step: Step, phase: Phase, generator: torch.Generator) -> None:
        self.step, self.phase, self.generator = step, phase, generator
        self._kind: Hashable = None
        self._ordinary = 0
        self._recorded: tuple[torch.cuda.CUDAGraph, Batch] | None = None

    def __call__(self, batch: Batch, progress: float) -> None:
        kind = (self.phase(progress), batch.x.shape)
        if kind != self._kind:
            self._kind, self._ordinary, self._recorded = kind, 0, None
        if self._recorded is None and self._ordinary < ORDINARY_STEPS:
            self._ordinary += 1
            self.step(batch, progress)
            return
        if self._recorded is None:
            self._recorded = self._record(batch, progress)
        graph, place = self._recorded
        place.x.copy_(batch.x)
        place.origin.copy_(batch.origin)
        graph.replay()

    def _record(self, batch: Batch, progress: float) -> tuple[torch.cuda.CUDAGraph, Batch]:
        place = Batch(batch.x.clone(), batch.origin.clone())
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step(place, progress)
        return graph, place


@contextmanager
def own_stream(cuda: bool) -> Iterator[None]:
    """A stream of our own, because the default one cannot be recorded."""
    if not cuda:
        yield
        return
    stream, outside = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)
