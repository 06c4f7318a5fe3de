"""Run a user's script as a process of its own, which the terminal interrupts and not this one."""

from __future__ import annotations

import signal
import subprocess


def run_script(command_line: list[str], environment: dict[str, str]) -> int:
    """Run a script and return its exit code, 128 + N after signal N. The script handles an interrupt, which the terminal sends to both."""
    with subprocess.Popen(command_line, env=environment) as script:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            exit_code = script.wait()
        finally:
            signal.signal(signal.SIGINT, handler)
    return exit_code if exit_code >= 0 else 128 - exit_code
