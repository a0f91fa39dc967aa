"""The reference of one cell and its baseline runs in one precision, which give the noise floor."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.judge.cell.diagnosis.hypotheses import NoisyRows
from conformance.judge.cell.integers import Runs
from conformance.judge.cell.measures import floor, metrics, rounded, structure, tokens
from conformance.spec.generated_tokens import in_precision
from conformance.spec.records import TIED, Precision, Site

#: Fewer baseline runs do not show how far apart they can be. The limit is a hundred times their
#: spread in float32, a few times in bf16.
FEWEST_BASELINE_RUNS: Mapping[Precision, int] = {Precision.BF16: 4, Precision.FLOAT32: 2}

#: Reasons for observations that cannot be judged.
BASELINE_RUNS_DIFFER = (
    "the float32 baseline runs differ in it by more than rounding: an error as large as the value "
    "itself would pass"
)
NO_NUMBER = "it is nan or infinite everywhere in every baseline run: nothing else can be compared"

REFERENCE_RUN = "truth"
#: Observations under this member help to diagnose (see `hypotheses`) and are never judged.
AUXILIARY = "aux"

#: The largest width assumed for a model if only its logits are given.
_WIDE = 1024


@dataclass(slots=True, eq=False)
class ReferenceRuns:
    """The reference and its baseline runs in one precision, by site.

    `mixture`: the model has routers. `width` is its residual stream's; 0 means the narrowest
    observation's. Entries that are nan or infinite in all runs alike are replaced by 0, and
    `numberless` has the `structure.kinds` of all entries. If the runs disagree on them or have no
    number at all, the observation is `unclear`, with the reason, and all 0. `greedy` are the ids
    that a free generation must take from its own logits. In float32, `ties` are the tokens whose
    experts depend on rounding, after each layer; `rounded` are the dtypes that a trace rounded to;
    `coarse` are the integers of the bf16 baseline runs, which show how easily each flips. `stream`
    is the root mean square of the residual stream, 0 if unknown.
    """

    reference_values: Mapping[Site, Tensor]
    baseline_values: Mapping[Site, tuple[Tensor, ...]]
    auxiliary: Mapping[Site, Tensor] = field(default_factory=dict)
    precision: Precision = Precision.BF16
    mixture: bool = False
    width: int = 0
    numberless: Mapping[Site, Tensor] = field(default_factory=dict)
    unclear: Mapping[Site, str] = field(default_factory=dict)
    greedy: frozenset[Site] = frozenset()
    ties: Mapping[Site, Tensor] = field(default_factory=dict)
    rounded: Mapping[Site, torch.dtype] = field(default_factory=dict)
    coarse: Mapping[Site, tuple[Tensor, ...]] = field(default_factory=dict)
    stream: float = 0.0
    _floors: dict[Site, floor.Floor] = field(default_factory=dict)
    _known: dict[Site, NoisyRows] = field(default_factory=dict)

    @property
    def routers_tie(self) -> bool:
        """Return whether router ties matter: in a mixture in bf16.

        There the clean and the edited run may differ by an expert where nothing was written: such
        rows have no gain.
        """
        return self.mixture and self.precision is Precision.BF16

    def other_kinds(self, observed: Mapping[Site, Tensor]) -> dict[Site, str]:
        """Describe the observations whose nan and infinities differ from the reference's."""
        return {
            site: flaw
            for site, entries in self.numberless.items()
            if site in observed and observed[site].shape == entries.shape
            if (flaw := structure.other_kinds(observed[site], entries))
        }

    def numbers(self, observed: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
        """Set a candidate's entries to 0 where the reference has no number.

        In float32, also replace neighbours of rounded entries (`rounded.settled`).
        """
        numbers = _filled(observed, self.numberless)
        return rounded.settled(numbers, self.reference_values, self.rounded)

    def floor(self, site: Site) -> floor.Floor:
        """Return the noise floor of one observation; an edited run is scaled by its clean run."""
        if site not in self._floors:
            self.prepare([site])
        return self._floors[site]

    def borrow(self, other: ReferenceRuns) -> None:
        """Reuse another reference's noise floors of bitwise equal sites, such as a shared clean
        run.
        """
        for site, borrowed in other._floors.items():
            if site not in self.reference_values or self._clean(site) is not None:
                continue
            own, theirs = (
                (runs.reference_values[site], *runs.baseline_values[site]) for runs in (self, other)
            )
            if len(own) == len(theirs) and all(
                left.dtype == right.dtype and torch.equal(left, right)
                for left, right in zip(own, theirs, strict=True)
            ):
                self._floors[site] = borrowed

    def prepare(self, sites: Iterable[Site]) -> None:
        """Compute the noise floors of many observations together, which is several times faster."""
        clean_of = {site: self._clean(site) for site in sites if site not in self._floors}
        clean_sites = [clean for clean in clean_of.values() if clean and clean not in clean_of]
        if clean_sites:
            self.prepare(clean_sites)
        for unpaired in (True, False):
            group = [site for site, clean in clean_of.items() if (clean is None) is unpaired]
            for batch in metrics.batches({site: self.reference_values[site] for site in group}):
                self._prepare(batch, [clean_of[site] for site in batch])

    def _prepare(self, sites: Sequence[Site], clean_sites: Sequence[Site | None]) -> None:
        runs = zip(*(self.baseline_values[site] for site in sites), strict=True)
        computed = floor.floors(
            [metrics.rows(self.reference_values[site]) for site in sites],
            torch.stack([metrics.all_rows(run) for run in runs]),
            [
                None if clean is None else self._floors[clean].reference.norm(dim=-1)
                for clean in clean_sites
            ],
            [self._operands(site, clean) for site, clean in zip(sites, clean_sites, strict=True)],
            centred=sites[0].name == "logits",
            precision=self.precision,
            mixture=self.mixture,
            terms=self._terms(),
        )
        self._floors.update(zip(sites, computed, strict=True))

    def _operands(self, site: Site, clean: Site | None) -> Tensor | None:
        """Return the length of the operands whose difference an exactly zero row may be: [T].

        An engine that rounds the two separately leaves a rounding error of that length. It is the
        longest row of this width observed in the same step, else the model's stream. A row that is
        zero only through the edit must stay zero.
        """
        reference = metrics.rows(self.reference_values[site])
        if bool(reference.any(dim=-1).all()):
            return None
        width = reference.shape[1]
        beside = [
            rows.masked_fill(~metrics.bulk(rows), 0).norm(dim=-1).max()
            for other, value in self.reference_values.items()
            if replace(other, name=site.name, layer=site.layer) == site
            and value.is_floating_point()
            and metrics.shape_of_rows(value)[1] == width
            for rows in [metrics.rows(value)]
        ]
        longest = float(max(beside, default=0.0)) or self.stream * math.sqrt(width)
        lengths = torch.full((len(reference),), longest, dtype=reference.dtype)
        if clean is not None:
            lengths[metrics.rows(self.reference_values[clean]).any(dim=-1)] = 0.0
        return lengths

    def integers(self, site: Site) -> Runs:
        """Return the integers of the reference and the baseline runs at a site."""
        values = (self.reference_values[site], self.baseline_values[site])
        return Runs(*values, self.coarse.get(site, ()), self._terms())

    def _terms(self) -> int:
        """Return how many products a sum in the model has; logits alone do not show the width."""
        if not self.width:
            floats = [one for one in self.reference_values.values() if one.is_floating_point()]
            self.width = min((metrics.shape_of_rows(one)[1] for one in floats), default=1)
            self.width = min(self.width, _WIDE)
        return self.width

    def _clean(self, site: Site) -> Site | None:
        """Return the clean site of an edited observation, if it exists and has the same shape."""
        clean, values = replace(site, run="clean"), self.reference_values
        if site.run != "edited" or clean not in values:
            return None
        return clean if values[clean].shape == values[site].shape else None

    def known(self) -> Mapping[Site, NoisyRows]:
        """Return every value of the reference with its noise: what a wrong value may be instead."""
        if not self._known:
            for site, tensor in self.reference_values.items():
                if tensor.is_floating_point() and site not in self.unclear:
                    noise_floor = self.floor(site)
                    self._known[site] = NoisyRows(noise_floor.reference, noise_floor.noise)
        return self._known


def read_reference(
    reference: Mapping[str, Mapping[str, Tensor]],
    *,
    has_edit: bool,
    precision: Precision = Precision.BF16,
    mixture: bool = False,
    width: int = 0,
    numberless: bool = False,
    free: Mapping[str, Tensor] | None = None,
    stream: float = 0.0,
) -> ReferenceRuns | str:
    """Build the reference of one precision, or return why it cannot be used.

    It must be finite unless values may be `numberless`: a user's are masked with -inf, or nan in
    rows of padding. `free` is the reference that was run along no candidate's tokens, if
    `reference` was: the latter repeats the candidate's ids and cannot show which had to be greedy.
    """
    beside = (REFERENCE_RUN, AUXILIARY)
    runs = {
        name: {Site.parse(site): tensor for site, tensor in values.items()}
        for name, values in reference.items()
        if name in beside or in_precision(name, precision)
    }
    reference_values = runs.pop(REFERENCE_RUN, {})
    coarse = _coarse_integers(reference, reference_values) if precision is Precision.FLOAT32 else {}
    beside_reference = runs.pop(AUXILIARY, {})
    auxiliary = {site: value for site, value in beside_reference.items() if site.name != TIED}
    ties = {site: value for site, value in beside_reference.items() if site.name == TIED}
    odd: dict[Site, Tensor] = {}
    unclear: dict[Site, str] = {}
    if numberless:
        odd, unclear = _numberless(reference_values, runs.values())
        reference_values = _filled(reference_values, odd)
        runs = {name: _filled(values, odd) for name, values in runs.items()}
    kinds = rounded.kinds(reference_values) if precision is Precision.FLOAT32 else {}
    runs = {name: rounded.settled(values, reference_values, kinds) for name, values in runs.items()}
    flaw = next(_flaws(reference_values, runs, precision, has_edit=has_edit), "")
    if flaw:
        return flaw
    baseline_values = {
        site: tuple(values[site] for values in runs.values()) for site in reference_values
    }
    clear = {site: places for site, places in odd.items() if site not in unclear}
    chosen = {Site.parse(site): value for site, value in (free or {}).items()}
    greedy = tokens.largest_sites(reference_values if free is None else chosen)
    return ReferenceRuns(
        reference_values,
        baseline_values,
        auxiliary,
        precision,
        mixture,
        width,
        numberless=clear,
        unclear=unclear,
        greedy=greedy,
        ties=ties if precision is Precision.FLOAT32 else {},
        rounded=kinds,
        coarse=coarse,
        stream=stream,
    )


def _coarse_integers(
    reference: Mapping[str, Mapping[str, Tensor]], reference_values: Mapping[Site, Tensor]
) -> dict[Site, tuple[Tensor, ...]]:
    """Return the integers of the bf16 baseline runs that have the reference's shape."""
    runs = [values for run, values in reference.items() if in_precision(run, Precision.BF16)]
    return {
        site: tuple(
            run[name]
            for run in runs
            if (name := str(site)) in run and run[name].shape == value.shape
        )
        for site, value in reference_values.items()
        if not value.is_floating_point()
    }


def _numberless(
    reference: Mapping[Site, Tensor], baseline_runs: Collection[Mapping[Site, Tensor]]
) -> tuple[dict[Site, Tensor], dict[Site, str]]:
    """Return the `structure.kinds` of observations that are not finite, and the unclear ones.

    Unclear, with the reason, are those on which the runs disagree or have no number: all counts as
    nan.
    """
    odd: dict[Site, Tensor] = {}
    unclear: dict[Site, str] = {}
    for site, tensor in reference.items():
        runs = [run[site] for run in baseline_runs if site in run]
        if not tensor.is_floating_point() or any(run.shape != tensor.shape for run in runs):
            continue
        if not tensor.numel() or all(map(_finite, (tensor, *runs))):
            continue
        odd[site] = structure.kinds(tensor)
        if any(structure.other_kinds(run, odd[site]) for run in runs):
            unclear[site] = BASELINE_RUNS_DIFFER
        elif bool(odd[site].all()):
            unclear[site] = NO_NUMBER
        if site in unclear:
            odd[site] = torch.ones_like(odd[site])
    return odd, unclear


def _filled(values: Mapping[Site, Tensor], odd: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
    return {
        site: tensor.masked_fill(odd[site] != 0, 0)
        if site in odd and tensor.shape == odd[site].shape
        else tensor
        for site, tensor in values.items()
    }


def _flaws(
    reference: Mapping[Site, Tensor],
    baseline_runs: Mapping[str, Mapping[Site, Tensor]],
    precision: Precision,
    *,
    has_edit: bool,
) -> Iterator[str]:
    """Yield why this reference cannot be used."""
    if not reference:
        yield "its float32 run is missing"
    fewest = FEWEST_BASELINE_RUNS[precision]
    if len(baseline_runs) < fewest:
        yield f"it has {len(baseline_runs)} {precision} baseline runs, at least {fewest} are needed"
    if has_edit and {site.run for site in reference} != {"clean", "edited"}:
        yield "an intervention needs a clean and an edited run"
    yield from _misshapen(reference, baseline_runs)
    for name, values in ((REFERENCE_RUN, reference), *baseline_runs.items()):
        wild = _not_finite({site: values[site] for site in reference if site in values})
        if wild is not None:
            yield f"{wild} of {name} is not finite"


def _misshapen(
    reference: Mapping[Site, Tensor], baseline_runs: Mapping[str, Mapping[Site, Tensor]]
) -> Iterator[str]:
    for site, tensor in reference.items():
        if not tensor.numel():
            yield f"the reference of {site} is empty"
        for name, values in baseline_runs.items():
            if site not in values:
                yield f"{site} of {name} is not there"
            elif (shape := values[site].shape) != tensor.shape:
                yield f"{site} of {name} has shape {list(shape)} instead of {list(tensor.shape)}"


def _not_finite(values: Mapping[Site, Tensor]) -> Site | None:
    """Return the first observation that is not finite, checking all of a dtype at once first."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in values.values():
        by_dtype.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    if all(_finite(torch.cat(tensors)) for tensors in by_dtype.values()):
        return None
    return next(site for site, tensor in values.items() if not _finite(tensor))


def _finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: otherwise the sum is not. Float64 holds all of bf16."""
    return math.isfinite(tensor.sum(dtype=torch.float64))
