"""Every animal of the zoo with every seed; too long for each change."""

import pytest
from test_audit import ZOO, audited

SEEDS = 20


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("animal", ZOO, ids=lambda animal: animal.name)
def test_no_miss_and_no_false_alarm(animal, seed):
    report = audited(animal, seed=seed)
    assert sorted(f.check for f in report.findings) == sorted(animal.faults), str(report)
