"""Advice of a plan: each sentence has the figure that it stands on, and is not there without it."""

from __future__ import annotations

import dataclasses

import pytest

from xla_debug.plan.schema import Plan, ProgramPlan, State
from xla_debug.rendering.plan_advice import advice

GIB = 1 << 30
STEP = ProgramPlan("jit_step", "train.py:9", 100, runs=3, ms=10.0, temporaries=1 * GIB)
PLAN = Plan("v5e:4x4", "TPU v5 lite", 16, [4, 4], 16 * GIB, 197e12, ["train.py"], steps=3, state=State(13 * GIB), programs=[STEP])


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (dataclasses.replace(PLAN, state=State(13 * GIB, gradients=2 * GIB)), "2.0 GiB of gradients outlive each step"),
        (
            dataclasses.replace(PLAN, state=State(8 * GIB, replicated=1 * GIB)),
            "each of 16 devices has 1.0 GiB of parameters that are equal",
        ),
        (dataclasses.replace(PLAN, state=State(1 * GIB)), "twice the batch (or sequence) fits as well"),
        (dataclasses.replace(PLAN, programs=[dataclasses.replace(STEP, temporaries=8 * GIB)]), "temporaries take 8.0 GiB of 21.0 GiB"),
        (dataclasses.replace(PLAN, programs=[dataclasses.replace(STEP, exposed_ms=5.0)]), "of the step wait for links"),
        (dataclasses.replace(PLAN, programs=[dataclasses.replace(STEP, regathered=3.0 * GIB)]), "again in each turn, 3.0 GiB"),
        (dataclasses.replace(PLAN, programs=[dataclasses.replace(STEP, flops=4e9, wide_flops=1e9)]), "25 % of the operations"),
        (dataclasses.replace(PLAN, programs=[STEP] * 13), "13 programs for 3 steps"),
    ],
    ids=["gradients", "replicated", "room", "temporaries", "links", "loop", "precision", "programs"],
)
def test_each_sentence_has_its_figure(plan: Plan, sentence: str) -> None:
    assert [text for text in advice(plan) if sentence in text], advice(plan)
    assert not [text for text in advice(PLAN) if sentence in text]
