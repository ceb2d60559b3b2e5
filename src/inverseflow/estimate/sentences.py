"""What a user should know about an estimate, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .calibration import Calibration
from .channel import Channel
from .families import Law
from .ties import Ties

Array = np.ndarray[Any, Any]
FEW_FLAT = 0.05
TOO_FEW_BLOCKS = 20
CLOSE = 2.0
UNSURE = 0.2
POOR, FAINT = 0.2, 0.25
"""Misfit of a law (photographs with simulated noise: at most 0.16) and the share of the typical noise below which it
makes no difference how much there is.
"""


def sentences(
    measured: Sequence[Channel | None],
    laws: Sequence[Law],
    candidates: Sequence[dict[str, Law]],
    best: str,
    asked: str,
    ties: Ties,
    deep: bool,
    calibration: Calibration | None,
    unsure: float,
) -> tuple[str, ...]:
    """`deep`: slices are to be denoised together. `unsure`: half the width of the interval, relative to the sd."""
    said = []
    if unsure > UNSURE:
        said.append(f"The sd is uncertain by {100 * unsure:.0f} %; give more images, or repeated frames of one view.")
    found = [channel for channel in measured if channel is not None]
    law = iter(laws)
    for number, channel in enumerate(measured):
        name = f"Channel {number}" if len(measured) > 1 else "The data"
        said += [f"{name} is constant or clipped throughout; its noise is taken to be that of the others."] * (
            channel is None
        )
        if channel is not None:
            said += _of_channel(name, channel, counts=best == "poisson")
            said += _of_misfit(name, channel, next(law), best if calibration is None else "")
    if ties.kernel is not None and asked not in ("auto", "correlated"):
        lag = max(ties.lag1 or (0.0,), key=abs)
        said.append(f"Neighbouring pixels correlate by {lag:.2f}, but {asked} noise was asked for; try correlated.")
    if ties.kernel is not None and not found[0].repeats:
        far = "12 pixels or 5 slices" if deep else "12 pixels"
        said.append(
            f"Correlation over more than {far} cannot be told from the image and is left out; two captures of one view "
            "tell the correlation best."
        )
    if deep and all(channel.depth is None for channel in found):
        said.append("Whether the noise is correlated along Z cannot be told from so few or so detailed slices.")
    if calibration is None:
        said += _of_family(best, laws, candidates, asked)
    elif (hot := int(calibration.hot.sum())) > 0:
        said.append(f"{hot} hot pixels have more than 5 times the typical read noise; leave them out with a mask.")
    return tuple(dict.fromkeys(said))


def _of_channel(name: str, channel: Channel, *, counts: bool) -> list[str]:
    said = []
    curve, levels = channel.curve, channel.levels
    sd = float(np.sqrt(np.median(curve.variance)))
    if channel.moved:
        said.append(f"{name} moves between frames, so the frames were not used as repeats of one view.")
    if not channel.repeats and not channel.correlated and curve.flat < FEW_FLAT:
        said.append(f"{name} has few flat regions ({100 * curve.flat:.1f} % of its blocks); the estimate may be high.")
    if channel.spectrum and curve.textured and not channel.correlated and not channel.spectrum.white(textured=False):
        said.append(
            f"{name} is textured, or its noise is correlated; ask for family correlated if the noise is blotchy."
        )
    if curve.freedom.sum() < TOO_FEW_BLOCKS * 21:
        said.append(f"{name} is small; the estimate rests on very few blocks.")
    if channel.spectrum is None:
        needed = "it needs 64 x 64 without gaps, or several of 32 x 32"
        said.append(f"{name} is too small to test for correlated noise ({needed}); white noise is assumed.")
    if levels.low is not None or levels.high is not None:
        at = " and ".join(f"{level:g}" for level in (levels.low, levels.high) if level is not None)
        done = "these are left out" if channel.correlated else "the noise found is the one before clipping"
        said.append(f"{name} has {100 * levels.share:.2g} % of its pixels at {at}, as if clipped; {done}.")
    if levels.step and sd < levels.step and not counts:
        said.append(f"{name} is rounded to steps of {levels.step:g}, more than its noise; the estimate includes it.")
    return said


def _of_misfit(name: str, channel: Channel, law: Law, best: str) -> list[str]:
    """`best` is empty where calibration frames said the law."""
    curve = channel.curve
    floor = FAINT**2 * float(curve.variance.mean())
    seen, fitted = (np.maximum(variance, floor) for variance in (curve.variance, law.variance(curve.level)))
    misfit = float(np.sqrt(max(float(np.mean((0.5 * np.log(seen / fitted)) ** 2 - 0.5 / curve.freedom)), 0.0)))
    if misfit < POOR:
        return []
    by = f"is off by {100 * misfit:.0f} % (root mean square over the levels)"
    if not best:
        return [f"{name} has other noise than the calibration frames say: the sd {by}; take them as it was taken."]
    return [
        f"{name} does not follow {best} noise: the sd {by}, so look at the plot; where the noise falls as the signal "
        "rises, invert the image first."
    ]


def _of_family(best: str, laws: Sequence[Law], candidates: Sequence[dict[str, Law]], asked: str) -> list[str]:
    said = []
    total = {
        name: sum(c[name].score for c in candidates) for name in candidates[0] if all(name in c for c in candidates)
    }
    close = [name for name in total if name != best and total[name] < total[best] + CLOSE]
    if asked == "auto" and close:
        said.append(
            f"The curve fits {best} and {', '.join(close)} about equally well; declare the family if you know it."
        )
    offset = laws[0].values.get("offset", 0.0)
    if best == "poissongaussian":
        said.append(
            f"An offset and read noise look alike in the curve: {'offset' if offset else 'read noise'} is assumed; "
            "pass dark frames or declare the offset if you know it."
        )
    if best == "gamma":
        said.append("Gamma is assumed; Rayleigh noise has the same curve and must be declared.")
    return said
