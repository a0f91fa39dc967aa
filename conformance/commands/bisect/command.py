"""`conformance bisect`: find the version, commit or change that changes a cell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.bisect.halving import CONFIRM, USUAL, Class, SignaturePart
from conformance.commands.shared import engines, selecting
from conformance.commands.shared.options import (
    Choice,
    Reports,
    RunOptions,
    Trust,
    Without,
    err,
    out,
    say,
)
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import selection
from conformance.spec.checkpoints import cache_folder


def bisect(
    *,
    choice: Annotated[Choice, Without("env", "environments")],
    running: Annotated[RunOptions, Without("keep")],
    subject: Annotated[
        str, typer.Argument(help="vllm, nnsight, transformers, torch, another package, or lock.")
    ] = "",
    good: Annotated[str, typer.Option(help="A version, revision or lock file that is fine.")] = "",
    bad: Annotated[str, typer.Option(help="One that is not.")] = "",
    repo: Annotated[
        Path | None, typer.Option(help="Search the commits of this local repository of SUBJECT.")
    ] = None,
    also: Annotated[
        str, typer.Option("--with", help="Pinned in every environment: 'nnsight==0.8.0 …'.")
    ] = "",
    by: Annotated[
        list[SignaturePart], typer.Option(help="What of a cell's signature counts; again for more.")
    ] = list(USUAL),  # noqa: B006
    neither: Annotated[
        Class, typer.Option(help="What a signature is that neither end has.")
    ] = Class.BAD,
    confirm: Annotated[
        int, typer.Option(min=1, help="How often the two beside the answer are tried in all.")
    ] = CONFIRM,
    resume: Annotated[
        str, typer.Option(help="Go on with this bisect (`latest`): its trials are kept.")
    ] = "",
    retry: Annotated[
        bool, typer.Option(help="With --resume: try again what was untestable.")
    ] = False,
    trust: Trust = False,
    reports: Reports,
) -> None:
    """Find the version after which the selected cells changed.

    Cells are compared by signature: verdict, diagnosis, and how the engine's layers hold the
    residual stream. Both ends are tried first. A signature that matches neither end counts as bad;
    with `--neither good` the search finds where the bad end's own signature begins. The two
    neighbours of the answer are tried three times each in fresh workers.

    Exits 0 when the culprit is found, 1 when the ends do not differ or only a range is left, 2 for
    ends that cannot be used, 3 when the harness failed.

    Examples: `conformance bisect vllm --good 0.28.0 --bad 0.32.0 -m gpt_neox -k read_all`,
    `conformance bisect nnsight --repo ../nnsight --good v0.8.0 --bad main -m llama`,
    `conformance bisect lock --good before.txt --bad after.txt -m llama`,
    `conformance bisect --resume latest`.
    """
    engines.require_engine()
    from conformance.commands.bisect import candidates, show, state, trial
    from conformance.commands.bisect.answer import make
    from conformance.report.render import terminal

    if resume:
        folder = state.find(reports, resume)
        named = bool(subject and good and bad)
        row = trial.list_candidates(subject, good, bad, repo, also) if named else None
        requirements = candidates.requirements(row.candidates) if row else ()
        selecting.require_known(
            trial.list_executed(folder), folder.path, choice, trust=trust, requirements=requirements
        )
        folder.change(allow_moves=choice.allow_moves, retry=retry)
    else:
        if not (subject and good and bad):
            raise ConformanceError(
                "a bisect needs to know what to search, and two ends",
                remedy="conformance bisect vllm --good 0.28.0 --bad 0.32.0 -m gpt_neox",
            )
        selected = selection.select(choice)
        row = trial.list_candidates(subject, good, bad, repo, also)
        request = state.BisectionRequest(
            subject=row.subject,
            good=good,
            bad=bad,
            command=shlex.join(["conformance", *sys.argv[1:]]),
            with_cells=_select_again(choice),
            by=tuple(part for part in SignaturePart if part in by),
            neither=neither,
            confirm=confirm,
            backwards=row.backwards,
            allow_moves=choice.allow_moves,
        )
        folder = trial.begin(reports, choice.scenarios, request, row, selected, running.groups)
    try:
        conclusion = trial.search(folder, cache_folder(), running.limits, out)
    except KeyboardInterrupt:
        err.print(f"interrupted; go on with: conformance bisect --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    report = make(folder.read(), conclusion, folder, cache_folder())
    page = show.write(report, folder)
    terminal.document(show.document(report), out)
    say(f"{page}")
    raise typer.Exit(report.exit_code)


def _select_again(choice: Choice) -> str:
    """Return the options that select the same cells on another command line."""
    words = [word for name in choice.model for word in ("-m", name)]
    words += [word for name in choice.backend for word in ("-b", name)]
    words += ["-k", choice.expression] if choice.expression else []
    words += ["--tier", choice.tier] if choice.tier else []
    return shlex.join(words)
