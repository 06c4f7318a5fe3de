"""`xla-debug env`: what a bug report needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xla_debug.account.environment import environment
from xla_debug.core import abi


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for a bug report.")
def command(as_json: bool) -> None:
    """Print versions, devices and the settings that differ from their defaults."""
    found = dataclasses.asdict(environment())  # before the devices start: that may choose the hardware, and set it
    found["devices"] = _devices()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print(found)


def _devices() -> dict[str, Any]:
    """Kind of hardware, models and their number; why there are none, where the client does not start."""
    try:
        client = abi.client()
    except Exception as error:  # whatever is wrong with an installation is what the report is for
        return {"error": f"{type(error).__name__}: {error}"}
    return {"kind": client.kind, "count": len(client.devices), "models": sorted({device.device_kind for device in client.devices})}


def _print(found: Mapping[str, Any]) -> None:
    console = Console()
    devices = found["devices"]
    shown = devices.get("error") or f"{devices['count']} × {devices['kind']} ({', '.join(devices['models'])})"
    for title, rows in (
        ("System", {"Python": found["python"], "platform": found["platform"], "devices": shown}),
        ("Versions", found["versions"]),
        ("Settings", found["settings"] or {"none": "all defaults"}),
    ):
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows.items():
            table.add_row(Text(name), Text(value))
        console.print(table)
