"""The public Python API: the judge for one's own tensors, and runs from a program.

All of it is also `conformance.NAME`. What is promised of it: docs/api.md#stability.
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
from conformance.records import Precision, Results, Thresholds
from conformance.store import open_run

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.judge.judgement import Judgement

__all__ = ["NotSame", "Values", "assert_same", "compare", "results", "run"]

#: One tensor, or several by name: "logits" are compared as logits are, every other name as rows of
#: numbers, [tokens, width] or [width].
Values: TypeAlias = "Tensor | Mapping[str, Tensor]"

_PRECISIONS = {"torch.bfloat16": Precision.BF16, "torch.float32": Precision.FLOAT32}


class NotSame(AssertionError):
    """The candidate is further from the truth than honest computations: `judgement` says how."""

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
    """What the judge says of a computation of your own.

    `truth` is the same computed in float32. `floor` are honest computations of the same in the
    candidate's precision, which differ only in what may differ (another attention kernel, another
    batch, another order of addition): how far they are from the truth is the noise that the
    candidate's error is divided by. At least four are needed in bf16 and two in float32: fewer do
    not show how far honest ones can be apart.

    `precision` is the candidate's, by default that of its dtype. Raises ConformanceError where
    nothing can be judged: too few computations, other names or shapes among them than in the truth,
    a dtype that no limits are known for.
    """
    from conformance.generated_tokens import FLOAT32_WAY
    from conformance.judge.cell import judge_cell
    from conformance.judge.reference import TRUTH, read_reference
    from conformance.records import Site
    from conformance.store.files import as_reals

    def named(values: Values) -> dict[str, Tensor]:
        several = values if isinstance(values, Mapping) else {"value": values}
        for name in several:
            if not name.isidentifier():
                raise ConformanceError(f"{name!r} cannot name a value", remedy="letters and digits")
        return {str(Site(name)): as_reals(each.detach().cpu()) for name, each in several.items()}

    observed, true = named(candidate), named(truth)
    kind = precision or _precision(observed)
    way = FLOAT32_WAY if kind is Precision.FLOAT32 else "bf16_"
    members = {f"{way}{number}": named(values) for number, values in enumerate(floor)}
    reference = read_reference({TRUTH: true, **members}, twin=False, precision=kind)
    if isinstance(reference, str):
        raise ConformanceError(
            f"the truth and the floor cannot be judged by: {reference}",
            remedy="give honest computations of every value that the truth has, in its shape",
        )
    ids = ((0,),)  # of a prompt: there is none
    return judge_cell(
        observed,
        reference,
        twin=False,
        equal=(),
        prompt_ids=ids,
        truth_ids=ids,
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
    """Raise NotSame unless the candidate is as near to the truth as honest computations are.

    As `compare`, whose judgement it returns. In bf16 a small excess is `drift`, which fails only
    where `drift` is not allowed.
    """
    from conformance.records import Verdict

    judgement = compare(candidate, truth, floor=floor, precision=precision, thresholds=thresholds)
    if judgement.verdict.passes or (drift and judgement.verdict is Verdict.DRIFT):
        return judgement
    lines = [f"{judgement.verdict}: {judgement.diagnosis or judgement.reason}"]
    for judged in judgement.observations:
        if not judged.verdict.passes:
            name = judged.site.rpartition("/")[2]
            lines.append(f"  {name}: {judged.verdict}: {judged.message}")
    raise NotSame("\n".join(lines), judgement)


def _precision(values: Mapping[str, Tensor]) -> Precision:
    kinds = {str(value.dtype) for value in values.values() if value.is_floating_point()}
    precisions = {_PRECISIONS.get(kind) for kind in kinds} or {Precision.FLOAT32}
    only = precisions.pop()
    if precisions or only is None:
        raise ConformanceError(
            f"no one precision is that of {', '.join(sorted(kinds))}",
            remedy="compare bfloat16 or float32, or name the precision",
        )
    return only


def results(name: str | Path = "latest", reports: Path | None = None) -> Results:
    """A stored run's results, by its name under `reports` or its folder. No engine is needed.

    Raises ConformanceError when there is none, or when it was not judged to its end.
    """
    from conformance.inputs import project

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
    """Run cells as `conformance run` does, and give the results. Verdicts raise nothing.

    `cells` are ids, of whatever model and backend; else `models` and `backends` (by default those
    of the `tier`, and those marked default) and an `expression` as for `-k`. `options` are any
    others of the command line, `folder` the one that it is run in: its project holds.

    Raises ConformanceError with the command's own words when it did not come to an end.
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
