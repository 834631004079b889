# SPDX-License-Identifier: Apache-2.0
"""A user's script as something to record.

``train.py:make_step`` names a function of a file. It is called once and builds the model and the
optimizer with ordinary PyTorch code; it returns a callable without arguments that runs one training
step. Everything goes to ``torch.get_default_device()``, which is the fake device while recording
(``"cuda"`` works as well, and `torch.cuda.is_available` says yes). If the function takes an
argument, it is given the batch.

Instead of a callable the function may return ``(model, optimizer, inputs)`` or
``(model, optimizer, inputs, loss_fn)``: a step is then ``loss_fn(model(*inputs))`` (or the model's
own result as the loss), its backward and the optimizer's step.

No tensor has a value while recording, so the step must not read any: no ``loss.item()``.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepum.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Script:
    """A function in a file."""

    path: Path
    function: str

    @property
    def name(self) -> str:
        """What to call its trace."""
        return (
            self.path.stem if self.function == "make_step" else f"{self.path.stem}-{self.function}"
        )

    def make_step(self, batch: int | None = None) -> Callable[[], Any]:
        """Load the file, call the function, and return the step that it makes."""
        made = self._call(self._load(), batch)
        if isinstance(made, tuple) and len(made) in (3, 4):
            return _training_step(*made)
        if not callable(made):
            raise RecordError(
                f"{self.path.name}: {self.function}() returned {type(made).__name__}; it must "
                "return a callable that runs one training step"
            )
        return made

    def _load(self) -> Callable[..., Any]:
        spec = importlib.util.spec_from_file_location(f"_recorded_{self.path.stem}", self.path)
        if spec is None or spec.loader is None:
            raise RecordError(f"{self.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        folder, argv = str(self.path.parent), sys.argv
        sys.path.insert(0, folder)
        sys.argv = [str(self.path)]
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            sys.argv = argv
            sys.path.remove(folder)
            del sys.modules[spec.name]
        function = getattr(module, self.function, None)
        if not callable(function):
            names = [n for n, x in vars(module).items() if inspect.isfunction(x)]
            near = difflib.get_close_matches(self.function, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RecordError(f"{self.path.name} has no function {self.function}{hint}")
        return function

    def _call(self, function: Callable[..., Any], batch: int | None) -> Any:
        parameters = inspect.signature(function).parameters.values()
        takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needs = [p for p in takes if p.default is p.empty]
        if batch is not None and not takes:
            raise RecordError(f"{self.path.name}: {self.function}() takes no batch; leave it out")
        if batch is None and needs:
            raise RecordError(
                f"{self.path.name}: {self.function}({needs[0].name}) needs a batch: give one"
            )
        return function(batch) if batch is not None else function()


def locate(text: str) -> Script:
    """Find the file and the function that ``train.py:make_step`` names."""
    file, colon, function = text.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise RecordError(
            f"{text!r} does not name a function of a file, as train.py:make_step does"
        )
    path = Path(file)
    if not path.is_file():
        raise RecordError(f"there is no file {file}")
    return Script(path.resolve(), function)


def _training_step(
    model: Any, optimizer: Any, inputs: Any, loss_fn: Callable[[Any], Any] | None = None
) -> Callable[[], None]:
    given = inputs if isinstance(inputs, list | tuple) else (inputs,)

    def step() -> None:
        optimizer.zero_grad()
        out = model(*given)
        (loss_fn(out) if loss_fn else out).backward()
        optimizer.step()

    return step
