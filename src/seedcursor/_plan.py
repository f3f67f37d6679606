"""What a loader and a batch sampler share: an order, how it is cut, and a position in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import define, field

from seedcursor import _world
from seedcursor._order import Order, Step
from seedcursor._position import VERSION, Position, Progress, Setting, read_state
from seedcursor._sharding import Shape


@define
class Plan:
    """An order, how it is cut into steps, and where the run stands in it.

    Attributes:
        order: What is visited.
        seed: The root seed.
        shuffle: Whether the order is shuffled, None if that is a sampler's secret.
        batch_size: Positions per rank and step.
        drop_last: Whether a short last step is left out.
        pad: Whether all ranks make the same number of steps.
        world: The rank and world size that the user gave, or None to ask when a pass begins.
        progress: The position.
    """

    order: Order
    seed: int
    shuffle: bool | None
    batch_size: int
    drop_last: bool
    pad: bool
    world: tuple[int, int] | None
    progress: Progress = field(factory=Progress)

    def shape(self) -> Shape:
        """How a step is cut, for this rank as of now."""
        rank, world_size = self.world or _world.current_world()
        return Shape(self.batch_size, self.drop_last, self.pad, rank, world_size)

    def steps(self, start: Position) -> Iterator[Step]:
        """This rank's steps from a position on."""
        return self.order.steps(start, self.shape())

    def settings(self) -> dict[str, Setting]:
        """What a state is compared with."""
        digest = self.order.digest
        return {
            "version": VERSION,
            "seed": self.seed,
            "length": self.order.length,
            "shuffle": self.shuffle,
            **({} if digest is None else {"order": digest}),
        }

    def state(self, position: Position) -> dict[str, Setting]:
        """What a position is saved as."""
        settings = self.settings()
        version = settings.pop("version")
        return {"version": version, "epoch": position.epoch, "cursor": position.cursor, **settings}


class Positioned:
    """The position's public face, for whatever has a plan."""

    _plan: Plan

    @property
    def epoch(self) -> int:
        """The epoch of the position."""
        return self._plan.progress.position.epoch

    @property
    def cursor(self) -> int:
        """How many positions of the epoch were delivered to the loop, all ranks together."""
        return self._plan.progress.position.cursor

    def set_epoch(self, epoch: int) -> None:
        """The pass that begins next is of this epoch.

        Not needed where epochs follow each other. A loaded position is kept if it is of this
        epoch; a pass that runs is not disturbed.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        self._plan.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, int | bool | None]:
        """The position, as plain values: O(1), without side effects, the same on every rank.

        Returns:
            ``epoch`` and ``cursor``, and ``version``, ``seed``, ``length`` (None if unknown) and
            ``shuffle`` (None with a sampler of the user's own), which `load_state_dict` compares;
            for a `Mixture` and this library's samplers also ``order``, a digest of their
            arguments. Under 200 bytes as JSON.
        """
        return self._plan.state(self._plan.progress.position)

    def load_state_dict(self, state: Mapping[str, object], strict: bool = True) -> None:
        """Go to a saved position: the next pass delivers exactly what was not delivered yet.

        A pass that runs is over: its next batch raises ``RuntimeError``.

        Args:
            state: What ``state_dict()`` returned; ``epoch`` and ``cursor`` are enough. It may come
                from any number of workers or ranks, and any batch size.
            strict: Whether another seed, length, shuffle or version is an error; else it warns.

        Raises:
            TypeError: A value is of the wrong type.
            ValueError: A key is missing, a value out of range, or a setting differs. Then nothing
                has changed.
        """
        position = read_state(
            state, self._plan.settings(), limit=self._plan.order.limit, strict=strict
        )
        self._plan.progress.load(position)
