"""`python -m xla_serialization`: look at checkpoints, convert and verify them."""

from xla_serialization.cli import main

main()
