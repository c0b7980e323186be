import numpy as np
import pytest

from meshwright.checkpoints._arrays._restore import load, load_lazily
from meshwright.checkpoints._arrays._source import as_source
from meshwright.errors import InputError


@pytest.mark.parametrize("loaded", [load, load_lazily])
@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_names_of_which_one_lies_below_the_other_are_refused_and_none_is_lost(loaded, names):
    source = as_source({name: np.ones(2) for name in names}, "an npz file")
    with pytest.raises(InputError, match=r"is a leaf above or below another"):
        loaded(source)
