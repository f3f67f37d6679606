"""Which line drew: a sample is run line by line, and the RNG's state compared at each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from seedcursor._audit._sources import caller, outer

# Lines to run before it is given up.
_LINES = 200_000


class Blame(NamedTuple):
    """A line that drew.

    Attributes:
        where: ``file:line`` of the user's or a library's call.
        chain: From the line that was asked for down to the one that drew, ``file:line in name``.
    """

    where: str
    chain: tuple[str, ...]


class _Tracer:
    def __init__(self, state: Callable[[], Any]) -> None:
        self.found: list[Blame] = []
        self._state = state
        self._last = state()
        self._at: tuple[FrameType, int] | None = None
        self._lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        self._lines += 1
        if self._lines > _LINES:
            sys.settrace(None)
            return None
        self.look()
        # A call is still its caller's line; a return goes back to it.
        back = frame.f_back
        if event == "return" and back is not None:
            self._at = back, back.f_lineno
        elif event != "call":
            self._at = frame, frame.f_lineno
        return self

    def look(self) -> None:
        """Blame the line that ran last, if the state is another one now."""
        state = self._state()
        if state != self._last and self._at is not None:
            self.found.append(_blame(*self._at))
        self._last = state


def _blame(frame: FrameType, line: int) -> Blame:
    reached = caller(frame)
    # What a library like this one draws, it draws for somebody.
    chosen = frame if reached is None else outer(reached)
    number = line if chosen is frame else chosen.f_lineno
    chain = []
    at: FrameType | None = frame
    while at is not None and at.f_code is not blame.__code__:
        here = line if at is frame else at.f_lineno
        name = at.f_code.co_name
        if caller(at) is at:
            chain.append(f"{at.f_code.co_filename}:{here} in {name}")
        at = at.f_back
    if frame is not chosen:
        chain.insert(0, f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}")
    return Blame(f"{chosen.f_code.co_filename}:{number}", tuple(reversed(chain)))


def blame(read: Callable[[], Any], state: Callable[[], Any]) -> list[Blame]:
    """The lines that moved an RNG while a sample was read, each once.

    Args:
        read: Reads the sample.
        state: The RNG's state, in whatever form compares.
    """
    tracer = _Tracer(state)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        read()
    except Exception:
        pass  # its lines up to there were seen
    finally:
        sys.settrace(before)
    tracer.look()
    return list(dict.fromkeys(tracer.found))


def definition(thing: Any, *methods: str) -> str:
    """``file:line`` of the first of these methods that a user's class defines, or of the class."""
    owner = thing if isinstance(thing, type) else type(thing)
    candidates = [getattr(owner, name, None) for name in methods]
    if hasattr(thing, "__code__"):
        candidates.insert(0, thing)
    for candidate in candidates:
        code = getattr(candidate, "__code__", None)
        if code is not None:
            return f"{Path(code.co_filename)}:{code.co_firstlineno}"
    return f"{owner.__module__}.{owner.__qualname__}"
