"""`python -m xla_debug` is `xla-debug`."""

from xla_debug.cli import main

main()
