"""From (seed, epoch, index, stream) to the words that seed a generator.

The encoding is published and versioned; a change to it is a new format version:

    SeedSequence(entropy=seed, spawn_key=(epoch, *INDEX, *OCCURRENCE, *STREAM, *DOMAIN))

where ``INDEX`` is the low 32-bit word of an int, followed by the high word only if the index is
2**32 or more, or the four words of a record id's digest; ``OCCURRENCE``, ``STREAM`` and ``DOMAIN``
are nothing, or four words of a digest each. Digests are 128-bit BLAKE2b, personalised by what they
stand for, so that no two parts can be taken for each other. Samples have no domain: for a small int
index and no stream a key is NumPy's own ``SeedSequence(seed, spawn_key=(epoch, index))``.

`keys` derives many at once. It repeats the last rounds of ``SeedSequence`` (M. E. O'Neill,
"Developing a seed_seq alternative", 2015; ``numpy/random/bit_generator.pyx``) over whole arrays.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seedcursor._record import Index, Occurrence

WORD = 2**32


@functools.lru_cache(maxsize=1024)
def _digest(kind: str, name: str) -> tuple[int, ...]:
    text = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=16, person=kind.encode()).digest()
    return tuple(int.from_bytes(digest[k : k + 4], "little") for k in range(0, 16, 4))


def index_words(index: Index) -> tuple[int, ...]:
    """The words of a record's index."""
    if isinstance(index, Occurrence):
        words = index_words(index.index)
        return words + _digest("occurrence", str(index.number)) if index.number else words
    if isinstance(index, str):
        return _digest("index", index)
    return (index,) if index < WORD else (index % WORD, index // WORD)


def suffix_words(stream: str | None = None, domain: str | None = None) -> tuple[int, ...]:
    """The words that follow the index."""
    words = () if stream is None else _digest("stream", stream)
    return words if domain is None else words + _digest("domain", domain)


def sequence(
    seed: int,
    epoch: int,
    index: Index | None = None,
    stream: str | None = None,
    domain: str | None = None,
) -> np.random.SeedSequence:
    """One key, as the ``SeedSequence`` that anybody can recreate."""
    words = () if index is None else index_words(index)
    return np.random.SeedSequence(seed, spawn_key=(epoch, *words, *suffix_words(stream, domain)))


# SeedSequence hashes its k-th word with the k-th term of a geometric series modulo 2**32.
def _series(first: int, ratio: int, terms: int) -> NDArray[np.uint32]:
    values = [first]
    for _ in range(terms - 1):
        values.append(values[-1] * ratio % WORD)
    return np.array(values, dtype=np.uint32)[:, None]


_POOL = 4
_ABSORB = _series(0x43B0D7E5, 0x931E8875, 132)
_EMIT = _series(0x8B51F9DD, 0x58F38DED, 132)
_MIX_LEFT = np.uint32(0xCA01F9DD)
_MIX_RIGHT = np.uint32(0x4973F715)
_HALF = np.uint32(16)


def _mixed(
    pool: NDArray[np.uint32], word: NDArray[np.uint32] | np.uint32, step: int
) -> NDArray[np.uint32]:
    """The pool with one more word in it, the ``step``-th that is hashed."""
    hashed = word ^ _ABSORB[step : step + _POOL]
    hashed *= _ABSORB[step + 1 : step + 1 + _POOL]
    hashed ^= hashed >> _HALF
    hashed *= _MIX_RIGHT
    mixed = pool * _MIX_LEFT - hashed
    mixed ^= mixed >> _HALF
    return mixed


@functools.lru_cache(maxsize=64)
def _epoch_pool(seed: int, epoch: int) -> NDArray[np.uint32]:
    return np.random.SeedSequence(seed, spawn_key=(epoch,)).pool[:, None]


def _equal_width_keys(
    seed: int, epoch: int, words: list[NDArray[np.uint32] | np.uint32], size: int
) -> NDArray[np.uint32]:
    pool = _epoch_pool(seed, epoch)
    step = _POOL + _POOL * (_POOL - 1) + _POOL  # the seed's words, their mixing, the epoch
    for word in words:
        pool = _mixed(pool, word, step)
        step += _POOL
    # The pool is read out again and again, each time hashed with the next constants.
    rounds = -(-size // _POOL)
    state = pool ^ _EMIT[: rounds * _POOL].reshape(rounds, _POOL, 1)
    state *= _EMIT[1 : rounds * _POOL + 1].reshape(rounds, _POOL, 1)
    state ^= state >> _HALF
    return state.reshape(rounds * _POOL, -1)[:size].T


def keys(
    seed: int,
    epoch: int,
    indices: Sequence[int],
    stream: str | None = None,
    domain: str | None = None,
    *,
    size: int = 8,
) -> NDArray[np.uint32]:
    """Derive the keys of many int indices at once.

    Args:
        seed: In ``[0, 2**128)``.
        epoch: In ``[0, 2**32)``.
        indices: N ints in ``[0, 2**64)``.
        stream: The stream's name, or None.
        domain: What the keys are for; None for a sample's own generator.
        size: Words per key, 1 to 127.

    Returns:
        A ``(N, size)`` array of ``uint32``, each row equal to
        ``sequence(seed, epoch, index, stream, domain).generate_state(size)``.
    """
    suffix = [np.uint32(word) for word in suffix_words(stream, domain)]
    if max(indices, default=0) < WORD:
        return _equal_width_keys(seed, epoch, [np.array(indices, np.uint32), *suffix], size)
    numbers = np.array(indices, dtype=np.uint64)
    low = numbers.astype(np.uint32)
    high = (numbers >> np.uint64(32)).astype(np.uint32)
    wide = high != 0
    out = np.empty((len(numbers), size), dtype=np.uint32)
    out[~wide] = _equal_width_keys(seed, epoch, [low[~wide], *suffix], size)
    out[wide] = _equal_width_keys(seed, epoch, [low[wide], high[wide], *suffix], size)
    return out


@functools.lru_cache(maxsize=1024)
def part_number(name: str, number: int) -> int:
    """The number of an occurrence that no other named part of a dataset has.

    Args:
        name: The part's.
        number: Of the occurrence of the whole, which the part's own is to tell apart too.

    Returns:
        A digest, in ``[0, 2**64)``.
    """
    text = f"{number} {name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"part").digest(), "little")


def part_key(seed: int, epoch: int, index: int, number: int, size: int) -> bytes:
    """A key for one occurrence in a part of a dataset, at a fraction of what a sequence costs.

    Args:
        seed: The root seed of the whole.
        epoch: The part's.
        index: The record.
        number: Of the occurrence, by `part_number`.
        size: Bytes, up to 64.
    """
    text = f"{seed} {epoch} {index} {number}".encode()
    return hashlib.blake2b(text, digest_size=size, person=b"part.key").digest()


def order_digest(*parts: object) -> int:
    """A number of 32 bits for what an order is made of: arrays, and values that repr shows."""
    digest = hashlib.blake2b(digest_size=4, person=b"order")
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        else:
            digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little")


@functools.lru_cache(maxsize=4096)
def derived_seed(seed: int, name: Index, domain: str) -> int:
    """A root seed of its own for one of several orders."""
    words = sequence(seed, 0, name, domain=domain).generate_state(4)
    return int.from_bytes(words.astype("<u4").tobytes(), "little")
