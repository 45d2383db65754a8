"""Mixed precision: which ops run in a half dtype (`autocast`), and losses scaled for it (`scaler`).

`autocast` stands below `dispatch`, which asks it; `scaler` is written in ops.
"""
