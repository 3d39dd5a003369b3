"""Runs of published models: their numbers against the sources that the table names."""

import inspect

import pytest

from fidgpt import configs, fiddlers, graph
from fidgpt.configs.recipes import RECIPES
from fidgpt.runs.building import build_trainer


def test_every_named_model_has_a_recipe_with_its_longest_sequence() -> None:
    assert {*RECIPES, "base", "debug", "nanochat"} == {*configs.__all__}
    for name, recipe in RECIPES.items():
        size_only = inspect.unwrap(getattr(configs, name))()
        assert (recipe.limit or recipe.seq_len) == size_only.seq_len, name
        assert recipe.describe() in (getattr(configs, name).__doc__ or "")


# Steps, tokens of a step, peak rate, and rates as shares of it at steps.
PUBLISHED = {
    # Biderman et al., 2023, and the file models/1B/pythia-1b.yml: 143,000 iterations of 1,024 rows,
    # warm-up of a hundredth, cosine to 2.5e-5.
    "pythia_1b": (143_000, 2_097_152, 2.5e-4, {715: 0.5, 1430: 1.0, 143_000: 0.1}),
    # GPT-NeoX, configs/20B.yml: 96 GPUs / (4 x 2) x 4 x 32 = 1,536 rows.
    "gpt_neox_20b": (150_000, 3_145_728, 0.97e-4, {1500: 1.0, 150_000: 0.1}),
    # Llama 2, section 2.2: batches of 4 M tokens, 2,000 steps of warm-up, 10% at the end.
    "llama2_70b": (476_838, 4_194_304, 1.5e-4, {1000: 0.5, 2000: 1.0, 476_838: 0.1}),
    # OLMo2-1B-stage1.yaml: the same tokens in batches half as large.
    "olmo2_1b": (1_907_349, 2_097_152, 4e-4, {2000: 0.5, 4000: 1.0}),
    # OLMo2-7B-stage1.yaml: t_warmup of 8,388,608,000 tokens are 2,000 batches.
    "olmo2_7b": (929_833, 8_388_608_000 // 2000, 3e-4, {2000: 1.0}),
    # SmolLM3: 2.36 M tokens a batch, constant until a linear decay to 0 over the last tenth.
    "smollm3_3b": (4_747_179, 2_359_296, 2e-4, {2000: 1.0, 4_272_000: 1.0, 4_747_179: 0.0}),
    # DeepSeek-V3, section 4.2: 14.8 T tokens, the rate constant for 10 T, then a tenth.
    "deepseek_v3": (235_240, 62_914_560, 2.2e-4, {2000: 1.0, 158_900: 1.0, 235_240: 0.1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_run_of_a_config_is_the_published_one(name: str) -> None:
    num_steps, tokens, rate, shares = PUBLISHED[name]
    cfg = getattr(configs, name)()
    bound = graph.bind(cfg)
    assert graph.build(bound.num_steps) == num_steps
    assert bound.batch_size * bound.seq_len == tokens
    assert bound.optimizer.lr == rate
    schedule = graph.build(bound.schedule)
    assert {step: round(schedule(step - 1), 4) for step in shares} == shares


def test_the_rate_and_batch_that_nobody_published_follow_the_law() -> None:
    # DeepSeek LLM, figure 5: 1e20 FLOPs, a rate of 0.3118 C^-0.125, 0.2920 C^0.3271 tokens.
    recipe = RECIPES["mistral_7b"]
    flops = 6 * 7.2e9 * 20 * 7.2e9
    assert recipe.peak == pytest.approx(0.3118 * flops**-0.125, rel=0.02)
    assert abs(recipe.rows - 0.2920 * flops**0.3271 / 8192) <= 32  # to a multiple of 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "gemma3_27b", "gpt2_1558m", "minimax_01", "qwen3_next_80b_a3b", "smollm3_3b"],
)
def test_the_tiny_model_of_a_family_keeps_its_kinds_of_blocks(name: str) -> None:
    cfg = getattr(configs, name)()
    whole = {type(one).__name__ for one in build_trainer(cfg).model.modules()}
    fiddlers.make_tiny(cfg)
    model = build_trainer(cfg).model
    assert {type(one).__name__ for one in model.modules()} == whole
    assert sum(one.numel() for one in model.parameters()) < 1_000_000
