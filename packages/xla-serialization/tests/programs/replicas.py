"""A replica saves in every way that there is, with tensors of its own. usage: replicas.py FOLDER; the last line is a report as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import torch_xla.core.xla_model as xm
import torch_xla.utils.serialization as xser
import xla_serialization
from xla_core.abi.tensors import is_pending


def state(ordinal: int) -> dict[str, Any]:
    """Not computed yet."""
    return {"w": torch.full((3,), float(ordinal), device="xla") + 1, "ordinal": ordinal}


def main(folder: Path) -> None:
    ordinal = xm.get_ordinal()
    saves = {"xm": xm.save, "xser": xser.save, "checkpoint": xla_serialization.save}
    pending = {}
    for name, save in saves.items():
        data = state(ordinal)
        xm.wait_device_ops()
        save(data, folder / name)
        pending[name] = is_pending(data["w"])
        xm.rendezvous(f"saved {name}")
    there = sorted(path.name for path in folder.iterdir())
    xm.rendezvous("seen")
    for name, save in saves.items():
        save(state(ordinal), folder / f"{name}-{ordinal}", master_only=False)
    xm.save(state(ordinal), folder / "together", global_master=True, sync=True)
    loads = {"xm": torch.load, "xser": xser.load, "checkpoint": xla_serialization.load}
    paths = {name: [folder / name, folder / f"{name}-{ordinal}"] for name in saves}
    found = {name: [load(path) for path in paths[name]] for name, load in loads.items()}
    values = {name: [[one["ordinal"], *one["w"].tolist()] for one in both] for name, both in found.items()}
    print(json.dumps({"pending": pending, "there": there, "values": values, "together": torch.load(folder / "together")["ordinal"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
