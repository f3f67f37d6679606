"""The generators that a dataset holds, and the attribute path to each."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

from seedcursor._audit._digest import _attributes, digest

GENERATORS = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
# Data is held in large containers, generators are not.
_ITEMS = 64
_OBJECTS = 20_000
_FOREIGN = {"builtins", "numpy", "random", "seedcursor", "torch", "attr", "typing", "collections"}
_PLAIN = (str, bytes, int, float, complex, np.ndarray, torch.Tensor, ModuleType, type(None))


def held(root: object, name: str) -> dict[str, Any]:
    """Every generator that can be reached from an object, nearest first.

    Through attributes, containers, closures, partials, and the module's variables that its own
    functions name. The three global RNGs are left out.

    Args:
        root: The dataset.
        name: What paths begin with.
    """
    found: dict[str, Any] = {}
    seen = {id(np.random.mtrand._rand), id(getattr(random, "_inst", None))}
    seen.add(id(torch.default_generator))
    engines = {id(get_bit_generator())}
    waiting: deque[tuple[str, Any]] = deque([(name, root)])
    while waiting and len(seen) < _OBJECTS:
        path, thing = waiting.popleft()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if not isinstance(thing, GENERATORS):
            waiting.extend(_inside(path, thing))
        elif not isinstance(thing, random.SystemRandom) and id(_bits(thing)) not in engines:
            engines.add(id(_bits(thing)))
            found[path] = thing
    return found


def _bits(generator: Any) -> Any:
    return getattr(generator, "bit_generator", getattr(generator, "_bit_generator", generator))


def _inside(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        for key in list(thing)[:_ITEMS]:
            yield f"{path}[{key!r}]", thing[key]
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        for k, item in enumerate(list(thing)[:_ITEMS]):
            yield f"{path}[{k}]", item
    elif isinstance(thing, functools.partial):
        yield from [(f"{path}.func", thing.func), (f"{path}.args", thing.args)]
        yield f"{path}.keywords", thing.keywords
    elif isinstance(thing, MethodType):
        yield from [(f"{path}.__self__", thing.__self__), (path, thing.__func__)]
    elif isinstance(thing, FunctionType):
        yield from _of_function(path, thing)
    elif isinstance(thing, type):
        yield from _of_class(path, thing)
    else:
        for name, value in _attributes(thing).items():
            yield f"{path}.{name}", value
        yield path, type(thing)


def _of_function(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that is not set yet
            yield f"{path}.{name}", cell.cell_contents
    yield from ((f"{path}.__defaults__[{k}]", d) for k, d in enumerate(function.__defaults__ or ()))
    module = function.__module__ or "?"
    if module.partition(".")[0] in _FOREIGN:
        return
    for name in _named(function.__code__):
        value = function.__globals__.get(name)
        # Whole classes that are named are not gone into: they are not part of this dataset.
        if isinstance(value, (*GENERATORS, FunctionType, functools.partial)):
            yield f"{module}.{name}", value


def _named(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_named, inner))


def _of_class(path: str, owner: type) -> Iterator[tuple[str, Any]]:
    if owner.__module__.partition(".")[0] in _FOREIGN:
        return
    for name, value in vars(owner).items():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__  # noqa: PLW2901
        elif isinstance(value, property):
            value = value.fget  # noqa: PLW2901
        if isinstance(value, (*GENERATORS, FunctionType)) or (
            isinstance(value, (list, tuple, dict)) and not name.startswith("__")
        ):
            yield f"{path}.{name}", value
    yield from ((path, base) for base in owner.__bases__)


def state(generator: Any) -> bytes:
    """A digest of a generator's state."""
    if isinstance(generator, random.Random):
        return digest(generator.getstate())
    if isinstance(generator, torch.Generator):
        return digest(generator.get_state())
    if isinstance(generator, np.random.RandomState):
        return digest(generator.get_state(legacy=False))
    return digest(_bits(generator).state)


def put(generator: Any, words: list[int]) -> None:
    """Put a generator into the state that belongs to words of 32 bits, in place."""
    sequence = np.random.SeedSequence(words)
    number = int(sequence.generate_state(1)[0])
    if isinstance(generator, random.Random):
        generator.setstate(random.Random(number).getstate())
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.RandomState):
        fresh = np.random.RandomState(type(_bits(generator))(sequence))
        generator.set_state(fresh.get_state(legacy=False))
    else:
        bits = _bits(generator)
        bits.state = type(bits)(sequence).state
