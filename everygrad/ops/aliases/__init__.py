"""What PyTorch and NumPy programs say that is no op here: other spellings, written in ops.

Nothing of this is loaded before it is asked for; `core/torch_names.OWN` says which module has which
name. Parameters have PyTorch's names and order, results PyTorch's values.
"""
