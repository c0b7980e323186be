"""Generation of tokens by a model with a cache: greedy, drawn, or by beam search; and scores of tokens.

`generate` and `stream` serve many prompts in a fixed number of rows, on the mesh of the parameters;
`generate_batch` is a pure function for use inside `jit`. `score` gives the log-likelihood of rows by the same
`Model`, which is a pair of functions. A `Decoding` has the settings by which tokens are chosen; the functions
beside it compute with them: add a bound there, and its field to `Decoding`.
"""
