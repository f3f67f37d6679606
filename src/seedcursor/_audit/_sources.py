"""The generators that a sample makes for itself: which keys they have, and what hangs on them.

`watch` replaces, in an experiment's own process, the few places where NumPy, Python, torch and
this library make or seed a generator. What was replaced tells of each seed, and can salt it: if
salted seeds give other values, the sample depends on them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import numpy.random._generator as numpy_generators
import numpy.random.bit_generator as numpy_entropy
import torch
from numpy.random import mtrand

from seedcursor import _batch, _rng
from seedcursor._audit._digest import digest


def _folder(file: str | None) -> str:
    assert file is not None
    return str(Path(file).parent) + os.sep


_PACKAGE = _folder(_rng.__file__)
_AUDIT = _folder(__file__)
_ENGINES = (random.__file__, _folder(np.__file__), _folder(torch.__file__))


class Source(NamedTuple):
    """A generator that a sample made or seeded.

    Attributes:
        family: What kind: "rng", "torch_rng", "python_rng" and "seeded" are this library's;
            "entropy-..." took its seed from the operating system.
        key: Equal for equal seeds of one family.
        text: The key for a reader.
        where: ``file:line``.
        owner: The id of the dataset in whose method it was made.
    """

    family: str
    key: bytes
    text: str
    where: str
    owner: int


class Salt(NamedTuple):
    """Which seeds are changed.

    Attributes:
        number: Another number, another change.
        families: Only those that start so; empty for all but the entropy.
        place: Only the n-th of a sample; None for all.
    """

    number: int
    families: str = ""
    place: int | None = None


class Watch:
    """What the replaced places tell.

    Attributes:
        active: Whether a sample is being read.
        sources: The sample's, so far.
        fixed: Whether the operating system's entropy is replaced by known numbers.
        salt: Which seeds to change, or None.
        place: The sample's.
    """

    def __init__(self) -> None:
        self.place = 0
        self.active = False
        self.sources: list[Source] = []
        self.fixed = False
        self.salt: Salt | None = None
        self._inside = False

    @contextlib.contextmanager
    def reading(self, place: int) -> Iterator[None]:
        """A sample is read inside; its sources begin anew."""
        self.place, self.sources, self.active = place, [], True
        try:
            yield
        finally:
            self.active = False

    def tell(self, family: str, seed: object) -> int:
        """Note a seed, and return the salt that it gets, 0 for none."""
        if not self.active or self._inside:
            return 0
        self._inside = True
        try:
            frame = caller(sys._getframe(1))
            if frame is None or (_is_ours(frame) and "rng" not in family and family != "seeded"):
                return 0
            place = len(self.sources)
            where = f"{outer(frame).f_code.co_filename}:{outer(frame).f_lineno}"
            source = Source(family, digest(seed), _text(seed), where, _owner(frame))
            self.sources.append(source)
            return self._salted(source, place)
        finally:
            self._inside = False

    def known(self, salt: int, count: int) -> bytes:
        """Bytes in the place of entropy, another for each sample."""
        name = f"{self.place} {len(self.sources)} {salt}"
        return hashlib.shake_128(name.encode()).digest(count)

    def _salted(self, source: Source, place: int) -> int:
        salt = self.salt
        if salt is None or salt.place not in (None, place):
            return 0
        if not source.family.startswith(salt.families):
            return 0
        if not salt.families and source.family.startswith("entropy"):
            return 0
        return 1 + salt.number


def _text(seed: object) -> str:
    text = " ".join(repr(seed).split())
    return text if len(text) <= 60 else text[:57] + "..."


def caller(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not the audit's, nor NumPy's, torch's or ``random``'s."""
    while frame is not None and frame.f_code.co_filename.startswith((_AUDIT, *_ENGINES)):
        frame = frame.f_back
    return frame


def outer(frame: FrameType) -> FrameType:
    """The innermost frame that is not this library's either."""
    found: FrameType | None = frame
    while found is not None and _is_ours(found):
        found = found.f_back
    reached = caller(found)
    return frame if reached is None else reached


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _owner(frame: FrameType | None) -> int:
    while frame is not None:
        owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if hasattr(owner, "__getitem__") or hasattr(owner, "__iter__"):
            return id(owner)
        frame = frame.f_back
    return 0


_watch: Watch | None = None


def watch() -> Watch:
    """Replace the places, for as long as this process lives. Only for an experiment's process."""
    global _watch  # noqa: PLW0603 - a process has one numpy and one torch to watch
    if _watch is None:
        _watch = Watch()
        _watch_ours(_watch)
        _watch_numpy(_watch)
        _watch_python(_watch)
        _watch_torch(_watch)
    return _watch


def _patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _standing_for(original: Any) -> Any:
    """A metaclass of a subclass that is taken for the original, whose instances are its own."""

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    return Kind


def _watch_ours(watch: Watch) -> None:
    def keyed(family: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def made(seed: int, epoch: int, index: Any, stream: Any) -> Any:
                salt = watch.tell(family, (seed, epoch, index, stream))
                return original((seed + salt) % 2**128, epoch, index, stream)

            return made

        return make

    def one(original: Any) -> Any:
        def key(seed: int, epoch: int, index: Any, stream: Any, domain: str) -> Any:
            salt = watch.tell("seeded", (seed, epoch, index, stream)) if domain == "global" else 0
            return original((seed + salt) % 2**128, epoch, index, stream, domain)

        return key

    def many(original: Any) -> Any:
        def keys(seed: int, epoch: int, indices: Any, domain: str) -> Any:
            if domain != "global":
                return original(seed, epoch, indices, domain)
            return [_rng.global_key(seed, epoch, index, None, domain) for index in indices]

        return keys

    _patch(_rng, "generator", keyed("rng"))
    _patch(_rng, "torch_generator", keyed("torch_rng"))
    _patch(_rng, "python_generator", keyed("python_rng"))
    _patch(_rng, "global_key", one)
    _patch(_rng, "global_keys", many)
    # The fast way around _rng.generator, to the same bits.
    _batch.ready_generator = lambda *_: None


def _watch_numpy(watch: Watch) -> None:
    def bits(original: Any) -> Any:
        def made(seed: Any = None) -> Any:
            generator = original(seed)
            # What took entropy has told of it.
            salt = 0 if seed is None else watch.tell("numpy", _plain_seed(seed))
            if salt:
                generator.state = original([salt, *_words(generator.state)]).state
            return generator

        return made

    def twister(original: Any) -> Any:
        class Twister(original, metaclass=_standing_for(original)):  # type: ignore[misc, metaclass]
            def _legacy_seeding(self, seed: Any) -> None:
                super()._legacy_seeding(seed)
                salt = 0 if seed is None else watch.tell("numpy", _plain_seed(seed))
                if salt:
                    super()._legacy_seeding([salt, *_words(self.state)])

        # A state has the name of its kind in it.
        Twister.__name__ = original.__name__
        return Twister

    def entropy(original: Any) -> Any:
        def randbits(count: int) -> int:
            salt = watch.tell("entropy-numpy", len(watch.sources))
            if not (watch.active and watch.fixed):
                return original(count)  # type: ignore[no-any-return]
            return int.from_bytes(watch.known(salt, -(-count // 8)), "little") & ((1 << count) - 1)

        return randbits

    def seed(original: Any) -> Any:
        def seeded(seed: Any = None) -> None:
            original(seed)
            if seed is not None and (salt := watch.tell("numpy-global", _plain_seed(seed))):
                original([salt, *_words(np.random.get_state(legacy=False))])

        return seeded

    _patch(numpy_generators, "PCG64", bits)
    _patch(mtrand, "_MT19937", twister)
    _patch(numpy_entropy, "randbits", entropy)
    _patch(np.random, "seed", seed)


def _plain_seed(seed: Any) -> Any:
    if isinstance(seed, np.random.SeedSequence):
        return (seed.entropy, seed.spawn_key)
    return np.asarray(seed).tolist() if isinstance(seed, (np.ndarray, np.generic)) else seed


def _words(state: Any) -> list[int]:
    return list(np.frombuffer(digest(state), np.uint32).tolist())


def _watch_python(watch: Watch) -> None:
    def seeding(original: Any) -> Any:
        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            kind = "python-global" if self is everybodys else "python"
            family = "entropy-python" if a is None else kind
            salt = watch.tell(family, len(watch.sources) if a is None else a)
            if a is None and watch.active and watch.fixed:
                a = watch.known(salt, 16)
            original(self, f"{salt} {a!r}" if salt else a, version)

        return seed

    def entropy(original: Any) -> Any:
        def urandom(count: int) -> bytes:
            salt = watch.tell("entropy-python", len(watch.sources))
            if not (watch.active and watch.fixed):
                return original(count)  # type: ignore[no-any-return]
            return watch.known(salt, count)

        return urandom

    everybodys = random._inst
    _patch(random.Random, "seed", seeding)
    # The module's own function was bound before.
    random.seed = everybodys.seed
    _patch(random, "_urandom", entropy)


def _watch_torch(watch: Watch) -> None:
    def generator(original: Any) -> Any:
        class Generator(original, metaclass=_standing_for(original)):  # type: ignore[misc, metaclass]
            def manual_seed(self, seed: int) -> Any:
                salt = watch.tell("torch", int(seed))
                return super().manual_seed((int(seed) + salt) % 2**63 if salt else seed)

            def seed(self) -> int:
                watch.tell("entropy-torch", len(watch.sources))
                return int(super().seed())

        return Generator

    def manual_seed(original: Any) -> Any:
        def seeded(seed: Any) -> Any:
            salt = watch.tell("torch-global", int(seed))
            return original((int(seed) + salt) % 2**63 if salt else seed)

        return seeded

    _patch(torch, "Generator", generator)
    _patch(torch, "manual_seed", manual_seed)
