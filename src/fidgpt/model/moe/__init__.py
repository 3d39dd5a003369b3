"""Mixture of experts: routers, experts, dispatch and load balancing."""

from fidgpt.model.moe.experts import *
from fidgpt.model.moe.layer import *
