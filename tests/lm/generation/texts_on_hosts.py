"""A process of two that write texts to one file."""

import sys
from pathlib import Path

import meshwright as mw

mw.parallel.start_processes()

sys.path.insert(0, str(Path(__file__).parents[2]))
from lm.generation.test_texts_to_file import PROMPTS, params, predictor  # noqa: E402

predictor("data=4,tensor=4").predict(PROMPTS, 2, params(), to=sys.argv[1], seed=3)
