"""The public Python API: judge your own tensors, and start runs from a program.

Every name is also available as `conformance.NAME`. Stability: docs/api.md#stability.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.store import open_run
from conformance.spec.records import Precision, Results, Thresholds

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.judge.cell.judgement import Judgement

__all__ = ["NotSame", "Values", "assert_same", "compare", "results", "run"]

#: One tensor, or several by name. "logits" are compared as logits, every other name as rows of
#: numbers, [tokens, width] or [width].
Values: TypeAlias = "Tensor | Mapping[str, Tensor]"

_PRECISIONS = {"torch.bfloat16": Precision.BF16, "torch.float32": Precision.FLOAT32}


class NotSame(AssertionError):
    """The candidate is outside the noise floor; `judgement` has the details."""

    def __init__(self, words: str, judgement: Judgement) -> None:
        super().__init__(words)
        self.judgement = judgement


def compare(
    candidate: Values,
    truth: Values,
    *,
    floor: Sequence[Values],
    precision: Precision | None = None,
    thresholds: Thresholds | None = None,
) -> Judgement:
    """Judge a computation of your own.

    `truth` is the reference, computed in float32. `floor` are baseline runs: the same computation
    in the candidate's precision, with differences that are allowed (another attention kernel,
    another batch, another order of addition). Their distance from the reference is the noise floor,
    and the candidate's error is divided by it. At least four are needed in bf16 and two in float32;
    fewer do not show the spread.

    `precision` is the candidate's, by default that of its dtype. Raises ConformanceError if nothing
    can be judged: too few baseline runs, names or shapes that differ from the reference's, or a
    dtype without limits.
    """
    from conformance.judge.cell.judge_cell import judge_cell
    from conformance.judge.cell.reference import REFERENCE_RUN, read_reference
    from conformance.runner.store.files import as_reals
    from conformance.spec.generated_tokens import FLOAT32_WAY
    from conformance.spec.records import Site

    def named(values: Values) -> dict[str, Tensor]:
        several = values if isinstance(values, Mapping) else {"value": values}
        for name in several:
            if not name.isidentifier():
                raise ConformanceError(f"{name!r} cannot name a value", remedy="letters and digits")
        return {str(Site(name)): as_reals(each.detach().cpu()) for name, each in several.items()}

    observed, true = named(candidate), named(truth)
    kinds = {str(value.dtype) for value in observed.values() if value.is_floating_point()}
    [kind, *others] = {_PRECISIONS.get(one) for one in kinds} or {Precision.FLOAT32}
    kind = precision or (None if others else kind)
    if kind is None:
        raise ConformanceError(
            f"no one precision is that of {', '.join(sorted(kinds))}",
            remedy="compare bfloat16 or float32, or name the precision",
        )
    way = FLOAT32_WAY if kind is Precision.FLOAT32 else "bf16_"
    members = {f"{way}{number}": named(values) for number, values in enumerate(floor)}
    reference = read_reference({REFERENCE_RUN: true, **members}, has_edit=False, precision=kind)
    if isinstance(reference, str):
        raise ConformanceError(
            f"the reference and the floor cannot be judged by: {reference}",
            remedy="give baseline runs of every value that the reference has, in its shape",
        )
    ids = ((0,),)  # a placeholder: there is no prompt
    return judge_cell(
        observed,
        reference,
        has_edit=False,
        equal=(),
        prompt_ids=ids,
        reference_ids=ids,
        limits=(thresholds or Thresholds()).of(kind),
    )


def assert_same(
    candidate: Values,
    truth: Values,
    *,
    floor: Sequence[Values],
    precision: Precision | None = None,
    thresholds: Thresholds | None = None,
    drift: bool = False,
) -> Judgement:
    """Raise NotSame unless the candidate is within the noise floor.

    Takes the arguments of `compare` and returns its judgement. In bf16 a small excess is `drift`;
    it fails unless `drift` is true.
    """
    from conformance.spec.records import Verdict

    judgement = compare(candidate, truth, floor=floor, precision=precision, thresholds=thresholds)
    if judgement.verdict.passes or (drift and judgement.verdict is Verdict.DRIFT):
        return judgement
    lines = [f"{judgement.verdict}: {judgement.diagnosis or judgement.reason}"]
    lines += [
        f"  {judged.site.rpartition('/')[2]}: {judged.verdict}: {judged.message}"
        for judged in judgement.observations
        if not judged.verdict.passes
    ]
    raise NotSame("\n".join(lines), judgement)


def results(name: str | Path = "latest", reports: Path | None = None) -> Results:
    """Load a stored run's results, by its name under `reports` or by its folder, without an engine.

    Raises ConformanceError if there is no such run, or if its judging did not finish.
    """
    from conformance.spec.inputs import project

    if isinstance(name, Path):
        return open_run(name.parent, name.name).results()
    return open_run(reports or project.here().reports, name).results()


def run(
    *,
    models: Sequence[str] = (),
    backends: Sequence[str] = (),
    expression: str = "",
    tier: str = "",
    cells: Sequence[str] = (),
    precisions: Sequence[Precision] = (),
    options: Sequence[str] = (),
    folder: Path | None = None,
) -> Results:
    """Run cells as `conformance run` does, and return the results. Verdicts raise nothing.

    `cells` are cell ids of any model and backend. Without them, `models` and `backends` (by default
    those of the `tier`, and those marked default) and an `expression` as for `-k` select cells.
    `options` are other command-line options. The command runs in `folder`, and uses its project.

    Raises ConformanceError with the command's output if it did not finish.
    """
    words = [word for name in models for word in ("-m", name)]
    words += [word for name in backends for word in ("-b", name)]
    words += [word for kind in precisions for word in ("--precision", kind.value)]
    words += ["-k", expression] if expression else []
    words += ["--tier", tier] if tier else []
    with tempfile.TemporaryDirectory(prefix="conformance-cells-") as place:
        if cells:
            file = Path(place, "cells.txt")
            file.write_text("\n".join(cells), encoding="utf-8")
            words += ["--cells", str(file)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "conformance", "run", "--json", *words, *options],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        where = Path(json.loads(done.stdout.splitlines()[-1])["folder"])
    except (IndexError, KeyError, TypeError, ValueError):
        output = done.stderr.strip() or done.stdout.strip() or "it said nothing"
        code = done.returncode if done.returncode in set(ExitCode) else ExitCode.HARNESS
        raise ConformanceError(
            f"the run did not come to its end: {output[-4000:]}", code=ExitCode(code)
        ) from None
    return results((folder or Path()) / where)
