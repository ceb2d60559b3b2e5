"""What is too large for one network pass: overlapping tiles, blended smoothly, finished band by band.

Along an axis, windows of `size` values start every size - overlap. Where two overlap, one fades out while the other
fades in; the outer quarter of the overlap, whose surroundings a tile hardly sees, counts for nothing. Every start is a
multiple of the network's own grid (`multiple`), so that a tile is halved where the whole image would be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import InputError
from .faults import lacks_memory, too_large

TILE_OVERLAP = 64
Function = Callable[[Tensor], Tensor]
Read = Callable[[tuple[slice, ...]], Tensor]


@dataclass(frozen=True)
class Window:
    """Values start to stop along one axis; it fades over `overlap` values at the ends that have a neighbour."""

    start: int
    stop: int
    overlap: int
    first: bool
    last: bool

    def fade(self, like: Tensor) -> Tensor:
        """The weight of each value, 0 to 1; those of all windows of an axis sum to 1."""
        weight = like.new_ones(self.stop - self.start)
        if self.overlap:
            ramp = (torch.arange(self.overlap, device=like.device, dtype=like.dtype) + 0.5) / self.overlap
            ramp = ((ramp - 0.25) * 2).clamp(0, 1)
            if not self.first:
                weight[: self.overlap] *= ramp
            if not self.last:
                weight[-self.overlap :] *= ramp.flip(0)
        return weight


def windows(length: int, size: int, overlap: int, multiple: int = 1) -> list[Window]:
    """The windows of an axis. Size and overlap are made multiples of `multiple`; one window if the axis is short."""
    size, overlap = (-(-value // multiple) * multiple for value in (size, overlap))
    if size <= 2 * overlap and size < length:
        raise InputError(
            f"A tile of {size} leaves nothing beside an overlap of {overlap}; take at least {3 * overlap}."
        )
    found = []
    for start in itertools.count(0, size - overlap):
        stop = min(start + size, length)
        found.append(Window(start, stop, overlap, start == 0, stop == length))
        if stop == length:
            return found
    raise AssertionError("unreachable")


def pixels_at_once(device: torch.device, features_per_pixel: float) -> int:
    """How many pixels go through a network together: about 8 of its widest float32 layers are alive at a time.

    On a CPU they get 128 MB: layers of more than 32 MB each are mapped anew by the system's allocator every time, which
    takes as long as the network itself. On a GPU they get a part of what is free.
    """
    memory = 2**27 if device.type != "cuda" else int(0.4 * torch.cuda.mem_get_info(device)[0])
    return min(2**24, max(2**12, int(memory / (32 * features_per_pixel))))


def choose_tile(
    shape: Sequence[int], pixels: int, multiple: int = 1, size: int | None = None, overlap: int = 0
) -> tuple[tuple[int, ...], int, int]:
    """A tile of at most about `pixels` (or of the `size` that the user gave), how many of them go together, and how far
    they overlap: at most a third of a tile.
    """
    if not shape:
        return (), pixels, 0
    if size is None and math.prod(shape) <= pixels:
        return tuple(shape), pixels // math.prod(shape), overlap
    side, thin = size or 0, [1]
    for n in sorted(shape) if size is None else ():
        # An axis that fits into a tile leaves its share to the longer ones: a flat stack has wide tiles.
        side = int((pixels / math.prod(thin)) ** (1 / (len(shape) - len(thin) + 1)))
        if n > side:
            break
        thin.append(n)
    side = max(1, side // multiple) * multiple
    tile = tuple(min(n, side) for n in shape)
    cut = [k for k, n in zip(tile, shape, strict=True) if k < n]
    return tile, max(1, pixels // math.prod(tile)), min([overlap, *(k // 3 // multiple * multiple for k in cut)])


def tile_for(
    model: nn.Module, channels: int, shape: Sequence[int], size: int | None = None, overlap: int = TILE_OVERLAP
) -> tuple[tuple[int, ...], int, int]:
    """The same for a wrapped network on its device: what it needs for a pixel, and the corners of its own grid."""
    net = getattr(model, "net", None)
    features = getattr(net, "features_per_pixel", 64) * (channels if getattr(net, "separate", False) else 1)
    pixels = pixels_at_once(next(model.parameters()).device, features)
    return choose_tile(shape, pixels, multiple_of(model), size, overlap)


def multiple_of(model: nn.Module) -> int:
    """Tiles start at multiples of this, where the network's own grid has a corner."""
    return int(getattr(getattr(model, "net", None), "multiple", 1))


def bands(
    function: Function,
    read: Read,
    shape: Sequence[int],
    *,
    tile: Sequence[int],
    overlap: int,
    multiple: int = 1,
    batch: int = 1,
) -> Iterator[tuple[slice, Tensor]]:
    """Apply `function`, (B, C, *S) -> (B, C, *S), to an image of any size.

    read(region) gives the (C, *region) part of the image; what comes out are finished bands, a slice along the first
    spatial axis and its values (C, band, ...), from the top to the bottom. Only one band and its successor's beginning
    are ever in memory. Tiles of equal shape go through `function` together, up to `batch` of them; memory that does not
    suffice halves the batch, then the tile.
    """
    first, *others = (windows(n, size, overlap, multiple) for n, size in zip(shape, tile, strict=True))
    carried: Tensor | None = None  # what the window above has already added to the rows that it shares with the next
    for row in first:
        rows = slice(row.start, row.stop)
        total: Tensor | None = None
        for part in _groups(list(itertools.product(*others)), batch):
            regions = [(rows, *(slice(w.start, w.stop) for w in columns)) for columns in part]
            results = _run(function, torch.stack([read(region) for region in regions]), overlap, multiple)
            for result, region, columns in zip(results, regions, part, strict=True):
                if total is None:
                    total = result.new_zeros(result.shape[0], row.stop - row.start, *shape[1:])
                for axis, window in enumerate((row, *columns), start=1):
                    result.mul_(window.fade(result).reshape(-1, *(1,) * (result.ndim - 1 - axis)))
                total[(slice(None), slice(None), *region[1:])] += result
        assert total is not None
        if carried is not None:
            total[:, : carried.shape[1]] += carried
        done = row.stop - row.start - (0 if row.last else row.overlap)
        carried = total[:, done:].clone()
        yield slice(row.start, row.start + done), total[:, :done]


def apply(
    function: Function, x: Tensor, *, tile: Sequence[int], overlap: int, multiple: int = 1, batch: int = 1
) -> Tensor:
    """The same for an image (C, *S) in memory."""
    parts = bands(
        function,
        lambda region: x[(slice(None), *region)],
        x.shape[1:],
        tile=tile,
        overlap=overlap,
        multiple=multiple,
        batch=batch,
    )
    return torch.cat([part for _, part in parts], dim=1)


def everywhere(
    function: Function, x: Tensor, model: nn.Module, size: int | None = None, overlap: int = TILE_OVERLAP
) -> Tensor:
    """The same for images (B, C, *S) and a function made of a wrapped network: several small ones together, a large
    one in tiles.
    """
    tile, batch, overlap = tile_for(model, x.shape[1], x.shape[2:], size, overlap)
    if tile == tuple(x.shape[2:]):
        parts = [function(part) for part in torch.split(x, batch)]
    else:
        multiple = multiple_of(model)
        parts = [apply(function, y, tile=tile, overlap=overlap, multiple=multiple, batch=batch)[None] for y in x]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _groups(tiles: list[tuple[Window, ...]], batch: int) -> Iterator[list[tuple[Window, ...]]]:
    """Neighbouring tiles of one shape, at most `batch` at a time."""
    for _, same in itertools.groupby(tiles, key=lambda columns: [w.stop - w.start for w in columns]):
        group = list(same)
        for start in range(0, len(group), batch):
            yield group[start : start + batch]


def _run(function: Function, x: Tensor, overlap: int, multiple: int) -> Tensor:
    """function(x), in smaller pieces if the memory does not suffice."""
    try:
        return function(x)
    except (MemoryError, RuntimeError) as error:
        half = max(x.shape[2:], default=0) // 2
        if not lacks_memory(error):
            raise
        if len(x) == 1 and half < 3 * max(overlap, multiple):
            size = " x ".join(map(str, x.shape[2:]))
            raise too_large(f"a tile of {size}", "take a smaller --tile-overlap, or end other programs") from error
    # Outside of the except clause: the traceback would hold on to the memory that was asked for.
    if len(x) > 1:
        return torch.cat([_run(function, part, overlap, multiple) for part in x.chunk(2)])
    tile = [min(n, half) for n in x.shape[2:]]
    return apply(function, x[0], tile=tile, overlap=overlap, multiple=multiple)[None]
