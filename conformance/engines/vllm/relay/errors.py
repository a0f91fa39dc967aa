"""Errors between stages, with messages that a user can act on."""

from __future__ import annotations


class StageDivergenceError(RuntimeError):
    """The copies of one block did different things on different stages.

    A block runs once per stage. What it reads from its process (its id, a clock, a file, another
    library's random state) differs between stages, so the applied edit is not the reported edit.
    """


class StageFailedError(RuntimeError):
    """Another stage could not run this step; the message is that stage's error."""


class RemoteCallError(RuntimeError):
    """A block called a module that lives on another stage and cannot be called from here."""


class RemoteWeightError(RuntimeError):
    """A block used a weight that lives on another stage and could not be fetched."""
