"""CostModel: how long a batch will run, learned from the batches before it. `relay._pure.cost` says how."""

from __future__ import annotations

from relay._backend import cost

CostModel = cost.CostModel
CostSnapshot = cost.CostSnapshot
