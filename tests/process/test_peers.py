"""What an error tells of another process, and what it does not."""

import jax
import pytest

from meshwright import process
from meshwright.errors import EXIT_PEERS, PeersError

GLOO = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547]"
OF_ANOTHER = [
    ValueError(f"{GLOO} Connection closed by peer [127.0.0.1]:18060"),
    jax.errors.JaxRuntimeError(f"{GLOO} Read error [127.0.0.1]:27284: Connection reset by peer"),
    jax.errors.JaxRuntimeError("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited"),
    RuntimeError("Unable to initialize backend 'cpu': DEADLINE_EXCEEDED: GetKeyValue() timed out"),
    jax.errors.JaxRuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."),
]
OF_THIS_ONE = [
    ConnectionResetError("Connection reset by peer"),  # of a store, say
    ValueError("the batch is empty"),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
    jax.errors.JaxRuntimeError(f"{GLOO} Received data size doesn't match expected size"),
]


@pytest.mark.parametrize("error", OF_ANOTHER, ids=str)
def test_an_error_that_tells_of_a_lost_process_is_a_peers_error_with_its_cause(error):
    with (
        pytest.raises(PeersError, match="another process of this run is lost") as caught,
        process.shared_work(),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.exit_code == EXIT_PEERS == 6


@pytest.mark.parametrize("error", OF_THIS_ONE, ids=str)
def test_all_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, process.shared_work():
        raise error
    assert caught.value is error
