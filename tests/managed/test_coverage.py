# SPDX-License-Identifier: Apache-2.0
"""`deepum doctor --coverage` on the fake driver: what launches name, and what they do not."""

import ctypes
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.fake_cuda.harness import on_fake
from tests.fake_cuda.steer import READ, Driver

from .live import machine_for
from .stand_in import BLOCK, Machine, Program, training

CARD = 4 << 30
WORDS = BLOCK // 4


def cover(machine: Machine, run: Any, **options: Any) -> Any:
    """Measure a program whose tensors are the stand-in's."""
    from deepum.doctor.coverage import measure

    def program(_backend: Any) -> int:
        return run(Program(machine)) or 0

    return measure(program, **options)


@on_fake(memory_bytes=CARD)
@pytest.mark.parametrize("every", [1, 7])
def test_a_program_whose_launches_name_all(driver: Driver, every: int) -> None:
    found = cover(machine_for(driver), lambda p: training(p, 6, WORDS, 2), every=every)
    assert found.covered, found.reason
    assert found.reason == ""
    assert found.faults_outside == found.faults_inside == found.blocks == found.kernels == 0
    assert found.launches > 40
    assert found.parkings == found.launches // every
    assert found.parked_bytes >= 6 * BLOCK
    assert found.line().startswith("covered: ")
    assert driver.get("bytes_out_prefetch") >= found.parked_bytes  # it did leave


@on_fake(memory_bytes=CARD)
def test_what_was_parked_comes_back_whole(driver: Driver) -> None:
    def run(program: Program) -> None:
        training(program, 4, WORDS, 1)
        kept = [program.new(WORDS, value) for value in range(3)]
        for _ in range(5):
            program.axpy(kept[0], kept[1], 3)
        program.check_all()

    assert cover(machine_for(driver), run, every=1).covered


def hidden(driver: Driver, program: Program, tensor: int) -> None:
    """Launch a kernel that reads a tensor which its arguments do not name."""
    array, _ = program.tensors[tensor]

    def body() -> None:
        driver.library.fake_touch(
            ctypes.c_uint64(array.address), ctypes.c_uint64(array.bytes), READ
        )

    driver.register("hidden", (ctypes.c_uint32,), body)
    program.launch("hidden", 1)


@on_fake(memory_bytes=CARD)
def test_a_kernel_that_touches_what_nothing_names(driver: Driver) -> None:
    def run(program: Program) -> None:
        secret = program.new(3 * WORDS, 5)
        training(program, 3, WORDS, 1)
        driver.sync()
        hidden(driver, program, secret)
        driver.sync()

    found = cover(machine_for(driver), run, every=1)
    assert not found.covered
    assert found.faults_outside > 0
    assert found.blocks in (3, 4)
    assert found.kernels == 1
    assert "outside of what launches name" in found.reason
    assert "stay with managed memory" in found.line()


@on_fake(memory_bytes=CARD)
def test_nothing_that_was_never_parked_is_proved(driver: Driver) -> None:
    found = cover(machine_for(driver), lambda p: p.new(WORDS, 1), every=100)
    assert not found.covered
    assert "nothing was parked in 1 launches" in found.reason


@on_fake(memory_bytes=CARD)
def test_a_program_that_fails_proves_nothing(driver: Driver) -> None:
    def run(program: Program) -> int:
        training(program, 3, WORDS, 1)
        return 3

    found = cover(machine_for(driver), run)
    assert not found.covered
    assert found.reason == "the script ended with status 3"


SCRIPT = """
import sys
from tests.managed.test_coverage import WORDS, Program, hidden, training
machine = sys.modules["__stand_in__"].machine
program = Program(machine)
training(program, 5, WORDS, 1)
print("ran", sys.argv[1:])
if "--hidden" in sys.argv:
    secret = program.new(WORDS, 1)
    training(program, 3, WORDS, 1)
    machine.driver.sync()
    hidden(machine.driver, program, secret)
machine.driver.sync()
"""


@on_fake(memory_bytes=CARD)
def test_the_command_keeps_what_it_found(driver: Driver) -> None:
    from click.testing import CliRunner

    from deepum import proofs
    from deepum.commands.doctor import command

    stand_in: Any = ModuleType("__stand_in__")
    stand_in.machine = machine_for(driver)
    sys.modules["__stand_in__"] = stand_in
    folder = Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    assert not proofs.proved(script)
    done = CliRunner().invoke(
        command, ["--json", "-", "--coverage", "--every", "2", str(script), "--lr", "1"]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert "ran ['--lr', '1']" in done.stdout
    data = json.loads(done.stdout[done.stdout.index("{") :])
    assert data["covered"] is True
    assert proofs.proved(script)
    done = CliRunner().invoke(command, ["--coverage", "--every", "1", str(script), "--hidden"])
    assert done.exit_code == 1, done.output
    assert "not proved: " in done.stderr
    assert not proofs.proved(script)  # the last word counts
    shutil.rmtree(folder)
