"""The counter behind the figures of benchmarks/README.md."""

import jax
import jax.numpy as jnp
import optax
import pytest
from benchmarks.hlo.collectives import collective_bytes
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw


def program(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("line", "counted"),
    [
        ("%r = f32[8,16]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add", 8 * 16 * 4),
        ("%r = bf16[8]{0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}", 8 * 2),
        ("%r = f32[2]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8], to_apply=%add", 2 * 4 * 4),
        ("%r = (f32[8], f32[8]) all-to-all(%p, %q), replica_groups=mesh['a'=4,'b'=2], x=1 {'b'}", 2 * 8 * 4),
        ("%r = s8[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 8),
        ("%r = f32[8]{0} all-reduce-done(%s), replica_groups=[2,4]<=[8]", 8 * 4),
        ("%s = (f32[2], f32[8]) all-gather-start(%p), replica_groups=[2,4]<=[8]", 0),
        ("%r = f32[8]{0} all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add", 0),
        ("%r = f32[8]{0} add(%all-reduce.1, %p)", 0),
    ],
)
def test_the_bytes_of_each_kind(line, counted):
    assert sum(collective_bytes(program(line)).values()) == counted


def test_devices_that_cannot_be_read_are_an_error():
    with pytest.raises(ValueError, match="cannot read the devices"):
        collective_bytes(program("%r = f32[8]{0} all-reduce(%p), replica_groups=new_form"))


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def test_the_body_of_a_loop_counts_as_often_as_it_runs(mesh):
    split = NamedSharding(mesh, P(None, "tensor"))
    weights = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "tensor")))
    x = jax.ShapeDtypeStruct((4, 64), jnp.float32, sharding=split)

    def layers(weights, x):
        return jax.lax.scan(lambda x, w: (jax.lax.with_sharding_constraint(x @ w, split), None), x, weights)[
            0
        ]

    looped = sum(collective_bytes(compiled(layers, weights, x)).values())
    once = sum(collective_bytes(compiled(lambda w, x: layers(w[:1], x), weights, x)).values())
    assert looped == 3 * once > 0


def test_the_norm_of_gradients_gathers_nothing(mesh):
    shardings = mw.Layout(mesh, (mw.match("columns", None, "tensor"), mw.match("rows", "tensor", "fsdp")))
    gradients = shardings.place({"columns": jnp.ones((256, 512)), "rows": jnp.ones((512, 256))})
    exchanged = collective_bytes(compiled(optax.tree.norm, gradients))
    assert set(exchanged) == {"all-reduce"}
    assert exchanged["all-reduce"] < 100
