"""The quantities that a config says once: one tag for each, named after the quantity.

A parameter that carries a tag and has a value says the quantity; one that carries a tag and has no
value hears it from the nearest enclosing part that says it (see `fidgpt.graph.bind`). What has
`may_change` may be another when a run goes on (see `fidgpt.graph.permissions`).
"""

import fiddle as fdl


class HiddenDim(fdl.Tag):
    """Width of the residual stream, in elements."""


class HeadDim(fdl.Tag):
    """Size of one attention head, in elements."""


class FfnDim(fdl.Tag):
    """Width inside an MLP, in elements."""


class NumLayers(fdl.Tag):
    """Depth of the model, in blocks."""


class Window(fdl.Tag):
    """How far attention looks back, in tokens, the one that looks among them."""


class Theta(fdl.Tag):
    """Base of RoPE's wavelengths."""


class ScoreCap(fdl.Tag):
    """Bound of attention's scores before the softmax."""


class LogitCap(fdl.Tag):
    """Bound of the logits."""


class Rank(fdl.Tag):
    """Width of low-rank adapters, in elements."""


class NumKVHeads(fdl.Tag):
    """Key and value heads of an attention, a count that divides its query heads."""


class NumExperts(fdl.Tag):
    """Experts of a mixture, of which a token goes through a few."""


class TopK(fdl.Tag):
    """Experts that a token goes through."""


class VocabSize(fdl.Tag):
    """Rows of the token table, in tokens; a tokenizer may use fewer."""


class SeqLen(fdl.Tag):
    """Length of a training sequence, in tokens."""


class Dropout(fdl.Tag):
    """Probability of dropping an element in training, from 0 to 1."""

    may_change = "restart"


class InitStd(fdl.Tag):
    """Standard deviation of the weights at the start."""


class NumSteps(fdl.Tag):
    """Length of the run, in optimizer steps."""

    may_change = "restart"


class WarmupSteps(fdl.Tag):
    """Steps over which the learning rate rises from zero."""

    may_change = "restart"


class BatchSize(fdl.Tag):
    """Sequences per optimizer step, over all ranks and micro-batches."""


class LearningRate(fdl.Tag):
    """Peak learning rate, per step."""

    may_change = "restart"


class WeightDecay(fdl.Tag):
    """Decoupled weight decay, per unit of learning rate."""

    may_change = "restart"


class LabelSmoothing(fdl.Tag):
    """Share of every target that is spread over all tokens alike, from 0 to below 1."""

    may_change = "restart"


class MaxGradValue(fdl.Tag):
    """Bound of every number of a gradient, from zero."""

    may_change = "restart"


class AverageBeta(fdl.Tag):
    """Share of the average of weights that stays at a step, from 0 to less than 1."""

    may_change = "restart"


class Seed(fdl.Tag):
    """Seed from which every stream of random numbers is derived."""
