"""Run `conformance` in this process, and get what a shell would: the exit code and the output."""

from __future__ import annotations

from collections.abc import Mapping

from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ConformanceError


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and what was printed, as `conformance.cli.main` turns errors into both.

    tests/runner/processes tries what starts the process: signals, imports, a crash.
    """
    done = CliRunner().invoke(app, arguments, env=environment)
    error = done.exception
    if isinstance(error, ConformanceError):
        return int(error.code), f"{done.output}error: {error}\n"
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return done.exit_code, done.output
