"""Mixture of experts: routers, experts, dispatch and load balancing."""

from fidgpt.model.moe.balancing import *
from fidgpt.model.moe.dispatch import *
from fidgpt.model.moe.experts import *
from fidgpt.model.moe.grouped import *
from fidgpt.model.moe.layer import *
from fidgpt.model.moe.routers import *
