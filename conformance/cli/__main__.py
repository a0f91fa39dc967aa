"""`python -m conformance.cli`."""

from conformance.cli import main

main()
