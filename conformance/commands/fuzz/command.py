"""`conformance fuzz`: run random interventions."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.commands.shared import engines
from conformance.commands.shared.options import (
    Backends,
    Expectations,
    Manifest,
    Models,
    Reports,
    note,
    say,
)
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.checkpoints import cache_folder

if TYPE_CHECKING:
    from conformance.commands.fuzz.tally import CampaignState


#: The default folder of the corpus.
_CORPUS = Path("fuzz/corpus")


def fuzz(
    *,
    model: Models = [],  # noqa: B006 - typer reads the default, nobody changes it
    backend: Backends = [],  # noqa: B006
    minutes: Annotated[float, typer.Option(min=0, help="How long programs are drawn.")] = 5.0,
    programs: Annotated[
        int | None, typer.Option(min=0, help="So many programs, however long it takes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same programs.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Programs for one load of an engine.")] = 40,
    corpus: Annotated[
        Path, typer.Option(help="Programs that are replayed first, and kept for the next time.")
    ] = _CORPUS,
    frozen: Annotated[bool, typer.Option("--frozen", help="Keep nothing in the corpus.")] = False,
    resume: Annotated[
        str, typer.Option(help="Go on with this campaign (`latest`), with what it was asked.")
    ] = "",
    known: Expectations,
    manifest: Manifest,
    reports: Reports,
) -> None:
    """Draw random programs, run each on every column, and minimise those that differ.

    A program is an intervention as data: reads, writes, values that flow between layers, tokens,
    steps and prompts. Float32 decides; some programs also run in bf16. Each new difference is
    stored in the corpus, and written as a scenario, as a standalone script and as an issue for
    upstream.

    Exits 0 when nothing differs but known differences, 1 when something else does, 3 when the
    harness failed.

    Examples: `conformance fuzz -m llama --minutes 5 --seed 3`, `conformance fuzz --resume latest`.
    """
    engines.require_engine()
    from conformance.commands.fuzz import campaign, report, tally
    from conformance.commands.fuzz import corpus as corpora
    from conformance.judge.expectations import load_expectations
    from conformance.runner.planning import plan
    from conformance.runner.planning.selection import check_sources
    from conformance.spec.inputs import manifest as manifests

    whole = manifests.load(manifest)
    if resume:
        folder = campaign.open_campaign(reports, resume)
        state = campaign.read(folder)
        _require_same_corpus(state, folder, corpus)
    else:
        wanted = plan.choose(whole.backends, backend, "backend")
        request = tally.CampaignRequest(
            tuple(each.id for each in plan.choose(whole.models, model or ["llama"], "model")),
            tuple(each.id for each in wanted if backend or each.default),
            *(seed, minutes, programs, batch, str(corpus), frozen),
        )
        folder, state = campaign.create_campaign(reports), tally.CampaignState(request)
    models = plan.choose(whole.models, state.asked.models, "model")
    check_sources(models, whole, manifest)
    backends = plan.choose(whole.backends, state.asked.backends, "backend")
    gaps = load_expectations(known)
    running = campaign.Campaign(
        state, models, backends, folder=folder, gaps=gaps, cache=cache_folder(), tell=note
    )
    summary = running.run()
    if summary.interrupted:
        _say(running.state)
        words = f"conformance fuzz --resume {folder.name}{_corpus_option(state)}"
        note(f"interrupted; go on with: {words}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not state.asked.frozen:
        for difference in running.state.differences:
            corpora.keep(corpus, difference)
    found = running.state.differences
    new = [difference for difference in found if not difference.explained and not difference.files]
    if new:
        note(f"{len(new)} new differences are run once more, on every column")
        running.describe(
            report.write_differences(
                new,
                models,
                backends,
                folder=folder / "found",
                known=gaps,
                cache=cache_folder(),
            )
        )
    _say(running.state)
    raise typer.Exit(tally.exit_code(running.state))


def _require_same_corpus(state: CampaignState, folder: Path, corpus: Path) -> None:
    """Refuse another corpus: programs are written only where the command line says, because a
    campaign's file may come from anybody. Raises ConformanceError.
    """
    if Path(state.asked.corpus).absolute() != corpus.absolute():
        raise ConformanceError(
            f"this campaign was begun with the corpus {state.asked.corpus!r}, not {str(corpus)!r}",
            path=folder,
            remedy=f"name it again, if you know it: {_corpus_option(state).strip()}",
        )


def _corpus_option(state: CampaignState) -> str:
    """Return the option that names the campaign's corpus."""
    corpus = state.asked.corpus
    return "" if Path(corpus) == _CORPUS else f" --corpus {shlex.quote(corpus)}"


def _say(state: CampaignState) -> None:
    from conformance.commands.fuzz import tally

    for line in tally.summary(state):
        say(line)
