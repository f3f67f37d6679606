"""The layers, the exports and the docstrings."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import seedcursor

SOURCE = Path(seedcursor.__file__).parent

# A file imports only from rows above its own.
LAYERS = [
    {"_around", "_checks", "_sharding"},
    {"_record", "_position", "_world"},
    {"_keys", "_occurrences"},
    {"_keyed_sampler", "_permutation", "_rng", "_process", "_shares"},
    {"_batch", "_lengths", "_packing", "_weighted", "_worker"},
    {"_keyed", "_order"},
    {"_plan"},
    {"_dataset", "_mixed", "_sampler"},
    {"_fetch", "_iterated", "_mixture", "_tolerant", "_wrapper"},
    {"_pass"},
    {"_loader"},
    {"_shards", "_shards._source"},
    {"_shards._format"},
    {"_shards._jsonl", "_shards._parquet", "_shards._tar"},
    {"_shards._index"},
    {"_shards._dataset"},
    {"_shards._windows"},
    {"_audit", "_audit._digest", "_audit._isolate", "_audit._globals", "_audit._page"}
    | {"_audit._text", "_audit._wording"},
    {"_audit._held", "_audit._sources", "_audit._batches"},
    {"_audit._trial", "_audit._blame"},
    {"_audit._workers"},
    {"_audit._report", "_audit._lab"},
    {"_audit._said"},
    {"_audit._check_draws", "_audit._check_records"},
    {"_audit._check_keys", "_audit._check_places"},
    {"_audit._verdicts"},
    {"_audit._run", "_audit._target"},
    {"__init__", "__main__", "testing"},
    {"integrations", "integrations.generators"},
    {"integrations.albumentations", "integrations.lightning", "integrations.monai"}
    | {"integrations.accelerate", "integrations.datasets", "integrations.transformers"},
]
WITHOUT_TORCH = {"_checks", "_sharding", "_record", "_keys", "_position", "_permutation", "_shares"}
PUBLIC = {
    "AuditReport",
    "BalancedSampler",
    "Finding",
    "IterableMixture",
    "IteratedDataset",
    "KeyedPermutation",
    "KeyedSampler",
    "LengthBatchSampler",
    "Mixture",
    "Occurrence",
    "Occurrences",
    "PackedBatchSampler",
    "Packer",
    "SKIP",
    "SeededDataset",
    "ShardFormat",
    "ShardedDataset",
    "StatefulBatchSampler",
    "StatefulDataLoader",
    "StatefulDataset",
    "StatefulIterableDataset",
    "TolerantDataset",
    "TolerantIterableDataset",
    "WeightedSampler",
    "WeightedShuffle",
    "WindowedSampler",
    "audit",
    "batch_rng",
    "index_shards",
    "load_rng_state_dict",
    "rng_state_dict",
    "sample_rng",
    "seed_worker",
    "seeded",
}


def imported(source):
    """The modules that a file's text imports: ours within the package, others by first name."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= (
                {f"{module}.{alias.name}" for alias in node.names}
                if module.removeprefix("seedcursor.") in {"seedcursor", *packages()}
                else {module}
            )
    ours, others = "seedcursor.", {name for name in names if not name.startswith("seedcursor.")}
    return {name.removeprefix(ours) for name in names - others} | {
        name.split(".")[0] for name in others
    }


def packages():
    """The sub-packages, whose files are named with theirs."""
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def breaches(name, source):
    """What a file imports of ours that does not lie in a row above it."""
    every = set().union(*LAYERS)
    row = next(k for k, layer in enumerate(LAYERS) if name in layer)
    return imported(source) & every - set().union(*LAYERS[:row])


def sources():
    files = {path.relative_to(SOURCE).with_suffix(""): path for path in SOURCE.rglob("*.py")}
    named = {".".join(name.parts): path.read_text() for name, path in files.items()}
    return {name.removesuffix(".__init__"): source for name, source in named.items()}


def integrations():
    return {name for name in sources() if name.startswith("integrations.")}


def test_every_file_has_a_row():
    assert set(sources()) == set().union(*LAYERS)


def test_files_import_only_from_rows_above():
    found = {name: breaches(name, source) for name, source in sources().items()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from seedcursor._loader import StatefulDataLoader",
        "from seedcursor import _sampler",
        "import seedcursor._fetch",
        "def f():\n    from seedcursor import _dataset",
    ],
)
def test_a_breach_would_be_seen(line):
    assert breaches("_keys", line)


@pytest.mark.parametrize("name", sorted(integrations()))
def test_an_adapter_uses_public_names_and_its_own_framework(name):
    names = imported(sources()[name]) - set(sys.stdlib_module_names)
    framework = name.removeprefix("integrations.")
    assert names <= PUBLIC | {
        "integrations.generators",
        "numpy",
        "torch",
        framework,
        f"pytorch_{framework}",
    }


def test_nothing_imports_the_adapters():
    others = set(sources()) - integrations()
    assert not [name for name in others if imported(sources()[name]) & integrations()]


def test_rooms_without_torch():
    for name in WITHOUT_TORCH:
        assert "torch" not in imported(sources()[name])
        assert imported(sources()[name]) & set().union(*LAYERS) <= WITHOUT_TORCH


def test_the_package_names_what_is_public():
    modules = {name.split(".")[0] for row in LAYERS for name in row}
    names = {name for name in vars(seedcursor) if not name.startswith("_")}
    assert names - modules == PUBLIC


IMPORTED = """
import sys
import numpy, torch
before = set(sys.modules)
import seedcursor
brought = [sys.modules[name] for name in set(sys.modules) - before]
print(*{getattr(module, "__file__", None) for module in brought})
"""


def test_the_package_brings_nothing_but_its_dependencies():
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    brought = {
        path.split("/site-packages/")[1].split("/")[0]
        for path in done.stdout.split()
        if "/site-packages/" in path
    }
    assert "attr" in brought
    assert brought <= {"seedcursor", "attr", "attrs", "numpy", "torch"}


def documented():
    for name in sorted(PUBLIC - {"SKIP"}):
        thing = getattr(seedcursor, name)
        yield name, thing
        if inspect.isclass(thing):
            for owner in inspect.getmro(thing):
                if owner.__module__.startswith("seedcursor"):
                    yield from (
                        (f"{name}.{member}", found)
                        for member, found in vars(owner).items()
                        if not member.startswith("_")
                        and (inspect.isfunction(found) or isinstance(found, property))
                    )


def test_everything_public_is_documented():
    for name, thing in documented():
        text = inspect.getdoc(thing) or ""
        assert text, name
        if callable(thing) and inspect.signature(thing).parameters.keys() - {"self"}:
            assert "Args:" in text, name
        if "." not in name:
            assert ">>> " in text, f"{name} needs an example, which the doctests run"


def test_parameters_are_pytorchs_in_order():
    theirs = list(inspect.signature(DataLoader).parameters)
    ours = list(inspect.signature(seedcursor.StatefulDataLoader).parameters)
    assert ours[: len(theirs)] == theirs
    assert ours[len(theirs) :] == ["seed", "rank", "world_size", "pad", "options"]
