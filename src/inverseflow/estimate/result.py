"""What was found: the noise, how sure it is, and the measurements behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from ..errors import FileError, NoiseError
from ..noise import Clip, Noise, Quantise, from_dict
from ..noise.file import from_yaml, write_yaml
from ..noise.words import in_words
from .calibration import Calibration
from .kernel import power_of
from .levels import Levels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class NoiseEstimate:
    """The result of `estimate_noise`.

    `noise` is what to train with: `raw`, the estimate itself, with its standard deviation times 1 + `lean`. Arrays of
    `std_curve` (levels, sd) and `interval` (low, high) have shape (n,), or (C, n) for C > 1 channels; they belong to
    `raw`. `measured` holds the bins (levels, sd) of each channel. C are the `channels`, by their numbers in the data,
    in which noise was found: one that is constant is none of them. `autocorrelation` has lag 0 at its centre and
    `spectrum` its zero frequency first, mean 1; both are (Y, X), or (Z, Y, X) for noise that is correlated along z, and
    None where they are not known. `lag1` is the correlation of neighbours along y and x, for volumes along z, y and x.
    `shape` holds a and omega where the kernel is cos(omega r) exp(-r^2 / 2 a^2), None where it is as it was measured.
    """

    noise: Noise
    raw: Noise
    lean: float
    family: str
    method: str
    scores: Mapping[str, float]
    std_curve: tuple[Array, Array]
    interval: tuple[Array, Array]
    measured: tuple[tuple[Array, Array], ...] = ()
    spectrum: Array | None = None
    autocorrelation: Array | None = None
    lag1: tuple[float, ...] | None = None
    shape: tuple[float, float] | None = None
    levels: tuple[Levels, ...] = ()
    channels: tuple[int, ...] = (0,)
    calibration: Calibration | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def camera(self) -> Noise:
        """`noise`, then the clipping and rounding that the images show, where they show it in every channel alike."""
        result, levels = self.noise, self.levels[0] if len(set(self.levels)) == 1 else Levels()
        if levels.low is not None or levels.high is not None:
            low = -1e30 if levels.low is None else levels.low
            result = result.then(Clip(low, 1e30 if levels.high is None else levels.high))
        return result.then(Quantise(levels.step)) if levels.step else result

    def __str__(self) -> str:
        low, high = (float(np.median(bound / self.std_curve[1])) - 1 for bound in self.interval)
        sure = f"sd known to {100 * low:+.1f} to {100 * high:+.1f} %, taken {100 * self.lean:.1f} % higher to be safe"
        kernel = f", like cosine:a={self.shape[0]:.2f},omega={self.shape[1]:.2f}," if self.shape else ""
        return f"{in_words(self.noise)}{kernel} from {self.method} ({sure})"

    @property
    def names(self) -> list[str]:
        """Of the channels, empty where there is nothing to tell apart."""
        return [f"channel {number}" for number in self.channels] if self.channels != (0,) else [""]

    def table(self) -> list[str]:
        """Lines for a terminal: the noise at some levels of the signal, and how well each family fits."""
        from .table import table

        return table(self)

    def plot(self) -> Figure:
        """Measured sd and the fitted curve with its interval; beside it the correlation between pixels."""
        from .plot import draw

        return draw(self)

    def to_yaml(self, path: str | Path, *, overwrite: bool = False) -> None:
        """A file that `--noise` reads, with the measurements behind the noise for people and for `from_yaml`."""
        write_yaml(path, self._plain(), overwrite=overwrite)

    @classmethod
    def from_yaml(cls, path: str | Path) -> NoiseEstimate:
        """What `to_yaml` wrote, without the calibration maps."""
        try:
            d = from_yaml(Path(path).read_text(encoding="utf-8"))
            correlation = _array(d["autocorrelation"])
            return cls(
                noise=from_dict(d["noise"]),
                raw=from_dict(d["raw"]),
                std_curve=_pair(d["std_curve"]),
                interval=_pair(d["interval"]),
                measured=tuple(_pair(pair) for pair in d["measured"]),
                lag1=tuple(d["lag1"]) if d["lag1"] else None,
                shape=tuple(d["shape"]) if d.get("shape") else None,
                levels=tuple(Levels(**level) for level in d["levels"]),
                channels=tuple(d.get("channels", range(len(d["levels"])))),
                warnings=tuple(d["warnings"]),
                spectrum=None if correlation is None else power_of(correlation),
                autocorrelation=correlation,
                lean=d["lean"],
                family=d["family"],
                method=d["method"],
                scores=d["scores"],
            )
        except OSError as error:
            raise FileError(f"The noise file {path} cannot be read ({error.strerror}); check its name.") from error
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise NoiseError(
                f"{path} was not written by NoiseEstimate.to_yaml; read its noise with --noise, or estimate again."
            ) from error

    def _plain(self) -> dict[str, Any]:
        return {
            "noise": self.noise.to_dict(),
            "family": self.family,
            "method": self.method,
            "lean": self.lean,
            "raw": self.raw.to_dict(),
            "warnings": list(self.warnings),
            "scores": {name: round(score, 3) for name, score in self.scores.items()},
            "lag1": None if self.lag1 is None else [round(lag, 4) for lag in self.lag1],
            "shape": None if self.shape is None else [round(part, 4) for part in self.shape],
            "levels": [vars(level) for level in self.levels],
            "channels": list(self.channels),
            "std_curve": [part.tolist() for part in self.std_curve],
            "interval": [part.tolist() for part in self.interval],
            "measured": [[part.tolist() for part in pair] for pair in self.measured],
            "autocorrelation": None if self.autocorrelation is None else np.round(self.autocorrelation, 5).tolist(),
        }


def _array(lists: Any) -> Array | None:
    return None if lists is None else np.asarray(lists, float)


def _pair(lists: Any) -> tuple[Array, Array]:
    first, second = lists
    return np.asarray(first, float), np.asarray(second, float)
