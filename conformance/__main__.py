"""Entry point of `python -m conformance`."""

from conformance_command import main

main()
