"""Run `mypy --strict` over every package, one at a time: `torch_xla` lies in several of them, which one mypy run cannot follow.

usage: python scripts/typecheck.py [mypy options]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def check(package: Path, options: list[str]) -> bool:
    """Whether mypy accepts the sources of one package; its findings go to stdout."""
    source = package / "src"
    command = [sys.executable, "-m", "mypy", *options, str(source.relative_to(ROOT))]
    print(f"mypy {package.name}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(source)}, check=False).returncode == 0


def main() -> int:
    packages = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
    if not packages:
        raise SystemExit(f"no packages under {ROOT / 'packages'}")
    passed = [check(package, sys.argv[1:]) for package in packages]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
