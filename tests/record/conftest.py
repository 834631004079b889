# SPDX-License-Identifier: Apache-2.0
"""Recording without a trace: run a few steps under the tracer and look at its log."""

import gc

import pytest


@pytest.fixture
def observe():
    """Return a function that runs a program under the tracer and returns the tracer."""
    pytest.importorskip("torch")
    from deepum.record.fake import fake_device
    from deepum.record.recorder import _optimizers
    from deepum.record.tracer import Tracer

    def run(make_step, steps=1, device=None):
        with fake_device(device) as kind:
            tracer = Tracer(kind)
            with tracer, _optimizers(tracer):
                step = make_step()
                for _ in range(steps):
                    gc.collect()
                    tracer.step()
                    step()
                gc.collect()
                tracer.step()  # so that the last step has an end
            tracer.close()
            del step
        return tracer

    return run


@pytest.fixture
def launches():
    """Return a function that lists the launches of a step, counted from 1; 0 is the set-up."""
    from deepum.record.tracer import Launch

    return lambda tracer, step=1: [x for x in split(tracer)[step] if isinstance(x, Launch)]


def split(tracer):
    """The events of the set-up, of each step, and of what came after."""
    from deepum.record.tracer import Step

    steps = [[]]
    for event in tracer.log:
        if isinstance(event, Step):
            steps.append([])
        else:
            steps[-1].append(event)
    return steps
