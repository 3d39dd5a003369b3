"""Texts that a model writes: several at once, ended by a string or by the end of the document."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.data import ByteTokenizer
from fidgpt.fiddlers import use_samples
from fidgpt.model import AttentionContext, LanguageModel, one_document
from fidgpt.train import Samples, continuations


class Speller(LanguageModel):
    """After any text it says the bytes of another, from the place of the newest token on."""

    def __init__(self, text: bytes, *, begin: int) -> None:
        super().__init__()
        self.text = [*text, ByteTokenizer.end_of_text]
        self.begin = begin
        self.anchor = nn.Parameter(torch.zeros(()))
        self.unembedding = nn.Identity()
        self.layout = one_document

    def features(
        self, tokens: Int[Tensor, "batch seq"], ctx: AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        assert ctx is not None
        spoken = (ctx.positions - self.begin).clamp(0, len(self.text) - 1)
        following = torch.tensor(self.text)[spoken].expand_as(tokens)
        return nn.functional.one_hot(following, 300).float()


def texts(model: LanguageModel, prompts: Sequence[str], *, stop: Sequence[str] = ()) -> list[str]:
    pieces = continuations(
        model,
        ByteTokenizer(),
        prompts,
        context=99,
        num_tokens=12,
        choose=lambda logits, tokens: logits.argmax(1),
        stop=stop,
    )
    return ["".join(row) for row in zip(*pieces, strict=True)]


def test_the_end_of_the_document_ends_a_text():
    assert texts(Speller(b"so it is", begin=2), ["ab"]) == ["so it is"]


def test_as_many_tokens_as_asked_for_with_the_character_in_work():
    model = Speller("so it does: €".encode(), begin=2)
    assert texts(model, ["ab"]) == ["so it does: "]
    assert texts(Speller("so it does:€".encode(), begin=2), ["ab"]) == ["so it does:�"]


def test_each_text_ends_at_its_own_string():
    model = Speller(b"one two three", begin=1)
    assert texts(model, ["a", "abc", "abcdef"], stop=["two", " th"]) == ["one ", "e ", "wo"]


def test_what_only_begins_like_a_string_is_shown_at_the_end():
    assert texts(Speller(b"one tw", begin=1), ["a"], stop=["two"]) == ["one tw"]


def test_samples_hold_their_prompts_and_their_seeds_decide():
    model = Speller(b"so it is", begin=1)
    samples = Samples(prompts=["a", ""], num_tokens=4, temperature=0.0)
    written = list(samples.write(model, ByteTokenizer(), context=9, seed=0))
    assert written == ["aso i", "sso "]
    drawn = Samples(prompts=["a", "a"], num_tokens=20, temperature=9.0, top_k=None)
    first, again = (list(drawn.write(model, ByteTokenizer(), context=9, seed=0)) for _ in "12")
    assert first == again
    assert first[0] != first[1]
    assert first != list(drawn.write(model, ByteTokenizer(), context=9, seed=1))


def test_texts_are_written_while_the_model_learns_and_change_no_number(cfg, train):
    plain = train(cfg, "plain")
    use_samples(cfg, every=4, prompts=["def ", ""])
    cfg.samples.num_tokens = 8
    rows = train(cfg, "writing")
    written = {row["step"]: row.pop("samples") for row in rows if "samples" in row}
    assert [*written] == [4, 8]  # the last ones, after step 10, are said and no row's
    assert all(text.startswith("def ") and len(text) > 4 for text, _ in written.values())
    assert written[4] != written[8]
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]


def test_texts_that_were_written_are_the_same_after_a_resume(cfg, train):
    use_samples(cfg, every=3)
    cfg.samples.num_tokens = 8
    whole = train(cfg, "whole")
    train(cfg, "cut", until_step=5)
    resumed = train(cfg, "cut", resume=True)
    assert [row.get("samples") for row in resumed] == [row.get("samples") for row in whole]
