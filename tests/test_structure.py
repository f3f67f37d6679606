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
    {"_checks", "_sharding"},
    {"_keys", "_position", "_world"},
    {"_permutation", "_rng", "_process"},
    {"_batch", "_worker"},
    {"_keyed", "_order"},
    {"_plan"},
    {"_dataset", "_sampler"},
    {"_fetch", "_tolerant", "_wrapper"},
    {"_pass"},
    {"_loader"},
    {"__init__"},
]
WITHOUT_TORCH = {"_checks", "_sharding", "_keys", "_position", "_permutation"}
PUBLIC = {
    "KeyedPermutation",
    "SKIP",
    "SeededDataset",
    "StatefulBatchSampler",
    "StatefulDataLoader",
    "StatefulDataset",
    "StatefulIterableDataset",
    "TolerantDataset",
    "batch_rng",
    "load_rng_state_dict",
    "rng_state_dict",
    "sample_rng",
    "seed_worker",
    "seeded",
}


def imported(source):
    """The modules that a file's text imports: ours by their last name, others by their first."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= (
                {f"seedcursor.{alias.name}" for alias in node.names}
                if module == "seedcursor"
                else {module}
            )
    return {name.split(".")[1 if name.startswith("seedcursor.") else 0] for name in names}


def breaches(name, source):
    """What a file imports of ours that does not lie in a row above it."""
    every = set().union(*LAYERS)
    row = next(k for k, layer in enumerate(LAYERS) if name in layer)
    return imported(source) & every - set().union(*LAYERS[:row])


def sources():
    return {path.stem: path.read_text() for path in SOURCE.glob("*.py")}


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


def test_rooms_without_torch():
    for name in WITHOUT_TORCH:
        assert "torch" not in imported(sources()[name])
        assert imported(sources()[name]) & set().union(*LAYERS) <= WITHOUT_TORCH


def test_the_package_names_what_is_public():
    names = {name for name in vars(seedcursor) if not name.startswith("_")}
    assert names == PUBLIC


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
