"""What `torch.optim` has and this has not, each name with the reason or what to use.

`eg.optim` answers with it, and `docs/from-pytorch.md` is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from everygrad.core.nearest import no_attribute

# by the module that has them, there and here
ABSENT: dict[str, dict[str, str]] = {
    "optim": {
        "SparseAdam": "Adam: gradients are dense here, those of an embedding too",
    },
    "optim.lr_scheduler": {},
    "optim.swa_utils": {},
}
# names that are written otherwise elsewhere
SPELLINGS = {
    "ScheduleFree": "ScheduleFreeAdamW",
    "AdamWScheduleFree": "ScheduleFreeAdamW",
    "Lamb": "LAMB",
    "FusedAdam": "Adam, whose updates are one kernel as it is",
    "FusedLAMB": "LAMB",
    "PagedAdamW8bit": "AdamW8bit",
    "EMA": "swa_utils.AveragedModel with get_ema_multi_avg_fn(decay)",
    "clip_grad_norm_": "eg.nn.utils.clip_grad_norm_",
    "get_cosine_schedule_with_warmup": "lr_scheduler.WarmupCosine",
    "get_wsd_schedule": "lr_scheduler.WarmupStableDecay",
}


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that `everygrad.<module>` does not have: what to use, or the nearest."""
    use = ABSENT[module].get(name) or SPELLINGS.get(name)
    return no_attribute(f"everygrad.{module}", name, known, "" if use is None else f"; use {use}")
