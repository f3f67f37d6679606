"""``<epoch, cursor>``, its dict form, and the one place that moves it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping

from attrs import frozen

from seedcursor import _checks

VERSION = 1


@frozen
class Position:
    """Where a run stands.

    Attributes:
        epoch: In ``[0, 2**32)``.
        cursor: How many positions of the epoch were delivered, all ranks together.
    """

    epoch: int = 0
    cursor: int = 0


Setting = int | bool | None


def read_state(
    state: Mapping[str, object],
    expected: Mapping[str, Setting],
    *,
    limit: int | None,
    strict: bool,
) -> Position:
    """Check a saved state against what this loader expects, and return its position.

    Args:
        state: ``epoch`` and ``cursor``, and any of the keys of ``expected``.
        expected: What this loader would save.
        limit: The largest cursor that there can be, None if that is unknown.
        strict: Whether a difference is an error, or a warning.

    Raises:
        TypeError: The state, its epoch or its cursor is of another type.
        ValueError: A key is missing, a value is out of its range, or a setting differs.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be a mapping as state_dict() returns it, got {type(state).__name__}"
        )
    missing = [key for key in ("epoch", "cursor") if key not in state]
    if missing:
        raise ValueError(
            f"state must have 'epoch' and 'cursor', got the keys {list(state)}; "
            f"missing: {missing}. Load what loader.state_dict() returned"
        )
    epoch = _checks.epoch(state["epoch"])
    cursor = _checks.integer("cursor", state["cursor"], limit=_checks.LENGTH_LIMIT)
    differences = [
        f"{key}: saved {_checks.shown(state[key])}, "
        f"here {_checks.shown(expected.get(key, 'no such setting'))}"
        for key in state
        if key not in ("epoch", "cursor")
        and not (key in expected and _same(state[key], expected[key]))
    ]
    if differences:
        message = (
            "the state was saved by a loader with other settings (" + "; ".join(differences) + ")"
        )
        if strict:
            about = ""
            if any(difference.startswith("order:") for difference in differences):
                about = (
                    ". 'order' is a digest of what the sampler or mixture was made of: window and "
                    "block, weights, labels or lengths, its own seed, the names of shards"
                )
            raise ValueError(
                message
                + about
                + ". Build the loader as it was built then; or go to the start of an epoch "
                "by set_epoch(); or pass strict=False, which repeats samples or leaves some out if "
                "the order is another"
            )
        warnings.warn(message, UserWarning, stacklevel=3)
    return checked_position(epoch, cursor, limit)


def checked_position(epoch: object, cursor: object, limit: int | None) -> Position:
    """A position, its cursor at most ``limit``, None if that is unknown.

    Raises:
        TypeError: The epoch or the cursor is not an integer.
        ValueError: One is out of range.
    """
    position = Position(
        _checks.epoch(epoch), _checks.integer("cursor", cursor, limit=_checks.LENGTH_LIMIT)
    )
    if limit is not None and position.cursor > limit:
        raise ValueError(
            f"cursor must be at most the length {limit} of this dataset, got {position.cursor}; "
            "does it belong to a longer one?"
        )
    return position


def _same(saved: object, here: Setting) -> bool:
    if here is None or isinstance(here, bool):
        return saved is here
    try:
        return not isinstance(saved, bool) and _checks.integer("setting", saved) == here
    except (TypeError, ValueError):
        return False


class Progress:
    """The position of a loader or sampler, and what each event does to it.

    Only the newest pass moves the position. Passes are held weakly, so that an abandoned one goes
    away at once, with its workers; one that is dropped before it began never was.
    """

    def __init__(self) -> None:
        self.position = Position()
        self._loaded = False  # the position came from load() and no pass has begun there yet
        self._unfinished = False  # the newest pass that began has not come to its end
        self._next_epoch: int | None = None  # set_epoch() while a pass runs
        self.told = False  # a trainer has set the epoch of the next pass that begins
        self._loads = 0
        self._made = 0
        self._planned: list[weakref.ref[Run]] = []
        self._leader: weakref.ref[Run] | None = None  # the newest that began
        self._leader_number = 0

    def plan(self) -> Run:
        """A new pass, which begins when its first batch is asked for."""
        planned = self._newest_planned()
        if planned is not None:
            planned.freeze(self.position)
        self._reclaim()
        if self._unfinished:
            self._advance()
        self._made += 1
        run = Run(self, self._made)
        self._planned.append(weakref.ref(run))
        return run

    def has_planned(self) -> bool:
        """Whether there is a pass that has not begun."""
        return self._newest_planned() is not None

    def set_epoch(self, epoch: int) -> None:
        """The next pass, or the planned one, is of this epoch; a running one is not disturbed."""
        epoch = _checks.epoch(epoch)
        if self._reclaim():
            self._next_epoch = epoch
        elif not (self._loaded and epoch == self.position.epoch):
            self._settle(Position(epoch, 0), loaded=False)

    def tell(self, epoch: int, *, looks_ahead: bool) -> None:
        """`set_epoch` by a trainer, before each of its epochs.

        Args:
            epoch: In ``[0, 2**32)``.
            looks_ahead: Whether trainers ask for a batch of this order before they set the epoch.

        Raises:
            RuntimeError: One did.
        """
        epoch = _checks.epoch(epoch)
        leader = None if self._leader is None else self._leader()
        running = self._reclaim()
        if looks_ahead and running and leader is not None and not leader.told:
            raise RuntimeError(
                "a batch was asked for before its epoch was set: the trainer looks one batch "
                "ahead, because this stream has no length, so the position that it saves would be "
                "one batch too far. Give the dataset a __len__, or the trainer a number of "
                "batches, in Lightning Trainer(limit_train_batches=1000)"
            )
        at, loaded = self.position, self._loaded and not running
        if loaded and (epoch < at.epoch or (epoch > at.epoch and at.cursor == 0)):
            warnings.warn(
                f"the trainer goes to epoch {epoch}, and gives up what is left at the loaded "
                f"position epoch={at.epoch}, cursor={at.cursor}. It does so if its checkpoint is "
                "of a moment that it can't resume from, or if it begins a shorter loader anew "
                "within an epoch; save when a batch, or validation, has ended",
                UserWarning,
                stacklevel=3,
            )
        self.set_epoch(epoch)
        self._loaded = self._loaded or loaded  # its pass has still to begin
        self.told = True

    def load(self, position: Position) -> None:
        """Go to a saved position; a pass that runs is over."""
        self._loads += 1
        self._settle(position, loaded=True)

    def _begin(self, run: Run) -> tuple[Position, bool] | None:
        """Where a pass begins, and whether that was loaded; None if a newer one was planned."""
        newest = self._newest_planned() is run and run.number > self._leader_number
        if run.number > self._leader_number:
            self._leader, self._leader_number = weakref.ref(run), run.number
        if not newest:
            return None
        resumed, self._loaded = self._loaded, False
        run.told, self.told = self.told, False
        self._unfinished = True
        return self.position, resumed

    def _deliver(self, run: Run, position: Position) -> None:
        if self._leads(run):
            self.position = position
            self._unfinished = True

    def _finish(self, run: Run) -> None:
        if not self._leads(run):
            return
        if self._next_epoch == run.position.epoch:
            self._next_epoch = None
        self.position = run.position
        self._advance()

    def _advance(self) -> None:
        """The epoch is over, and the next pass is of the epoch after it, or of the one set."""
        following = self.position.epoch + 1
        epoch = following if self._next_epoch is None else self._next_epoch
        self._settle(Position(epoch, 0), loaded=False)

    def _settle(self, position: Position, *, loaded: bool) -> None:
        self.position = position
        self._loaded = loaded
        self._unfinished = False
        self._next_epoch = None

    def _newest_planned(self) -> Run | None:
        self._planned = [ref for ref in self._planned if (run := ref()) and not run.begun]
        return self._planned[-1]() if self._planned else None

    def _leads(self, run: Run) -> bool:
        planned = self._newest_planned()
        newer = planned is not None and planned.number > run.number
        return not newer and self._leader is not None and self._leader() is run

    def _reclaim(self) -> bool:
        """Whether a pass runs; if so the position is its, though a dropped one was planned."""
        leader = None if self._leader is None else self._leader()
        if leader is None or not leader.runs() or not self._leads(leader):
            return False
        self.position = Position(leader.position.epoch, leader.cursor)
        self._unfinished = True
        return True

    def __getstate__(self) -> dict[str, object]:
        # A copy has no pass of its own: it resumes where a running one stands.
        running = self._reclaim()
        return self.__dict__ | {
            "_planned": [],
            "_leader": None,
            "_loaded": self._loaded or running,
            "_unfinished": self._unfinished and not running,
            "_next_epoch": None if running else self._next_epoch,
        }


class Run:
    """One pass's hold on the position.

    Attributes:
        number: Passes are counted as they are planned.
        begun: Whether its first batch was asked for.
        finished: Whether it came to its end.
        resumed: Whether it began at a loaded position.
        told: Whether a trainer set its epoch before it began.
        position: Where it began.
        cursor: How far it came.
    """

    def __init__(self, progress: Progress, number: int) -> None:
        self.number = number
        self.begun = False
        self.finished = False
        self.resumed = False
        self.told = False
        self.position = progress.position
        self.cursor = self.position.cursor
        self._progress = progress
        self._loads = progress._loads

    @property
    def planned(self) -> Position:
        """Where it began, or will begin as things stand."""
        newest = self._progress._newest_planned() is self
        return self._progress.position if newest else self.position

    def freeze(self, position: Position) -> None:
        """A newer pass was planned: begin here, whatever happens to the loader's position."""
        self.position = position

    def begin(self) -> Position:
        """The first batch is asked for: settle where the pass begins."""
        begun = self._progress._begin(self)
        if begun is not None:
            self.position, self.resumed = begun
            self._loads = self._progress._loads
        self.begun = True
        self.cursor = self.position.cursor
        _checks.epoch(self.position.epoch)
        return self.position

    def runs(self) -> bool:
        """Whether it has begun, has not come to its end, and no state was loaded since."""
        return self.begun and not self.finished and self._loads == self._progress._loads

    def check(self) -> None:
        """Refuse to go on after a state was loaded.

        Raises:
            RuntimeError: ``load_state_dict`` was called since the pass began.
        """
        if self._loads != self._progress._loads:
            raise RuntimeError(
                "this pass began before load_state_dict() moved the position; "
                "start a new one with iter(loader)"
            )

    def deliver(self, cursor: int) -> None:
        """A batch is handed to the loop, and ``cursor`` positions of the epoch with it."""
        self.cursor = cursor
        self._progress._deliver(self, Position(self.position.epoch, cursor))

    def finish(self, *, empty: bool) -> None:
        """The pass came to its end; ``empty`` if it had no batch at all."""
        if self.finished:
            return
        self.finished = True
        self._progress._finish(self)
        if empty and self.resumed and self.position.cursor > 0:
            warnings.warn(
                f"nothing is left of epoch {self.position.epoch} at the loaded cursor "
                f"{self.position.cursor}, so this pass is empty; the next is epoch "
                f"{self.position.epoch + 1}. That is right if the state was saved at the epoch's "
                "last batch",
                UserWarning,
                stacklevel=3,
            )
