"""Know the noise from noisy images alone: `estimate_noise`."""

from .calibration import Calibration
from .levels import Levels
from .measure import estimate_noise
from .result import NoiseEstimate

__all__ = ["Calibration", "Levels", "NoiseEstimate", "estimate_noise"]
