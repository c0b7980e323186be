"""Rows that prompts join and leave one by one: what each gets is what it would get alone."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.lm._generation._slots import GenerationRequest, Pool
from meshwright.lm._models import decoder

CFG = decoder.Config(vocabulary=32, model=8, layers=1, heads=2, feed_forward=8)
MODEL = mw.lm.with_cache(CFG)
PARAMS = decoder.init(CFG, mw.training.key_of(0))
PROMPTS = [np.array(row, np.int32) for row in ([1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12])]


@pytest.fixture(scope="module")
def pool():
    return Pool(MODEL, PARAMS, length=32, slots=4)


def run(pool, wanted, every=3):
    """Return the tokens of each slot, once all have ended."""
    pool.start(wanted)
    found, going = {slot: [] for slot in wanted}, set(wanted)
    while going:
        for slot, (tokens, is_done) in pool.advance(every).items():
            if slot in going:
                found[slot] += tokens.tolist()
                going -= {slot} if is_done else set()
    return found


def test_prompts_that_join_later_get_what_they_get_alone(pool):
    alone = mw.lm.generate(MODEL, PARAMS, PROMPTS, mw.lm.Decoding(max_new_tokens=9))
    pool.start({0: GenerationRequest(PROMPTS[0], 9), 2: GenerationRequest(PROMPTS[1], 9)})
    found = {slot: tokens.tolist() for slot, (tokens, _) in pool.advance(4).items()}
    pool.start({1: GenerationRequest(PROMPTS[2], 9)})
    ended = {}
    for _ in range(3):
        for slot, (tokens, is_done) in pool.advance(4).items():
            found[slot] += tokens.tolist()
            ended[slot] = is_done
    assert ended == {0: True, 1: True, 2: True, 3: True}
    assert [found[0], found[2], found[1]] == [row.tolist() for row in alone[:3]]


def test_each_row_has_settings_and_a_limit_of_its_own(pool):
    drawn = {"temperature": 1.5, "top_p": 0.9, "seed": 5}
    wanted = {
        0: GenerationRequest(PROMPTS[0], 4),
        1: GenerationRequest(PROMPTS[0], 8, **drawn),
        2: GenerationRequest(PROMPTS[0], 8, **drawn),
    }
    together = run(pool, wanted)
    assert len(together[0]) == 4
    assert together[1] == together[2] == run(pool, {3: wanted[1]})[3]
    assert together[1] != run(pool, {3: wanted[1]._replace(seed=6)})[3]
    assert (
        together[0]
        == mw.lm.generate(MODEL, PARAMS, PROMPTS[:1], mw.lm.Decoding(max_new_tokens=4))[0].tolist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 3, "top_p": 0.7}])
def test_bounds_of_a_row_leave_out_what_those_of_all_rows_do(bounds):
    from meshwright.lm._generation._decoding import chosen_by_row, narrowed

    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, 16)), jnp.float32)
    decoding = mw.lm.Decoding(temperature=0.8, **bounds)
    allowed = set(np.flatnonzero(np.isfinite(narrowed(decoding, logits)[0])).tolist())
    B = 400
    given = {"top_k": 2**30, "top_p": 1.0, "min_p": 0.0, **bounds}
    rows = [jnp.full(B, value) for value in (0.8, given["top_k"], given["top_p"], given["min_p"])]
    drawn = mw.training.key_of(1), jnp.arange(B, dtype=jnp.uint32), jnp.zeros(B, jnp.int32)
    found = np.asarray(chosen_by_row(*rows, jnp.tile(logits, (B, 1)), *drawn))
    assert set(found.tolist()) == allowed


@pytest.mark.slow
def test_a_slot_that_was_left_serves_the_next_prompt(pool):
    pool.start({0: GenerationRequest(PROMPTS[0], 20)})
    pool.advance(2)  # its client has gone: nothing is to be told to the pool
    alone = mw.lm.generate(MODEL, PARAMS, PROMPTS[3:], mw.lm.Decoding(max_new_tokens=6))[0].tolist()
    assert run(pool, {0: GenerationRequest(PROMPTS[3], 6)})[0] == alone


def test_a_pool_tells_its_room(pool):
    assert (pool.slots, pool.vocabulary, pool.max_new_tokens(30), pool.max_new_tokens(32)) == (4, 32, 2, 0)
