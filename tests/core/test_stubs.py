# SPDX-License-Identifier: Apache-2.0
"""Every compiled module has a stub, and the stub names what the module offers."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "src" / "deepum" / "_core"
MODULES = sorted(path.stem for path in CORE.glob("*.pyx"))


def public(names):
    return {name for name in names if not name.startswith("_")}


def members(owner, module):
    """Return the public names of a module or class, without what it imports."""
    found = set()
    for name in public(vars(owner)):
        value = getattr(owner, name)
        if inspect.ismodule(value) or getattr(value, "__module__", module) not in (module, None):
            continue
        found.add(name)
    return found


def stubbed(body):
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return public(names)


@pytest.mark.parametrize("name", MODULES)
def test_the_stub_names_what_there_is(name):
    module = importlib.import_module(f"deepum._core.{name}")
    tree = ast.parse((CORE / f"{name}.pyi").read_text(encoding="utf-8"))
    assert stubbed(tree.body) == members(module, module.__name__)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(module, node.name)
            assert stubbed(node.body) == members(cls, module.__name__), node.name


def test_there_is_a_stub_for_each_module_and_no_other():
    assert sorted(path.stem for path in CORE.glob("*.pyi")) == MODULES
