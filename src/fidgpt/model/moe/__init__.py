"""Mixture of experts: routers, experts, how tokens get there, and what keeps the load even."""

from fidgpt.model.moe.experts import *
from fidgpt.model.moe.layer import *
