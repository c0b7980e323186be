import jax
import jax.numpy as jnp
import pytest

from meshwright.program._hlo._kernels import kernels, memory_traffic
from program.hlo.stored_hlo import stored

LAYERS, WEIGHTS, VOCABULARY, MODEL = 6, 4 * 256 * 256 + 3 * 256 * 512, 512, 256
TOKENS, LENGTH = 32 * 128 // 8, 128


def program(*lines, also=""):
    """A program of these lines over float32[16, 1024] %stack, float32[1, 1024] %row and s32[] %i."""
    operands = [
        "%stack = f32[16,1024]{1,0} parameter(0)",
        "%row = f32[1,1024]{1,0} parameter(1)",
        "%i = s32[] parameter(2)",
    ]
    body = "\n".join(f"  {line}" for line in (*operands, *lines))
    return f"HloModule m\n\n{also}\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"


ROW, STACK = 4 * 1024, 16 * 4 * 1024


@pytest.mark.parametrize(
    ("line", "nbytes"),
    [
        ("f32[16,1024]{1,0} negate(%stack)", 2 * STACK),
        ("f32[16,1024]{1,0} add(%stack, %stack)", 3 * STACK),
        ("f32[1,1024]{1,0} dynamic-slice(%stack, %i, %i), dynamic_slice_sizes={1,1024}", 2 * ROW),
        ("f32[16,1024]{1,0} dynamic-update-slice(%stack, %row, %i, %i)", 2 * ROW),
        ("f32[2,1024]{1,0} gather(%stack, %ids), offset_dims={1}", 4 * ROW),
        ("(f32[1,1024]{1,0}, f32[8,1024]{1,0}) all-gather-start(%row), replica_groups=[1,8]<=[8]", 9 * ROW),
        ("f32[1,1024]{1,0} all-reduce-start(%row), replica_groups=[1,8]<=[8]", 2 * ROW),
        ("f32[1,1024]{1,0} all-reduce-done(%x)", 0),
        ("f32[1,16,1024]{2,1,0} bitcast(%stack)", 0),
        ("(f32[16,1024]{1,0}, f32[1,1024]{1,0}) tuple(%stack, %row)", 0),
        ("(f32[16,1024]{1,0:T(8,128)S(1)}, f32[16,1024]{1,0}) copy-start(%stack)", STACK),
        ("f32[16,1024]{1,0:S(5)} copy(%stack)", STACK),
        ("f32[16,1024]{1,0:S(1)} copy(%stack)", 2 * STACK),
    ],
)
def test_what_is_read_and_written_of_memory(line, nbytes):
    assert memory_traffic(program("%ids = s32[2]{0} constant({1, 2})", f"ROOT %x = {line}")) == nbytes


INNER = """%fused (a: f32[16,1024], b: f32[1,1024], c: s32[]) -> f32[1,1024] {
  %a = f32[16,1024]{1,0} parameter(0)
  %b = f32[1,1024]{1,0} parameter(1)
  %c = s32[] parameter(2)
  %flat = f32[16,1,1024]{2,1,0} bitcast(%a)
"""
PUT = "f32[16,1024]{1,0} dynamic-update-slice(%a, %b, %c, %c)"


@pytest.mark.parametrize(
    ("type_", "lines", "nbytes"),
    [
        ("f32[16,1024]{1,0}", f"ROOT %x = {PUT}", 2 * ROW + 4),
        (
            "f32[16,1,1024]{2,1,0}",
            f"%put = {PUT}\n  ROOT %x = f32[16,1,1024]{{2,1,0}} bitcast(%put)",
            2 * ROW + 4,
        ),
        (
            "(f32[16,1024]{1,0}, f32[1,1024]{1,0})",
            f"%put = {PUT}\n  ROOT %x = (f32[16,1024]{{1,0}}, f32[1,1024]{{1,0}}) tuple(%put, %b)",
            2 * ROW + 4,
        ),
        (
            "f32[1,1024]{1,0}",
            "%one = f32[1,1,1024]{2,1,0} dynamic-slice(%flat, %c, %c, %c)\n"
            "  %row = f32[1,1024]{1,0} bitcast(%one)\n  ROOT %x = f32[1,1024]{1,0} add(%row, %b)",
            3 * ROW + 4,
        ),
        ("f32[16,1024]{1,0}", "ROOT %x = f32[16,1024]{1,0} negate(%a)", 2 * STACK),
    ],
)
def test_of_what_a_fusion_slices_or_updates_in_place_the_part_counts(type_, lines, nbytes):
    hlo = program(
        f"ROOT %x = {type_} fusion(%stack, %row, %i), kind=kLoop, calls=%fused", also=f"{INNER}  {lines}\n}}"
    )
    assert memory_traffic(hlo) == nbytes


def compiled(function, *shapes):
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*structs).compile().as_text()


def test_traffic_grows_with_the_layers_and_not_with_their_square():
    def traffic(layers):
        model = lambda w, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0].sum()
        return memory_traffic(compiled(jax.grad(model), (layers, 128, 128), (128, 128)))

    eight, sixteen, thirty_two = map(traffic, (8, 16, 32))
    assert thirty_two - sixteen == pytest.approx(2 * (sixteen - eight), rel=0.01)


@pytest.mark.parametrize(
    ("platform", "shape"),
    [
        *[
            (platform, shape)
            for platform in ("cuda", "tpu")
            for shape in ("data=8", "data=2,fsdp=2,tensor=2")
        ],
        ("slices", "fsdp=2,data=4"),
    ],
)
def test_products_are_counted_to_the_operation(platform, shape):
    """Of a layer computed twice all but its last product, which nothing needs, is done four times."""
    hlo, _ = stored(platform, shape)
    matrices = 2 * TOKENS * (4 * WEIGHTS - 512 * 256)
    attention = 2 * TOKENS * LENGTH * MODEL * (2 + 2 + 4)
    vocabulary = 2 * TOKENS * MODEL * VOCABULARY * 3
    expected = LAYERS * (matrices + attention) + vocabulary
    assert sum(kernel.times * kernel.flops for kernel in kernels(hlo)) == expected


@pytest.mark.parametrize(
    ("op", "flops"),
    [
        (
            "dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
            2 * 8 * 4 * 5 * 6,
        ),
        (
            'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
            '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"]}}}',
            2 * 8 * 4 * 5 * 6,
        ),
        (
            "convolution(%a, %b), window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
            2 * 8 * 4 * 5 * 6,
        ),
        ("add(%a, %b)", 0),
    ],
)
def test_each_way_to_write_a_product_has_its_operations(op, flops):
    hlo = program(
        "%a = f32[8,4,6]{2,1,0} constant({...})",
        "%b = f32[8,6,5]{2,1,0} constant({...})",
        f"ROOT %x = f32[8,4,5]{{2,1,0}} {op}",
    )
    (kernel,) = kernels(hlo)
    assert kernel.flops == flops


def test_a_convolution_does_not_multiply_by_its_padding():
    def convolved(x, w):
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME")

    found = kernels(compiled(convolved, (2, 3, 10), (4, 3, 5)))
    assert sum(kernel.flops for kernel in found) == 2 * (2 * 4 * 3) * (5 * 10 - 2 * (1 + 2))


def test_a_convolution_with_holes_in_its_window_does_not_multiply_by_its_padding():
    def convolved(x, w):
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME", rhs_dilation=(2,))

    found = kernels(compiled(convolved, (2, 3, 10), (4, 3, 3)))
    assert sum(kernel.flops for kernel in found) == 2 * (2 * 4 * 3) * (3 * 10 - 2 * 2)


def test_an_exchange_that_goes_on_beside_other_work_moves_its_bytes_once():
    """As TPUs have it: begun in one fusion, carried through a second, which negates, and ended in a third."""
    gather = "all-gather(%shard), channel_id=7, replica_groups={}, dimensions={0}"
    handed = "(f32[1,1024]{1,0}, f32[8,1024]{1,0})"
    both = "%shard = f32[1,1024]{1,0} parameter(0)\n  %whole = f32[8,1024]{1,0} parameter(1)"
    inner = f"""%begin (a: f32[1,1024]) -> {handed} {{
  %shard = f32[1,1024]{{1,0}} parameter(0)
  %gather = f32[8,1024]{{1,0}} {gather}
  ROOT %x = {handed} tuple(%shard, %gather)
}}

%go_on (a: f32[1,1024], b: f32[8,1024], c: f32[16,1024]) -> (f32[16,1024], f32[1,1024], f32[8,1024]) {{
  {both}
  %c = f32[16,1024]{{1,0}} parameter(2)
  %gather = f32[8,1024]{{1,0}} {gather}
  %negated = f32[16,1024]{{1,0}} negate(%c)
  ROOT %x = (f32[16,1024]{{1,0}}, f32[1,1024]{{1,0}}, f32[8,1024]{{1,0}}) tuple(%negated, %shard, %gather)
}}

%end (a: f32[1,1024], b: f32[8,1024]) -> f32[8,1024] {{
  {both}
  %gather = f32[8,1024]{{1,0}} {gather}
  ROOT %x = f32[8,1024]{{1,0}} custom-call(%shard, %whole, %gather), custom_call_target="AsyncCollectiveDone"
}}"""
    hlo = program(
        f"%begun = {handed} fusion(%row), kind=kCustom, calls=%begin",
        "%shard = f32[1,1024]{1,0} get-tuple-element(%begun), index=0",
        "%whole = f32[8,1024]{1,0} get-tuple-element(%begun), index=1",
        "%going = (f32[16,1024]{1,0}, f32[1,1024]{1,0}, f32[8,1024]{1,0}) fusion(%shard, %whole, %stack),"
        " kind=kOutput, calls=%go_on",
        "ROOT %ended = f32[8,1024]{1,0} fusion(%shard, %whole), kind=kCustom, calls=%end",
        also=inner,
    )
    assert {kernel.name: kernel.nbytes for kernel in kernels(hlo)} == {
        "begun": ROW + 8 * ROW,
        "going": 2 * STACK,
        "ended": 0,
    }
