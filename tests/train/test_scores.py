"""Scores of own tasks: CORE by nanochat's rules on a small bundle, and questions of chats."""

import csv
import json
import math
import random
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from small_models import started

from fidgpt import configs, fiddlers
from fidgpt.data import ByteTokenizer, ChatTokenizer, DataError, Tokenizer, template_tokens
from fidgpt.model import LanguageModel
from fidgpt.runs.building import build_trainer
from fidgpt.train.harness import Tasks
from fidgpt.train.scores.answering import Examinee
from fidgpt.train.scores.suites import chat_exam, runs_without_error

WORDS = [
    *("amber", "birch", "cedar", "delta", "ember", "fjord"),
    *("grove", "heath", "inlet", "jetty", "knoll", "lagoon"),
]
KINDS = {"multiple_choice": 2, "schema": 1, "language_modeling": 3}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return started(build_trainer(configs.debug()).model).eval()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks of twelve questions, in the form of DCLM's bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "eval_data").mkdir()
    draw = random.Random(0)
    for kind in KINDS:
        lines = []
        for _ in range(12):
            some = draw.sample(WORDS, 5)
            lines.append(
                {
                    "multiple_choice": {"query": some[0], "choices": some[1:4], "gold": 1},
                    "schema": {"context_options": some[:2], "continuation": some[2], "gold": 0},
                    "language_modeling": {"context": f" {some[0]} ", "continuation": some[1][:1]},
                }[kind]
            )
        text = "\n".join(map(json.dumps, lines))
        (folder / "eval_data" / f"{kind}.jsonl").write_text(text, encoding="utf-8")
    tasks = [
        {"label": kind, "icl_task_type": kind, "dataset_uri": f"{kind}.jsonl", "num_fewshot": [n]}
        for kind, n in KINDS.items()
    ]
    (folder / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": tasks}), encoding="utf-8")
    with (folder / "eval_meta_data.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Eval Task", "Random baseline"])
        table.writerows([[kind, 40 if kind == "schema" else 0] for kind in KINDS])
    return folder


def by_hand(model: LanguageModel, rows: list[dict[str, Any]], kind: str) -> float:
    """The accuracy by nanochat's rules, one question and one row at a time.

    The rules are those of evaluate_example in nanochat/core_eval.py of July 2026: examples drawn by
    random.Random(1234 + index), the least mean loss of a choice, and greedy matches of completions.
    """
    random.Random(1337).shuffle(rows)
    right = []
    for index, row in enumerate(rows):
        others = [other for i, other in enumerate(rows) if i != index]
        chosen = random.Random(1234 + index).sample(others, KINDS[kind])
        shown = ""
        for one in chosen:
            parts = {
                "multiple_choice": lambda x: (x["query"], x["choices"][x["gold"]]),
                "schema": lambda x: (x["context_options"][x["gold"]], x["continuation"]),
                "language_modeling": lambda x: (x["context"].strip(), x["continuation"]),
            }[kind](one)
            shown += " ".join(parts) + "\n\n"
        if kind == "multiple_choice":
            pairs = [(shown + row["query"] + " ", choice) for choice in row["choices"]]
        elif kind == "schema":
            pairs = [(shown + one, " " + row["continuation"]) for one in row["context_options"]]
        else:
            pairs = [(shown + row["context"].strip(), " " + row["continuation"])]
        losses, greedy = [], False
        for before, after in pairs:
            tokens = torch.tensor([256, *(before + after).encode()])
            logits = model(tokens[None])[0, :-1]
            count = len(after.encode())
            if kind == "schema":  # a common end of contexts is a part of the ending
                letters = zip(*(one[::-1] for one in row["context_options"]), strict=False)
                count += len([*takewhile(lambda pair: len({*pair}) == 1, letters)])
            each = F.cross_entropy(logits[-count:], tokens[-count:], reduction="none")
            losses.append(each.mean().item())
            greedy = bool((logits[-count:].argmax(-1) == tokens[-count:]).all())
        right.append(
            greedy if kind == "language_modeling" else losses.index(min(losses)) == row["gold"]
        )
    return sum(right) / len(right)


@torch.no_grad()
def test_core_is_that_by_hand(bundle: Path, model: LanguageModel) -> None:
    examinee = Examinee(model, ByteTokenizer(), 64)
    scores = Tasks(["core"], data=bundle).run(examinee)
    centered = []
    for kind in KINDS:
        lines = (bundle / "eval_data" / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        share = by_hand(model, [json.loads(line) for line in lines], kind)
        row = scores[f"core/{kind}"]
        assert row["acc"] == share
        assert row["acc_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 11))
        baseline = 0.4 if kind == "schema" else 0.0
        centered.append((share - baseline) / (1 - baseline))
    assert scores["core"]["centered"] == pytest.approx(sum(centered) / 3, abs=1e-15)
    assert 0 < scores["core"]["centered_stderr"] < 0.2
    one = Tasks(["core/schema"], data=bundle, limit=4).run(examinee)
    assert [*one] == ["core/schema"]
    with pytest.raises(DataError, match="no task 'nothing': it has multiple_choice, schema"):
        Tasks(["core/nothing"], data=bundle).run(examinee)
    with pytest.raises(DataError, match="is no bundle of CORE's tasks"):
        Tasks(["core"], data=bundle / "eval_data").run(examinee)


QUESTIONS: dict[str, dict[str, Any]] = {
    "arc_easy": {
        "question": "Which?",
        "choices": {"text": ["this", "that"], "label": ["A", "B"]},
        "answerKey": "B",
    },
    "mmlu": {"question": "Which?", "choices": list("wxyz"), "answer": 2, "subject": "any"},
    "hellaswag": {"ctx": "He runs", "endings": list("wxyz"), "label": "3"},
    "gsm8k": {"question": "2 + 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 1,005"},
    "humaneval": {
        "prompt": "import math\n\ndef add(a, b):\n",
        "test": "def check(f):\n    assert f(1, 2) == 3\n",
        "entry_point": "check and add",
    },
}
RIGHT = {
    "gsm8k": "So it is\n#### 1005",
    "humaneval": "Here:\n```python\ndef add(a, b):\n    return math.floor(a + b)\n```\nDone.",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokens = template_tokens("chatml")
    return ChatTokenizer(ByteTokenizer(special_tokens=tokens), template="chatml").build(())


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_of_a_chat(
    name: str,
    tokenizer: Tokenizer,
    model: LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(QUESTIONS[name]), encoding="utf-8")
    exam = chat_exam(name, tokenizer, folder=tmp_path, limit=3, runs_programs=True)
    question: Any = exam.question(0)
    text = tokenizer.decode(question.prompt)
    row = QUESTIONS[name]
    assert str(row.get("question", row.get("ctx", row.get("prompt")))) in text
    assert exam.count == 1 and text.endswith("\n")
    if name in RIGHT:
        written = RIGHT[name]
        monkeypatch.setattr(Examinee, "write", lambda *_, **__: [written])
        examinee = Examinee(model, tokenizer, 64)
        assert question(examinee)
        written = written.replace("1005", "1006").replace("a + b", "a - b")
        assert not question(examinee)
    else:  # nanochat's form of a question
        assert "=B\n" in text and text.count("Respond only with the letter") == 1
        assert [chr(token) for token in question.letters] == list("ABCD")[: len(question.letters)]
        assert question.right == {"arc_easy": 1, "mmlu": 2, "hellaswag": 3}[name]


def test_the_likeliest_letter_is_the_answer(model: LanguageModel, tmp_path: Path) -> None:
    row = QUESTIONS["mmlu"]
    tokenizer = ByteTokenizer().build(())
    prompt = chat_rows(tmp_path, row, tokenizer).prompt
    with torch.no_grad():
        logits = model(torch.tensor([prompt]))[0, -1]
    best = int(logits[[ord(letter) for letter in "ABCD"]].argmax())
    for answer in range(4):
        question = chat_rows(tmp_path, row | {"answer": answer}, tokenizer)
        assert question(Examinee(model, tokenizer, 64)) == (answer == best)


def chat_rows(folder: Path, row: dict[str, Any], tokenizer: Tokenizer) -> Any:
    (folder / "mmlu.jsonl").write_text(json.dumps(row), encoding="utf-8")
    return chat_exam("mmlu", tokenizer, folder=folder, limit=None).question(0)


def test_programs_run_only_if_they_may(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Allow it with --run_programs"):
        chat_exam("humaneval", ByteTokenizer().build(()), folder=tmp_path, limit=None)
    with pytest.raises(DataError, match="put them into mmlu.jsonl"):
        chat_exam("mmlu", ByteTokenizer().build(()), folder=tmp_path, limit=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "is_right"),
    [
        ("open('x', 'w').write('1')\nassert open('x').read() == '1'", True),
        ("import sys; sys.exit(0)", False),
        ("import os; os._exit(0)", False),
        ("x = [0] * 10**9", False),
        ("import socket; socket.socket()", False),
        ("open({outside!r}, 'w')", False),
        ("import os; os.remove({outside!r})", False),
        ("import subprocess; subprocess.run(['true'])", False),
    ],
)
def test_programs_have_bounds(program: str, is_right: bool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept", encoding="utf-8")
    assert runs_without_error(program.format(outside=str(outside))) == is_right
    assert outside.read_text(encoding="utf-8") == "kept"


@pytest.mark.slow
def test_core_is_measured_during_a_run(
    bundle: Path, train: Callable[..., list[dict[str, Any]]]
) -> None:
    cfg = configs.debug()
    cfg.trackers = cfg.trackers[1:]
    fiddlers.smoke_test(cfg, num_steps=2)
    fiddlers.use_tasks(cfg, ("core",), data=str(bundle), limit=5, every=1)
    rows = train(cfg, "scored")
    assert all("tasks/core/centered" in row for row in rows)
