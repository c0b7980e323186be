"""Programs: operations and results that nothing needs are left out, as XLA leaves them out.

And the equations of jaxprs.
"""

import jax
import jax.numpy as jnp

from meshwright.program._jaxprs import equations
from meshwright.program._program import program_of


def test_a_result_of_a_loop_that_nothing_reads_is_left_out():
    def total(x):
        turn = lambda carry, _: ((jnp.tanh(carry[0]), carry[1] + carry[0].sum()), None)
        (_, found), _ = jax.lax.scan(turn, (x, 0.0), length=3)
        return found

    [scan] = [of for of in program_of(jax.make_jaxpr(total)(jnp.ones(8))).operations if of.bodies]
    assert [x.shape for x in scan.outputs] == [()]
    assert len(scan.carried) == 2  # the next iteration reads both


def test_a_jaxpr_that_many_equations_call_is_looked_into_once():
    called = jax.jit(jnp.sin)
    for _ in range(40):  # each calls the one before twice: 2 ** 40 calls
        called = jax.jit(lambda x, before=called: before(x) + before(x))
    found = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(called)(1.0))]
    assert found.count("sin") == 1
    assert found.count("add") == 40
