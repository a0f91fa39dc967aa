"""The command line: one module per command, and the table that names them."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.commands import clean, diff, env, history, run, show, validate
from conformance.commands.bisect import command as bisect
from conformance.commands.check import command as check
from conformance.commands.doctor import command as doctor
from conformance.commands.fuzz import command as fuzz
from conformance.commands.gate import command as gate
from conformance.commands.init import command as init
from conformance.commands.repro import command as repro
from conformance.commands.selftest import command as selftest
from conformance.commands.shared import engines
from conformance.commands.shared.options import err, spread
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.processes.address_space import require_address_space

app = typer.Typer(
    name="conformance",
    help="Find out where an nnsight intervention differs between transformers and vLLM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
known_app = typer.Typer(no_args_is_help=True, help="What is expected not to pass.")
app.add_typer(known_app, name="known")
env_app = typer.Typer(no_args_is_help=True, help="Interpreters with other versions.")
app.add_typer(env_app, name="env")

#: The commands in the order of `--help`.
VERBS: dict[str, Callable[..., None]] = {
    "check": check.check,
    "run": run.run,
    "gate": gate.gate,
    "diff": diff.diff,
    "fuzz": fuzz.fuzz,
    "bisect": bisect.bisect,
    "history": history.history,
    "list": show.list_cells,
    "show": show.show,
    "repro": repro.repro,
    "judge": run.judge,
    "report": show.report,
    "selftest": selftest.selftest,
    "clean": clean.clean,
    "doctor": doctor.doctor,
    "init": init.init,
    "validate": validate.validate,
    "schema": show.schema,
}


@app.callback()
def options(
    *,
    version: Annotated[  # noqa: ARG001 - its callback has seen to it
        bool,
        typer.Option(
            "--version",
            help="The version of this tool and of its engines.",
            is_eager=True,
            callback=engines.show_version,
        ),
    ] = False,
) -> None:
    """Find out where an nnsight intervention differs between transformers and vLLM."""
    require_address_space()


def to_its_end(verb: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that a SystemExit from what it imports or calls becomes an error: its
    status could be 0 with nothing done. Only typer may raise SystemExit, outside the wrapper.
    """

    @wraps(verb)
    def whole(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
        except SystemExit as ended:
            raise ConformanceError(
                f"something that this command imports or calls ended it, with {ended.code!r}",
                remedy="take `sys.exit` out of what it imports",
                code=ExitCode.HARNESS,
            ) from ended

    return whole


for name, verb in VERBS.items():
    app.command(name)(to_its_end(spread(verb)))
known_app.command("update")(to_its_end(gate.update_known))
env_app.command("list")(to_its_end(env.list_environments))
env_app.command("build")(to_its_end(env.build_environment))
env_app.command("engine")(to_its_end(env.engine_environment))
env_app.command("remove")(to_its_end(env.remove_environments))


def main() -> None:
    """Run a command. Only this function turns errors into messages and exit codes."""
    for stream in (sys.stdout, sys.stderr):
        # `×` and `→` must not raise an error if the locale cannot encode them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    heard = signal.getsignal(signal.SIGINT)
    try:
        try:
            app(prog_name="conformance")
        except OSError as error:
            raise of_the_system(error) from error
        finally:
            # The result is already printed: a later signal must not change the exit code.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:
        # The interrupt came between the command's own handler and the lines above.
        sys.exit(ExitCode.INTERRUPTED)
    except ConformanceError as error:
        err.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.code)
    except Exception:  # noqa: BLE001 - Python's own 1 would mean that a cell failed
        if getattr(heard, "raised", False):  # Rust raises its own error for a callback's interrupt
            sys.exit(ExitCode.INTERRUPTED)
        err.print_exception()
        sys.exit(ExitCode.HARNESS)


_ROOM = frozenset({errno.EDQUOT, errno.EFBIG, errno.ENOSPC})
#: Errors about a path that the user has to resolve: another name, more room, or permissions.
_NAMED = frozenset(
    {errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR}
    | {errno.EROFS, *_ROOM}
)


def of_the_system(error: OSError) -> Exception:
    """Turn the system's error about a file into one that the user can act on; return any other
    unchanged.
    """
    if error.errno not in _NAMED:
        return error
    room = error.errno in _ROOM
    return ConformanceError(
        f"cannot be used: {error.strerror}" if error.filename else str(error.strerror),
        path=Path(os.fsdecode(error.filename)) if error.filename else None,
        remedy="make room there, then go on with --resume" if room else "name another place",
        code=ExitCode.HARNESS if room else ExitCode.BAD_INPUT,
    )
