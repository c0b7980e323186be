"""Times by hand: every rate here is a round number a second."""

import dataclasses

import pytest

from meshwright.plan._chips import CHIPS
from meshwright.plan._estimate._traced import Work
from meshwright.plan._roofline import Rates, published_rates, step_time
from meshwright.program._hlo._collectives import Collective
from meshwright.program._utilisation import peak_flops

RATES = Rates({"bfloat16": 1000.0, "float32": 500.0}, memory=100.0, link=10.0, network=1.0, source="round")


def exchange(axes, size, sent, times=1, kind="all-gather"):
    return Collective(kind, axes, size, times, 0, sent, False, "")


def time_of(products=(), other=0, collectives=(), inside=None, over=None, rates=RATES):
    inside = {"data": 4, "tensor": 2} if inside is None else inside
    return step_time(
        products, other, collectives, rates, inside=inside, over=over or {}, batch_axes=frozenset({"data"})
    )


def test_a_product_takes_as_long_as_its_operations_or_its_bytes():
    found = time_of([Work(2000, 100, "bfloat16", 3), Work(500, 700, "float32", 1)])
    assert found.compute == 3 * 2 + 7


def test_a_dtype_of_which_no_rate_is_known_is_the_slowest():
    assert time_of([Work(1000, 0, "int8", 1)]).compute == 2


def test_what_is_exchanged_over_the_batch_hides_behind_computing():
    found = time_of([Work(5000, 0, "bfloat16", 1)], 0, [exchange(("data",), 4, 70)])
    assert (found.network[("data",)], found.exposed, found.seconds) == (7, 2, 7)


def test_what_is_exchanged_over_other_axes_is_waited_for():
    found = time_of([Work(5000, 0, "bfloat16", 1)], 100, [exchange(("tensor",), 2, 20, times=2)])
    assert found.seconds == 5 + 1 + 4


@pytest.mark.parametrize(("kind", "exposed"), [("collective-permute", 2), ("all-to-all", 7)])
def test_a_ring_hides_behind_computing_and_the_exchange_of_heads_does_not(kind, exposed):
    found = step_time(
        [Work(5000, 0, "bfloat16", 1)], 0, [exchange(("sequence",), 4, 70, kind=kind)], RATES,
        inside={"sequence": 4}, over={}, batch_axes=frozenset({"sequence"}),
    )  # fmt: skip
    assert found.exposed == exposed


def test_between_groups_each_device_sends_its_share_of_what_its_group_needs():
    over, inside = {"data": 4}, {"data": 2}
    found = time_of(collectives=[exchange(("data",), 8, 70)], over=over, inside=inside)
    # An array of 80 bytes, of which a group of two devices lacks three quarters: each fetches 30.
    assert found.network[("data",)] == pytest.approx(30)


def test_a_group_with_one_device_of_each_host_uses_the_network_alone():
    found = time_of(collectives=[exchange(("data",), 4, 30)], over={"data": 4}, inside={"tensor": 2})
    assert found.network[("data",)] == pytest.approx(30)


def test_a_permutation_is_one_hop():
    rates = dataclasses.replace(RATES, member_seconds=3.0)
    sent = exchange(("data",), 4, 70, kind="collective-permute")
    assert time_of(collectives=[sent], rates=rates).network[("data",)] == 3 + 7


def test_a_small_collective_takes_the_longer_the_more_devices_meet():
    rates = dataclasses.replace(RATES, member_seconds=3.0)
    found = step_time(
        [], 0, [exchange(("tensor",), 2, 0)], rates, inside={"tensor": 2}, over={}, batch_axes=frozenset()
    )
    assert found.exposed == 6


def test_a_fused_attention_kernel_has_a_speed_of_its_own_and_leaves_its_scores_on_the_chip():
    products = [Work(1000, 900, "bfloat16", 1, is_attention=True)]
    assert time_of(products).compute == 9
    assert time_of(products, rates=dataclasses.replace(RATES, attention=0.5)).compute == 2


def test_a_share_of_the_traffic_is_never_hidden():
    rates = dataclasses.replace(RATES, overlap=0.75)
    found = time_of([Work(9000, 0, "bfloat16", 1)], 0, [exchange(("data",), 4, 40)], rates=rates)
    assert (found.exposed, found.seconds) == (1, 10)


def test_a_share_of_the_shorter_of_product_and_memory_time_hides_behind_the_longer():
    rates = dataclasses.replace(RATES, memory_overlap=0.5)
    found = time_of([Work(9000, 0, "bfloat16", 1)], 400, rates=rates)
    assert (found.compute, found.memory, found.hidden_memory, found.seconds) == (9, 4, 2, 11)


def test_a_collective_between_groups_takes_time_for_each_group():
    rates = dataclasses.replace(RATES, member_seconds=1.0, group_seconds=2.0)
    groups = {"inside": {"data": 2}, "over": {"data": 4}}
    found = time_of(collectives=[exchange(("data",), 8, 0)], **groups, rates=rates)
    assert found.network[("data",)] == 2 * 1 + 4 * 2


def test_the_rates_of_every_chip_are_shares_of_its_data_sheet():
    for chip in CHIPS.values():
        rates = published_rates(chip)
        assert 0 < rates.flops["bfloat16"] < peak_flops(chip.device_kind, "bfloat16")
        assert 0 < rates.attention <= 1
        assert 0 <= rates.overlap <= 1
