"""Prefers cheap nodes, by a table of prices in the configuration.

    pluginConfig:
    - name: CheapNodes
      args:
        prices: {m7.large: 0.10, m7.xlarge: 0.20}

The cheapest node gets 100 and the most expensive 0; an unknown type counts as the most expensive. Cost: one lookup for
each type of node, not for each node.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from bayplan.framework import Cycle, Handle, IntVector, NodeTable, PluginTraits, Pod, default_normalize, row_local

INSTANCE_TYPE = "node.kubernetes.io/instance-type"


class CheapNodes:
    """Scores nodes by the price of their type."""

    name = "CheapNodes"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)

    def __init__(self, prices: Mapping[str, float], label: str = INSTANCE_TYPE) -> None:
        # Scores are integers: a millionth is precise enough to distinguish two prices.
        self._prices = {kind: round(price * 1_000_000) for kind, price in prices.items()}
        self._unknown = max(self._prices.values())
        self._label = label

    @classmethod
    def factory(cls, args: Any, handle: Handle) -> "CheapNodes":  # noqa: ARG003
        """Called once, with the arguments of `pluginConfig`; an exception refuses the configuration."""
        prices = (args or {}).get("prices") or {}
        wrong = [kind for kind, price in prices.items() if not isinstance(price, int | float) or price < 0]
        if not prices or wrong:
            raise ValueError(f"prices must map types of nodes to amounts; {', '.join(wrong) or 'there are none'}")
        return cls(prices, (args or {}).get("label", INSTANCE_TYPE))

    def signature(self, pod: Pod) -> Hashable:  # noqa: ARG002
        """Prices are the same for every pod."""
        return ()

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        kinds = nodes.label(self._label).values
        prices = np.array([*(self._prices.get(kind, self._unknown) for kind in kinds), self._unknown], dtype=np.int64)
        raw: IntVector = prices[nodes.label_ids(self._label)]  # -1, no such label, picks the last
        return raw

    def normalize(self, cycle: Cycle, nodes: NodeTable, scores: IntVector) -> IntVector:  # noqa: ARG002
        """From prices to 0..100, over the feasible nodes."""
        return default_normalize(scores - scores.min(), reverse=True)
