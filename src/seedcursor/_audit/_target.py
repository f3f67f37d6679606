"""A target by its name on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


class NoTarget(Exception):  # noqa: N818 - said in one line to whoever typed it
    """The target can't be had; with the cause."""


def found_target(text: str) -> Any:
    """What ``module:name`` or ``path/file.py:name`` names.

    Args:
        text: The name is a dataset, a loader, or a callable without arguments that returns one. It
            may have dots.

    Raises:
        NoTarget: There is none, or it raises when it is imported or called.
    """
    module, _, name = text.rpartition(":")
    if not module or not name:
        raise NoTarget(f"TARGET must be module:name or path/file.py:name, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        thing: Any = _imported(module)
        for part in name.split("."):
            thing = getattr(thing, part)
    except NoTarget:
        raise
    except (Exception, SystemExit) as error:
        raise NoTarget(f"can't import {text!r}: {_line(error)}") from error
    if _is_target(thing):
        return thing
    if not callable(thing):
        raise NoTarget(f"{text} is no dataset, loader or callable, but of {type(thing).__name__}")
    try:
        made = thing()
    except (Exception, SystemExit) as error:
        raise NoTarget(f"{text}() raised {_line(error)}") from error
    if not _is_target(made):
        raise NoTarget(f"{text}() returned no dataset or loader, but a {type(made).__name__}")
    return made


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _is_target(thing: Any) -> bool:
    if isinstance(thing, type):
        return False
    if isinstance(thing, (DataLoader, IterableDataset)):
        return True
    return hasattr(thing, "__getitem__") and hasattr(thing, "__len__")


def _imported(module: str) -> ModuleType:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module).resolve()
    if not path.is_file():
        raise NoTarget(f"there is no file {module}")
    # By its own name and folder, so that spawned workers can import it too.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded
