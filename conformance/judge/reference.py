"""The truth of one cell and its honest runs in one precision: the noise floor they give."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.generated_tokens import in_precision
from conformance.judge.diagnosis.predictions import Known
from conformance.judge.integers import Runs
from conformance.judge.measures import floor, metrics, rounded, structure, tokens
from conformance.records import TIED, Precision, Site

#: Fewer honest runs do not show how far honest runs can be apart. In float32 the limit is a
#: hundred times what they show, in bf16 a few times.
FEWEST_MEMBERS: Mapping[Precision, int] = {Precision.BF16: 4, Precision.FLOAT32: 2}

#: Of observations that no verdict is possible on.
HONEST_RUNS_DIFFER = (
    "honest runs in float32 differ in it by more than rounding: an error as large as the value "
    "itself would have passed"
)
NO_NUMBER = "it is nan or infinite throughout in every honest run: nothing else could be seen"

TRUTH = "truth"
#: Observations under this member help to diagnose (see `transformations`) and are never judged.
AUXILIARY = "aux"

#: The width of a model of which logits alone are known, at most.
_WIDE = 1024


@dataclass(slots=True, eq=False)
class Reference:
    """The truth and the honest runs in one precision, by site. `mixture`: it has routers.
    `width` is that of the model's residual stream; 0: the narrowest observation's is taken.
    Where truth and honest runs have nan or an infinity at the same entries, these are 0 in them,
    and `numberless` has the `structure.kinds` of all entries. Where they have them at others, or
    have no number at all, the observation is `unclear`, with the reason: all of it is 0.
    `greedy` are the ids that a generation left to itself must take from its own logits. `ties`, of
    float32, are the tokens whose experts are a matter of rounding, after each layer; `rounded` is
    what a trace rounded by itself, there too, with the dtype. `coarse` are the integers of the
    honest bf16 runs where the precision is float32: they show how easily each one flips. `stream`
    is the root mean square of the model's residual stream, 0 where it is not known.
    """

    truth: Mapping[Site, Tensor]
    honest: Mapping[Site, tuple[Tensor, ...]]
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
    _known: dict[Site, Known] = field(default_factory=dict)

    def other_kinds(self, observed: Mapping[Site, Tensor]) -> dict[Site, str]:
        """Which of a candidate's observations have other nan and infinities, in words."""
        return {
            site: flaw
            for site, entries in self.numberless.items()
            if site in observed and observed[site].shape == entries.shape
            if (flaw := structure.other_kinds(observed[site], entries))
        }

    def numbers(self, observed: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
        """A candidate's observations with 0 where truth and honest runs are no numbers; in float32
        with the truth's entries where both were rounded, and the other way by chance.
        """
        numbers = _filled(observed, self.numberless)
        return rounded.settled(numbers, self.truth, self.rounded)

    def floor(self, site: Site) -> floor.Floor:
        """The noise floor of one observation; an edited run is scaled by its clean twin."""
        if site not in self._floors:
            self.prepare([site])
        return self._floors[site]

    def borrow(self, other: Reference) -> None:
        """Take over the floors of what is bitwise the same in another reference.

        The cases of one intervention all have the same clean run.
        """
        for site, borrowed in other._floors.items():
            if site in self.truth and self._clean(site) is None and self._same_values(site, other):
                self._floors[site] = borrowed

    def _same_values(self, site: Site, other: Reference) -> bool:
        own_tensors = (self.truth[site], *self.honest[site])
        other_tensors = (other.truth[site], *other.honest[site])
        return len(own_tensors) == len(other_tensors) and all(
            own.dtype == foreign.dtype and torch.equal(own, foreign)
            for own, foreign in zip(own_tensors, other_tensors, strict=True)
        )

    def prepare(self, sites: Iterable[Site]) -> None:
        """Compute the floors of many observations together, which is several times faster."""
        clean_of = {site: self._clean(site) for site in sites if site not in self._floors}
        twins = [clean for clean in clean_of.values() if clean is not None]
        if twins:
            self.prepare(clean for clean in twins if clean not in clean_of)
        for unpaired in (True, False):
            group = [site for site, clean in clean_of.items() if (clean is None) is unpaired]
            for batch in metrics.batches({site: self.truth[site] for site in group}):
                self._prepare(batch, [clean_of[site] for site in batch])

    def _prepare(self, sites: Sequence[Site], twins: Sequence[Site | None]) -> None:
        computed = floor.floors(
            [metrics.rows(self.truth[site]) for site in sites],
            torch.stack(
                [
                    metrics.all_rows(runs)
                    for runs in zip(*(self.honest[s] for s in sites), strict=True)
                ]
            ),
            [None if twin is None else self._floors[twin].truth.norm(dim=-1) for twin in twins],
            [self._operands(site, twin) for site, twin in zip(sites, twins, strict=True)],
            centred=sites[0].name == "logits",
            precision=self.precision,
            mixture=self.mixture,
            terms=self._terms(),
        )
        self._floors.update(zip(sites, computed, strict=True))

    def _operands(self, site: Site, twin: Site | None) -> Tensor | None:
        """[T]: how long what a row that is exactly zero is the difference of may be. An engine
        that rounds the two apart leaves a rounding of that length.

        As long as the longest row of this width that was observed in the same step, else as the
        model's stream. A row that an edit made zero, which is none in the clean run, must be zero.
        """
        truth = metrics.rows(self.truth[site])
        if bool(truth.any(dim=-1).all()):
            return None
        width = truth.shape[1]
        beside = [
            rows.masked_fill(~metrics.bulk(rows), 0).norm(dim=-1).max()
            for other, value in self.truth.items()
            if replace(other, name=site.name, layer=site.layer) == site
            and value.is_floating_point()
            and metrics.shape_of_rows(value)[1] == width
            for rows in [metrics.rows(value)]
        ]
        longest = float(max(beside, default=0.0)) or self.stream * math.sqrt(width)
        lengths = torch.full((len(truth),), longest, dtype=truth.dtype)
        if twin is not None:
            lengths[metrics.rows(self.truth[twin]).any(dim=-1)] = 0.0
        return lengths

    def integers(self, site: Site) -> Runs:
        """The integers that the truth and the honest runs have there."""
        return Runs(self.truth[site], self.honest[site], self.coarse.get(site, ()), self._terms())

    def _terms(self) -> int:
        """How many products a sum of the model has. Of logits alone no width can be told."""
        if not self.width:
            floats = (value for value in self.truth.values() if value.is_floating_point())
            narrowest = min((metrics.shape_of_rows(value)[1] for value in floats), default=1)
            self.width = min(narrowest, _WIDE)
        return self.width

    def _clean(self, site: Site) -> Site | None:
        """The clean twin of an edited observation, where it has one of its shape."""
        clean = replace(site, run="clean")
        if site.run != "edited" or clean not in self.truth:
            return None
        return clean if self.truth[clean].shape == self.truth[site].shape else None

    def known(self) -> Mapping[Site, Known]:
        """Every value of the truth with its noise: what a wrong value may be mistaken for."""
        if not self._known:
            for site, tensor in self.truth.items():
                if tensor.is_floating_point() and site not in self.unclear:
                    honest = self.floor(site)
                    self._known[site] = Known(honest.truth, honest.noise)
        return self._known


def read_reference(
    reference: Mapping[str, Mapping[str, Tensor]],
    *,
    twin: bool,
    precision: Precision = Precision.BF16,
    mixture: bool = False,
    width: int = 0,
    numberless: bool = False,
    free: Mapping[str, Tensor] | None = None,
    stream: float = 0.0,
) -> Reference | str:
    """The reference by site with the members that compute in this precision, or what is wrong
    with it in words: then nothing can be judged. It must be finite, but where its values may be
    `numberless`: a user's are masked with -inf, or are nan in rows of padding. `free` is the truth
    that was run along no candidate's tokens, where that of `reference` was: the latter has any id
    that a candidate took, and cannot tell which ones were to be greedy.
    """
    beside = (TRUTH, AUXILIARY)
    members = {
        name: {Site.parse(site): tensor for site, tensor in values.items()}
        for name, values in reference.items()
        if name in beside or in_precision(name, precision)
    }
    truth = members.pop(TRUTH, {})
    coarse = _coarse_integers(reference, truth) if precision is Precision.FLOAT32 else {}
    beside_truth = members.pop(AUXILIARY, {})
    auxiliary = {site: value for site, value in beside_truth.items() if site.name != TIED}
    ties = {site: value for site, value in beside_truth.items() if site.name == TIED}
    odd: dict[Site, Tensor] = {}
    unclear: dict[Site, str] = {}
    if numberless:
        odd, unclear = _numberless(truth, members.values())
        truth = _filled(truth, odd)
        members = {name: _filled(values, odd) for name, values in members.items()}
    kinds = rounded.kinds(truth) if precision is Precision.FLOAT32 else {}
    members = {name: rounded.settled(values, truth, kinds) for name, values in members.items()}
    flaw = next(_flaws(truth, members, precision, twin=twin), "")
    if flaw:
        return flaw
    honest = {site: tuple(values[site] for values in members.values()) for site in truth}
    clear = {site: places for site, places in odd.items() if site not in unclear}
    own = truth if free is None else {Site.parse(site): value for site, value in free.items()}
    return Reference(
        truth,
        honest,
        auxiliary,
        precision,
        mixture,
        width,
        numberless=clear,
        unclear=unclear,
        greedy=tokens.greedy_sites(own),
        ties=ties if precision is Precision.FLOAT32 else {},
        rounded=kinds,
        coarse=coarse,
        stream=stream,
    )


def _coarse_integers(
    reference: Mapping[str, Mapping[str, Tensor]], truth: Mapping[Site, Tensor]
) -> dict[Site, tuple[Tensor, ...]]:
    """The integers of the honest bf16 runs, of the truth's shape."""
    runs = [
        {Site.parse(name): value for name, value in values.items()}
        for member, values in reference.items()
        if in_precision(member, Precision.BF16)
    ]
    return {
        site: tuple(run[site] for run in runs if site in run and run[site].shape == value.shape)
        for site, value in truth.items()
        if not value.is_floating_point()
    }


def _numberless(
    truth: Mapping[Site, Tensor], members: Collection[Mapping[Site, Tensor]]
) -> tuple[dict[Site, Tensor], dict[Site, str]]:
    """The kinds of the entries of what is not finite on some side, and of which of these the sides
    do not agree or have no number at all, with the reason: there every entry counts as none.
    """
    odd: dict[Site, Tensor] = {}
    unclear: dict[Site, str] = {}
    for site, tensor in truth.items():
        runs = [run[site] for run in members if site in run]
        if not tensor.is_floating_point() or any(run.shape != tensor.shape for run in runs):
            continue
        if not tensor.numel() or all(map(_finite, (tensor, *runs))):
            continue
        odd[site] = structure.kinds(tensor)
        if any(structure.other_kinds(run, odd[site]) for run in runs):
            unclear[site] = HONEST_RUNS_DIFFER
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
    truth: Mapping[Site, Tensor],
    members: Mapping[str, Mapping[Site, Tensor]],
    precision: Precision,
    *,
    twin: bool,
) -> Iterator[str]:
    """Why this reference cannot be judged by."""
    if not truth:
        yield "it has no truth"
    fewest = FEWEST_MEMBERS[precision]
    if len(members) < fewest:
        yield f"it has {len(members)} honest {precision} runs, at least {fewest} are needed"
    if twin and {site.run for site in truth} != {"clean", "edited"}:
        yield "an intervention needs a clean and an edited run"
    yield from _misshapen(truth, members)
    for name, values in ((TRUTH, truth), *members.items()):
        wild = _not_finite({site: values[site] for site in truth if site in values})
        if wild is not None:
            yield f"{wild} of {name} is not finite"


def _misshapen(
    truth: Mapping[Site, Tensor], members: Mapping[str, Mapping[Site, Tensor]]
) -> Iterator[str]:
    for site, tensor in truth.items():
        if not tensor.numel():
            yield f"the truth of {site} is empty"
        for name, values in members.items():
            if flaw := _flaw(values.get(site), tensor):
                yield f"{site} of {name} {flaw}"


def _flaw(member: Tensor | None, truth: Tensor) -> str:
    if member is None:
        return "is not there"
    if member.shape != truth.shape:
        return f"has shape {list(member.shape)} instead of {list(truth.shape)}"
    return ""


def _not_finite(values: Mapping[Site, Tensor]) -> Site | None:
    """The first observation with a value that is not finite; looked for only when there is one."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in values.values():
        by_dtype.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    if all(_finite(torch.cat(tensors)) for tensors in by_dtype.values()):
        return None
    return next(site for site, tensor in values.items() if not _finite(tensor))


def _finite(tensor: Tensor) -> bool:
    """A sum is not finite when one of its terms is not; float64 has room for all of bf16."""
    return math.isfinite(tensor.sum(dtype=torch.float64))
