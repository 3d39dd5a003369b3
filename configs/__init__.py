"""Named configs: each function returns the whole graph of a run."""

import pkgutil

import fiddle as fdl

from fidgpt.configs.by_depth import nanochat
from fidgpt.configs.cohere import command_r, command_r_08_2024
from fidgpt.configs.deepseek2 import deepseek_v2_lite
from fidgpt.configs.deepseek3 import deepseek_v3
from fidgpt.configs.falcon import falcon_7b, falcon_40b
from fidgpt.configs.gemma2 import gemma2_2b, gemma2_9b, gemma2_27b
from fidgpt.configs.gemma3 import gemma3_1b, gemma3_4b, gemma3_12b, gemma3_27b, gemma3_270m
from fidgpt.configs.gpt2 import gpt2_124m, gpt2_355m, gpt2_774m, gpt2_1558m
from fidgpt.configs.gpt_neox import (
    gpt_neox_20b,
    pythia_1_4b,
    pythia_1b,
    pythia_2_8b,
    pythia_6_9b,
    pythia_12b,
    pythia_14m,
    pythia_31m,
    pythia_70m,
    pythia_160m,
    pythia_410m,
)
from fidgpt.configs.gpt_oss import gpt_oss_20b, gpt_oss_120b
from fidgpt.configs.granite import granite3_2b, granite3_8b
from fidgpt.configs.granite4 import granite4_h_micro, granite4_h_small, granite4_h_tiny
from fidgpt.configs.kimi_linear import kimi_linear_48b_a3b
from fidgpt.configs.lfm2 import lfm2_1_2b, lfm2_350m, lfm2_700m
from fidgpt.configs.llama import (
    llama2_7b,
    llama2_13b,
    llama2_70b,
    llama3_1_8b,
    llama3_1_70b,
    llama3_1_405b,
    llama3_2_1b,
    llama3_2_3b,
    llama3_8b,
    llama3_70b,
)
from fidgpt.configs.minimax import minimax_01
from fidgpt.configs.mistral import mistral_7b, mistral_7b_v0_3, mistral_nemo_12b, mistral_small_24b
from fidgpt.configs.mixtral import mixtral_8x7b, mixtral_8x22b
from fidgpt.configs.olmo2 import olmo2_1b, olmo2_7b, olmo2_13b, olmo2_32b
from fidgpt.configs.olmoe import olmoe_1b_7b
from fidgpt.configs.phi3 import phi3_3_8b, phi3_14b, phi4_14b
from fidgpt.configs.qwen2 import (
    qwen2_5_0_5b,
    qwen2_5_1_5b,
    qwen2_5_3b,
    qwen2_5_7b,
    qwen2_5_14b,
    qwen2_5_32b,
    qwen2_5_72b,
)
from fidgpt.configs.qwen3 import qwen3_0_6b, qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b, qwen3_32b
from fidgpt.configs.qwen3_moe import qwen3_30b_a3b, qwen3_235b_a22b
from fidgpt.configs.qwen3_next import qwen3_next_80b_a3b
from fidgpt.configs.recipes import RECIPES, with_recipe
from fidgpt.configs.small import base, debug
from fidgpt.configs.smollm import (
    smollm2_1_7b,
    smollm2_135m,
    smollm2_360m,
    smollm3_3b,
    smollm_1_7b,
    smollm_135m,
    smollm_360m,
)
from fidgpt.train import Trainer

__all__ = [
    "base",
    "command_r",
    "command_r_08_2024",
    "debug",
    "deepseek_v2_lite",
    "deepseek_v3",
    "falcon_7b",
    "falcon_40b",
    "gemma2_2b",
    "gemma2_9b",
    "gemma2_27b",
    "gemma3_1b",
    "gemma3_4b",
    "gemma3_12b",
    "gemma3_27b",
    "gemma3_270m",
    "gpt2_124m",
    "gpt2_355m",
    "gpt2_774m",
    "gpt2_1558m",
    "gpt_neox_20b",
    "gpt_oss_20b",
    "gpt_oss_120b",
    "granite3_2b",
    "granite3_8b",
    "granite4_h_micro",
    "granite4_h_small",
    "granite4_h_tiny",
    "kimi_linear_48b_a3b",
    "lfm2_1_2b",
    "lfm2_350m",
    "lfm2_700m",
    "llama2_7b",
    "llama2_13b",
    "llama2_70b",
    "llama3_1_8b",
    "llama3_1_70b",
    "llama3_1_405b",
    "llama3_2_1b",
    "llama3_2_3b",
    "llama3_8b",
    "llama3_70b",
    "minimax_01",
    "mistral_7b",
    "mistral_7b_v0_3",
    "mistral_nemo_12b",
    "mistral_small_24b",
    "mixtral_8x7b",
    "mixtral_8x22b",
    "nanochat",
    "olmo2_1b",
    "olmo2_7b",
    "olmo2_13b",
    "olmo2_32b",
    "olmoe_1b_7b",
    "phi3_3_8b",
    "phi3_14b",
    "phi4_14b",
    "pythia_1_4b",
    "pythia_1b",
    "pythia_2_8b",
    "pythia_6_9b",
    "pythia_12b",
    "pythia_14m",
    "pythia_31m",
    "pythia_70m",
    "pythia_160m",
    "pythia_410m",
    "qwen2_5_0_5b",
    "qwen2_5_1_5b",
    "qwen2_5_3b",
    "qwen2_5_7b",
    "qwen2_5_14b",
    "qwen2_5_32b",
    "qwen2_5_72b",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3_14b",
    "qwen3_30b_a3b",
    "qwen3_32b",
    "qwen3_235b_a22b",
    "qwen3_next_80b_a3b",
    "smollm2_1_7b",
    "smollm2_135m",
    "smollm2_360m",
    "smollm3_3b",
    "smollm_1_7b",
    "smollm_135m",
    "smollm_360m",
]

# Functions of the modules give models of these sizes; their names here, the runs that made them.
globals().update({name: with_recipe(globals()[name]) for name in RECIPES})


def from_hf(directory: str) -> fdl.Config[Trainer]:
    """The model, tokenizer and weights of a local directory in the format of the hub."""
    # By name, as the catalogue of configs has it: what reads such files imports the configs.
    return pkgutil.resolve_name("fidgpt.interop.hugging_face:from_hf")(directory)
