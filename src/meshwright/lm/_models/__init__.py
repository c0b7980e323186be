"""Reference models, and maps between their parameters and those of other libraries.

`decoder`, `gpt2` and `t5` are one file of plain functions each: `init`, `logits` and the parts of a layer.
`_with_cache` lets them generate.
`_map` has the table of names and shapes, `hugging_face` the tables for Hugging Face's models, `t5x` those for
T5 of T5X. `gguf` writes files for llama.cpp. Add a model as a file of its own, and its table to
`hugging_face`.
"""
