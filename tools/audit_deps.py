"""`make audit-deps`: known holes in what constraints.txt pins. Ends with 0 for none, 1 for some, 2 if unknown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PINNED = Path(__file__).parent.parent / "constraints.txt"
NO_NETWORK = ("ConnectionError", "Max retries", "HTTPError", "Timeout", "ServiceError", "SSLError", "Failed to upgrade")


def main(tool: str) -> int:
    line = [tool, "--requirement", str(PINNED), "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode and any(word in done.stderr for word in NO_NETWORK):
        sys.stderr.write(
            "The service that knows of vulnerabilities cannot be reached; run this where there is network.\n"
        )
        return 2
    sys.stdout.write(done.stdout)
    if done.returncode or not done.stdout:
        sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
