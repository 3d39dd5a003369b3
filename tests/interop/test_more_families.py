"""Families that are tables over parts of others: one model of each, from loading to saving."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.interop import from_hf, save_hf
from fidgpt.model import LanguageModel, generation

from .more_recipes import MORE_RECIPES
from .recipes import Recipe
from .test_families import random_model, random_tokens

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]

_WRITTEN_AS = {  # of which transformers has a class of another name, or fidgpt an equal family
    "gpt-sw3": "gpt2",
    "kimi_k2": "deepseek_v3",
}


@pytest.mark.parametrize("recipe", MORE_RECIPES.values(), ids=MORE_RECIPES)
def test_a_family_is_that_of_transformers(
    recipe: Recipe, tmp_path: Path, load: Callable[[Path], LanguageModel]
):
    """Its logits, three steps of training, the weights it saves, and the greedy text of these."""
    from transformers import AutoModelForCausalLM

    family = _WRITTEN_AS.get(recipe.family, recipe.family)
    theirs = random_model(recipe._replace(family=family))
    theirs.save_pretrained(tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(config.read_text().replace(f'"{family}"', f'"{recipe.family}"'))
    ours, tokens = load(tmp_path / "theirs"), random_tokens()
    assert (ours(tokens) - theirs(tokens, use_cache=False).logits).abs().max() < 5e-5
    losses = [_trained(model, tokens) for model in (ours, _Logits(theirs))]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    assert losses[0][2] < losses[0][0]
    seq_len = from_hf(str(tmp_path / "theirs")).seq_len
    save_hf(ours, tmp_path / "ours", seq_len=seq_len, model_type=recipe.family)
    config = tmp_path / "ours" / "config.json"
    config.write_text(config.read_text().replace(f'"{recipe.family}"', f'"{family}"'))
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert (back(tokens, use_cache=False).logits - ours(tokens)).abs().max() < 5e-5
    prompt = [[5, 6, 7, 8, 9, 10, 11]]
    expected = back.generate(
        torch.tensor(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    greedy = generation.Sampling(seeds=[0], temperature=0.0, top_k=None)
    written = generation.write(ours, prompt, num_tokens=8, context=48, choose=greedy)
    assert [token for (token,) in written] == expected[0, 7:].tolist()


class _Logits(torch.nn.Module):
    """A model of transformers that returns logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


def _trained(model: torch.nn.Module, tokens: Tensor) -> list[float]:
    """Return the loss of each of three steps, without dropout."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
