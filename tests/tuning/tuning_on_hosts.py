"""A process of a run that trains an adapter of a split base, and merges and writes it."""

import sys
from pathlib import Path

import meshwright as mw

mw.process.start()

sys.path.insert(0, str(Path(__file__).parents[1]))
from meshwright.models import hugging_face  # noqa: E402
from meshwright.tuning import export_adapter, merged_source  # noqa: E402
from tuning.test_adapted import LLAMA, LORA, experiment  # noqa: E402

place = Path(sys.argv[1])
outcome = mw.run(experiment(place / "run", mesh="fsdp=8,tensor=2"))
adapter = outcome.state.params["adapter"]
assert not outcome.state.params["base"]["layers"]["q"].is_fully_addressable
export_adapter(adapter, place / "adapter", LORA, LLAMA)
hugging_face.export_model(
    merged_source(hugging_face.open_model(LLAMA), adapter, LORA), place / "merged", LLAMA
)
