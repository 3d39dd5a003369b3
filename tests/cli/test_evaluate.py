"""The command `evaluate` on a run of two steps: losses, the harness's numbers, and refusals."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest

from fidgpt.cli import evaluate, export
from fidgpt.train.evaluation import Validation

from .conftest import Command

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parents[1] / "train" / "harness_tasks"


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
@pytest.mark.filterwarnings("ignore")
def test_tasks_are_run_on_the_newest_checkpoint(command: Command, run: str, tmp_path: Path) -> None:
    for path in TASKS.iterdir():
        text = path.read_text(encoding="utf-8").replace("FOLDER", str(tmp_path))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    asked = ["--tasks=fidgpt_choice,fidgpt_text", f"--include_path={tmp_path}"]
    output = tmp_path / "results.json"
    status, out, err = command(evaluate.main, run, *asked, f"--out={output}")
    assert (status, err) == (0, "")
    results = json.loads(output.read_text())
    assert f"{results['fidgpt_choice']['acc']:.4f} ± " in out
    assert f"{results['fidgpt_text']['bits_per_byte']:.4f}" in out
    assert "no task 'nothing'" in command(evaluate.main, run, "--tasks=nothing").err


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm-evaluation-harness is installed")
def test_without_the_harness_the_extra_is_named(command: Command, run: str) -> None:
    assert "fidgpt[lm-eval]" in command(evaluate.main, run, "--tasks=fidgpt_choice").err


def test_a_run_is_measured_as_it_measured_itself_and_on_whole_texts(
    command: Command, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results.json"
    status, out, _ = command(evaluate.main, run, f"--out={output}")
    row = json.loads((Path(run) / "metrics.jsonl").read_text().splitlines()[-1])
    own = {name.partition("/")[2]: row[name] for name in row if name.startswith("validation/")}
    assert (status, json.loads(output.read_text())) == (0, {"validation": own})
    assert f"{own['loss']:.4f}" in out and own["bits_per_byte"] > 0
    line = "A text that no run has seen. "
    (tmp_path / "notes.txt").write_text(line * 9, encoding="utf-8")
    rows = [json.dumps({"body": line * 3})] * 3
    (tmp_path / "notes.jsonl").write_text("\n".join(rows), encoding="utf-8")
    texts = [f"--text={tmp_path / name}" for name in ("notes.txt", "notes.jsonl")]
    flags = ["--text_field=body", "--seq_len=8", "--batch_size=7", f"--out={output}"]
    assert command(evaluate.main, run, *texts, *flags).status == 0
    plain, lines = json.loads(output.read_text()).values()
    nats, bits = plain["loss"], plain["bits_per_byte"]
    assert bits == pytest.approx(nats / math.log(2), rel=1e-3)  # a byte is a token
    assert lines["loss"] == pytest.approx(nats, rel=0.05)
    short = command(evaluate.main, run, texts[0], "--seq_len=900")
    assert short.status == 2 and "set a smaller seq_len" in short.err
    monkeypatch.setattr(Validation, "__call__", Mock(side_effect=ValueError("no such place")))
    assert "cannot be used: no such place" in command(evaluate.main, run, texts[0]).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}"], "holds no run"),
        (["{}", "--limit=3"], "--limit has no effect without --tasks"),
        (["{}", "--tasks=one", "--seq_len=3"], "--seq_len has no effect without --text."),
        *((["{}", "--tasks=one", f"--out={name}"], "cannot be written: name a file in a folder")
          for name in ("{}/nowhere/results.json",)),
    ],
)  # fmt: skip
def test_mistakes(command: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    status, _, err = command(evaluate.main, *(one.format(tmp_path) for one in arguments))
    assert status == 2 and message in err


def test_a_hub_model_needs_a_text_or_a_task(command: Command, run: str, tmp_path: Path) -> None:
    hub = str(tmp_path / "hub")
    assert command(export.main, run, hub).status == 0
    assert "--text=books.jsonl" in command(evaluate.main, hub).err
