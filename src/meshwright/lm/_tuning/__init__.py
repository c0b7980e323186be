"""Fine-tuning with little memory: adapters beside frozen weights, which may be stored in few bits.

`_lora` describes an adapter, `_adapted` computes with it, `_quantised` stores weights in eight
or four bits, `_experiment` makes a run of an adapter from one of all parameters, `_peft` reads and writes
PEFT's files, `_examples` reads a file of chats and texts, `_families` has the loss, matrices and rows of each
model, `_tune` goes from a folder and such a file to a tuned model, and `_dpo` trains on preferences. Add
another model to `_families`, and another encoding of weights to `_encodings`.
"""
