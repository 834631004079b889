# SPDX-License-Identifier: Apache-2.0
"""The policy interface, and how a policy is found by name."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from deepum.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deepum._core.engine import NativePolicy
    from deepum._core.python_policy import Allocation, Fault, Launch, View

GROUP = "deepum.policies"
"""Entry-point group under which packages announce their policies."""

HOOKS = ("on_launch", "on_fault", "on_complete", "on_alloc", "on_free", "victims")

_NATIVE = {
    "noop": "NoopPolicy",
    "single_level": "SingleLevelPolicy",
    "chained": "ChainedPolicy",
    "arguments": "ArgumentsPolicy",
    "oracle": "OraclePolicy",
}

_TRAITS = ("learns", "pre_evicts", "invalidates", "plain_memory", "wants_ranges", "queue")

_TABLE_OPTIONS = ("rows", "ways", "successors", "levels")

_registered: dict[str, type[Policy]] = {}


class PolicyWarning(UserWarning):
    """A policy was set aside; the program goes on with plain demand paging."""


class Policy:
    """Decides what to move ahead of time; the base class of every policy.

    Override the hooks you need. A hook that returns nothing keeps the default. A policy only
    advises: the engine refuses what would harm (evicting what a launched kernel needs, dropping
    live memory), and goes on with plain demand paging if a hook raises.

    Parameters
    ----------
    **options
        Values for the names in `defaults`.

    Raises
    ------
    PolicyError
        An option that the policy does not have.
    """

    name: ClassVar[str] = ""
    """Shown in results; the class name if empty."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The policy's options and their values if not given."""
    learns: ClassVar[bool] = True
    """Whether the engine keeps the correlation tables for this policy."""
    pre_evicts: ClassVar[bool] = True
    """Whether the engine evicts ahead when free frames run short."""
    invalidates: ClassVar[bool] = True
    """Whether blocks that lie in inactive PT blocks are dropped instead of copied."""
    plain_memory: ClassVar[bool] = False
    """Whether device memory is to be plain instead of unified: there is nothing to zero, and a
    kernel starts only when those of its tensors that are on their way have arrived."""
    wants_ranges: ClassVar[bool] = False
    """Whether `launch.ranges` is to name the kernel's tensors, where the backend knows them."""
    queue: ClassVar[int] = 0
    """Prefetches that may wait at once; 0 leaves it to the engine: an eighth of the budget, at
    most 1024."""
    patience: ClassVar[float] = 1.0
    """Seconds that one hook may take before the policy counts as stalled."""
    native: ClassVar[str] = ""
    """Module of `deepum._core` that does the work of a built-in policy."""

    options: Mapping[str, Any] = MappingProxyType({})
    """The options in force; a subclass with an `__init__` of its own may set them there."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __init__(self, **options: Any) -> None:
        for option in options:
            if option not in self.defaults:
                known = ", ".join(sorted(self.defaults)) or "none"
                raise PolicyError(f"policy {self.name} has no option {option!r}; it has: {known}")
        self.options = {**self.defaults, **options}

    def on_launch(self, view: View, launch: Launch) -> None:
        """Handle a kernel's submission: `launch.exec_id`, `.seq`, `.ranges` when known."""

    def on_fault(self, view: View, fault: Fault) -> None:
        """Handle a touch of a block that was not resident: `fault.block`, `.exec_id`."""

    def on_complete(self, view: View, launch: Launch) -> None:
        """Handle a kernel's end."""

    def on_alloc(self, view: View, allocation: Allocation) -> None:
        """Handle a PT block becoming active: `allocation.address`, `.bytes`, `.kind`."""

    def on_free(self, view: View, allocation: Allocation) -> None:
        """Handle a PT block becoming inactive: `allocation.address`, `.bytes`."""

    def victims(self, view: View, count: int) -> Iterable[int] | None:
        """Return up to `count` blocks to evict, best first; None keeps the default order."""
        return None


PolicyLike = str | type[Policy] | Policy
"""What is accepted where a policy is asked for."""


@dataclasses.dataclass(frozen=True)
class PolicyInfo:
    """What `available` says of a policy."""

    name: str
    summary: str
    source: str
    options: dict[str, Any]


def register_policy(name: str, policy: type[Policy]) -> type[Policy]:
    """Make a policy class available by name in this process.

    Raises
    ------
    PolicyError
        `policy` is not a subclass of `Policy`, or the name cannot be one.
    """
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise PolicyError(f"{policy!r} is not a subclass of deepum.Policy")
    if not name or ":" in name or "," in name:
        raise PolicyError(f"{name!r} cannot be the name of a policy: no ':' or ','")
    _registered[name] = policy
    return policy


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def available() -> dict[str, PolicyInfo]:
    """Return the policies that can be named, by name.

    One that does not load is listed with the reason instead of its summary.
    """
    found: dict[str, PolicyInfo] = {}
    for name, entry in _entries().items():
        source = entry.dist.name if entry.dist is not None else "entry point"
        try:
            found[name] = _info(
                name, _load_entry(entry), "built in" if source == "deepum" else source
            )
        except PolicyError as error:
            found[name] = PolicyInfo(name, f"does not load: {error}", source, {})
    for name, policy in _registered.items():
        found[name] = _info(name, policy, "this process")
    return dict(sorted(found.items()))


def _info(name: str, policy: type[Policy], source: str) -> PolicyInfo:
    doc = inspect.getdoc(policy) or ""
    return PolicyInfo(name, doc.partition("\n")[0], source, dict(policy.defaults))


def _load_entry(entry: EntryPoint) -> type[Policy]:
    try:
        policy = entry.load()
    except Exception as error:
        raise PolicyError(f"policy {entry.name} does not load: {error}") from error
    return _class(policy, entry.value)


def _class(found: Any, where: str) -> type[Policy]:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise PolicyError(f"{where} is not a subclass of deepum.Policy")
    return found


def _load_reference(reference: str) -> type[Policy]:
    # "package.module:Class" or "folder/file.py:Class".
    place, _, attribute = reference.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None or not Path(place).is_file():
                raise PolicyError(f"no file {place} to load policy {attribute} from")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(place)
        return _class(getattr(module, attribute), reference)
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {reference} does not load: {error}") from error


def find(policy: PolicyLike) -> type[Policy] | Policy:
    """Return a policy class or instance for a name, ``module:Class``, class or instance."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type):
        return _class(policy, repr(policy))
    if not isinstance(policy, str):
        raise PolicyError(f"{policy!r} is neither a policy nor the name of one")
    if ":" in policy:
        return _load_reference(policy)
    if policy in _registered:
        return _registered[policy]
    entries = _entries()
    if policy in entries:
        return _load_entry(entries[policy])
    names = sorted({*entries, *_registered})
    if not names:
        raise PolicyError("no policies found: is deepum installed, not only on the path?")
    near = difflib.get_close_matches(policy, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(names)}"
    raise PolicyError(f"no policy named {policy!r}; {hint}")


def make(policy: PolicyLike, options: Mapping[str, Any] | None = None) -> Policy:
    """Return a policy instance; `options` go to the class, not to an instance given."""
    found = find(policy)
    if isinstance(found, Policy):
        if options:
            raise PolicyError(f"policy {found.name} is an instance: give options to its class")
        return found
    try:
        return found(**dict(options or {}))
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {found.name} does not start: {error}") from error


def table_options(policy: Policy) -> dict[str, Any]:
    """Return the geometry of the UM-block tables that the policy's options ask for."""
    if policy.native == "single_level":
        return {}
    return {name: policy.options[name] for name in _TABLE_OPTIONS if name in policy.options}


def make_native(policy: Policy, set_aside: Any = None, adapter: Any = None) -> NativePolicy:
    """Return what the engine calls: the built-in code itself, or an adapter to Python hooks.

    Parameters
    ----------
    policy
        The policy.
    set_aside : callable, optional
        Called with the policy and the reason if it loses its job; by default a warning.
    adapter : type, optional
        Class of the adapter; by default the one that calls hooks while the engine waits.
    """
    from deepum._core.python_policy import PythonPolicy

    native: NativePolicy | None = None
    if policy.native:
        module = importlib.import_module(f"deepum._core.{policy.native}")
        factory = getattr(module, _NATIVE[policy.native])
        known = {name: policy.options[name] for name in _own_options(policy)}
        if policy.native == "chained":  # whose tables are the engine's
            known = {name: known[name] for name in known if name not in _TABLE_OPTIONS}
        try:
            native = factory(**known)
        except (ValueError, TypeError, OverflowError) as error:
            raise PolicyError(f"policy {policy.name}: {error}") from error
    hooks = {hook for hook in HOOKS if getattr(type(policy), hook) is not getattr(Policy, hook)}
    same = native is not None and all(
        getattr(native, name) == getattr(policy, name) for name in _TRAITS
    )
    if native is not None and same and not hooks:
        return native
    told = set_aside or warn_set_aside
    made: NativePolicy = (
        adapter(policy, native, hooks, told)
        if adapter is not None
        else PythonPolicy(policy, native, hooks, told, policy.patience)
    )
    return made


def _own_options(policy: Policy) -> Mapping[str, Any]:
    # Options of the built-in ancestor: a subclass may add its own.
    for ancestor in reversed(type(policy).__mro__):
        if issubclass(ancestor, Policy) and ancestor.native:
            return ancestor.defaults
    return {}


def warn_set_aside(policy: Policy, reason: object) -> None:
    """Say once that a policy has lost its job."""
    detail = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else reason
    warnings.warn(
        f"policy {policy.name} was set aside, plain demand paging goes on: {detail}",
        PolicyWarning,
        stacklevel=2,
    )
