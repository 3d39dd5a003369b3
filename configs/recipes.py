"""How published models were trained: the run of each named model, with its source.

A recipe has what its source says of the main phase of pre-training; later phases with longer
sequences or other text are left out. What no source says follows a law, and the docstring of the
config says so. The text stays `base`'s, since few texts are public.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps

import fiddle as fdl

from fidgpt.fiddlers import train_for, use_cosine, use_linear, use_z_loss
from fidgpt.optim import fraction
from fidgpt.tags import NumSteps
from fidgpt.train import Trainer

_LAW = "DeepSeek LLM's law (arXiv:2401.02954, section 3.1)"
_TOKENS_AT_ONCE = 8192  # on one device; `for_hardware` and `set_micro_batch_size` choose others
_EVERY = 1000  # steps between checkpoints, and between validations


@dataclass(frozen=True)
class Recipe:
    """The run of a published model.

    Args:
      source: where the numbers are from.
      seq_len: tokens of a row.
      size: parameters that a token uses.
      tokens: of the run; if unpublished, 20 for each parameter.
      learning_rate: peak; if unpublished, the law's rate for the run's floating-point operations.
      batch_size: rows of a step; if unpublished, the law's size.
      warmup: steps.
      weight_decay: of matrices.
      min_lr_ratio: fraction of the peak at the end.
      decay: fraction of the run over which the rate decays, after a constant phase.
      shape: sets the shape of the decay.
      z_loss: weight of that loss; 0 for none.
      limit: longest sequence of the model, where that is longer than a row.
      hardware: machines and mesh of the published run.
      text: what trains on its text, if that is public.
      note: what else the source says.
    """

    source: str
    seq_len: int
    size: float
    tokens: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    warmup: int = 2000
    weight_decay: float = 0.1
    min_lr_ratio: float = 0.1
    decay: float = 1.0
    shape: Callable[..., None] = use_cosine
    z_loss: float = 0.0
    limit: int | None = None
    hardware: str = ""
    text: str = ""
    note: str = ""

    @property
    def num_tokens(self) -> int:
        """Tokens of the run."""
        return round(20 * self.size if self.tokens is None else self.tokens)

    @property
    def peak(self) -> float:
        """Peak learning rate, with two digits by the law."""
        rate = 0.3118 * self._operations**-0.1250
        return float(f"{rate:.2g}") if self.learning_rate is None else self.learning_rate

    @property
    def rows(self) -> int:
        """Rows of a step, a multiple of 64 by the law."""
        rows = 0.2920 * self._operations**0.3271 / self.seq_len
        return max(1, round(rows / 64)) * 64 if self.batch_size is None else self.batch_size

    @property
    def _operations(self) -> float:
        return 6 * self.size * self.num_tokens

    def apply(self, cfg: fdl.Config[Trainer]) -> None:
        """Set what the recipe says."""
        cfg.seq_len, cfg.batch_size = self.seq_len, self.rows
        cfg.micro_batch_size = max(1, _TOKENS_AT_ONCE // self.seq_len)
        train_for(cfg, self.num_tokens)
        cfg.optimizer.lr, cfg.optimizer.weight_decay = self.peak, self.weight_decay
        num_steps = self.num_tokens / (self.rows * self.seq_len)
        warmup = fdl.Config(fraction, of=NumSteps.new(), ratio=round(self.warmup / num_steps, 9))
        if self.decay == 1 and self.shape is use_cosine:  # as in `base`
            cfg.schedule.warmup_steps, cfg.schedule.min_ratio = warmup, self.min_lr_ratio
        else:
            self.shape(cfg, self.min_lr_ratio)
            cfg.schedule.warmup = warmup
            cfg.schedule.decay = None if self.decay == 1 else self.decay
        if self.z_loss:
            use_z_loss(cfg, self.z_loss)
        for part in (cfg.checkpoints, *cfg.evaluators.values()):
            part.every = _EVERY

    def describe(self) -> str:
        """Return the run as a paragraph."""
        share = f"the last {self.decay:.0%} of the run" if self.decay < 1 else "the run"
        shape = "cosine" if self.shape is use_cosine else "linear"
        longest = f" (of up to {self.limit:,} that the model is for)" if self.limit else ""
        by_law = [
            name
            for name, value in (("rate", self.learning_rate), ("batch", self.batch_size))
            if value is None
        ]
        sentences = [
            f"Run: {self.num_tokens / 1e12:.3g} T tokens in rows of {self.seq_len:,}{longest}, "
            f"{self.rows:,} rows a step, AdamW at {self.peak:g}, with a {shape} decay to "
            f"{self.min_lr_ratio:g} of it over {share} ({self.source})",
            f"unpublished, and by {_LAW}: {' and '.join(by_law)}" if by_law else "",
            "" if self.tokens else "unpublished, and 20 for each parameter: tokens",
            f"hardware: {self.hardware}" if self.hardware else "",
            f"text: {self.text}" if self.text else "",
            self.note,
            "on a laptop: with fiddler:make_tiny",
        ]
        return "; ".join(filter(None, sentences)) + "."


# By `use_text`, of what `base` trains on; `use_hub_text` streams it.
_PILE = "fiddler:use_hub_text(EleutherAI/the_pile_deduplicated)"
_SMOLLM = "fiddler:use_hub_text(HuggingFaceTB/smollm-corpus, fineweb-edu-dedup)"

_gpt2 = partial(
    Recipe,
    "rows and batch: GPT-2, 2019; the rest, of which it says nothing: GPT-3 of that size, "
    "arXiv:2005.14165, table 2.1",
    seq_len=1024,
    tokens=300e9,
    batch_size=512,
    warmup=715,
    text="fiddler:use_hub_text(Skylion007/openwebtext), a copy of GPT-2's",
)
_llama2 = partial(
    Recipe, "arXiv:2307.09288, section 2.2", seq_len=4096, tokens=2e12, batch_size=1024
)
_llama3 = partial(Recipe, "arXiv:2407.21783, table 3", seq_len=8192, tokens=15e12, warmup=8000)
_llama3_1 = partial(_llama3, limit=131_072)
_distilled = partial(
    Recipe,
    "tokens: the model card",
    seq_len=8192,
    tokens=9e12,
    limit=131_072,
    note="the published models began as pruned ones of 8B, whose logits they also learned",
)
_mistral = partial(Recipe, "rows: arXiv:2310.06825, table 1", seq_len=8192)
_mixtral = partial(Recipe, "rows: arXiv:2401.04088, table 1", seq_len=32_768)
_qwen2_5 = partial(
    Recipe, "arXiv:2412.15115, sections 3.1 and 3.3", seq_len=4096, tokens=18e12, limit=131_072
)
_qwen3 = partial(Recipe, "arXiv:2505.09388, section 3.2", seq_len=4096, tokens=36e12, limit=40_960)
_gemma2 = partial(Recipe, "arXiv:2408.00118, sections 2 and 3", seq_len=8192)
_gemma3 = partial(Recipe, "arXiv:2503.19786, sections 2 and 5", seq_len=32_768, limit=131_072)
_deepseek = partial(Recipe, seq_len=4096, limit=163_840)
_olmo2 = partial(
    Recipe,
    "arXiv:2501.00656, section 2",
    seq_len=4096,
    z_loss=1e-5,
    text="fiddler:use_hub_text(allenai/olmo-mix-1124)",
)
_smollm = partial(
    Recipe,
    "github.com/huggingface/smollm, pre-training/smollm1",
    seq_len=2048,
    batch_size=512,
    decay=0.2,
    shape=use_linear,
    min_lr_ratio=0.0,
    weight_decay=0.01,
    hardware="64 H100, data parallel",
    text=_SMOLLM,
)
_smollm2 = partial(
    Recipe,
    "arXiv:2502.02737, sections 4 and 6",
    seq_len=2048,
    batch_size=1024,
    decay=0.2,
    shape=use_linear,
    min_lr_ratio=0.0,
    limit=8192,
    text=_SMOLLM,
)
_phi3 = partial(Recipe, "arXiv:2404.14219, section 2", seq_len=4096)
_pythia = partial(
    Recipe,
    "arXiv:2304.01373 and github.com/EleutherAI/pythia, models",
    seq_len=2048,
    tokens=143_000 * 1024 * 2048,
    batch_size=1024,
    warmup=1430,
    text=_PILE,
)
_granite = partial(
    Recipe,
    "tokens: the model card",
    seq_len=4096,
    tokens=12e12,
    note="the published rate is a power of the tokens (arXiv:2408.13359)",
)
_command_r = partial(Recipe, "no source: nothing is published", seq_len=8192, limit=131_072)
_falcon = partial(
    Recipe,
    "arXiv:2311.16867, section 5",
    seq_len=2048,
    z_loss=1e-4,
    text="fiddler:use_hub_text(tiiuae/falcon-refinedweb, text_field=content)",
)
_gpt_oss = partial(
    Recipe, "no source: nothing is published of numbers", seq_len=4096, limit=131_072
)
_granite4 = partial(
    Recipe,
    "tokens: IBM's announcement of Granite 4.0, 2025",
    seq_len=4096,
    tokens=22e12,
    limit=131_072,
    note="the tokens are those of the corpus, of which each published model took a sample",
)
_lfm2 = partial(Recipe, "tokens: arXiv:2511.23404", seq_len=4096, tokens=10e12, limit=128_000)

RECIPES = {
    "gpt2_124m": _gpt2(size=124e6, learning_rate=6e-4),
    "gpt2_355m": _gpt2(size=355e6, learning_rate=3e-4),
    "gpt2_774m": _gpt2(size=774e6, learning_rate=2.5e-4),
    "gpt2_1558m": _gpt2(size=1558e6, learning_rate=2e-4),
    "llama2_7b": _llama2(size=6.7e9, learning_rate=3e-4),
    "llama2_13b": _llama2(size=13e9, learning_rate=3e-4),
    "llama2_70b": _llama2(size=69e9, learning_rate=1.5e-4),
    "llama3_8b": _llama3(size=8e9, learning_rate=3e-4),
    "llama3_70b": _llama3(size=71e9, learning_rate=1.5e-4),
    "llama3_1_8b": _llama3_1(size=8e9, learning_rate=3e-4),
    "llama3_1_70b": _llama3_1(size=71e9, learning_rate=1.5e-4),
    "llama3_1_405b": _llama3_1(
        size=406e9,
        tokens=15.6e12,
        learning_rate=8e-5,
        batch_size=2048,
        min_lr_ratio=0.01,
        hardware="16,384 H100, fiddler:use_mesh(shard=128, tensor=8, pipeline=16)",
        note="the published batches were a quarter of these rows at first, and half up to 2.87 T",
    ),
    "llama3_2_1b": _distilled(size=1.2e9),
    "llama3_2_3b": _distilled(size=3.2e9),
    "mistral_7b": _mistral(size=7.2e9, limit=32_768),
    "mistral_7b_v0_3": _mistral(size=7.2e9, limit=32_768),
    "mistral_nemo_12b": _mistral(size=12.2e9, limit=1_024_000),
    "mistral_small_24b": _mistral(size=23.6e9, limit=32_768),
    "mixtral_8x7b": _mixtral(size=13e9),
    "mixtral_8x22b": _mixtral(size=39e9, limit=65_536),
    "qwen2_5_0_5b": _qwen2_5(size=0.5e9, limit=32_768),
    "qwen2_5_1_5b": _qwen2_5(size=1.5e9),
    "qwen2_5_3b": _qwen2_5(size=3e9, limit=32_768),
    "qwen2_5_7b": _qwen2_5(size=7.6e9),
    "qwen2_5_14b": _qwen2_5(size=14.8e9),
    "qwen2_5_32b": _qwen2_5(size=32.8e9),
    "qwen2_5_72b": _qwen2_5(size=72.7e9),
    "qwen3_0_6b": _qwen3(size=0.6e9),
    "qwen3_1_7b": _qwen3(size=1.7e9),
    "qwen3_4b": _qwen3(size=4e9),
    "qwen3_8b": _qwen3(size=8.2e9),
    "qwen3_14b": _qwen3(size=14.8e9),
    "qwen3_32b": _qwen3(size=32.8e9),
    "qwen3_30b_a3b": _qwen3(size=3.4e9),
    "qwen3_235b_a22b": _qwen3(size=22e9),
    "gemma2_2b": _gemma2(size=2.6e9, tokens=2e12, hardware="512 TPUv5e, 512 x data"),
    "gemma2_9b": _gemma2(size=9.2e9, tokens=8e12, hardware="4,096 TPUv4, 1,024 x data, 4 x model"),
    "gemma2_27b": _gemma2(
        size=27.2e9, tokens=13e12, hardware="6,144 TPUv5p, 768 x data, 8 x model"
    ),
    "gemma3_270m": _gemma3(size=0.27e9, tokens=6e12, limit=None),
    "gemma3_1b": _gemma3(size=1e9, tokens=2e12, limit=None, hardware="512 TPUv5e"),
    "gemma3_4b": _gemma3(size=3.9e9, tokens=4e12, hardware="2,048 TPUv5e"),
    "gemma3_12b": _gemma3(size=11.8e9, tokens=12e12, hardware="6,144 TPUv4"),
    "gemma3_27b": _gemma3(size=27e9, tokens=14e12, hardware="6,144 TPUv5p"),
    "deepseek_v2_lite": _deepseek(
        "arXiv:2405.04434, appendix B",
        size=2.7e9,
        tokens=5.7e12,
        learning_rate=4.2e-4,
        batch_size=4608,
        note="the published rate is constant, and 0.316 of it from 80% and again from 90% of the "
        "tokens, in place of the cosine",
    ),
    "deepseek_v3": _deepseek(
        "arXiv:2412.19437, section 4.2",
        size=38e9,
        tokens=14.8e12,
        learning_rate=2.2e-4,
        batch_size=15_360,
        decay=0.324,
        hardware="2,048 H800, fiddler:use_mesh(shard=128, pipeline=16, expert=64)",
        note="the published batches grow from 3,072 rows over 469 B tokens, and the last 500 B of "
        "the decay have two constant rates",
    ),
    "olmo2_1b": _olmo2(
        size=1.5e9,
        tokens=4e12,
        learning_rate=4e-4,
        batch_size=512,
        warmup=4000,
        note="warm-up: github.com/allenai/OLMo, OLMo2-1B-stage1.yaml",
    ),
    "olmo2_7b": _olmo2(size=7.3e9, tokens=3.9e12, learning_rate=3e-4, batch_size=1024),
    "olmo2_13b": _olmo2(size=13.7e9, tokens=5e12, learning_rate=9e-4, batch_size=2048),
    "olmo2_32b": _olmo2(size=32.2e9, tokens=6.06e12, learning_rate=6e-4, batch_size=2048),
    "olmoe_1b_7b": Recipe(
        "arXiv:2409.02060, appendix B",
        seq_len=4096,
        size=1.3e9,
        tokens=5.133e12,
        learning_rate=4e-4,
        batch_size=1024,
        warmup=2500,
        hardware="256 H100, fiddler:use_fsdp",
        text="fiddler:use_hub_text(allenai/OLMoE-mix-0924)",
    ),
    "smollm_135m": _smollm(size=135e6, tokens=600e9, learning_rate=3e-3),
    "smollm_360m": _smollm(size=362e6, tokens=600e9, learning_rate=3e-3),
    "smollm_1_7b": _smollm(size=1.7e9, tokens=1e12, learning_rate=5e-4),
    "smollm2_135m": _smollm2(size=135e6, tokens=2e12, learning_rate=3e-3),
    "smollm2_360m": _smollm2(size=362e6, tokens=4e12, learning_rate=3e-3),
    "smollm2_1_7b": _smollm2(
        size=1.7e9, tokens=11e12, learning_rate=5e-4, decay=0.1, hardware="256 H100"
    ),
    "smollm3_3b": Recipe(
        "huggingface.co/blog/smollm3",
        seq_len=4096,
        size=3.1e9,
        tokens=11.2e12,
        learning_rate=2e-4,
        batch_size=576,
        decay=0.1,
        shape=use_linear,
        min_lr_ratio=0.0,
        limit=65_536,
        hardware="384 H100, fiddler:use_mesh(replicate=192, tensor=2)",
        text=_SMOLLM,
    ),
    "phi3_3_8b": _phi3(size=3.8e9, tokens=3.3e12),
    "phi3_14b": _phi3(size=14e9, tokens=4.8e12),
    "phi4_14b": Recipe(
        "arXiv:2412.08905, section 3",
        seq_len=4096,
        size=14.7e9,
        tokens=10e12,
        learning_rate=3e-4,
        batch_size=5760,
        shape=use_linear,
        min_lr_ratio=0.0,
        limit=16_384,
    ),
    "gpt_neox_20b": Recipe(
        "arXiv:2204.06745 and github.com/EleutherAI/gpt-neox, configs/20B.yml",
        seq_len=2048,
        size=20.6e9,
        tokens=150_000 * 1536 * 2048,
        learning_rate=0.97e-4,
        batch_size=1536,
        warmup=1500,
        weight_decay=0.01,
        hardware="96 A100, fiddler:use_mesh(shard=12, tensor=2, pipeline=4)",
        text=_PILE,
    ),
    "pythia_14m": _pythia(size=14e6, learning_rate=1e-3, hardware="32 A100"),
    "pythia_31m": _pythia(size=31e6, learning_rate=1e-3, hardware="32 A100"),
    "pythia_70m": _pythia(size=70e6, learning_rate=1e-3, hardware="32 A100"),
    "pythia_160m": _pythia(size=162e6, learning_rate=6e-4, hardware="32 A100"),
    "pythia_410m": _pythia(size=405e6, learning_rate=3e-4, hardware="32 A100"),
    "pythia_1b": _pythia(size=1e9, learning_rate=2.5e-4, hardware="64 A100"),
    "pythia_1_4b": _pythia(size=1.4e9, learning_rate=2e-4, hardware="64 A100"),
    "pythia_2_8b": _pythia(size=2.8e9, learning_rate=1.6e-4, hardware="64 A100"),
    "pythia_6_9b": _pythia(size=6.9e9, learning_rate=1.2e-4, hardware="128 A100"),
    "pythia_12b": _pythia(size=12e9, learning_rate=1.2e-4, hardware="256 A100"),
    "granite3_2b": _granite(size=2.5e9),
    "granite3_8b": _granite(size=8.2e9),
    "granite4_h_micro": _granite4(size=3.2e9),
    "granite4_h_tiny": _granite4(size=1.5e9),
    "granite4_h_small": _granite4(size=9e9),
    "lfm2_350m": _lfm2(size=354e6),
    "lfm2_700m": _lfm2(size=742e6),
    "lfm2_1_2b": _lfm2(size=1.2e9),
    "qwen3_next_80b_a3b": Recipe(
        "tokens: Qwen Team, Qwen3-Next, 2025", seq_len=4096, size=3.9e9, tokens=15e12, limit=262_144
    ),
    "kimi_linear_48b_a3b": Recipe(
        "tokens: arXiv:2510.26692, section 5",
        seq_len=4096,
        size=3.5e9,
        tokens=5.7e12,
        limit=1_048_576,
        note="the published optimizer is MuonClip",
    ),
    "minimax_01": Recipe(
        "arXiv:2501.08313, section 4",
        seq_len=8192,
        size=48e9,
        tokens=11.4e12,
        learning_rate=2e-4,
        batch_size=16_384,
        warmup=500,
        decay=0.088,
        min_lr_ratio=0.15,
        limit=10_240_000,
        note="the published batches grow from 2,048 rows, and the rate is 1.3e-4 from 7.2 T on",
    ),
    "command_r": _command_r(size=35e9),
    "command_r_08_2024": _command_r(size=32e9),
    "falcon_7b": _falcon(
        size=7.2e9,
        tokens=1.5e12,
        learning_rate=6e-4,
        batch_size=2304,
        warmup=848,
        min_lr_ratio=0.02,
        hardware="384 A100, fiddler:use_mesh(replicate=192, pipeline=2)",
    ),
    "falcon_40b": _falcon(
        size=41e9,
        tokens=1e12,
        learning_rate=1.85e-4,
        batch_size=1152,
        warmup=1695,
        hardware="384 A100, fiddler:use_mesh(shard=12, tensor=8, pipeline=4)",
    ),
    "gpt_oss_20b": _gpt_oss(size=4.2e9),
    "gpt_oss_120b": _gpt_oss(size=5.7e9),
}

Make = Callable[[], fdl.Config[Trainer]]


def with_recipe(make: Make) -> Make:
    """Return a config function whose config is the run in `RECIPES`, as its docstring then says."""
    recipe = RECIPES[make.__name__]

    @wraps(make)
    def run() -> fdl.Config[Trainer]:
        cfg = make()
        recipe.apply(cfg)
        return cfg

    run.__doc__ = f"{make.__doc__}\n\n{recipe.describe()}"
    return run
