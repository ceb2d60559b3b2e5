"""The figures of `make coverage`, from coverage's JSON to benchmarks/results/coverage.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESULT = Path(__file__).parent.parent / "benchmarks" / "results" / "coverage.json"


def main(source: str) -> None:
    found = json.loads(Path(source).read_text())
    files = {name: round(about["summary"]["percent_covered"], 1) for name, about in found["files"].items()}
    weakest = dict(sorted(files.items(), key=lambda item: item[1])[:15])
    figures = {"command": "make coverage", "total": round(found["totals"]["percent_covered"], 2), "weakest": weakest}
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(f"Line coverage of src: {figures['total']} %\n")


if __name__ == "__main__":
    main(sys.argv[1])
