"""A real engine in which faults can be switched on: the `engine` of a faulty column.

`backend.options`: `engine` (hf, or one on vLLM), `options` (the real engine's), `variant` (if the
engine is faulty from its start; otherwise the case's name contains the variant).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from conformance.commands.selftest.fault import MARK, Inexpressible, Point, Variant, find
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.injecting import hooks, switch
from conformance.engines import ENGINES, FRONTS, Engine, Refused, load_engine
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT
from conformance.spec.records import Case, Group, Job, Site
from conformance.spec.scenario import Scenario


class FaultyEngine:
    """Runs each case on the real engine, with the fault named by the case or the column."""

    def __init__(self, job: Job) -> None:
        options = job.backend.options
        self.kind = str(options["engine"])
        self.own = find(FAULTS, options["variant"]) if options.get("variant") else None
        if self.kind in FRONTS:
            within_reach()
        hooks.install(self.kind, pipeline=job.backend.pipeline)
        if self.own and self.own.fault.point is Point.LOAD:
            self.own.fault.act(self.own.moment())
        checkpoint = job.checkpoint
        if self.own and self.own.fault.point is Point.CHECKPOINT:
            checkpoint = copy_changed(checkpoint, job.folder / "checkpoint", self.own)
        backend = replace(job.backend, engine=self.kind, options=options.get("options", {}))
        column = replace(job.column, backend=backend)
        self.real: Any = load_engine(
            ENGINES[self.kind], replace(job, column=column, checkpoint=checkpoint)
        )

    def group(self) -> Group:
        return self.real.group()  # type: ignore[no-any-return]

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Any]:
        plain, variant = self._case_and_variant(case)
        if variant is None:
            observed: Mapping[str, Any] = self.real.run(scenario, plain)
            return observed
        try:
            with self._armed(variant):
                switch.passes(Point.CASE, None)
                observed = self.real.run(scenario, plain)
                # What an engine returns without nnsight passes none of nnsight's hooks.
                if scenario.name in WITHOUT_NNSIGHT or not switch.acts(Point.RETURNED):
                    return observed
                by_site = {Site.parse(name): value for name, value in observed.items()}
                returned = switch.passes(Point.RETURNED, by_site)
                return {str(site): value for site, value in returned.items()}
        except Exception as error:
            if Inexpressible.__name__ in f"{type(error)} {error}":  # nnsight raises its own type
                raise Refused(f"not expressible here: {error}") from error
            raise

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        plain, variant = self._case_and_variant(case)
        ids = self.real.prompt_ids(plain)
        if variant is not None and variant.fault.point is Point.PROMPT_IDS:
            ids = variant.fault.act(ids, variant.moment())
        return ids  # type: ignore[no-any-return]

    def close(self) -> None:
        self.real.close()

    def _case_and_variant(self, case: Case) -> tuple[Case, Variant | None]:
        name, _, variant = case.name.partition(MARK)
        injected = find(FAULTS, variant) if variant else self.own
        return replace(case, name=name), injected

    @contextmanager
    def _armed(self, variant: Variant) -> Iterator[None]:
        """Switch the fault on in this process and in every process of the engine."""
        layers, noise = self.real.lm.layers, list(self.real.probe.noise)
        moment = variant.moment(len(layers), noise=tuple(noise))
        armed = switch.Armed(variant, moment, layers.path, layers.layout)
        state = (len(layers), noise, layers.path, layers.layout)
        try:
            switch.arm(armed)
            if self.kind == "hf":
                refusals = [hooks.hook_model(armed, self.real.model._module)]  # noqa: SLF001
            else:
                refusals = self._tell_workers(variant.id, *state)
            if all(refusals):
                raise Inexpressible(refusals[0])
            yield
        finally:
            switch.disarm()
            if self.kind in FRONTS:
                self._tell_workers("", *state)

    def _tell_workers(self, *state: Any) -> list[str]:
        """Call `hooks.arm_worker` with this state in every process. Return what each refuses."""
        refusals: list[str]
        if self.kind == "vllm":  # its core is in this process and can send functions to its workers
            engine = self.real.model.vllm_entrypoint.llm_engine
            refusals = engine.collective_rpc(hooks.arm_worker, args=state)
        else:
            refusals = self.real.lm.rpc(hooks.TOLD, *state)
        return refusals


def within_reach() -> None:
    """Keep a synchronous engine's core in this process and fork all its other processes, on CUDA as
    on the CPU. So they have the hooks; vLLM does not send functions to a core in another process.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"


def copy_changed(source: Path, target: Path, variant: Variant) -> Path:
    """Copy the checkpoint and apply the fault to the copy's weights."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for path in target.glob("*.safetensors"):
        new = variant.fault.act(load_file(path), variant.moment())
        contiguous = {name: tensor.contiguous() for name, tensor in new.items()}
        save_file(contiguous, path, metadata={"format": "pt"})
    return target


def open_engine(job: Job) -> Engine:
    return FaultyEngine(job)
