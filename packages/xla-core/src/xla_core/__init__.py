"""The engine behind `torch_xla`: records what torch asks of an xla tensor, compiles it once with XLA, runs it on PJRT buffers."""
