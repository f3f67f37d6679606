"""Run the measures and print a table: ``python benchmarks/run.py [NAME...]``.

A name stands for every measure that begins with it; those on a gigabyte run only by name. Timings
are noisy, so the table marks what is over its limit, and leaves the judgement to the reader.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from functools import partial

import measures
import pipelines
import streams
from samples import Ints, Rows
from timing import Comparison, compare, readable

from seedcursor.integrations.albumentations import SeededAlbumentations
from seedcursor.integrations.generators import SeededGenerators
from seedcursor.integrations.monai import SeededMonai

MEASURES: dict[str, Callable[[], Comparison]] = {
    "generators": measures.generators,
    "keyed-globals": measures.keyed_globals,
    "permutation": measures.permutation,
    "pass-ints-2-workers": partial(measures.pass_without_draws, Ints(measures.PASS), 2, 1.15),
    "pass-ints-0-workers": partial(measures.pass_without_draws, Ints(measures.PASS), 0, 1.6),
    "pass-rows-2-workers": partial(measures.pass_without_draws, Rows(measures.PASS), 2, 1.15),
    "pass-rows-0-workers": partial(measures.pass_without_draws, Rows(measures.PASS), 0, 1.6),
    "pass-draws-2-workers": partial(measures.pass_with_draws, 2),
    "pass-draws-0-workers": partial(measures.pass_with_draws, 0),
    "resume-map-0-workers": partial(measures.resume_map, 0),
    "resume-map-2-workers": partial(measures.resume_map, 2),
    "resume-stream-0-workers": partial(measures.resume_stream, 0),
    "resume-stream-2-workers": partial(measures.resume_stream, 2),
    "first-batch": measures.first_batch,
    "mixture-position": measures.mixture_position,
    "mixture-by-hand": measures.mixture,
    "corpus-resume": streams.corpus_resume,
    "corpus-resume-skipping": streams.corpus_resume_skipping,
    "corpus-pass-2-workers": streams.corpus_pass,
    "corpus-pass-tar-2-workers": streams.corpus_pass_tar,
    "gigabyte-resume": partial(streams.corpus_resume, 10 * streams.RECORDS),
    "gigabyte-resume-skipping": partial(streams.corpus_resume_skipping, 10 * streams.RECORDS),
    "plan-step": measures.plan_step,
    "state-dict": measures.state_dict,
    "memory": measures.memory,
    "adapter-generators": partial(measures.adapter, SeededGenerators, pipelines.ByHand),
    "adapter-albumentations": partial(
        measures.adapter, SeededAlbumentations, pipelines.albumentations_chain
    ),
    "adapter-monai": partial(measures.adapter, SeededMonai, pipelines.monai_chain),
}
LINE = "{:<25} {:<52} {:>8} {:>8} {:>8} {:>8}  {}"


def chosen(words: list[str]) -> list[str]:
    """The measures that the words stand for; if there are none, all that are quick."""
    for word in words:
        if not any(name.startswith(word) for name in MEASURES):
            raise SystemExit(f"no measure begins with {word!r}; there are {', '.join(MEASURES)}")
    if not words:
        return [name for name in MEASURES if not name.startswith("gigabyte")]
    return [name for name in MEASURES if name.startswith(tuple(words))]


def row(name: str) -> str:
    """Run a measure; its line of the table."""
    comparison = MEASURES[name]()
    result = compare(comparison)
    return LINE.format(
        name,
        comparison.against,
        readable(result.ours, comparison.unit),
        readable(result.theirs, comparison.unit),
        f"{result.ratio:.3g}",
        f"{comparison.at_most:g}",
        "ok" if result.ratio <= comparison.at_most else "over",
    )


def main() -> None:
    """Print the table, a line as each measure is done."""
    # PyTorch warns where workers outnumber the cores, torchdata where it reads through a stream,
    # datasets where it fills its shuffle buffer anew.
    warnings.simplefilter("ignore")
    for name in ("torchdata", "datasets.iterable_dataset"):
        logging.getLogger(name).setLevel(logging.ERROR)
    names = chosen(sys.argv[1:])
    print(LINE.format("measure", "against", "ours", "theirs", "ratio", "at most", ""))
    for name in names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
