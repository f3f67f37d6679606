"""For datasets and transforms that hold random generators of their own."""

from __future__ import annotations

import contextlib
import random
import types
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from seedcursor import SeededDataset

# What draws.
KINDS = (
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    random.Random,
    torch.Generator,
)
# What holds nothing, or nothing of its own. The first are told by their type, which is quick.
_LEAF_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None)})
_LEAVES = torch.Tensor, np.ndarray, np.generic, types.ModuleType, type
# The global generators, which are keyed without being found.
_GLOBALS = random.seed.__self__, np.random.random.__self__, torch.default_generator  # type: ignore[attr-defined]
_BIT_GENERATORS = (
    np.random.MT19937,
    np.random.PCG64,
    np.random.PCG64DXSM,
    np.random.Philox,
    np.random.SFC64,
)


def held(
    holder: object, kinds: tuple[type, ...], through: tuple[type, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Find what an object holds, however deep.

    Followed are attributes (of slots and classes too), the items of lists, tuples, dicts, deques
    and sets, ``functools.partial``, bound methods, and what a function closes over. Modules and the
    global variables of functions are not.

    Args:
        holder: Where to start.
        kinds: What to look for.
        through: Which of what is found to look into too.

    Yields:
        Each object of one of the kinds, once, with its shortest path, such as
        ``".transform.steps[2].rng"``; in the same order in each process.

    Example:
        >>> class Crop:
        ...     def __init__(self):
        ...         self.rng = random.Random(0)
        >>> [path for path, _ in held({"steps": [Crop(), Crop()]}, (random.Random,))]
        ["['steps'][0].rng", "['steps'][1].rng"]
    """
    # Kept as well, for the id of what is gone may be another's.
    seen = {id(thing): thing for thing in (holder, *_GLOBALS)}
    waiting = deque([("", holder)])
    while waiting:
        path, thing = waiting.popleft()
        if isinstance(thing, kinds):
            yield path, thing
            if not isinstance(thing, through):
                continue
        for name, part in _parts(thing):
            if type(part) in _LEAF_TYPES or isinstance(part, _LEAVES) or id(part) in seen:
                continue
            seen[id(part)] = part
            waiting.append((path + name, part))


def _parts(thing: Any) -> Iterator[tuple[str, object]]:
    yield from _items(thing)
    if isinstance(thing, (types.MethodType, types.BuiltinMethodType)):
        yield ".__self__", thing.__self__
        yield ".__func__", getattr(thing, "__func__", None)
    elif isinstance(thing, types.FunctionType):
        yield from _closed_over(thing)
    yield from _attributes(thing)


def _items(thing: Any) -> Iterator[tuple[str, object]]:
    # Not by the thing's own methods: a dataset that is a list may load its records in them.
    ordered: tuple[Any, ...] = list, tuple, deque
    for kind in ordered:
        if isinstance(thing, kind):
            yield from ((f"[{place}]", part) for place, part in enumerate(kind.__iter__(thing)))
    if isinstance(thing, dict):
        for place, (key, part) in enumerate(dict.items(thing)):
            # The repr of other keys may have an address in it.
            yield f"[{key!r}]" if isinstance(key, (str, int)) else f"[#{place}]", part
    unordered: tuple[Any, ...] = set, frozenset
    for kind in unordered:
        if isinstance(thing, kind):
            yield from (("{}", part) for part in kind.__iter__(thing))


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # a variable that was not assigned yet
            yield f".{name}", cell.cell_contents


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    own = getattr(thing, "__dict__", {})
    yield from ((f".{name}", part) for name, part in own.items())
    for owner in type(thing).__mro__:
        for name, member in vars(owner).items():
            if name in own or (name.startswith("__") and name.endswith("__")):
                continue
            if isinstance(member, types.MemberDescriptorType):
                yield f".{name}", getattr(thing, name, None)
            elif not hasattr(member, "__get__"):
                yield f".{name}", member


def put(generator: Any, rng: np.random.Generator) -> None:
    """Put a generator at the start of a stream.

    Args:
        generator: Of one of `KINDS`. One of NumPy's PCG64 becomes equal to ``rng``; another bit
            generator gets the same ``SeedSequence``, and the other kinds are seeded with raw bits.
        rng: A generator on PCG64 that nothing was drawn from.
    """
    fresh = rng.bit_generator
    if isinstance(generator, random.Random):
        generator.seed(fresh.random_raw() << 64 | fresh.random_raw())
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(fresh.random_raw())
    elif isinstance(generator, np.random.RandomState):
        generator.seed(fresh.random_raw(4).astype(np.uint32))
    else:
        bits = getattr(generator, "bit_generator", generator)
        if type(bits) is not type(fresh):
            fresh = type(bits)(fresh.seed_seq)
        bits.state = fresh.state


class SeededGenerators(SeededDataset):
    """Any map-style dataset, with the generators that it holds keyed too.

    As ``SeededDataset``, and before each sample every generator that the dataset or one of its
    transforms holds is put at the start of a stream of its own: that of ``rng(index, path)``. So no
    sample depends on those before it. The generators are found once, by `held`, when the wrapper is
    made and again in each process that is spawned.

    What a sample makes anew, what is made later, and a module's global variables are not found;
    nor is ``Generator.spawn`` keyed.

    Args:
        base: A map-style dataset, complete with its transforms.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``base`` is not map-style, ``seed`` not an integer, or a generator can't be
            keyed: ``random.SystemRandom``, one with a bit generator that is not NumPy's, or several
            in one set, which has no order.
        ValueError: ``seed`` is out of range.

    Example:
        >>> class Noisy:
        ...     def __init__(self):
        ...         self.rng = np.random.default_rng(0)
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return self.rng.random()
        >>> dataset = SeededGenerators(Noisy(), seed=1)
        >>> dataset[2] == dataset[2]
        True
        >>> dataset[2] == dataset.rng(2, ".rng").random()
        True
    """

    def __init__(self, base: Any, seed: int = 0) -> None:
        super().__init__(base, seed)
        self._held: list[tuple[str, Any]] | None = self.find()

    def find(self) -> list[tuple[str, Any]]:
        """What is keyed for each sample, with its path.

        Raises:
            TypeError: A generator can't be keyed.
        """
        found = list(held(self.base, KINDS))
        for path, generator in found:
            _check(path, generator)
        for path, count in Counter(path for path, _ in found).items():
            if count > 1:
                raise TypeError(
                    f"dataset{path} are {count} generators in a set, which has no order to tell "
                    "them apart by; hold them in a list"
                )
        return found

    def key(self, thing: Any, index: Any, path: str) -> None:
        """Put what was found at the start of its stream.

        Args:
            thing: As `find` gave it.
            index: Of the sample.
            path: As `find` gave it.
        """
        put(thing, self.rng(index, path))

    def sample(self, index: Any) -> Any:
        """One sample of the base; called with the global RNGs keyed for it.

        Args:
            index: As the base takes it.

        Returns:
            ``base[index]``.
        """
        if self._held is None:
            self._held = self.find()
        for path, thing in self._held:
            self.key(thing, index, path)
        return super().sample(index)

    def __getstate__(self) -> dict[str, Any]:
        # What was found here are not the generators that the copy holds.
        return self.__dict__ | {"_held": None}


def _check(path: str, generator: Any) -> None:
    name = f"dataset{path}, a {type(generator).__name__},"
    if isinstance(generator, random.SystemRandom):
        raise TypeError(
            f"{name} draws from the operating system and can't be keyed; hold a random.Random"
        )
    bits = getattr(generator, "bit_generator", generator)
    if isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
        known = state["bit_generator"] == "MT19937"
    else:
        known = not isinstance(bits, np.random.BitGenerator) or type(bits) in _BIT_GENERATORS
    if not known:
        raise TypeError(
            f"{name} has a bit generator that can't be keyed; hold one of NumPy's own, such as "
            "numpy.random.default_rng() or numpy.random.RandomState() makes"
        )
