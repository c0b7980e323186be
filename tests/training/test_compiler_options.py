"""Options of the compiler."""

import jax
import pytest

from meshwright.errors import UsageError
from meshwright.training._compile import check_compiler_options


def test_an_option_with_a_wrong_value_names_option_and_hardware():
    with pytest.raises(UsageError, match=r"xla_cpu_enable_fast_math, .* of the compiler for cpu"):
        check_compiler_options({"xla_cpu_enable_fast_math": "maybe"}, jax.devices())
