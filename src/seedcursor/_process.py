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
    numpy = np.random.get_state(legacy=False)
    return {
        "python": random.getstate(),
        "numpy": numpy | {"state": {k: _to_torch(v) for k, v in numpy["state"].items()}},
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
    python, (numpy, numpy_state), torch_state = _checked(state)
    devices = {
        name: [tensor.cpu() for tensor in tensors]
        for name, tensors in state["accelerators"].items()
    }
    _check_devices(devices, strict=strict)
    random.setstate(python)
    if type(get_bit_generator()) is not type(numpy):
        set_bit_generator(numpy)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    for name, module in _accelerators():
        for device, tensor in enumerate(devices.get(name, [])[: len(_device_states(module))]):
            module.set_rng_state(tensor, *_argument(module, device))


def _checked(
    state: Mapping[str, Any],
) -> tuple[tuple[Any, ...], tuple[np.random.BitGenerator, dict[str, Any]], torch.Tensor]:
    """The three states, each tried on a generator that nobody uses."""
    try:
        version, words, gauss = state["python"]
        python = (version, tuple(words), gauss)
        random.Random().setstate(python)
        numpy = dict(state["numpy"])
        bits: np.random.BitGenerator = getattr(np.random, numpy["bit_generator"])()
        numpy["state"] = {
            key: _to_numpy(value, bits.state["state"][key]) for key, value in numpy["state"].items()
        }
        np.random.RandomState(bits).set_state(numpy)
        torch_state = state["torch"].cpu()
        torch.Generator().set_state(torch_state)
    except Exception as error:
        raise ValueError(
            f"state must be what rng_state_dict() returned; it can't be restored: {error}"
        ) from error
    return python, (bits, numpy), torch_state


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
        if module is not None and module.is_available():
            yield name, module


def _device_states(module: ModuleType) -> list[torch.Tensor]:
    # mps has one device, and no function for all.
    every = getattr(module, "get_rng_state_all", None)
    return [module.get_rng_state()] if every is None else every()


def _argument(module: ModuleType, device: int) -> tuple[int, ...]:
    return (device,) if hasattr(module, "get_rng_state_all") else ()


def _to_torch(value: Any) -> Any:
    return torch.from_numpy(value.astype(np.int64)) if isinstance(value, np.ndarray) else value


def _to_numpy(value: Any, like: Any) -> Any:
    return value.cpu().numpy().astype(like.dtype) if isinstance(like, np.ndarray) else value
