"""Noise2Void by CAREamics on one image: python careamics_n2v.py noisy.npy denoised.npy [--epochs 100]

Runs in an environment of its own and imports nothing of inverseflow; `benchmarks.cpu_single_image` calls it. Prints one
line of JSON. CAREamics 0.3.5 allows torch 2.13 but no torchvision that goes with it, so pip finds no solution:

    pip install torch==2.13.0 'lightning==2.6.6' 'torchmetrics<1.9' 'bioimageio-core<=0.11' 'pydantic>=2.11' \\
        'scikit-image<=0.26' 'tifffile<=2026.3.3' 'zarr<4' psutil matplotlib
    pip install --no-deps careamics==0.3.5 microssim==0.0.5

Noise2Void needs nothing of torchvision; an empty module stands in for it where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
import time
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch


def stand_in_for_torchvision() -> None:
    if importlib.util.find_spec("torchvision") is not None:
        return
    importlib.import_module("torchmetrics")  # asks whether torchvision is there, and must hear the truth
    *parents, leaf = "torchvision", "torchvision.transforms", "torchvision.transforms.functional"
    sys.modules[leaf] = module = types.ModuleType(leaf)
    for name in reversed(parents):
        parent = types.ModuleType(name)
        setattr(parent, module.__name__.rpartition(".")[2], module)
        sys.modules[name] = module = parent
    module.__version__ = "none"  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    stand_in_for_torchvision()
    from careamics import CAREamist
    from careamics.config.factories import create_advanced_n2v_config

    noisy = np.load(arguments.source).astype(np.float32)
    started, used = time.perf_counter(), time.process_time()
    config = create_advanced_n2v_config(
        experiment_name="n2v",
        data_type="array",
        axes="YX",
        patch_size=(64, 64),
        batch_size=8,
        num_epochs=arguments.epochs,
        num_workers=0,
        trainer_params={"accelerator": "cpu"},
        seed=2026,
    )
    with tempfile.TemporaryDirectory() as folder:
        careamist = CAREamist(config, work_dir=folder, enable_progress_bar=False)
        careamist.train(train_data=noisy)
        predictions, _ = careamist.predict(noisy, tile_size=(256, 256), tile_overlap=(48, 48), checkpoint="last")
    np.save(arguments.target, np.squeeze(predictions[0]))
    told = {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
        "epochs": arguments.epochs,
        "steps": int(careamist.trainer.global_step),
        "parameters": sum(p.numel() for p in careamist.model.parameters()),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("careamics", "torch", "lightning")},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
