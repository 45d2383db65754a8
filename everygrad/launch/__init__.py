"""The launcher: `python -m everygrad.launch -n 4 train.py` runs a script on several ranks."""
