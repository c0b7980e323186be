"""Scores of a state over examples: averages, metrics of all predictions, and outputs of each example.

`Measured` averages values of each example and `AverageLoss` the loss, `Metric` calls a function of all
predictions, `OutputFiles` writes outputs; `Scoring` puts them together for one evaluation, and
`scoring_by_function` makes one of any function of the parameters. `token_means` and `perplexity` are
functions for evaluations of language models. Add another kind of score in a file of its own, and its place in
`Scoring`.
"""
