"""The counter of lines: a feature changes no file of a project."""

from pathlib import Path

import pytest
from forked import run_program

HERE = Path(__file__).resolve().parents[1] / "benchmarks" / "complexity"
PATH = f"import sys; sys.path.insert(0, {str(HERE)!r})"
PROGRAM = """
import run
from dataclasses import replace
import composed
from composed import FEATURES

assert len(FEATURES) == 12
for feature in FEATURES:
    count = run.count_composed(feature, 2, 2)
    assert count.changed == 0 and count.new > 0, feature.name

# Parallelism: a family writes nothing, and a component of its own one declaration.
declared = {feature.name: composed.declared(feature) for feature in FEATURES}
assert declared["swiglu"] == 4 and declared["moe"] > 0, declared
assert not any(declared[name] for name in ("rope", "parallel_block", "tensor", "context")), declared
for name in ("swiglu", "lora", "moe"):
    (feature,) = (one for one in FEATURES if one.name == name)
    whole = run.undivided(feature, 2, 2)
    assert all(path.endswith(".router") for path in whole), whole

try:
    run.count_composed(replace(FEATURES[0], fiddler="pass"), 1, 1)
except AssertionError as error:
    assert "holds no lab.features.rope.RoPE" in str(error)
else:
    raise SystemExit("a feature that is not there was counted")
"""


@pytest.mark.slow
def test_a_feature_changes_no_file_of_a_project(tmp_path: Path):
    run_program(PATH + PROGRAM, folder=tmp_path)
