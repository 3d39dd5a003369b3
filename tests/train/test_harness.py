"""Tasks of lm-evaluation-harness on a small model: its numbers are those computed by hand."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import started

from fidgpt import configs, fiddlers, parallel
from fidgpt.data import ByteTokenizer, DataError
from fidgpt.model import LanguageModel
from fidgpt.model.generation import score
from fidgpt.runs.building import build_trainer
from fidgpt.train import CrossEntropy, harness
from fidgpt.train.scores.answering import Examinee

try:
    import lm_eval  # noqa: F401  # pyright: ignore[reportMissingImports]
except ImportError as error:
    pytest.skip(f"lm-evaluation-harness is not installed: {error}", allow_module_level=True)

# The harness and what it imports warn of much that is not ours.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
CONTEXT = 256
HERE = Path(__file__).with_name("harness_tasks")
NAMES = ["fidgpt_choice", "fidgpt_text", "fidgpt_writing"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks, with paths to their data."""
    folder = tmp_path_factory.mktemp("tasks")
    for path in HERE.iterdir():
        text = path.read_text(encoding="utf-8").replace("FOLDER", str(folder))
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    lines = (HERE / "choices.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return started(build_trainer(configs.debug()).model).eval()


@pytest.fixture(scope="module")
def examinee(model: LanguageModel) -> Examinee:
    return Examinee(model, ByteTokenizer(), CONTEXT)


def nats(model: LanguageModel, before: str, after: str) -> float:
    """The log-probability of a text after another, by the command `sample --score`'s own way."""
    ids = [256, *(before + after).encode()]
    return score(model, ids, context=CONTEXT).log_probabilities[len(before.encode()) :].sum().item()


def test_the_numbers_are_those_by_hand(folder, documents, model, examinee):
    found = harness.Tasks(NAMES, include_path=folder).run(examinee, batch_size=4)
    right = []
    for one in documents:
        each = [nats(model, one["begin"], ending) for ending in one["endings"]]
        right.append(each.index(max(each)) == one["right"])
    assert found["fidgpt_choice"]["acc"] == pytest.approx(sum(right) / len(right))
    texts = [one["begin"] + one["endings"][0] for one in documents]
    num_bytes = sum(len(text.encode()) for text in texts)
    bits = -sum(nats(model, "", text) for text in texts) / math.log(2) / num_bytes
    assert found["fidgpt_text"]["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert found["fidgpt_text"]["byte_perplexity"] == pytest.approx(2**bits, rel=1e-5)
    assert found["fidgpt_writing"]["exact_match"] in {0.0, 0.2}


def test_the_harness_reads_the_adapter_as_one_of_its_models(folder, examinee):
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    adapter = harness.harness_model(examinee)
    assert isinstance(adapter, LM)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = simple_evaluate(adapter, tasks=["fidgpt_choice"], task_manager=manager)
    assert results is not None
    ours = harness.Tasks(["fidgpt_choice"], include_path=folder).run(examinee)
    assert results["results"]["fidgpt_choice"]["acc,none"] == ours["fidgpt_choice"]["acc"]


def test_examples_are_shown_before_a_question(folder, examinee, monkeypatch):
    seen, real = [], harness.Answers.loglikelihood

    def watched(answers, requests):
        seen.extend(request.args[0] for request in requests)
        return real(answers, requests)

    monkeypatch.setattr(harness.Answers, "loglikelihood", watched)
    harness.Tasks(["fidgpt_choice"], include_path=folder, num_fewshot=1).run(examinee)
    assert seen
    assert all("\n\n" in text for text in seen)


def test_mistakes_are_reported(folder):
    with pytest.raises(DataError, match="no task 'fidgpt_chioce'"):
        harness.Tasks(["fidgpt_chioce"], include_path=folder).load(ByteTokenizer())
    with pytest.raises(DataError, match="must be a folder"):
        harness.Tasks(["fidgpt_choice"], include_path=folder / "nowhere").load(ByteTokenizer())


def test_tasks_are_measured_during_a_run(
    folder: Path, train: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    cfg = configs.debug()
    cfg.trackers = cfg.trackers[1:]
    fiddlers.smoke_test(cfg, num_steps=2)
    cfg.samples = None
    rows = {}
    rows["plain"] = train(cfg, "plain")
    fiddlers.use_tasks(cfg, ("fidgpt_choice", "fidgpt_text"), include_path=str(folder), every=1)
    rows["tasks"] = train(cfg, "tasks")
    assert [
        {"tasks/fidgpt_choice/acc", "tasks/fidgpt_text/bits_per_byte"} <= {*row}
        for row in rows["tasks"]
    ] == [True, True]
    # Measuring changes nothing of what is learned.
    assert [row["loss"] for row in rows["plain"]] == [row["loss"] for row in rows["tasks"]]
    part = build_trainer(cfg).evaluators["tasks"]
    part.prepare()
    shutil.rmtree(tmp_path / "plain")
    model = started(build_trainer(cfg).model)
    assert "fidgpt_choice/acc" in part(model, CrossEntropy(), parallel.DataParallel())
