"""What a description says is taken apart, whatever was written there."""

from meshwright.base import _description as description


def test_the_arguments_of_a_value_come_by_paths_of_their_own():
    found = description.values("optimizer = optax.sgd(learning_rate=0.1)")
    assert found == {"optimizer": "optax.sgd", "optimizer.learning_rate": "0.1"}


def test_what_is_nested_too_deeply_stays_whole():
    text = f"f(x={'(' * 5000}1{')' * 5000})"
    assert description.values(f"optimizer = {text}") == {"optimizer": text}
