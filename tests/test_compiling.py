import jax
import jax.numpy as jnp

import compiling


def test_of_what_jax_keeps_for_tests_what_was_written_in_part_is_removed_and_the_rest_stays(tmp_path):
    with compiling.kept_in(str(tmp_path)):
        jax.jit(lambda x: jnp.sin(x) + 4321)(jnp.ones(7)).block_until_ready()
    whole = sorted(tmp_path.glob("*"))
    assert whole
    (tmp_path / "in part").write_bytes(whole[0].read_bytes()[:-1])
    compiling.tidy(tmp_path)
    assert sorted(tmp_path.glob("*")) == whole
