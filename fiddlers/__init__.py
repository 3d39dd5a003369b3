"""How to change a run: each function changes the graph that it is given, in one concern."""

from fidgpt.fiddlers.attention import use_gqa
from fidgpt.fiddlers.blocks import unroll, use_gelu, use_layer_norm, use_rms_norm, use_swiglu
from fidgpt.fiddlers.embeddings import tie_embeddings, untie_embeddings
from fidgpt.fiddlers.hardware import for_hardware, set_micro_batch_size
from fidgpt.fiddlers.positions import use_learned_positions, use_rope
from fidgpt.fiddlers.runs import (
    scale_learning_rate,
    smoke_test,
    use_bytes,
    use_float32,
    use_text,
    use_wsd,
)
from fidgpt.fiddlers.sizes import make_large, make_medium, make_small, make_xl

__all__ = [
    "for_hardware",
    "make_large",
    "make_medium",
    "make_small",
    "make_xl",
    "scale_learning_rate",
    "set_micro_batch_size",
    "smoke_test",
    "tie_embeddings",
    "unroll",
    "untie_embeddings",
    "use_bytes",
    "use_float32",
    "use_gelu",
    "use_gqa",
    "use_layer_norm",
    "use_learned_positions",
    "use_rms_norm",
    "use_rope",
    "use_swiglu",
    "use_text",
    "use_wsd",
]
