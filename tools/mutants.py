"""`make mutants`: one mistake at a time in losses, noise and scaling; do the tests notice?

A mutant is one operator, comparison, number or condition changed in the syntax tree. Torch is imported once; each
mutant is a forked process that puts the changed module in the place of the real one before anything imports it, and
runs the related tests up to the first that fails: a tool that starts Python anew would import torch for each.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "inverseflow"
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
LONGEST = 120  # seconds of a mutant's tests; one that takes longer counts as noticed
TESTS = {
    "losses.py": ["test_losses.py"],
    "samples.py": ["test_numbers.py", "test_noise.py"],
    "noise": ["test_noise.py", "test_process.py"],
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be mistaken for."""
    other = copy.deepcopy(node)
    if isinstance(other, ast.BinOp) and type(other.op) in OPERATORS:
        other.op = OPERATORS[type(other.op)]()
        yield other
    elif isinstance(other, ast.Compare) and type(other.ops[0]) in COMPARISONS:
        other.ops[0] = COMPARISONS[type(other.ops[0])]()
        yield other
    elif isinstance(other, ast.BoolOp):
        other.op = ast.Or() if isinstance(other.op, ast.And) else ast.And()
        yield other
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.Not | ast.USub):
        yield other.operand
    elif isinstance(other, ast.Constant) and isinstance(other.value, bool):
        yield ast.Constant(not other.value)
    elif isinstance(other, ast.Constant) and isinstance(other.value, int | float):
        yield ast.Constant(other.value + 1)
    elif isinstance(other, ast.IfExp):
        other.body, other.orelse = other.orelse, other.body
        yield other


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(where and what, the changed source) for every mistake; annotations, docstrings and messages are left alone."""
    tree = ast.parse(source)
    skipped = {id(x) for node in ast.walk(tree) for part in untold(node) for x in ast.walk(part)}
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            for place, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or id(child) in skipped:
                    continue
                for other in changed(child):
                    before = ast.unparse(child)
                    put(node, name, place, other)
                    yield (
                        f"{child.lineno}: {before} -> {ast.unparse(other)}",
                        ast.unparse(ast.fix_missing_locations(tree)),
                    )
                    put(node, name, place, child)


def untold(node: ast.AST) -> list[ast.AST]:
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    if isinstance(node, ast.Raise | ast.JoinedStr):
        found.append(node)
    return [part for part in found if part is not None]


def put(node: ast.AST, name: str, place: int, child: ast.AST) -> None:
    value = getattr(node, name)
    if isinstance(value, list):
        value[place] = child
    else:
        setattr(node, name, child)


def tests_of(path: Path) -> list[str]:
    return TESTS.get(path.name) or TESTS["noise"]


def noticed(path: Path, source: str, tests: list[str]) -> bool:
    """In a forked process: do the tests fail with this source?"""
    child = os.fork()
    if not child:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os._exit(0 if run(path, source, tests) == 0 else 1)
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def run(path: Path, source: str | None, tests: list[str]) -> int:
    import importlib.abc
    import importlib.util

    import pytest

    wanted = ".".join(("inverseflow", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")

    class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, where: object, target: object = None) -> object:
            if name != wanted:
                return None
            package = [str(path.parent)] if path.name == "__init__.py" else None
            spec = importlib.util.spec_from_loader(name, self, origin=str(path), is_package=package is not None)
            if spec and package:
                spec.submodule_search_locations = package
            return spec

        def exec_module(self, module: object) -> None:
            assert source is not None
            exec(compile(source, str(path), "exec"), vars(module))

    if source is not None:
        sys.meta_path.insert(0, Changed())
    files = [str(ROOT / "tests" / name) for name in tests]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]))


def main(share: float, seed: int = 0) -> int:
    """`share` of all mutants, drawn at random."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    import lightning.fabric  # noqa: F401
    import pytest  # noqa: F401 (imported once, for all that are forked)
    import torch
    import torchdiffeq  # noqa: F401

    torch.set_num_threads(1)
    paths = [PACKAGE / "losses.py", PACKAGE / "samples.py", *sorted((PACKAGE / "noise").glob("*.py"))]
    chosen = [(path, where, source) for path in paths for where, source in mutants(path.read_text(encoding="utf-8"))]
    chance, everything = random.Random(seed), len(chosen)
    chosen = [mutant for mutant in chosen if chance.random() < share]
    for path in paths[:3]:  # one of each kind: what fails without a mistake notices none
        if noticed(path, path.read_text(encoding="utf-8"), tests_of(path)):
            sys.stderr.write(f"The tests of {path.name} fail as it is; mend them first.\n")
            return 1
    survived: list[str] = []
    started = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for its forked process
        found = pool.map(lambda mutant: noticed(mutant[0], mutant[2], tests_of(mutant[0])), chosen)
        for number, ((path, where, _), killed) in enumerate(zip(chosen, found, strict=True), start=1):
            if not killed:
                survived.append(f"{path.relative_to(PACKAGE)}:{where}")
            figures = {
                "command": f"python tools/mutants.py {share:g}",
                "mutants": everything,
                "tried": number,
                "killed": number - len(survived),
                "percent": round(100 * (number - len(survived)) / number, 1),
                "seconds": round(time.monotonic() - started),
                "survived": survived,
            }
            RESULT.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{figures['killed']} of {figures['tried']} mutants killed, {figures['percent']} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
