"""Fused groups and eager ops on GPUs.

`group_plan` says which kernels there are, `group_threads` how threads share the work; `group`
writes passes and stores, `group_values` loads and bodies of ops, `group_sums` how sums accumulate
and the kernel that combines partial sums; `group_sizes` names the sizes that a text may leave open,
and `kernel_texts` keeps texts by their form.
"""
