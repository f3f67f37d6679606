"""Which positions of a step belong to which rank.

Global step ``g`` of a pass that began at cursor ``c`` covers the ``span = batch_size * world_size``
positions from ``c + g * span``. They are dealt like cards: rank ``r`` takes the first position plus
``r``, ``r + world_size``, and so on, so a short step's shares are the beginnings of full ones.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Shape:
    """How a step is cut.

    Attributes:
        batch_size: Positions per rank and step.
        drop_last: Whether a short last step is left out.
        pad: Whether every rank makes the same number of steps, by repeating a sample where needed.
        rank: This process, in ``[0, world_size)``.
        world_size: How many processes share a step.
    """

    batch_size: int
    drop_last: bool
    pad: bool
    rank: int
    world_size: int

    @property
    def span(self) -> int:
        """Positions per full step, all ranks together."""
        return self.batch_size * self.world_size

    def share(self, first: int, stop: int) -> range:
        """This rank's positions of the step ``[first, stop)``, the padding not included."""
        return range(first + self.rank, stop, self.world_size)

    def short_of(self, first: int, stop: int) -> bool:
        """Whether this rank has a sample less than rank 0 in the step ``[first, stop)``.

        If so, the step's first position is what it repeats: fewer than ``world_size`` ranks do.
        """
        return self.pad and 0 < (stop - first) % self.world_size <= self.rank

    def steps(self, length: int) -> int:
        """How many batches this rank gets from ``length`` positions."""
        full, rest = divmod(length, self.span)
        if self.drop_last or rest == 0:
            return full
        return full + 1 if self.pad or self.rank < rest else full
