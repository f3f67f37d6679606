"""The process's own random state, for what is not data: dropout, initialisation."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

_KEYS = ("python", "numpy", "torch", "accelerators")


def rng_state_dict() -> dict[str, Any]:
    """The states of python's, NumPy's and torch's global RNGs, and of every accelerator's.

    For a checkpoint, beside ``loader.state_dict()``: the loader's position restores the data, this
    restores what the model draws, such as dropout. Save one per rank.

    Returns:
        Tensors, numbers and strings in dicts and tuples, which
        ``torch.load(weights_only=True)`` takes.

    Example:
        >>> state = rng_state_dict()
        >>> before = torch.rand(2)
        >>> load_rng_state_dict(state)
        >>> torch.equal(before, torch.rand(2))
        True
    """
    return {
        "python": random.getstate(),
        "numpy": _to_torch(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
        "accelerators": {name: _device_states(module) for name, module in _accelerators()},
    }


def load_rng_state_dict(state: Mapping[str, Any], strict: bool = True) -> None:
    """Put the process's random state back.

    Args:
        state: What ``rng_state_dict()`` returned. Its tensors may have been moved by
            ``map_location``.
        strict: Whether another kind or number of accelerators is an error; else it warns, and the
            devices that both have are restored.

    Raises:
        TypeError: The state is not a mapping.
        ValueError: Something is missing or malformed, or the accelerators differ. Then nothing has
            changed.

    Example:
        >>> state = rng_state_dict()
        >>> with_dropout = torch.nn.functional.dropout(torch.ones(9))
        >>> load_rng_state_dict(state)
        >>> torch.equal(with_dropout, torch.nn.functional.dropout(torch.ones(9)))
        True
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be a mapping as rng_state_dict() returns it, got {type(state).__name__}"
        )
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise ValueError(f"state must have {list(_KEYS)}, missing: {missing}")
    try:
        python = _tried_python(state["python"])
        numpy, bits = _tried_numpy(state["numpy"])
        cpu = _tried_torch(state["torch"])
        devices = _tried_devices(state["accelerators"])
    except Exception as error:
        raise ValueError(
            f"state must be what rng_state_dict() returned, and can't be restored: {error}"
        ) from error
    _check_devices(devices, strict=strict)
    random.setstate(python)
    if type(get_bit_generator()) is not type(bits):
        set_bit_generator(bits)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    for name, module in _accelerators():
        here = len(_device_states(module))
        for device, tensor in enumerate(devices.get(name, [])[:here]):
            module.set_rng_state(tensor, *_argument(module, device))


# Each state is tried on a generator that nobody uses, and must come back as it was put in.


def _tried_python(state: Any) -> tuple[Any, ...]:
    version, words, gauss = state
    python = (version, tuple(words), gauss)
    _expect(gauss is None or isinstance(gauss, float), "python's kept Gaussian is no number")
    trial = random.Random()
    trial.setstate(python)
    _expect(trial.getstate() == python, "python's is malformed")
    return python


def _tried_numpy(state: Any) -> tuple[dict[str, Any], np.random.BitGenerator]:
    kind = getattr(np.random, state["bit_generator"])
    known = isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)
    _expect(known, "NumPy's has no such bit generator")
    bits = kind(0)
    trial = np.random.RandomState(bits)
    numpy = _to_numpy(state, trial.get_state(legacy=False))
    # These two are places in an array, which NumPy reads without looking.
    _expect(0 <= numpy["state"].get("pos", 0) <= 624, "NumPy's pos is out of range")
    _expect(0 <= numpy.get("buffer_pos", 0) <= 4, "NumPy's buffer_pos is out of range")
    trial.set_state(numpy)
    _expect(_equal(trial.get_state(legacy=False), numpy), "NumPy's is malformed")
    return numpy, bits


def _tried_torch(state: torch.Tensor) -> torch.Tensor:
    cpu = state.cpu()
    trial = torch.Generator()
    trial.set_state(cpu)
    _expect(torch.equal(trial.get_state(), cpu), "torch's is malformed")
    return cpu


def _tried_devices(state: Any) -> dict[str, list[torch.Tensor]]:
    devices = {name: [tensor.cpu() for tensor in tensors] for name, tensors in state.items()}
    modules = dict(_accelerators())
    for name, tensors in devices.items():
        shapes = [s.shape for s in _device_states(modules[name])] if name in modules else []
        for k, tensor in enumerate(tensors):
            _expect(tensor.dtype == torch.uint8, f"{name}'s is not of bytes")
            _expect(k >= len(shapes) or tensor.shape == shapes[k], f"{name}'s has another size")
    return devices


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _check_devices(devices: Mapping[str, list[torch.Tensor]], *, strict: bool) -> None:
    saved = {name: len(tensors) for name, tensors in devices.items()}
    here = {name: len(_device_states(module)) for name, module in _accelerators()}
    if saved == here:
        return
    message = f"the state was saved with the accelerators {saved}, here are {here}"
    if strict:
        raise ValueError(f"{message}; pass strict=False to restore those that both have")
    warnings.warn(message, UserWarning, stacklevel=3)


def _accelerators() -> Iterator[tuple[str, ModuleType]]:
    for name in ("cuda", "xpu", "mps"):
        module = getattr(torch, name, None)
        # torch 2.4 answers for mps in torch.backends.
        asked = module if hasattr(module, "is_available") else getattr(torch.backends, name, None)
        if module is not None and asked is not None and asked.is_available():
            yield name, module


def _device_states(module: ModuleType) -> list[torch.Tensor]:
    # mps has one device, and no function for all.
    every = getattr(module, "get_rng_state_all", None)
    return [module.get_rng_state()] if every is None else every()


def _argument(module: ModuleType, device: int) -> tuple[int, ...]:
    return (device,) if hasattr(module, "get_rng_state_all") else ()


def _to_torch(value: Any) -> Any:
    """NumPy's state with tensors for arrays, for torch.load takes no arrays."""
    if isinstance(value, dict):
        return {key: _to_torch(item) for key, item in value.items()}
    # torch has signed words only, of the same bits.
    return torch.from_numpy(value.view(f"i{value.itemsize}").copy()) if _is_array(value) else value


def _to_numpy(value: Any, like: Any) -> Any:
    """A saved state in the form of another."""
    if isinstance(like, dict):
        _expect(set(value) == set(like), "NumPy's has other parts")
        return {key: _to_numpy(value[key], like[key]) for key in like}
    if _is_array(like):
        array = value.cpu().numpy()
        _expect(array.dtype.kind == "i" and array.shape == like.shape, "NumPy's has other words")
        return array.view(like.dtype)
    _expect(type(value) is type(like), "NumPy's has other values")
    return value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)
