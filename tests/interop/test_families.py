"""Every family against transformers: the same logits and gradients, and weights back bit by bit."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from fidgpt.interop import from_hf, save_hf
from fidgpt.interop.hugging_face.settings import FAMILIES
from fidgpt.model import AttentionContext, LanguageModel, generation, padded

from .recipes import RECIPES, Recipe

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds

SEQ_LEN = 40


class Pair(NamedTuple):
    """A model of transformers, where it saved itself, and ours made from that."""

    recipe: Recipe
    theirs: Any
    directory: Path
    ours: LanguageModel


class Rows(NamedTuple):
    """A batch as both sides want it; `counts` marks the tokens that are compared."""

    tokens: Tensor
    layout: AttentionContext
    theirs: dict[str, Any]
    counts: Tensor


@pytest.fixture(scope="module", params=RECIPES)
def pair(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    load: Callable[[Path], LanguageModel],
) -> Pair:
    recipe = RECIPES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    theirs = random_model(recipe)
    theirs.save_pretrained(directory)
    return Pair(recipe, theirs, directory, load(directory))


def random_model(recipe: Recipe) -> Any:
    """A model in which no vector is at 0 or 1, where a missing one would not show."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(recipe.family, **recipe.settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.add_(torch.randn_like(buffer), alpha=0.5)
    return model


def packed(recipe: Recipe) -> Rows:
    """Three documents in a row; transformers needs the whole mask to keep them apart."""
    tokens = random_tokens()
    lengths = [11, 22, 7]
    documents = torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand_as(tokens)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand_as(tokens)
    inside = documents[:, :, None] == documents[:, None, :]
    distance = torch.arange(SEQ_LEN)[:, None] - torch.arange(SEQ_LEN)
    full = inside & (distance >= 0)
    near = full & (distance < (recipe.window or SEQ_LEN))
    masks = {"full_attention": additive(full), "sliding_attention": additive(near)}
    mask = masks if recipe.by_kind else masks["sliding_attention"]
    return Rows(
        tokens,
        AttentionContext(positions, documents=documents, tokens=tokens),
        {"attention_mask": mask, "position_ids": positions},
        torch.ones_like(tokens).bool(),
    )


def padded_left(recipe: Recipe) -> Rows:
    """Two rows of different lengths, the shorter one with nothing in front."""
    tokens = random_tokens()
    present = torch.ones_like(tokens)
    present[0, :13] = 0
    positions = (present.cumsum(1) - 1).clamp(min=0)
    return Rows(
        tokens,
        padded(tokens, present=present),
        {"attention_mask": present, "position_ids": positions},
        present.bool(),
    )


def random_tokens() -> Tensor:
    """Without the first ids, whose gradient transformers leaves out where they mean padding."""
    return torch.randint(3, 97, (2, SEQ_LEN), generator=torch.Generator().manual_seed(2))


def additive(allowed: Tensor) -> Tensor:
    least = torch.finfo(torch.float32).min
    return torch.zeros(allowed.shape).masked_fill(~allowed, least).unsqueeze(1)


def loss_of(logits: Tensor, rows: Rows) -> Tensor:
    """Return the loss of the tokens that count, each predicted from one that does."""
    predicted = (rows.counts[:, :-1] & rows.counts[:, 1:]).flatten()
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), rows.tokens[:, 1:].flatten(), reduction="none"
    )
    return losses[predicted].mean()


@pytest.mark.parametrize("rows_of", [packed, padded_left], ids=["packed", "padded"])
def test_logits_and_gradients_are_those_of_transformers(pair, rows_of, load, tmp_path):
    rows = rows_of(pair.recipe)
    pair.theirs.zero_grad()
    pair.ours.zero_grad()
    logits = pair.ours(rows.tokens, rows.layout)
    expected = pair.theirs(rows.tokens, use_cache=False, **rows.theirs).logits
    assert (logits - expected)[rows.counts].abs().max() < 1e-5
    loss_of(logits, rows).backward()
    loss_of(expected, rows).backward()
    gradients = gradients_as_weights(pair, load, tmp_path)
    for name, parameter in pair.ours.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad - gradients[name]).abs().max() < 1e-4, name
        # A softmax does not see what is added to all keys alike: such a bias has only noise.
        scale = gradients[name].norm().clamp(min=1e-3)
        assert (parameter.grad - gradients[name]).norm() < 1e-4 * scale, name


def gradients_as_weights(pair: Pair, load, directory: Path) -> dict[str, Tensor]:
    """Their gradients under our names: saved as if they were a model's weights, and loaded."""
    model = copy.deepcopy(pair.theirs)
    with torch.no_grad():
        for twin, parameter in zip(model.parameters(), pair.theirs.parameters(), strict=True):
            twin.copy_(torch.zeros_like(twin) if parameter.grad is None else parameter.grad)
    model.save_pretrained(directory)
    return dict(load(directory).named_parameters())


def test_weights_come_back_bit_by_bit(pair: Pair, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    seq_len = from_hf(str(pair.directory)).seq_len
    save_hf(pair.ours, tmp_path, seq_len=seq_len)
    theirs, ours = (tensors_in(path) for path in (pair.directory, tmp_path))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name
    back, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    tokens = random_tokens()
    assert torch.equal(back.eval()(tokens).logits, pair.theirs(tokens).logits)


def test_greedy_text_is_that_of_transformers(pair: Pair):
    """Of prompts of different length, from what is remembered of them."""
    rows = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33]]
    absent = [7 - len(row) for row in rows]
    expected = pair.theirs.generate(
        torch.tensor([[0] * gap + row for gap, row in zip(absent, rows, strict=True)]),
        attention_mask=torch.tensor([[0] * gap + [1] * (7 - gap) for gap in absent]),
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    greedy = generation.Sampling(seeds=[0] * len(rows), temperature=0.0, top_k=None)
    steps = generation.write(pair.ours, rows, num_tokens=24, context=48, choose=greedy)
    assert [list(row) for row in zip(*steps, strict=True)] == expected[:, 7:].tolist()


def tensors_in(directory: Path) -> dict[str, Tensor]:
    """Of every file there: what a class of transformers holds may differ from what it saves."""
    found: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def test_every_family_has_a_recipe():
    assert {recipe.family for recipe in RECIPES.values()} == {one.model_type for one in FAMILIES}
