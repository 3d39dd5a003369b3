"""Greedy text of GPT-2 and Llama with copied weights is that of transformers' `generate`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from small_models import small_block, small_model
from torch import Tensor, nn

from fidgpt.model import GELU, Attention, Block, LanguageModel, LearnedPositions, RoPE, SwiGLU
from fidgpt.model.generation import Sampling, write

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33]]
GPT2_NAMES = {
    "transformer.wte.": "embedding.",
    "transformer.wpe.": "embedding.positions.",
    "transformer.ln_f.": "norm.",
    "transformer.h.": "blocks.",
    "ln_1.": "attention_norm.",
    "attn.c_proj.": "attention.out.",
    "ln_2.": "mlp_norm.",
    "mlp.c_fc.": "mlp.up.",
    "mlp.c_proj.": "mlp.down.",
    "lm_head.": "unembedding.",
}
LLAMA_NAMES = {
    "model.embed_tokens.": "embedding.",
    "model.norm.": "norm.",
    "model.layers.": "blocks.",
    "input_layernorm.": "attention_norm.",
    "self_attn.q_proj.": "attention.query.",
    "self_attn.k_proj.": "attention.key.",
    "self_attn.v_proj.": "attention.value.",
    "self_attn.o_proj.": "attention.out.",
    "post_attention_layernorm.": "mlp_norm.",
    "mlp.gate_proj.": "mlp.gate.",
    "mlp.up_proj.": "mlp.up.",
    "mlp.down_proj.": "mlp.down.",
    "lm_head.": "unembedding.",
}


@torch.no_grad()
def scattered(model: nn.Module) -> Any:
    """The model with parameters perturbed enough for varied text."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter += noise * (0.5 if parameter.ndim > 1 else 0.1)
    return model.eval()


def renamed(theirs: nn.Module, names: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors under our names; what GPT-2 keeps as one is cut, and its products turned."""
    for name, tensor in theirs.state_dict().items():
        turned = tensor.t() if ".c_" in name else tensor
        for old, new in names.items():
            name = name.replace(old, new)
        if "attn.c_attn." not in name:
            yield name, turned
            continue
        for part, ours in zip(turned.t().chunk(3, dim=-1), ("query", "key", "value"), strict=True):
            yield name.replace("attn.c_attn", f"attention.{ours}"), part.t()


def gpt2() -> tuple[LanguageModel, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = dict(vocab_size=97, n_positions=48, n_embd=32, n_layer=2, n_head=4)
    untied = dict(tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    theirs = scattered(GPT2LMHeadModel(GPT2Config(**sizes, **untied)))

    def block() -> Block:
        return Block(
            attention_norm=nn.LayerNorm(32),
            attention=Attention(hidden_dim=32, head_dim=8, bias=True),
            mlp_norm=nn.LayerNorm(32),
            mlp=GELU(hidden_dim=32, bias=True),
        )

    positions = LearnedPositions(seq_len=48, hidden_dim=32)
    norm = nn.LayerNorm(32)
    ours = small_model(block, positions=positions, vocab_size=97, tied=False, norm=norm)
    ours.load_state_dict(dict(renamed(theirs, GPT2_NAMES)))
    return ours.eval(), theirs


def llama() -> tuple[LanguageModel, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5)
    ends = dict(bos_token_id=None, eos_token_id=None)
    theirs = scattered(LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ends)))
    attention = partial(Attention, num_kv_heads=2, rope=RoPE(head_dim=8, theta=10_000.0))
    block = partial(small_block, attention, partial(SwiGLU, ffn_dim=48))
    ours = small_model(block, vocab_size=97, tied=False)
    ours.load_state_dict(dict(renamed(theirs, LLAMA_NAMES)))
    return ours.eval(), theirs


@pytest.fixture(scope="module", params=[gpt2, llama])
def pair(request: pytest.FixtureRequest) -> Any:
    """Our model and theirs."""
    return request.param()


def their_text(theirs: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """What transformers writes after left-padded prompts."""
    width = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    present = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = dict(max_new_tokens=24, pad_token_id=0, do_sample=False) | options
    return theirs.generate(padded, attention_mask=present, **options)[:, width:].tolist()


def our_text(ours: LanguageModel, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    choose = Sampling(seeds=[0] * len(prompts), temperature=0.0, top_k=None, **options)
    steps = write(ours, prompts, num_tokens=24, context=48, choose=choose)
    return [list(row) for row in zip(*steps, strict=True)]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["alone", "left-padded"])
def test_greedy_text_is_that_of_transformers(pair, prompts):
    ours, theirs = pair
    expected = their_text(theirs, prompts)
    assert our_text(ours, prompts) == expected
    assert min(len(set(row)) for row in expected) > 3


def test_the_repetition_penalty_is_that_of_transformers(pair):
    ours, theirs = pair
    expected = their_text(theirs, PROMPTS[:1], repetition_penalty=1.5)
    assert our_text(ours, PROMPTS[:1], repetition_penalty=1.5) == expected
    assert expected != their_text(theirs, PROMPTS[:1])
