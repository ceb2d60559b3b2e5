"""`make mutants`: mutmut puts one mistake at a time into losses, noise and scaling; do the tests notice?

What is changed, and which tests are asked, stands in pyproject.toml. A mistake that no test runs over counts as one
that was not noticed. With arguments only these mutants are tried: `python tools/mutants.py 'inverseflow.losses.*'`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MUTMUT = str(Path(sys.executable).with_name("mutmut"))
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
NOTICED = ("killed", "timeout", "segfault", "suspicious")


def main(chosen: list[str]) -> int:
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # a process that has threads cannot be forked
    if code := subprocess.run([MUTMUT, "run", *chosen], cwd=ROOT, env=one_thread, check=False).returncode:
        return code
    if chosen:
        return 0
    subprocess.run([MUTMUT, "export-cicd-stats"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((ROOT / "mutants" / "mutmut-cicd-stats.json").read_text())
    listed = subprocess.run([MUTMUT, "results"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    left = sorted(
        line.split(":")[0].strip() for line in listed.splitlines() if ": survived" in line or "no tests" in line
    )
    noticed = sum(found[how] for how in NOTICED)
    figures = {
        "command": "make mutants",
        "mutants": found["total"],
        "noticed": noticed,
        "percent": round(100 * noticed / found["total"], 1),
        "how": {how: found[how] for how in (*NOTICED, "survived", "no_tests")},
        "not_noticed": left,
    }
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(f"{noticed} of {found['total']} mistakes noticed, {figures['percent']} %\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
