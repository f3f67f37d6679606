"""A permutation of ``range(n)`` that is computed where it is asked, and never stored."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from seedcursor import _checks, _keys

# Up to here the whole order is drawn: a Feistel network on few items reaches too few orders.
_DRAWN = 4096
_ROUNDS = 6
# How much to ask for at once, for speed: it amortises the walk of what falls outside.
SLICE = 65536
# Fits the second-level cache, and amortises the cost of a NumPy call.
_BLOCK = 16384
_SHIFT = np.uint32(15)
_SCRAMBLE = np.uint32(0x85EBCA6B)


class KeyedPermutation:
    """A permutation of ``range(n)``, a pure function of ``(n, seed, epoch)``, in O(1) memory.

    Up to 4,096 items the order is drawn whole, every order equally likely. Beyond that it is an
    six-round Feistel network over the next power of two, with cycle walking for what falls
    outside (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).

    Args:
        n: How many items, in ``[0, 2**63)``.
        seed: The root seed, in ``[0, 2**128)``.
        epoch: In ``[0, 2**32)``; every epoch has an order of its own.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is out of its range.

    Example:
        >>> order = KeyedPermutation(10, seed=7, epoch=0)
        >>> sorted(order) == list(range(10))
        True
        >>> order.inverse(order[3])
        3
        >>> KeyedPermutation(10**15, seed=7, epoch=0)[999_999_999_999_999] < 10**15
        True
    """

    def __init__(self, n: int, seed: int = 0, epoch: int = 0) -> None:
        self.n = _checks.integer("n", n, limit=_checks.LENGTH_LIMIT)
        self.seed = _checks.seed(seed)
        self.epoch = _checks.epoch(epoch)
        bits = max(2, (self.n - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"KeyedPermutation(n={self.n}, seed={self.seed}, epoch={self.epoch})"

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.n, _BLOCK):
            yield from self[start : start + _BLOCK].tolist()

    @overload
    def __getitem__(self, k: int) -> int: ...
    @overload
    def __getitem__(self, k: slice | NDArray[np.int64]) -> NDArray[np.int64]: ...
    def __getitem__(self, k: int | slice | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """``p[k]`` is the item at position ``k``; of a slice or an array, an ``int64`` array."""
        if isinstance(k, slice):
            # Not np.arange(start, stop, step), which counts in floating point.
            places = range(*k.indices(self.n))
            numbers = np.arange(len(places), dtype=np.int64)
            numbers *= places.step
            numbers += places.start
            return self._apply(numbers)
        if isinstance(k, np.ndarray) and k.ndim:
            return self._apply(self._many(k))
        return int(self._apply(self._one("position", k, -self.n))[0])  # type: ignore[arg-type]

    def inverse(self, index: int) -> int:
        """The position of an item: ``p.inverse(p[k]) == k``.

        Args:
            index: The item, in ``range(n)``.

        Returns:
            Its position, in ``range(n)``.

        Raises:
            TypeError: The index is not an integer.
            IndexError: It is not in ``range(n)``.
        """
        item = self._one("index", index, 0)
        if self.n <= _DRAWN:
            return int(np.flatnonzero(self._drawn == item)[0])
        return int(self._walk(item, range(_ROUNDS)[::-1])[0])

    def _one(self, name: str, value: int, low: int) -> NDArray[np.int64]:
        number = _checks.integer(name, value, low=None)
        if not low <= number < self.n:
            raise IndexError(f"{name} must be in [{low}, {self.n}), got {_checks.shown(number)}")
        return np.array([number % self.n], dtype=np.int64)

    def _many(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise TypeError(
                f"positions must be integers in one dimension, got {places.dtype} in {places.ndim}"
            )
        if len(places) and (places.min() < 0 or places.max() >= self.n):
            raise IndexError(
                f"positions must be in [0, {self.n}), got {places.min()} to {places.max()}"
            )
        return places.astype(np.int64)

    def _apply(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.n <= _DRAWN:
            return self._drawn[places]
        return self._walk(places, range(_ROUNDS))

    @functools.cached_property
    def _drawn(self) -> NDArray[np.int64]:
        # Sorting random words draws every order alike, and needs only raw bits, which NumPy keeps.
        raw = np.random.PCG64(self._sequence()).random_raw(self.n)
        return np.argsort(raw, kind="stable").astype(np.int64)

    @functools.cached_property
    def _round_keys(self) -> NDArray[np.uint32]:
        words = self._sequence().generate_state(2 * _ROUNDS).astype(np.uint32)
        words = words.reshape(_ROUNDS, 2)
        words[:, 0] |= 1  # an even factor would lose bits
        return words

    def _sequence(self) -> np.random.SeedSequence:
        return _keys.sequence(self.seed, self.epoch, domain="order")

    def _walk(self, values: NDArray[np.int64], rounds: range) -> NDArray[np.int64]:
        word = np.uint32 if self.n <= 2**32 else np.uint64  # narrow words take half the time
        out: NDArray[Any] = np.empty(len(values), dtype=word)
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK].astype(word)
            out[start : start + _BLOCK] = self._feistel(block, rounds)
        outside = np.flatnonzero(out >= self.n)
        while outside.size:
            moved = self._feistel(out[outside], rounds)
            out[outside] = moved
            outside = outside[moved >= self.n]
        return out.astype(np.int64)

    def _feistel(self, values: NDArray[Any], rounds: range) -> NDArray[Any]:
        width = values.dtype.type(self._low_bits)
        high = (values >> width).astype(np.uint32, copy=False)
        low = (values & values.dtype.type((1 << self._low_bits) - 1)).astype(np.uint32, copy=False)
        mixed, shifted = np.empty_like(low), np.empty_like(low)
        for k in rounds:
            source, target, bits = (
                (high, low, self._low_bits) if k % 2 else (low, high, self._high_bits)
            )
            factor, term = self._round_keys[k]
            np.multiply(source, factor, out=mixed)
            np.add(mixed, term, out=mixed)
            np.right_shift(mixed, _SHIFT, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _SCRAMBLE, out=mixed)
            np.right_shift(mixed, np.uint32(32 - bits), out=mixed)
            np.bitwise_xor(target, mixed, out=target)
        joined: NDArray[Any] = high.astype(values.dtype, copy=False)
        joined <<= width
        joined |= low
        return joined
