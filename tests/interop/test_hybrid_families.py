"""Families of attention and recurrent mixers: one model of each, from loading to saving."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fidgpt.model import LanguageModel

from .hybrid_recipes import HYBRID_RECIPES
from .recipes import Recipe
from .test_more_families import test_a_family_is_that_of_transformers as compare_with_transformers

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]


@pytest.mark.parametrize("recipe", HYBRID_RECIPES.values(), ids=HYBRID_RECIPES)
def test_a_hybrid_is_that_of_transformers(
    recipe: Recipe, tmp_path: Path, load: Callable[[Path], LanguageModel]
) -> None:
    compare_with_transformers(recipe, tmp_path, load)
