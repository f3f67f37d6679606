"""The audit, on a zoo of datasets whose faults are known."""

import inspect
import json
import os
import random
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import attrs
import numpy as np
import pytest
import torch
import zoo
from zoo import FAULTY, RIGHT

import seedcursor
from seedcursor.testing import assert_reproducible

ZOO = FAULTY + RIGHT
CHECKS = {
    "unkeyed-numpy",
    "unkeyed-python",
    "unkeyed-torch",
    "private-rng",
    "repeated-randomness",
    "repeated-records",
    "missing-records",
    "worker-count",
    "frozen-epoch",
    "call-order",
    "start-method",
    "resume",
    "same-stream",
    "shared-key",
    "threads",
}


def audited(animal, **options):
    """A report; spawned workers, which take two seconds, only where they tell something."""
    ignore = [] if animal.spawn else ["start-method"]
    return seedcursor.audit(animal.make(), ignore=ignore, **options)


def by_name(name):
    return next(animal for animal in ZOO if animal.name == name)


@pytest.mark.parametrize("animal", ZOO, ids=lambda animal: animal.name)
def test_no_miss_and_no_false_alarm(animal):
    report = audited(animal)
    assert sorted(f.check for f in report.findings) == sorted(animal.faults), str(report)
    assert report.ok == (not animal.faults)
    for finding in report.findings:
        assert finding.severity in {"error", "warning"}
        assert finding.message.endswith(".")
        assert all([finding.where, finding.evidence, finding.fix])


def test_the_zoo_is_large_enough():
    assert len(FAULTY) >= 40
    assert len(RIGHT) >= 15
    faults = [fault for animal in FAULTY for fault in animal.faults]
    assert {fault for fault in faults if faults.count(fault) >= 2} >= CHECKS


# What a finding says.


def line_of(thing, text):
    lines, first = inspect.getsourcelines(thing)
    return first + next(k for k, line in enumerate(lines) if text in line)


def test_the_line_that_drew_is_named_with_its_callers():
    (finding,) = audited(by_name("jitter")).findings
    assert finding.where == f"{zoo.__file__}:{line_of(zoo.Jitter, 'uniform')}"
    chain = finding.evidence.splitlines()[-1]
    assert f":{line_of(zoo.VisionLike, 'self.transform(value)')} in __getitem__ > " in chain
    assert chain.count(f":{line_of(zoo.Compose, 'transform(value)')} in __call__") == 3
    assert chain.endswith(f"{finding.where} in __call__")


def test_a_line_inside_a_library_is_its_callers():
    (finding,) = audited(by_name("choice")).findings
    assert finding.where.startswith(zoo.__file__)
    assert "random.py" in finding.evidence


def doubled(index):
    return index * 2


class AfterACall(zoo.SomeValues):
    def __getitem__(self, index):
        return doubled(index) + np.random.rand()


def test_a_call_that_returned_before_is_not_blamed():
    (finding,) = seedcursor.audit(AfterACall(), samples=4, ignore=["start-method"]).findings
    assert finding.where == f"{__file__}:{line_of(AfterACall, 'doubled')}"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("held", "dataset.rng"),
        ("monai", "dataset.transform.transforms[0].transforms[0].transforms[0].R"),
        ("holder", "dataset.transform.func.py_random"),
        ("closure", "dataset.make.rng"),
        ("module", "zoo.SHARED"),
        ("held, keyed too", "dataset.datasets[0].rng"),
        ("loader, held", "loader.dataset.rng"),
    ],
)
def test_held_generators_are_named_by_their_path(name, path):
    (finding,) = audited(by_name(name)).findings
    assert finding.where == path


def test_copies_in_workers_are_evidence_and_no_finding_of_their_own():
    (finding,) = audited(by_name("held")).findings
    assert "16 of 17 samples got the draws of another sample" in finding.evidence
    assert "17 of 17 samples got the same draws in the next epoch" in finding.evidence


def test_frozen_only_with_workers_that_live_on():
    (finding,) = audited(by_name("stale epoch")).findings
    assert "persistent_workers=True" in finding.evidence
    assert "persistent_workers=False" not in finding.evidence


# What the audit leaves alone.


def test_the_process_and_the_dataset_stay_as_they_are():
    dataset = by_name("held, counted").make()
    state = dataset.rng.bit_generator.state

    def everything():
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            np.random.default_rng,
            torch.Generator,
            torch.get_num_threads(),
        )

    before = everything()
    seedcursor.audit(dataset, ignore=["start-method"])
    assert everything() == before
    assert dataset.cache == {}
    assert dataset.rng.bit_generator.state == state


def test_a_report_is_frozen():
    report = audited(by_name("list"))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        report.findings = ()


def test_checks_are_made_unless_ignored():
    report = audited(by_name("normal"), samples=4)
    assert "unkeyed-numpy" in report.checks_run
    report = seedcursor.audit(
        by_name("normal").make(), samples=4, ignore=["unkeyed-numpy", "start-method"]
    )
    assert report.ok
    assert not {"unkeyed-numpy", "start-method"} & set(report.checks_run)


def test_large_datasets_are_sampled():
    report = audited(by_name("huge"))
    assert "looked at 24 of 1000000000000000 samples" in str(report)
    assert report.samples_compared < 1000


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ignore": ["unkeyed"]}, ValueError, "ignore must name checks"),
        ({"epochs": 0}, ValueError, "epochs must be an integer in"),
        ({"samples": 0}, ValueError, "samples must be an integer >= 1"),
        ({"num_workers": ()}, ValueError, "num_workers must have at least one number"),
        ({"start_method": "thread"}, ValueError, "start_method must be one of"),
        ({"timeout": 0.0}, ValueError, "timeout must be a positive number of seconds, got 0.0"),
    ],
)
def test_arguments_are_refused_with_what_is_allowed(options, error, message):
    with pytest.raises(error, match=message):
        seedcursor.audit([1, 2], **options)


@pytest.mark.parametrize("target", [5, zoo.Base, iter([1])])
def test_what_is_no_dataset_is_refused(target):
    with pytest.raises(TypeError, match="dataset_or_loader must be a dataset"):
        seedcursor.audit(target)


# Datasets that misbehave.


def test_a_dataset_that_hangs():
    report = seedcursor.audit(zoo.Hanging(), timeout=1)
    (finding,) = report.findings
    assert finding.check == "unreadable"
    assert finding.evidence == "dataset[3] did not return within 1 s"


def test_a_dataset_that_kills_its_process():
    (finding,) = audited(by_name("dies")).findings
    assert finding.evidence.startswith("dataset[3] ended its process: exit code 7")


def test_a_sample_that_raises_is_a_note():
    report = audited(by_name("failing"))
    assert report.ok
    assert "1 of 17 samples raised, such as 5: ValueError: record 5 is broken" in str(report)


def test_what_a_dataset_prints_is_not_shown(capfd):
    audited(by_name("printing"))
    assert capfd.readouterr() == ("", "")


# For users' own test suites.


def test_assert_reproducible():
    assert_reproducible(by_name("keyed").make(), ignore=["start-method"])
    with pytest.raises(AssertionError, match="error: unkeyed-numpy"):
        assert_reproducible(by_name("normal").make(), samples=4)
    assert callable(seedcursor.audit)


# The command line.


def command(*arguments, cwd=None):
    line = [sys.executable, "-m", "seedcursor", "audit", *arguments]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


TARGETS = """
import numpy as np, random, sys
print("imported")
class Noisy:
    def __len__(self):
        return 6
    def __getitem__(self, index):
        print("reading")
        return index + np.random.normal()
noisy = Noisy()
right = [1, 2, 3]
number = 5
def make():
    print("made")
    return noisy
def fails():
    raise KeyError("no data\\nhere")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "targets.py").write_text(TARGETS)
    return tmp_path


@pytest.mark.parametrize("target", ["targets:noisy", "targets.py:make", "targets:Noisy"])
def test_json_is_one_object_whatever_is_printed(folder, target):
    options = ["--json", "--samples", "4", "--workers", "0,1", "--ignore", "start-method"]
    done = command(target, *options, cwd=folder)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    keys = ["target", "ok", "findings", "checks_run", "samples_compared", "seconds"]
    assert list(found) == keys
    assert found["target"] == target
    (finding,) = found["findings"]
    assert list(finding) == ["check", "severity", "message", "evidence", "where", "fix"]
    assert finding["check"] == "unkeyed-numpy"
    assert finding["where"] == f"{folder / 'targets.py'}:9"


OPENCV = """
import cv2, numpy as np
from torch.utils.data import DataLoader
from seedcursor import seed_worker
class Blurred:
    def __len__(self):
        return 12
    def __getitem__(self, index):
        cv2.setNumThreads(16)
        return self.blur(index)
    def blur(self, index):
        return cv2.GaussianBlur(np.full((1000, 1000, 3), index, np.uint8), (9, 9), 0)[0, 0]
class AsItIs(Blurred):
    __getitem__ = Blurred.blur
many = Blurred()
capped = DataLoader(AsItIs(), batch_size=2, num_workers=2, worker_init_fn=seed_worker)
"""


@pytest.mark.parametrize(("target", "found"), [("many", ["threads"]), ("capped", [])])
def test_opencvs_threads(target, found, tmp_path):
    # In a process of its own: OpenCV's threads do not live on in what is forked from here.
    (tmp_path / "targets.py").write_text(OPENCV)
    done = command(f"targets:{target}", "--json", "--ignore", "start-method", cwd=tmp_path)
    assert [finding["check"] for finding in json.loads(done.stdout)["findings"]] == found


def test_nothing_found_is_status_0(folder):
    done = command("targets.py:right", "--html", "page.html", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "imported\n")
    assert "nothing found" in done.stdout
    assert (folder / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_terminal_has_a_bar_that_goes_away(folder):
    here, there = os.openpty()
    line = [sys.executable, "-m", "seedcursor", "audit", "targets:right"]
    line += ["--ignore", "start-method"]
    done = subprocess.run(line, cwd=folder, stdout=subprocess.PIPE, stderr=there, check=False)
    os.close(there)
    drawn = os.read(here, 100_000).decode()
    os.close(here)
    assert done.returncode == 0
    assert "\r[##" in drawn
    assert drawn.endswith(" \r")


def test_ignored_checks_are_not_made(folder):
    ignored = ["--ignore", "unkeyed-numpy", "--ignore", "start-method"]
    assert command("targets:noisy", *ignored, cwd=folder).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["targets:nothing"], "has no attribute 'nothing'"),
        (["nowhere:thing"], "No module named 'nowhere'"),
        (["nowhere.py:thing"], "there is no file nowhere.py"),
        (["targets"], "TARGET must be module:name"),
        (["targets:number"], "is no dataset, loader or callable"),
        (["targets:fails"], "raised KeyError"),
        (["targets:right", "--epochs", "0"], "epochs must be"),
        (["targets:right", "--ignore", "nothing"], "invalid choice: 'nothing'"),
        (["targets:right", "--html", "no/such/folder.html"], "No such file or directory"),
        ([], "the following arguments are required: TARGET"),
    ],
)
def test_what_can_not_run_is_status_2_and_one_line(folder, arguments, cause):
    done = command(*arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if line not in {"imported", "made"}]
    assert cause in line


# The page.

NASTY = "<script>alert(1)</script> & \"'"


class Nasty(zoo.SomeValues):
    def __getitem__(self, index):
        return NASTY, np.random.rand()


class Page(HTMLParser):
    """Every tag must be closed in its turn."""

    VOID = ("meta",)

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in self.VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_of(dataset, tmp_path, **options):
    path = tmp_path / "page.html"
    report = seedcursor.audit(dataset, ignore=["start-method"], **options)
    report.to_html(path)
    return report, path.read_text()


def test_a_page_is_whole_and_escapes_what_is_the_users(tmp_path):
    _, text = page_of(Nasty(), tmp_path, name=NASTY)
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "".join(page.words).count("<script>alert(1)</script>") >= 3
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def picture(text):
    """For each epoch, the colours that each worker's samples have."""
    found = []
    for part in text.split("<svg ")[1:]:
        svg = ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>")
        rows = {}
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect"):
            rows.setdefault(int(rect.get("y")), []).append(rect.get("fill"))
        found.append(list(rows.values()))
    return found


def test_copied_randomness_is_seen_in_the_picture(tmp_path):
    _, text = page_of(by_name("held").make(), tmp_path)
    first, second = picture(text)
    assert first == second
    assert first[0][:8] == first[1]
    assert len(set(first[1])) == 8


def test_keyed_draws_are_all_of_other_colours(tmp_path):
    _, text = page_of(by_name("keyed").make(), tmp_path)
    colours = [colour for epoch in picture(text) for row in epoch for colour in row]
    assert len(set(colours)) == len(colours) == 2 * zoo.N
    assert None not in colours


@pytest.mark.parametrize("name", ["stateful, global", "stateful stream"])
def test_a_loader_with_a_position_is_drawn_as_it_keys(name, tmp_path):
    drawn = []
    for num_workers in (0, 2):
        report, text = page_of(by_name(name).make(), tmp_path, num_workers=[num_workers])
        assert all(len(epoch) == max(1, num_workers) for epoch in picture(text))
        drawn.append({(record.epoch, record.place): record.draw for record in report.picture})
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == len(drawn[0]) > 2 * 16
    assert None not in drawn[0].values()


def test_a_loader_with_a_position_shows_what_it_cannot_key(tmp_path):
    _, text = page_of(by_name("loader, held").make(), tmp_path)
    first, second = picture(text)
    assert first == second
    assert set(first[0]) >= set(first[1])


def test_the_line_that_drew_is_shown_in_its_place(tmp_path):
    report, text = page_of(by_name("jitter").make(), tmp_path)
    number = report.findings[0].where.rpartition(":")[2]
    shown = text.partition('<pre class="source">')[2].partition("</pre>")[0]
    (marked,) = [part.partition("</b>")[0] for part in shown.split("<b>")[1:]]
    assert marked.split()[0] == number
    assert "np.random.uniform(-1, 1, 3)" in marked


# Values are compared to the bit.


class Alternating(zoo.SomeValues):
    """One value in the first reading of a sample, another one in the second."""

    def __init__(self, first, second):
        self.values = first, second
        self.read = set()

    def __getitem__(self, index):
        again = index in self.read
        self.read.add(index)
        return {"deep": [(index, self.values[again])]}


@attrs.frozen(eq=False)
class Point:
    x: object


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.ones(4), torch.ones(2, 2), False),
        (np.ones(2), np.ones(2, np.float32), False),
        (np.array(["a", None], object), np.array(["a", None], object), True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ((1, 2), [1, 2], False),
        (b"ab", b"ac", False),
        ({1, 2}, {2, 1}, True),
        (Point(np.ones(1)), Point(np.ones(1)), True),
        (Point(np.ones(1)), Point(np.zeros(1)), False),
        (1, True, False),
    ],
)
def test_values_are_compared_to_the_bit(one, other, same):
    report = seedcursor.audit(Alternating(one, other), samples=3, ignore=["start-method"])
    assert [f.check for f in report.findings] == ([] if same else ["call-order"])


def test_nothing_is_left_behind(tmp_path):
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    audited(by_name("held"), samples=4)
    after = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    assert len(after) <= len(before)
