"""Denoise in small blocks, for tests/test_blocks.py: python cluster_run.py IN MODEL OUT WORKERS [PAUSE]"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from inverseflow import blocks, commands
from inverseflow.options import Options

SIDE = 64


def main() -> int:
    source, model, target, workers, *pause = sys.argv[1:]
    torch.set_num_threads(1)
    blocks.SIDE = SIDE  # who plans decides; workers are told the bounds
    if pause:
        alone = blocks.do_block

        def slowly(job: blocks.Job, block: blocks.Block) -> None:
            time.sleep(float(pause[0]))
            alone(job, block)

        blocks.do_block = slowly
    options = Options(
        [source], output=Path(target), model=Path(model), workers=int(workers), device="cpu", page=False, audit=False
    )
    return commands.denoise_files(options)


if __name__ == "__main__":
    raise SystemExit(main())
