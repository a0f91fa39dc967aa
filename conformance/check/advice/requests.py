"""What a trace asks of an engine otherwise than of transformers: its prompts, and how tokens are
chosen.
"""

from __future__ import annotations

import ast

from torch import Tensor

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.source import UserFile
from conformance.judge.cell import Judgement
from conformance.judge.measures.structure import PROMPT_IDS
from conformance.records import Site


def prompts(judgement: Judgement, places: Places) -> tuple[Finding, ...]:
    """Other prompts make all that follows another thing, so nothing else is said."""
    for relation in judgement.relations:
        if relation.name == PROMPT_IDS and not relation.holds:
            words = (
                f"the prompts have other tokens ({relation.detail}): a template, or a first token "
                "that one side adds"
            )
            calls = places.calls("trace", "generate", "invoke")
            edit = Edit(calls[0].lineno, places.file.line(calls[0].lineno)) if calls else None
            return (Finding("prompt", words, edit=edit),)
    return ()


def generated(truth: dict[Site, Tensor], names: dict[str, Site], file: UserFile) -> bool:
    """Is something off that follows from which tokens were generated? Entries of a list are of
    several steps where the text has some: they may be layers or prompts.
    """
    later = any(site.step for site in truth) and _of_several_steps(file)
    return any(
        later or not truth[site].is_floating_point() for site in names.values() if site in truth
    )


def _of_several_steps(file: UserFile) -> bool:
    """Does the file go over the steps of a generation, by its text?"""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in {"generate", "iter", "next", "all"})
        or (isinstance(node, ast.keyword) and node.arg in {"steps", "max_new_tokens"})
        for node in ast.walk(ast.parse(file.text))
    )


def drawn(places: Places) -> list[Finding]:
    """vLLM draws at temperature 1 unless it is told otherwise; transformers here does not."""
    if not places.file.ported:
        return []
    for call in places.calls("trace", "generate"):
        if not any(keyword.arg == "temperature" for keyword in call.keywords):
            before = places.file.line(call.lineno)
            segment = places.file.segment(call)
            inner = segment[:-1].rstrip().rstrip(",")
            after = before.replace(segment, f"{inner}, temperature=0.0)")
            words = (
                "vLLM draws its tokens at temperature 1.0, and 16 of them, unless it is told "
                "otherwise"
            )
            return [Finding("defaults", words, edit=Edit(call.lineno, before, after))]
    return []
