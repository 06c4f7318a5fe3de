"""Imported in processes that tests start: they find the device, and the test file, as their worker does.

That is the process of which ranks are forked, and any that a test starts by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import ranks
import worker

_device, _file = os.environ[ranks.DEVICE], Path(os.environ[ranks.FILE])
os.register_at_fork(after_in_child=ranks.end_with_the_worker)
worker.prepare(_device)
if _device == "xla":
    ranks.find_xla()
    ranks.make_collectives_on_xla()
worker.load(_file.parent, _file.name)
