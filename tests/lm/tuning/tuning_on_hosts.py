"""A process of a run that trains an adapter on a mesh that is its argument, and merges and writes it."""

import sys
from pathlib import Path

import meshwright as mw

mw.parallel.start_processes()

sys.path.insert(0, str(Path(__file__).parents[2]))
from lm.tuning.test_adapted import LLAMA, LORA, experiment  # noqa: E402
from meshwright.lm._models import hugging_face  # noqa: E402
from meshwright.lm._tuning._merged import merged_source  # noqa: E402
from meshwright.lm._tuning._peft import export_adapter  # noqa: E402

place = Path(sys.argv[1])
mesh = sys.argv[2]
outcome = mw.run(
    experiment(place / "run", mesh=mesh, dtype="float32", max_steps=4, logging=mw.Logging(every=1))
)
adapter = outcome.state.params["adapter"]
assert mesh == "data=1" or not outcome.state.params["base"]["layers"]["q"].is_fully_addressable
export_adapter(adapter, place / "adapter", LORA, LLAMA)
hugging_face.export_model(
    merged_source(hugging_face.open_model(LLAMA), adapter, LORA), place / "merged", LLAMA
)
