"""The three global RNGs: read, and put into states that are known."""

from __future__ import annotations

import marshal
import random

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

from seedcursor import _rng

NAMES = ("python", "numpy", "torch")

# A Mersenne Twister's first words, all of them low or all of them high: what happens once in a
# thousand draws happens now.
Extreme = tuple[bool, int]
EXTREMES: tuple[Extreme, ...] = ((False, 2), (True, 2), (False, 16), (True, 16))


def read(name: str) -> bytes:
    """A global RNG's state; equal bytes are equal states."""
    if name == "python":
        return marshal.dumps(random.getstate())
    if name == "torch":
        return torch.default_generator.get_state().numpy().tobytes()
    bits = get_bit_generator()
    if _rng._TWISTER_IS_KNOWN and type(bits) is np.random.MT19937:
        # A draw of randn may only give the Gaussian that was kept back.
        _, _, _, *kept = np.random.get_state()
        return _rng._twister(bits).raw + repr(kept).encode()
    return repr(np.random.get_state(legacy=False)).encode()


def put(name: str, seed: int, extreme: Extreme | None = None) -> None:
    """Put a global RNG into the state that belongs to a seed of 32 bits.

    Args:
        name: One of `NAMES`.
        seed: In ``[0, 2**32)``.
        extreme: Whether its first words are high, and how many are.
    """
    words = [] if extreme is None else [_HIGH if extreme[0] else 0] * extreme[1]
    if name == "python":
        _put_python(seed, words)
    elif name == "numpy":
        _put_numpy(seed, words)
    else:
        _put_torch(seed, words)


def _put_python(seed: int, words: list[int]) -> None:
    random.seed(seed)
    if words:
        version, state, gauss = random.getstate()
        random.setstate((version, (*words, *state[len(words) : 624], 0), gauss))


def _put_numpy(seed: int, words: list[int]) -> None:
    np.random.seed(seed)
    state = np.random.get_state(legacy=False)
    if words and state["bit_generator"] == "MT19937":
        state["state"]["key"][: len(words)] = words
        state["state"]["pos"] = 0
        np.random.set_state(state)


# torch's legacy layout: the seed, how many words are left, whether it is seeded, which is next,
# and 624 words of 64 bits.
_TORCH_BYTES = 5056


def _put_torch(seed: int, words: list[int]) -> None:
    torch.default_generator.manual_seed(seed)
    state = torch.default_generator.get_state()
    if not words or state.numel() != _TORCH_BYTES:
        return
    raw = state.numpy()
    raw[8:12].view(np.int32)[0] = 624  # left
    raw[16:24].view(np.uint64)[0] = 1  # next
    raw[24 : 24 + 8 * 624].view(np.uint64)[1 : 1 + len(words)] = words
    torch.default_generator.set_state(state)


def _untempered(word: int) -> int:
    """The word of a Mersenne Twister's state that it hands out as this one.

    References:
        M. Matsumoto and T. Nishimura, "Mersenne Twister", 1998: the tempering, undone.
    """
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    done = word
    for _ in range(5):
        done = word ^ ((done << 7) & 0x9D2C5680)
    word = done
    for _ in range(3):
        done = word ^ (done >> 11)
    return done & 0xFFFFFFFF


_HIGH = _untempered(0xFFFFFFFF)
