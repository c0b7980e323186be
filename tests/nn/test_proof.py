"""Random cases of attention, in every form that a CPU can compute: 300 in `make soak`."""

from collections import Counter

import pytest

import meshwright as mw
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs
from meshwright.nn._kernels import splash, why_not_splash
from soak import SEED, cases

TPU = Hardware("tpu")


@pytest.mark.soak
@pytest.mark.slow
def test_each_form_comes_to_the_definition_in_random_cases():
    by: Counter[str] = Counter()

    def attend(q, k, v, **asked):
        given = AttentionInputs.create(q, k, v, **{"scale": None, "bias": None, **asked})
        if why_not_splash(given, False, TPU) is None:  # a kernel of Pallas, operation by operation
            by["splash"] += 1
            return splash(given, interpret=True)
        by["others"] += 1
        return mw.nn.attention(q, k, v, **asked)

    found = [*mw.nn._internal.self_check(attend, num_cases=cases(2, 300), seed=SEED)]
    assert [each for each in found if not each.passed] == []
    assert by["splash"] * by["others"] > 0 or len(found) < 20
    assert {each.limit for each in found if each.dtype == "float32"} <= {2e-5}
