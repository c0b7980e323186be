"""Fine-tuning with little memory: adapters beside frozen weights, which may be stored in few bits.

`_lora` describes an adapter, `_adapted` and `_matrices` compute with it, `_quantised` stores weights in eight
or four bits, `_experiment` makes a run of an adapter from one of all parameters, `_peft` reads and writes
PEFT's files, `_examples` and `_rows` read a file of chats and texts, `_families` says what each model takes,
`_tune` goes from a folder and such a file to a tuned model, and `_dpo` trains on preferences. May import all
rooms up to `experiment` and `predict`. Add another model to `_families`, and another encoding of weights as a
file like `_nf4.py`.
"""

from meshwright.tuning._dpo import LogProbabilities, dpo, log_probabilities, with_reference
from meshwright.tuning._experiment import adapted
from meshwright.tuning._lora import Form, Lora, lora
from meshwright.tuning._merged import merged_source
from meshwright.tuning._peft import export_adapter, read_adapter
from meshwright.tuning._quantised import (
    Kind,
    Quantised,
    dequantised,
    quantise,
    quantised_init,
    quantised_source,
)
from meshwright.tuning._rows import Rows, read_pair_rows, read_rows, split_rows
from meshwright.tuning._tune import Tuned, tune, tuning, tuning_on, write_best

__all__ = [
    "Form",
    "Kind",
    "LogProbabilities",
    "Lora",
    "Quantised",
    "Rows",
    "Tuned",
    "adapted",
    "dequantised",
    "dpo",
    "export_adapter",
    "log_probabilities",
    "lora",
    "merged_source",
    "quantise",
    "quantised_init",
    "quantised_source",
    "read_adapter",
    "read_pair_rows",
    "read_rows",
    "split_rows",
    "tune",
    "tuning",
    "tuning_on",
    "with_reference",
    "write_best",
]
