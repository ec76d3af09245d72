"""What the ops did: how often each took its fused kernel or its reference, and why."""

import logging
from collections import Counter
from dataclasses import dataclass

from numerics.environment import strict
from numerics.errors import NotFusedError

LOG = logging.getLogger("numerics.ops")
FEW_TOKENS = "below min_tokens"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One way that calls of an op went. `reason` says why they were not fused, and is empty where they were."""

    op: str
    fused: bool
    reason: str = ""


_COUNTS: Counter[Dispatch] = Counter()


def dispatch_counts() -> dict[Dispatch, int]:
    """How many calls of this process went which way. A call in a replayed CUDA graph is counted once, when captured."""
    return dict(_COUNTS)


def reset_dispatch_counts() -> None:
    """Start counting, and logging the first call of each kind, from zero."""
    _COUNTS.clear()


def record(way: Dispatch) -> None:
    """Count a call; log the first of its kind.

    Raises NotFusedError for a call that cannot take its kernel where `NUMERICS_STRICT=1`. A call below min_tokens is no
    such call: it was asked for.
    """
    _COUNTS[way] += 1
    if way.fused:
        if _COUNTS[way] == 1:
            LOG.debug("%s: fused", way.op)
        return
    if not way.reason.startswith(FEW_TOKENS) and strict():
        raise NotFusedError(f"{way.op}: not fused: {way.reason}. NUMERICS_STRICT=1 refuses the reference")
    if _COUNTS[way] == 1:
        LOG.info("%s: runs its reference: %s", way.op, way.reason)
