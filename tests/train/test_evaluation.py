"""What a model measures, writes and answers: losses, texts, and likelihoods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
import pytest
import torch
from jaxtyping import Float, Int
from small_models import started
from torch import Tensor, nn

from fidgpt import configs, data, fiddlers, graph, parallel
from fidgpt.model import AttentionContext, LanguageModel, one_document
from fidgpt.model.generation import generate, score
from fidgpt.runs.building import build_trainer
from fidgpt.train import (
    CrossEntropy,
    DomainValidation,
    RunError,
    Samples,
    Validation,
    continuations,
    harness,
)
from fidgpt.train.scores.answering import Examinee

pytestmark = pytest.mark.slow

VOCAB = 16


class Indifferent(LanguageModel):
    """Believes that all tokens are alike, and notes whether it is in training."""

    def __init__(self):
        super().__init__()
        self.unembedding = nn.Linear(4, VOCAB)
        nn.init.zeros_(self.unembedding.weight)
        nn.init.zeros_(self.unembedding.bias)

    def features(self, tokens, ctx=None):
        assert not self.training
        return torch.ones(*tokens.shape, 4)


class TwoBatches(data.EvaluationStream):
    """Token 0 stands for no bytes, every other for two."""

    @property
    def num_batches(self) -> int:
        return 2

    @property
    def token_bytes(self):
        return torch.tensor([0] + [2] * (VOCAB - 1))

    def prepare(self, *, show_progress=True):
        pass

    def batch(self, number, *, rank=0, world_size=1):
        return data.Batch(torch.tensor([[1, 2, 3, 0]] if number else [[5, 6, 7, 8]]))


def test_an_indifferent_model_has_the_loss_of_a_fair_die():
    model = Indifferent()
    measured = Validation(TwoBatches())(model, CrossEntropy(), parallel.DataParallel())
    assert measured["loss"] == pytest.approx(math.log(VOCAB))
    # Of six targets of log2(16) = 4 bits each, five stand for two bytes; the loss has the sixth.
    assert measured["bits_per_byte"] == pytest.approx(5 * 4 / 10)
    assert model.training


def test_the_last_step_is_always_measured():
    validation = Validation(TwoBatches(), every=4)
    assert [step for step in range(1, 11) if validation.due(step, num_steps=10)] == [4, 8, 10]
    only_last = Validation(TwoBatches(), every=None)
    assert [step for step in range(1, 11) if only_last.due(step, num_steps=10)] == [10]


class Other(TwoBatches):
    """One batch of three targets, two of which are not learned; each token stands for one byte."""

    counted = (True, False, False, True)

    @property
    def num_batches(self):
        return 1

    @property
    def token_bytes(self):
        return torch.ones(VOCAB, dtype=torch.long)

    def batch(self, number, *, rank=0, world_size=1):
        return data.Batch(torch.tensor([[1, 2, 3, 0]]), torch.tensor([self.counted]))


class Silent(Other):
    """Nothing of it is learned, so that it has no loss that could count in a mean."""

    counted = (True, False, False, False)


def test_each_domain_is_measured_and_all_together():
    domains = {"two": TwoBatches(), "other": Other()}
    measured = DomainValidation(domains)(Indifferent(), CrossEntropy(), parallel.DataParallel())
    assert measured.pop("macro_loss") == pytest.approx(math.log(VOCAB))
    assert measured.pop("macro_bits_per_byte") == pytest.approx((5 * 4 / 10 + 4) / 2)
    with_silent = DomainValidation({**domains, "silent": Silent()})
    again = with_silent(Indifferent(), CrossEntropy(), parallel.DataParallel())
    assert again["macro_loss"] == pytest.approx(math.log(VOCAB))
    assert again["macro_bits_per_byte"] == pytest.approx((5 * 4 / 10 + 4) / 2)
    assert measured["two/bits_per_byte"] == pytest.approx(5 * 4 / 10)
    assert measured["other/bits_per_byte"] == pytest.approx(4)  # one target of one byte
    assert measured["bits_per_byte"] == pytest.approx(6 * 4 / 11)
    assert measured["loss"] == measured["two/loss"] == pytest.approx(math.log(VOCAB))
    assert {*measured} == {
        f"{domain}{key}"
        for domain in ("", "two/", "other/")
        for key in ("loss", "perplexity", "bits_per_byte")
    }


class Speller(LanguageModel):
    """Predicts the bytes of a fixed text, from the position of the newest token on."""

    def __init__(self, text: bytes, *, begin: int) -> None:
        super().__init__()
        self.text = [*text, data.ByteTokenizer().end_of_text]
        self.begin = begin
        self.anchor = nn.Parameter(torch.zeros(()))
        self.unembedding = nn.Identity()
        self.layout = one_document

    def features(
        self, tokens: Int[Tensor, "batch seq"], ctx: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        assert ctx is not None
        places = (ctx.positions - self.begin).clamp(0, len(self.text) - 1)
        following = torch.tensor(self.text)[places].expand_as(tokens)
        return nn.functional.one_hot(following, 300).float()


def texts(model: LanguageModel, prompts: Sequence[str], *, stop: Sequence[str] = ()) -> list[str]:
    pieces = continuations(
        model,
        data.ByteTokenizer(),
        prompts,
        context=99,
        num_tokens=12,
        choose=lambda logits, tokens: logits.argmax(1),
        stop=stop,
    )
    return ["".join(row) for row in zip(*pieces, strict=True)]


def test_a_text_ends_with_its_document_or_after_its_tokens_with_the_last_character():
    model = Speller("so it does: €".encode(), begin=2)
    assert texts(model, ["ab"]) == ["so it does: "]
    assert texts(Speller(b"so it is", begin=2), ["ab"]) == ["so it is"]
    assert texts(Speller("so it does:€".encode(), begin=2), ["ab"]) == ["so it does:�"]


def test_each_text_ends_at_its_own_string():
    model = Speller(b"one two three", begin=1)
    assert texts(model, ["a", "abc", "abcdef"], stop=["two", " th"]) == ["one ", "e ", "wo"]


def test_samples_hold_their_prompts_and_their_seeds_decide():
    model = Speller(b"so it is", begin=1)
    samples = Samples(prompts=["a", ""], num_tokens=4, temperature=0.0)
    written = list(samples.write(model, data.ByteTokenizer(), context=9, seed=0))
    assert written == ["aso i", "sso "]
    drawn = Samples(prompts=["a", "a"], num_tokens=20, temperature=9.0, top_k=None)
    first, again = (list(drawn.write(model, data.ByteTokenizer(), context=9, seed=0)) for _ in "12")
    assert first == again
    assert first[0] != first[1]
    assert first != list(drawn.write(model, data.ByteTokenizer(), context=9, seed=1))


@pytest.mark.slow
def test_samples_of_own_text_begin_with_what_is_held_out_of_it(cfg, train, tmp_path):
    text = "".join(f"Chapter {n}: the sea was calm and {n} gulls rested.\n" for n in range(3000))
    (tmp_path / "sea.txt").write_text(text)
    fiddlers.use_text(cfg, str(tmp_path / "sea.txt"))
    fiddlers.use_samples(cfg, every=8)
    written = [row["samples"][0] for row in train(cfg, "sea") if "samples" in row]
    held_out = graph.build(graph.bind(cfg)).evaluators["validation"].data
    held_out.prepare(show_progress=False)
    begin = bytes(held_out.batch(0).tokens[0, :16].tolist()).decode()
    assert begin in text and written[0].startswith(begin)


class Returns(Validation):
    """Measures a given value."""

    def __init__(self, *, what: Any) -> None:
        self.what = what

    def prepare(self, *, show_progress: bool = True) -> None: ...
    def due(self, step: int, *, num_steps: int) -> bool:
        return step == 1

    def __call__(self, *_: Any) -> Any:
        return {"truth": torch.ones(1), "other": self.what}


def test_evaluators_return_numbers(cfg, train):
    cfg.evaluators = {"mine": fdl.Config(Returns, what=True)}
    rows = train(cfg, "numbers", until_step=1)
    assert (rows[0]["mine/truth"], rows[0]["mine/other"]) == (1.0, 1.0)


class Careless(Returns):
    """Leaves the model in eval mode, frozen, and with gradients."""

    def __call__(self, *given: Any) -> Any:
        model = given[0]
        model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
        model.eval().requires_grad_(False)
        return {"loss": 1.0}


class Spoiling(Returns):
    def __call__(self, *given: Any) -> Any:
        next(given[0].parameters()).data.mul_(0.5)
        return {"loss": 1.0}


def test_an_evaluator_leaves_the_training_as_it_is(cfg, train):
    cfg.evaluators, cfg.model.dropout = {}, 0.3
    plain = [row["loss"] for row in train(cfg, "plain", until_step=3)]
    cfg.evaluators = {"mine": fdl.Config(Careless, what=None)}
    assert [row["loss"] for row in train(cfg, "evaluated", until_step=3)] == plain
    cfg.evaluators = {"mine": fdl.Config(Spoiling, what=None)}
    with pytest.raises(RunError, match=r"^evaluators\['mine'\] changes parameters of the model"):
        train(cfg, "spoiled", until_step=3)


def test_texts_are_written_while_the_model_learns_and_change_no_number(cfg, train):
    plain = train(cfg, "plain")
    fiddlers.use_samples(cfg, every=4, prompts=["def ", ""])
    cfg.samples.num_tokens = 8
    rows = train(cfg, "writing")
    written = {row["step"]: row.pop("samples") for row in rows if "samples" in row}
    assert [*written] == [4, 8]  # the last ones, after step 10, are printed and in no row
    assert all(text.startswith("def ") and len(text) > 4 for text, _ in written.values())
    assert written[4] != written[8]
    train(cfg, "cut", until_step=5)
    resumed = train(cfg, "cut", resume=True)
    assert {row["step"]: row["samples"] for row in resumed if "samples" in row} == written
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]


CONTEXT = 24
TOKENIZER = data.ByteTokenizer()
TEXTS = [
    ("def run(", "self):"),
    ("import numpy as ", "np"),
    ("class", " A: été"),
    ("", "return None"),
    ("a beginning that is longer than what the model sees at once, ", "and its end"),
    ("short, ", "with an ending that is longer than all that the model sees at any time"),
    ("nothing comes after this", ""),
]


@dataclass(frozen=True)
class Request:
    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    model = started(build_trainer(configs.debug()).model)
    for parameter in model.parameters():  # so that some tokens are much likelier than others
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return model.eval()


@pytest.fixture
def answers(model: LanguageModel) -> harness.Answers:
    return harness.Answers(Examinee(model, TOKENIZER, CONTEXT), batch_size=3)


def ids(text: str) -> list[int]:
    return [256, *text.encode()]


@torch.no_grad()
def log_probabilities(model: LanguageModel, tokens: list[int]) -> Tensor:
    """All rows of the table, after each token."""
    return model(torch.tensor([tokens]))[0].float().log_softmax(-1)


def by_hand(model: LanguageModel, before: list[int], scored: list[int]) -> tuple[float, bool]:
    """Token by token: the window begins where that of its token's group of `CONTEXT` does."""
    total, greedy = 0.0, True
    for number, token in enumerate(scored):
        group = number // CONTEXT * CONTEXT
        last = min(group + CONTEXT, len(scored))
        begin = max(0, len(before) + last - CONTEXT - 1)
        row = log_probabilities(model, [*before, *scored][begin : len(before) + number])[-1]
        total += row[token].item()
        greedy &= row.argmax().item() == token
    return total, greedy


@pytest.mark.parametrize("batch_size", [3, 100])
def test_likelihoods_are_those_of_one_token_after_the_other(model, answers, batch_size):
    texts = [(ids(before), list(after.encode())) for before, after in TEXTS]
    begin, settings = ids("def "), {"context": CONTEXT, "temperature": 0.0, "vocab_size": 256}
    written = list(generate(model, begin, num_tokens=12, **settings))
    texts += [(begin, written), (begin, [*written[:-1], (written[-1] + 1) % 256])]
    answers.batch_size = batch_size
    found = answers.likelihoods(texts)
    for one, (before, scored) in zip(found, texts, strict=True):
        assert one == pytest.approx(by_hand(model, before, scored), rel=1e-5, abs=1e-5)
    assert [is_greedy for _, is_greedy in found[-2:]] == [True, False]


def test_answers_split_texts_as_documents_begin(model, answers):
    requests = [Request(text) for text in TEXTS]
    found = answers.loglikelihood(requests)
    for (before, after), answer in zip(TEXTS, found, strict=True):
        kept = before.rstrip()  # space at the end of a context belongs to what follows
        after = before[len(kept) :] + after
        assert answer == pytest.approx(by_hand(model, ids(kept), list(after.encode())), rel=1e-5)
    moved, kept = answers.loglikelihood([Request(("a b ", "c")), Request(("a b", " c"))])
    assert moved == kept


def test_whole_texts_are_scored_each_token_once(model, answers):
    texts = ["short", "été", "long enough for several windows of the model's, and not the same", ""]
    found = answers.loglikelihood_rolling([Request((text,)) for text in texts])
    expected = [by_hand(model, [256], list(text.encode()))[0] for text in texts]
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[0] == pytest.approx(-score(model, ids("short"), context=CONTEXT).nats, rel=1e-5)
    assert found[3] == 0


def test_texts_are_written_up_to_their_end(model, answers):
    greedy = {"until": [], "max_gen_toks": 9}
    begins = ["def ", "class Longer", "x" * 60, ""]
    found = answers.generate_until([Request((begin, greedy)) for begin in begins])
    for begin, text in zip(begins, found, strict=True):
        seen = ids(begin)[-(CONTEXT - 9) :]
        written = list(
            generate(model, seen, num_tokens=9, context=CONTEXT, temperature=0.0, vocab_size=257)
        )
        written = written[: written.index(256)] if 256 in written else written
        assert text == TOKENIZER.decode(written)
    stop = found[0][3]
    (cut,) = answers.generate_until([Request(("def ", {"until": stop, "max_gen_toks": 9}))])
    assert cut == found[0].partition(stop)[0]


def test_chance_depends_on_the_seed_alone(model):
    drawn = {"until": ["\n\n"], "max_gen_toks": 9, "do_sample": True, "temperature": 1.5}
    requests = [Request((begin, drawn)) for begin in ("def ", "class ", "import ")]

    def written(seed: int, batch_size: int) -> list[str]:
        examinee = Examinee(model, TOKENIZER, CONTEXT)
        answers = harness.Answers(examinee, batch_size=batch_size, seed=seed)
        return answers.generate_until(requests)

    assert written(0, 3) == written(0, 1) != written(1, 3)


def test_mistakes_are_named(answers):
    with pytest.raises(ValueError, match="num_beams"):
        answers.generate_until([Request(("a", {"num_beams": 4}))])
