"""`xla-debug env`: print the environment for a bug report."""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xla_debug.recording import environment


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for a bug report.")
def command(as_json: bool) -> None:
    """Print versions, devices, the settings that differ from their defaults, and what is wrong with the installation."""
    environment_found = _collected()
    if as_json:
        click.echo(json.dumps(environment_found, indent=2))
    else:
        _print(environment_found)


def _collected() -> dict[str, Any]:
    """Collect the environment for a bug report; errors of the installation become part of it."""
    problems: list[str] = []

    def attempt(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return ask()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            return {}

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        settings = attempt(environment.settings)  # before the devices start, since that may choose the hardware and set variables
        devices = attempt(_devices)
    problems += [str(warning.message) for warning in warned]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": environment.versions(),
        "settings": settings,
        "devices": devices,
        "problems": list(dict.fromkeys(problems)),
    }


def _devices() -> dict[str, Any]:
    """Describe the devices: their kind, count and models."""
    import torch_xla  # noqa: F401 - as a program does: this finds the plugins, and warns of those that do not fit
    from xla_debug.core import process

    client = process.client()
    return {"kind": client.kind, "count": len(client.devices), "models": sorted({device.device_kind for device in client.devices})}


def _print(collected: Mapping[str, Any]) -> None:
    console = Console()
    devices = collected["devices"]
    device_text = f"{devices['count']} × {devices['kind']} ({', '.join(devices['models'])})" if devices else "none"
    for title, rows in (
        ("System", {"Python": collected["python"], "platform": collected["platform"], "devices": device_text}),
        ("Versions", collected["versions"]),
        ("Settings", collected["settings"] or {"none": "all defaults"}),
        ("Problems", {str(position): text for position, text in enumerate(collected["problems"], 1)}),
    ):
        if not rows:
            continue
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows.items():
            table.add_row(Text(name), Text(value))
        console.print(table)
