"""The functions of other libraries that are replaced for the steps that ranks share.

A module has `HOOKS`, a table: each hook gets the original function, and returns the function that replaces it. The last
text of a hook says what goes wrong without it. `functions`, `eager_code` and `sessions` give calls to `steps`;
`datasets`, `py_datasets` and `keras_data` give data; `callbacks` adds two callbacks to Keras' list.
"""
