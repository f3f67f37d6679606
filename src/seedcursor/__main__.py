"""The command line: ``python -m seedcursor audit TARGET``, or ``index FILES...``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from seedcursor._audit._run import audit
from seedcursor._audit._target import NoTarget, found_target
from seedcursor._audit._verdicts import CHECKS
from seedcursor._shards._index import CHUNK_BYTES, index_shards

# Experiments that an audit takes at most, for the bar.
_EXPERIMENTS = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 if nothing was found, 1 if something was, 2 if it could not run.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (NoTarget, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"seedcursor: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _audit(options: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):
        target = found_target(options.target)
    with _bar() as tick:
        report = audit(
            target,
            num_workers=options.workers,
            epochs=options.epochs,
            samples=options.samples,
            batch_size=options.batch_size,
            start_method=options.start_method,
            ignore=options.ignore,
            seed=options.seed,
            timeout=options.timeout,
            name=options.target,
            progress=tick,
        )
    if options.html:
        report.to_html(options.html)
    print(report.to_json() if options.json else report)
    return 0 if report.ok else 1


def _index(options: argparse.Namespace) -> int:
    records = index_shards(options.files, options.output, chunk_bytes=options.chunk_bytes)
    print(f"{options.output}: {records} records in {len(options.files)} shards")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="seedcursor")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    command = commands.add_parser("audit", help="find what is wrong with a dataset's randomness")
    command.set_defaults(run=_audit)
    command.add_argument("target", metavar="TARGET", help="module:name or path/file.py:name")
    command.add_argument("--workers", type=_counts, default=(0, 2), metavar="0,2")
    command.add_argument("--epochs", type=int, default=2)
    command.add_argument("--samples", type=int, metavar="N")
    command.add_argument("--batch-size", type=int, metavar="B")
    command.add_argument("--start-method", default="fork", metavar="fork")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--html", metavar="FILE", help="write a page with a picture")
    command.add_argument(
        "--ignore", action="append", default=[], metavar="CHECK", choices=list(CHECKS)
    )
    command.add_argument("--seed", type=int, default=0, metavar="S")
    command.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    command = commands.add_parser("index", help="index a corpus of many files")
    command.set_defaults(run=_index)
    command.add_argument("files", nargs="+", metavar="FILES", help="JSON Lines, Parquet or tar")
    command.add_argument("-o", "--output", default="index.json", metavar="index.json")
    command.add_argument("--chunk-bytes", type=int, default=CHUNK_BYTES, metavar="N")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """One line, as for everything that can't run."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[], None]]:
    """A bar on a terminal, gone at the end; nothing elsewhere."""
    done = 0

    def tick() -> None:
        nonlocal done
        done = min(done + 1, _EXPERIMENTS)
        bar = "#" * done + "." * (_EXPERIMENTS - done)
        print(f"\r[{bar}]\r", end="", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield lambda: None
        return
    try:
        yield tick
    finally:
        print(f"\r{' ' * (_EXPERIMENTS + 2)}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
