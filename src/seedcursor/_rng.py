"""From words to generators, and the three global RNGs keyed and put back."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import PCG64, Generator
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from numpy.typing import DTypeLike, NDArray

from seedcursor import _keys
from seedcursor._record import Index

# Words that key python, NumPy and torch apart: four, four and two.
GLOBAL_WORDS = 10
_UINT64 = np.uint64
_LITTLE_32, _LITTLE_64 = np.dtype("<u4"), np.dtype("<u8")


class ReadyWords(ISpawnableSeedSequence):
    """A ``SeedSequence`` whose words are known already.

    PCG64 asks for its four words, once; whatever else is asked comes from the real sequence, made
    then.
    """

    __slots__ = ("_key", "_real", "_words")

    _real: np.random.SeedSequence

    def __init__(self, words: NDArray[np.uint64], key: tuple[Any, ...]) -> None:
        self._words: NDArray[np.uint64] | None = words
        self._key = key

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        words = self._words
        if words is not None and n_words == 4 and dtype is _UINT64:
            self._words = None
            return words
        return self.real.generate_state(n_words, dtype)  # type: ignore[arg-type]

    @property
    def real(self) -> np.random.SeedSequence:
        try:
            return self._real
        except AttributeError:
            self._real = _keys.sequence(*self._key)
            return self._real

    def spawn(self, n_children: int) -> list[Any]:
        return self.real.spawn(n_children)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.real, name)


def generator(seed: int, epoch: int, index: Index, stream: str | None) -> np.random.Generator:
    """One sample's generator, by NumPy's own ``SeedSequence``."""
    return Generator(PCG64(_keys.sequence(seed, epoch, index, stream)))


def ready_words(
    seed: int, epoch: int, indices: list[int], stream: str | None
) -> NDArray[np.uint64]:
    """A row of PCG64's four words for each index."""
    words = _keys.keys(seed, epoch, indices, stream)
    # Two words make a wide one, the low one first, on machines of either byte order.
    return np.ascontiguousarray(words, _LITTLE_32).view(_LITTLE_64).astype(np.uint64, copy=False)


def torch_generator(seed: int, epoch: int, index: Index, stream: str | None) -> torch.Generator:
    """A CPU generator on a key of its own. torch's Mersenne Twister takes 32 bits of it."""
    words = _keys.sequence(seed, epoch, index, stream, "torch").generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


def python_generator(seed: int, epoch: int, index: Index, stream: str | None) -> random.Random:
    """A ``random.Random`` on a key of its own."""
    words = _keys.sequence(seed, epoch, index, stream, "python").generate_state(4)
    return random.Random(int.from_bytes(words.astype(_LITTLE_32).tobytes(), "little"))


def global_key(
    seed: int, epoch: int, index: Index | None, stream: str | None, domain: str
) -> bytes:
    """The key of the three global RNGs, as `key_globals` takes it."""
    words = _keys.sequence(seed, epoch, index, stream, domain).generate_state(GLOBAL_WORDS)
    return words.astype(_LITTLE_32).tobytes()


def global_keys(seed: int, epoch: int, indices: Sequence[Index], domain: str) -> list[bytes]:
    """`global_key` of many indices at once."""
    if not all(isinstance(index, int) for index in indices):
        return [global_key(seed, epoch, index, None, domain) for index in indices]
    words = _keys.keys(seed, epoch, indices, domain=domain, size=GLOBAL_WORDS)  # type: ignore[arg-type]
    return [row.tobytes() for row in words.astype(_LITTLE_32)]


def key_globals(key: bytes) -> None:
    """Seed python's, NumPy's and torch's global RNGs, each with words of its own."""
    random.seed(int.from_bytes(key[:16], "little"))
    _key_numpy(key[16:32])
    torch.default_generator.manual_seed(int.from_bytes(key[32:40], "little"))


def _key_numpy(key: bytes) -> None:
    """Fill the global Mersenne Twister with SHAKE-128 of a key.

    np.random.seed would do, but takes 43 us in a worker, a third of a batch of small samples.
    """
    bits = get_bit_generator()
    if type(bits) is not np.random.MT19937:
        bits = np.random.MT19937(0)  # the user's own is left alone
    filling = hashlib.shake_128(key).digest(2496)
    if _TWISTER_IS_KNOWN:
        _twister(bits).raw = filling + _AT_ITS_END
    else:
        words = np.frombuffer(filling, _LITTLE_32).astype(np.uint32)
        bits.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    set_bit_generator(bits)  # drops a Gaussian that was kept back


def own_globals(key: bytes) -> None:
    """As `key_globals`, with a bit generator for NumPy that nobody else will be given."""
    set_bit_generator(np.random.MT19937(0))
    key_globals(key)


class Globals(NamedTuple):
    """The three global RNGs, as they were."""

    python: tuple[Any, ...]
    torch: torch.Tensor
    numpy: np.random.BitGenerator
    kept_gaussian: float | None


def take_globals() -> Globals:
    """The three global RNGs. NumPy's must be put back, or another one in its place."""
    bits = get_bit_generator()
    # The Gaussian that randn keeps back lives outside the bit generator, and a swap drops it.
    return Globals(
        random.getstate(), torch.default_generator.get_state(), bits, _take_kept_gaussian(bits)
    )


def put_globals(taken: Globals) -> None:
    """Let the three global RNGs be what they were, to the bit."""
    random.setstate(taken.python)
    torch.default_generator.set_state(taken.torch)
    set_bit_generator(taken.numpy)
    if taken.kept_gaussian is not None:
        state = np.random.get_state(legacy=False)
        np.random.set_state(state | {"has_gauss": 1, "gauss": taken.kept_gaussian})


# NumPy's Mersenne Twister costs 40 us to copy and 0.3 us to swap, so it is swapped for these.
_spare: list[np.random.MT19937] = []

# A Mersenne Twister's 624 words and its place among them, as they lie in memory.
_TWISTER = ctypes.c_char * 2500
_AT_ITS_END = (624).to_bytes(4, "little")


def _twister(bits: np.random.BitGenerator) -> ctypes.Array[ctypes.c_char]:
    return _TWISTER.from_address(bits.ctypes.state_address)


def _twister_is_known() -> bool:
    bits = np.random.MT19937(0)
    bits.random_raw(3)
    words = np.frombuffer(_twister(bits).raw, _LITTLE_32)
    state = bits.state["state"]
    return bool((words[:624] == state["key"]).all() and words[624] == state["pos"])


_TWISTER_IS_KNOWN = _twister_is_known()


def _take_kept_gaussian(bits: np.random.BitGenerator) -> float | None:
    """The Gaussian that the global RNG keeps back, if there is one; taken or not, it is gone."""
    if type(bits) is not np.random.MT19937 or not _TWISTER_IS_KNOWN:
        state = np.random.get_state(legacy=False)
        return state["gauss"] if state["has_gauss"] else None
    # get_state() takes 40 us to tell. What is kept back is returned without drawing a word.
    twister = _twister(bits)
    before = twister.raw
    try:
        gaussian = np.random.standard_normal()
        return gaussian if twister.raw == before else None
    finally:
        twister.raw = before


# Whoever keys the global RNGs of a main process takes this turn, so that threads don't interleave.
turn = threading.RLock()
# Seconds. Longer than a batch should take, for another thread's batch may be waited for.
PATIENCE = 120.0


def _new_turn() -> None:
    global turn  # noqa: PLW0603 - a lock can't be remade in place
    turn = threading.RLock()


# Another thread's turn would never end in a forked child, where that thread is not.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


@contextlib.contextmanager
def globals_aside(patience: float = PATIENCE) -> Iterator[None]:
    """The main process's global RNGs set aside for a while.

    Args:
        patience: Seconds to wait for another thread that has them.

    Raises:
        RuntimeError: Another thread has them all the while; it may be waiting for this one.
    """
    mine = turn
    if not mine.acquire(timeout=patience):
        raise RuntimeError(
            "another thread has the global RNGs keyed, and may be waiting for this one: they "
            "belong to the process, so use one thread at a time, or draw from rng(index) in threads"
        )
    try:
        spare = _spare.pop() if _spare else np.random.MT19937(0)
        taken = take_globals()
        try:
            set_bit_generator(spare)
            yield
        finally:
            _put_back(taken)
            _spare.append(spare)
    finally:
        mine.release()


def _put_back(taken: Globals) -> None:
    try:
        put_globals(taken)
    except BaseException:
        put_globals(taken)  # an interrupt came in between
        raise


@contextlib.contextmanager
def keyed_globals(key: bytes) -> Iterator[None]:
    """The three global RNGs keyed inside, untouched outside.

    Raises:
        RuntimeError: Another thread has keyed them.
    """
    with globals_aside(patience=0):
        key_globals(key)
        yield
