"""Object stores, reached through TensorStore's key-value stores: addresses, settings, and what went wrong.

TensorStore is imported when an address is opened, and only then: `meshwright[remote]` installs it.
"""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.errors import MeshwrightError, UsageError

SCHEMES = ("s3", "gs", "memory")

_RETRIES = {"max_retries": 12, "initial_delay": "100ms", "max_delay": "16s"}  # about two minutes
_FEW_RETRIES = {"max_retries": 3, "initial_delay": "50ms", "max_delay": "500ms"}
_STALLED = {
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "256",
}
"""When a connection that moves too few bytes a second is given up. TensorStore itself waits for ever."""

_CACHED = 16 << 20
"""Bytes of chunks, decoded, that are kept: of one chunk, a slice may be wanted after another."""

_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


def connect(scheme: str, bucket: str, *, patient: bool = True) -> Any:
    """Return the `tensorstore.KvStore` of a bucket; nothing is sent yet. Not `patient`: with few retries.

    Credentials, region and endpoint are those of the environment, as other programs know them.

    Raises:
      UsageError: TensorStore is not installed.
    """
    tensorstore = tensorstore_for(f"{scheme}://{bucket}")
    for name, value in _STALLED.items():  # read when the first request is made, as others' settings are
        os.environ.setdefault(name, value)
    with telling(f"open {scheme}://{bucket}"):
        spec = _spec(scheme, bucket, _RETRIES if patient else _FEW_RETRIES)
        return tensorstore.KvStore.open(spec, context=shared_context()).result()


def tensorstore_for(what: str) -> Any:
    """Return the module `tensorstore`.

    Raises:
      UsageError: It is not installed, and `what` needs it.
    """
    try:
        import tensorstore
    except ImportError:
        raise UsageError(f"{what} needs TensorStore. Install it: pip install 'meshwright[remote]'.") from None
    return tensorstore


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Say of what goes wrong in a store what was tried, in our words and without secrets.

    Raises:
      MeshwrightError: Something did.
    """
    try:
        yield
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, MeshwrightError):
            raise
        raise MeshwrightError(f"cannot {what}: {told(error)}") from None


def _spec(scheme: str, bucket: str, retries: dict[str, Any]) -> dict[str, Any]:
    match scheme:
        case "s3":
            return {"driver": "s3", "bucket": bucket, "s3_request_retries": retries, **_aws_settings()}
        case "gs":
            return {"driver": "gcs", "bucket": bucket, "gcs_request_retries": retries}
        case _:
            return {"driver": "memory", "path": f"{bucket}/"}


def _aws_settings() -> dict[str, Any]:
    """Return what TensorStore does not take from the environment by itself."""
    settings: dict[str, Any] = {}
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        settings |= {"endpoint": endpoint, "aws_region": "us-east-1"}  # a region is asked for, any will do
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        settings["aws_region"] = region
    if "AWS_ACCESS_KEY_ID" in os.environ:  # or else the chain looks for files first, and complains on stderr
        settings["aws_credentials"] = {"type": "environment"}
    return settings


@functools.cache
def shared_context() -> Any:
    """Return the context of all stores, so that `memory://` is one memory. It keeps some decoded chunks."""
    import tensorstore

    return tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHED}})


def told(error: Exception) -> str:
    """Return what TensorStore says of an error, without where in its sources, and without secrets."""
    text, *response = re.split(r" \[(?=[\w ]+=')", str(error), maxsplit=1)  # and not at "Byte range [0, 10)"
    if status := re.search(r"http_response_code='(\d+)'", "".join(response)):
        text += f" (HTTP {status[1]})"
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        text = text.replace(secret, "***")
    return re.sub(r"//[^/@\s]*@", "//***@", text)
