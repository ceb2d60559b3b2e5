"""Single cells: from counts to components, the noise of counting them, and a denoiser of components."""

from .counts import Projection, read_cells
from .denoiser import CellDenoiser
from .technical import CellNoise, technical_noise

__all__ = ["CellDenoiser", "CellNoise", "Projection", "read_cells", "technical_noise"]
