"""The whole table: every family is imported here, one line each."""

from everygrad.interop.torch.aten.registry import HANDLERS as HANDLERS
