"""The engine behind `torch_xla`: records what torch asks of an xla tensor, compiles it once with XLA, runs it on PJRT buffers."""

from xla_core.base.installation import check as _check

_check()  # before anything else: what is wrong with the files is said, not what follows from it
