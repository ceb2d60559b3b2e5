"""Blocks done by many processes, through Dask: on this machine, or on any cluster that has a scheduler.

A worker is sent what to do, a few hundred bytes, and reads and writes the data itself.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from . import __version__
from .blocks import Block, Job, do_block
from .errors import InputError, UsageError

IN_FLIGHT = 4  # blocks for each worker, so that none waits for the next one
PATIENCE = 5  # seconds without a block, after which somebody looks for the workers
DEATHS = 5  # of workers in one block, after which it is the block that kills them


@contextmanager
def workers(count: int, scheduler: str | None, say: Callable[[str], None]) -> Iterator[Any]:
    """A Dask client of so many processes here, or of those that a scheduler has."""
    dask, distributed = _dask()
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count))
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    # Without Dask's MALLOC_TRIM_THRESHOLD_, which makes the system map every layer of the network anew.
    settings = {
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.nanny.pre-spawn-environ": environment,
        "distributed.worker.preload": [*dask.config.get("distributed.worker.preload"), "inverseflow.interrupt"],
    }
    with dask.config.set(settings):
        if scheduler:
            try:
                client = distributed.Client(scheduler, timeout="10s")
            except (OSError, ValueError, TypeError) as error:
                raise UsageError(
                    f"No Dask scheduler answers at {scheduler}; start one with dask scheduler, or use --workers."
                ) from error
            cluster = client
        else:
            cluster = distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
            )
            client = distributed.Client(cluster)
        try:
            if not client.scheduler_info()["workers"]:
                say("Waiting for a worker.")
            client.wait_for_workers(1)
            _check_versions(client)
            say(f"Dask shows the work at {client.dashboard_link}.")
            yield client
        finally:
            client.close()
            cluster.close()


def _dask() -> tuple[Any, Any]:
    try:
        return importlib.import_module("dask"), importlib.import_module("distributed")
    except ImportError as error:
        raise InputError("Several workers need one more package: pip install 'inverseflow[cluster]'.") from error


def _check_versions(client: Any) -> None:
    try:
        found = client.run(_version)
    except ImportError as error:
        raise InputError(f"A worker has no inverseflow ({error}); install inverseflow {__version__} there.") from None
    for address, version in found.items():
        _check_version(address, version, __version__)


def _check_version(worker: str, there: str, here: str) -> None:
    if there != here:
        raise InputError(f"The worker {worker} has inverseflow {there} and this is {here}; install the same on both.")


def _version() -> str:
    return __version__


def do_blocks(client: Any, job: Job, wanted: Sequence[Block], report: Callable[[], None]) -> None:
    """All of them, in any order; the blocks of workers that die are given to others."""
    distributed = _dask()[1]
    waiting = iter(wanted)
    flying: dict[Any, Block] = {}

    def submit() -> None:
        most = IN_FLIGHT * max(1, len(client.ncores()))  # workers come and go; scheduler_info() may name only five
        for block in islice(waiting, max(0, most - len(flying))):
            flying[client.submit(_do, job, block, __version__, pure=False)] = block

    submit()
    while flying:
        done: Sequence[Any] = ()
        try:
            done = distributed.wait([*flying], timeout=PATIENCE, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            _replace_the_dead(client.cluster)
        for future in done:
            block = flying.pop(future)
            if future.status == "error":
                error = future.exception()
                client.cancel([*flying])
                if isinstance(error, distributed.KilledWorker):
                    raise InputError(
                        f"{DEATHS} workers died, one after the other, at the block {block}; perhaps they lack memory: "
                        "take a smaller --tile-size. The same command goes on with what is missing."
                    )
                raise error
            report()
        submit()


def _replace_the_dead(cluster: Any) -> None:
    """Dask starts a worker that died again, but not one that died while it started, or that takes longer for it than
    15 s. Without this the last two would be waited for for ever.
    """
    if cluster is not None:
        cluster.scale(len(cluster.worker_spec))


def _do(job: Job, block: Block, version: str) -> None:
    _check_version(platform.node(), __version__, version)  # of one that came late
    do_block(job, block)
