"""Preferences and distillation, beside formulas on the logits of one sequence at a time.

On the same weights and batches, losses of five steps and gradients were compared with trl 1.16 and
peft 0.21 (DPO, IPO, ORPO, DPO with LoRA; float32, two layers): 8e-6 of losses up to 25, and 6e-7 of
the norm of gradients.
"""

import json
import math
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt import configs, data, fiddlers, train
from fidgpt.graph import build
from fidgpt.model import LoRALinear, materialize
from fidgpt.train import Answers
from fidgpt.train.estimates.facts import facts_of


def answers(chosen: list[float], rejected: list[float]) -> Answers:
    return Answers(
        chosen=torch.tensor(chosen),
        rejected=torch.tensor(rejected),
        chosen_lengths=torch.tensor([2, 4]),
        rejected_lengths=torch.tensor([1, 2]),
    )


POLICY, REFERENCE = answers([-2.0, -4.0], [-1.0, -6.0]), answers([-3.0, -3.0], [-2.0, -1.0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # d = (-2 + 3) - (-1 + 2) = 0 and (-4 + 3) - (-6 + 1) = 4
        (train.DPO(beta=0.5), [math.log(2), math.log(1 + math.exp(-2))]),
        (train.DPO(beta=0.5, label_smoothing=0.1), [math.log(2), math.log(1 + math.exp(-2)) + 0.2]),
        # per token: 1/2 - 1 and -1/4 + 5/2
        (train.IPO(beta=0.5), [(-0.5 - 1) ** 2, (2.25 - 1) ** 2]),
        # per token, -1 and -1, then -1 and -3
        (
            train.ORPO(beta=0.5),
            [
                0.5 * math.log(2),
                0.5
                * math.log(1 + (math.exp(-3) / (1 - math.exp(-3))) * (1 - math.exp(-1)) * math.e),
            ],
        ),
    ],
)
def test_losses_of_pairs_are_their_formulas(loss: Any, expected: list[float]) -> None:
    assert loss(POLICY, REFERENCE).tolist() == pytest.approx(expected, rel=1e-6)


def test_the_teachers_loss_is_torchs_divergence_and_its_entropy() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(9, 30), torch.randn(9, 30)
    for scale in (1.0, 2.0):
        p, q = ((x / scale).softmax(-1) for x in (teacher, student))
        divergence = F.kl_div(q.log(), p, reduction="none").sum(-1)
        expected = scale**2 * (divergence - (p * p.log()).sum(-1))
        torch.testing.assert_close(
            train.teacher_loss(student, teacher, temperature=scale), expected
        )
    one = train.teacher_loss(student, teacher, top_k=1)
    torch.testing.assert_close(one, F.cross_entropy(student, teacher.argmax(-1), reduction="none"))
    every = train.teacher_loss(student, teacher, top_k=99)
    torch.testing.assert_close(every, train.teacher_loss(student, teacher))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [
        {"prompt": f"Count {n}", "chosen": "a" * (1 + n % 5), "rejected": "b" * (1 + n % 3)}
        for n in range(12)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trainer_of(path: Path, *changes: Any, loss: str = "dpo", size: int | None = None) -> Any:
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    fiddlers.use_preferences(cfg, str(path), beta=0.5, loss=loss)
    for change in changes:
        change(cfg)
    cfg.seq_len, cfg.batch_size, cfg.micro_batch_size = 64, 4, size
    cfg.data.corpus.cache_dir = str(path.parent / "cache")
    cfg.trackers, cfg.samples = [], None
    trainer = build(cfg)
    trainer.prepare()
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return trainer


def moved(model: Any) -> None:
    """Change a model, so that it is not its reference any more."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def scores(model: Any, batch: data.Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probability and length of the answer of each side, and that of all its tokens."""
    sums, lengths, wholes = [], [], []
    for tokens, mask in zip(*(x.reshape(-1, 65) for x in (batch.tokens, batch.mask)), strict=True):
        last = int(mask.nonzero()[-1])
        each = model(tokens[None, :last])[0].log_softmax(-1)
        each = each.gather(-1, tokens[1 : last + 1, None])[:, 0]
        sums.append(each[mask[1 : last + 1]].sum())
        lengths.append(mask.sum())
        wholes.append(each)
    return torch.stack(sums), torch.stack(lengths), torch.cat(wholes[::2])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dpo", "ipo", "orpo", "adapters"])
def test_a_step_is_the_formula_over_any_micro_batches(path: Path, loss: str) -> None:
    changes = [fiddlers.use_lora] if loss == "adapters" else []
    losses, gradients = [], []
    expected, wanted = torch.zeros(()), ()
    for size in (None, 3, 1):
        trainer = trainer_of(path, *changes, loss="dpo" if changes else loss, size=size)
        for name, parameter in trainer.model.named_parameters():
            parameter.requires_grad_(not changes or "lora" in name)
        batch = trainer.stream.batch(0)
        state = trainer.init_state()
        with torch.no_grad():
            frozen = scores(trainer.model, batch)[0] if loss != "orpo" else None
        moved(trainer.model)
        if size is None:
            assert facts_of(trainer).tokens_per_step == 4 * 2 * 64
            sums, lengths, chosen = scores(trainer.model, batch)
            policy, reference = (
                Answers(
                    chosen=one[::2],
                    rejected=one[1::2],
                    chosen_lengths=lengths[::2],
                    rejected_lengths=lengths[1::2],
                )
                for one in (sums, sums if frozen is None else frozen)
            )
            expected = trainer.step.preference(policy, reference).mean()
            expected = expected - (chosen.mean() if loss == "orpo" else 0.0)
            trained = [p for p in trainer.model.parameters() if p.requires_grad]
            wanted = torch.autograd.grad(expected, trained)
        load = trainer.step.load(trainer, state, 0, rows=batch)
        trainer.step.backward(trainer, state, load)
        gradients.append([p.grad.clone() for p in trainer.model.parameters() if p.requires_grad])
        trainer.model.zero_grad()
        losses.append(trainer.update(state, batch)["loss"])
    assert losses == pytest.approx([expected.item()] * 3, rel=1e-5)
    for ours in gradients:
        for one, other in zip(ours, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=5e-6)
    assert any(isinstance(one, LoRALinear) for one in trainer.model.modules()) == bool(changes)


@pytest.mark.slow
def test_padding_of_pairs_counts_for_no_expert(path: Path) -> None:
    """Rows of 64 tokens train as the same rows of 40, in any micro-batches.

    Predictions of tokens further ahead do not count those of rejected answers.
    """
    rows, gradients = [], []
    for size, window in ((None, 65), (1, 65), (1, 41), (None, 41)):
        trainer = trainer_of(path, fiddlers.use_moe, fiddlers.use_mtp, size=size)
        trainer.gradient_transform = lambda parameters: gradients.append(
            torch.cat([one.grad.flatten() for one in parameters if one.grad is not None])
        )
        batch = trainer.stream.batch(0).sequences(2).map(lambda x, n=window: x[:, :n])
        assert batch.real is not None and batch.real.sum(1).max() < 41
        batch = batch.map(lambda x: x.unflatten(0, (-1, 2)).flatten(1))
        if len(rows) == 3:
            batch.tokens[:, 41:] = 7
        rows.append(trainer.update(trainer.init_state(), batch))
    assert rows.pop()["mtp/1"] == pytest.approx(rows[0]["mtp/1"])
    for row, ours in zip(rows, gradients[:3], strict=True):
        torch.testing.assert_close(ours, gradients[0], rtol=1e-4, atol=1e-6)
        for key in rows[0]:
            torch.testing.assert_close(
                torch.as_tensor(row[key]), torch.as_tensor(rows[0][key]), rtol=1e-4, atol=1e-6
            )


@pytest.mark.slow
def test_a_student_learns_from_the_text_and_from_a_teacher(path: Path) -> None:
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    teacher = build(configs.debug()).model

    def weights(model: Any) -> None:
        moved(model)

    cfg.step = fdl.Config(
        train.DistillationStep, teacher=teacher, weights=weights, ratio=0.3, temperature=2.0
    )
    cfg.trackers, cfg.samples, cfg.batch_size = [], None, 4
    fiddlers.use_moe(cfg)
    trainer = build(cfg)
    trainer.prepare()
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    trainer.gradient_transform = lambda parameters: masked.extend(one.grad for one in parameters)
    masked: list[Tensor] = []
    batch = trainer.stream.batch(0)
    none = torch.zeros_like(batch.tokens, dtype=torch.bool)
    trainer.update(trainer.init_state(), data.Batch(batch.tokens, none))
    assert masked and not any(gradient.any() for gradient in masked)
    cfg.model.blocks = configs.debug().model.blocks
    losses = []
    for size in (None, 3):
        cfg.micro_batch_size = size
        trainer: Any = build(cfg)
        trainer.prepare()
        materialize(trainer.model, device=torch.device("cpu"), seed=0)
        state, batch = trainer.init_state(), trainer.stream.batch(0)
        (other,) = trainer.step.second
        student, taught = (one(batch.inputs).flatten(0, 1) for one in (trainer.model, other))
        plain = F.cross_entropy(student, batch.targets.flatten())
        told = train.teacher_loss(student, taught, temperature=2.0).mean()
        wanted = torch.autograd.grad(0.7 * plain + 0.3 * told, [*trainer.model.parameters()])
        load = trainer.step.load(trainer, state, 0, rows=batch)
        trainer.step.backward(trainer, state, load)
        for parameter, gradient in zip(trainer.model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
        trainer.model.zero_grad()
        row = trainer.update(state, batch)
        losses.append([row["loss"], row["teacher"]])
        assert losses[-1] == pytest.approx([plain.item(), told.item()], rel=1e-5)
    assert not torch.equal(other.embedding.weight, trainer.model.embedding.weight)


def test_a_teacher_with_other_tokens_is_refused() -> None:
    cfg = configs.debug()
    other = configs.debug()
    fiddlers.use_chat_template(other, "chatml")
    cfg.step = fdl.Config(
        train.DistillationStep,
        teacher=build(other).model,
        weights=None,
        tokenizer=other.data.corpus.tokenizer,
    )
    trainer = build(cfg)
    trainer.prepare()
    with pytest.raises(data.DataError, match="The teacher has other tokens than the model"):
        trainer.init_state()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "a", "chosen": "b"}, "holds no pair, but the fields prompt, chosen"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "has the same answer as chosen"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "has an empty answer"),
    ],
)
def test_rows_that_are_no_pairs_are_named(tmp_path: Path, row: Any, expected: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row))
    source = data.TextFiles(path, rows=data.Preferences())
    with pytest.raises(data.DataError, match=rf"pairs\.jsonl, line 1 {expected}"):
        list(source.documents())


U = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": [U], "chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"},
        {"conversations": [{"from": "human", "value": "a"}]}
        | {"chosen": {"from": "gpt", "value": "b"}, "rejected": {"from": "gpt", "value": "c"}},
    ],
)
def test_pairs_of_every_form_are_the_same(row: dict[str, Any]) -> None:
    pair = data.Preferences().document(row, place="row 1")
    for side, text in ((pair.chosen, "b"), (pair.rejected, "c")):
        assert side.messages == [U, {"role": "assistant", "content": text}]
