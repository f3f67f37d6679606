"""Whole values, compared bit for bit through their digests."""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Mapping, Set
from types import FunctionType
from typing import Any

import numpy as np
import torch

_ATOMS = (type(None), bool, int, complex, str, type)


def digest(value: object) -> bytes:
    """Sixteen bytes that are equal for values that are the same, to the bit.

    Dicts are equal whatever their order. A NaN equals itself, and -0.0 is not 0.0.
    """
    return digest_of_parts(_parts(value, ()))


def _parts(value: Any, outer: tuple[int, ...]) -> list[bytes]:  # noqa: PLR0911 - a return a kind
    """A value as bytes that tell it apart; ``outer`` are the ids of what it lies in."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".encode()
    if isinstance(value, float):
        return [kind, struct.pack("<d", value)]
    if isinstance(value, _ATOMS):
        return [kind, repr(value).encode("utf-8", "surrogatepass")]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [kind, bytes(value)]
    if isinstance(value, torch.Tensor):
        try:
            return [kind, *_tensor(value)]
        except (RuntimeError, NotImplementedError):  # a nested or meta tensor has no such bytes
            return [kind, b"opaque"]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [kind, str(value.dtype).encode(), repr(value.shape).encode(), value.tobytes()]
    if isinstance(value, np.generic):
        return [kind, str(value.dtype).encode(), value.tobytes()]
    if _is_image(value):
        head = repr((value.mode, value.size, value.getpalette())).encode()
        return [kind, head, value.tobytes()]
    if id(value) in outer:
        return [kind, b"again", str(len(outer) - outer.index(id(value))).encode()]
    return [kind, *_nested(value, (*outer, id(value)))]


def _is_image(value: object) -> bool:
    # Without importing PIL, which nobody needs who has no images.
    return all(hasattr(value, name) for name in ("mode", "size", "tobytes", "getpalette"))


def _tensor(value: torch.Tensor) -> list[bytes]:
    value = value.detach().cpu()
    head = [
        str(value.dtype).encode(),
        repr(tuple(value.shape)).encode(),
        str(value.layout).encode(),
    ]
    if value.layout == torch.sparse_coo:
        value = value.coalesce()
        return [*head, *_tensor(value.indices()), *_tensor(value.values())]
    if value.layout != torch.strided:
        return [*head, *_tensor(value.to_dense())]
    if value.is_quantized:
        return [*head, repr(value.qscheme()).encode(), *_tensor(value.int_repr())]
    flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return [*head, flat.view(torch.uint8).numpy().tobytes()]


def _nested(value: Any, outer: tuple[int, ...]) -> list[bytes]:  # noqa: PLR0911
    if isinstance(value, np.ndarray):
        return [repr(value.shape).encode(), *_sequence(value.ravel().tolist(), outer)]
    if isinstance(value, Mapping):
        items = [_joined([(key, item)], outer) for key, item in value.items()]
        return [b"mapping", *sorted(items)]
    if isinstance(value, Set):
        return [b"set", *sorted(_joined([item], outer) for item in value)]
    if isinstance(value, (list, tuple)):
        return _sequence(value, outer)
    if isinstance(value, FunctionType):
        return [value.__qualname__.encode()]
    attributes = _attributes(value)
    if attributes:
        return _nested(attributes, outer)
    try:
        return [pickle.dumps(value, protocol=4)]
    except Exception:  # whatever a foreign object raises: its type is all that can be compared
        return [b"opaque"]


def _sequence(items: Any, outer: tuple[int, ...]) -> list[bytes]:
    return [str(len(items)).encode(), *(part for item in items for part in _parts(item, outer))]


def _joined(items: list[Any], outer: tuple[int, ...]) -> bytes:
    return digest_of_parts(_sequence(items, outer))


def digest_of_parts(parts: list[bytes]) -> bytes:
    """One digest of several byte strings, each kept apart from the next."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def _attributes(value: object) -> dict[str, Any]:
    """The attributes of an object, of its slots too."""
    found = dict(getattr(value, "__dict__", {}))
    for owner in type(value).__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def shown(value: object) -> str:
    """A value in a line of a report."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a foreign __repr__ may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
