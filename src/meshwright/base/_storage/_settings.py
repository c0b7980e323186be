"""Connections to stores: URL schemes, settings from the environment, and retries.

    s3      AWS_ACCESS_KEY_ID, …, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3
    gs      GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST
    az      AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, …

The variables have the meaning that the providers' own programs give them. Most are read by obstore, which is
imported when the first URL is opened.
"""

import configparser
import functools
import importlib
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from meshwright.base._extras import import_extra
from meshwright.base._storage._obstore import Obstore, S3Listing
from meshwright.base._storage._store import reason_of
from meshwright.errors import UsageError

BUCKETS = ("s3", "gs", "az", "abfs")
"""The schemes of URLs that begin with a bucket, which Azure calls a container."""
SCHEMES = (*BUCKETS, "https", "http", "memory")

PATIENCE = {"max_retries": 1800, "first": 0.1, "longest": 15.0, "seconds": 180.0, "stalled": 60.0}
IMPATIENCE = {"max_retries": 3, "first": 0.05, "longest": 0.5, "seconds": 20.0, "stalled": 30.0}
"""Retries of a request: their number, the first and the longest pause, and the total time, in seconds;
`stalled` is the time for which a connection may transfer nothing. PATIENCE has enough tries for its time.
IMPATIENCE is for callers that try again themselves, or need to see an error soon."""

_REQUEST_SECONDS = 3600
_PREFIXES = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "AZURE_", "HOME")
_AZURE = " Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or another way to sign in."
_HINTS = {"az": _AZURE, "abfs": _AZURE, "gs": " Is GOOGLE_APPLICATION_CREDENTIALS a file of credentials?"}
_OF_PROFILE = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region")


def connect(scheme: str, bucket: str, patience: Mapping[str, float]) -> Obstore:
    """Return a bucket. No request is sent yet."""
    errors = import_extra("obstore.exceptions", extra="remote", needed_by=f"{scheme}://{bucket}")
    stores = import_extra("obstore.store", extra="remote", needed_by=f"{scheme}://{bucket}")
    environ = tuple(sorted(variable for variable in os.environ.items() if variable[0].startswith(_PREFIXES)))
    try:
        return _connected(stores, scheme, bucket, tuple(patience.items()), environ)
    except (ValueError, errors.BaseError) as error:
        if isinstance(error, UsageError):
            raise
        hint = _HINTS.get(scheme, "")
        raise UsageError(f"{scheme}://{bucket} cannot be opened: {reason_of(error)}.{hint}") from None


# The cache keeps connections, as they take long to open.
@functools.lru_cache(maxsize=64)
def _connected(stores: Any, scheme: str, bucket: str, patience: Any, environ: Any) -> Obstore:
    client, settings = _client(dict(patience)), dict(environ)
    match scheme:
        case "memory":
            return _memory(bucket)
        case "s3":
            options = _aws(settings, client)
            opened = functools.partial(stores.S3Store, bucket, **client, **options)
            region = settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION") or options.get("region")
            amazon = f"https://s3.{region or 'us-east-1'}.amazonaws.com"
            endpoint = options.get("aws_endpoint_url_s3") or amazon
            return Obstore(opened(), S3Listing(opened, f"{endpoint.rstrip('/')}/{bucket}"))
        case "gs":
            return Obstore(stores.GCSStore(bucket, **client, **_google(settings, client)))
        case "az" | "abfs":
            _allow_http(client, settings.get("AZURE_STORAGE_ENDPOINT") or settings.get("AZURE_ENDPOINT"))
            return Obstore(stores.AzureStore(bucket, **client))
    _allow_http(client, f"{scheme}://")
    return Obstore(stores.HTTPStore.from_url(f"{scheme}://{bucket}", **client), creates=False)


# The memory store of a name is one for the whole process.
@functools.cache
def _memory(bucket: str) -> Obstore:
    return Obstore(importlib.import_module("obstore.store").MemoryStore())


def _client(patience: Mapping[str, float]) -> dict[str, Any]:
    return {
        "client_options": {
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "read_timeout": timedelta(seconds=patience["stalled"]),
        },
        "retry_config": {
            "max_retries": patience["max_retries"],
            "retry_timeout": timedelta(seconds=patience["seconds"]),
            "backoff": {
                "init_backoff": timedelta(seconds=patience["first"]),
                "max_backoff": timedelta(seconds=patience["longest"]),
                "base": 4,  # a pause is drawn from `first` to the last one times this: they double
            },
        },
    }


def _allow_http(client: dict[str, Any], endpoint: str | None) -> None:
    if endpoint and endpoint.startswith("http://"):
        client["client_options"]["allow_http"] = True


def _aws(settings: dict[str, str], client: dict[str, Any]) -> dict[str, str]:
    """Return the settings that obstore does not read itself: endpoints without TLS, and profiles."""
    endpoint = settings.get("AWS_ENDPOINT_URL_S3") or settings.get("AWS_ENDPOINT_URL")
    _allow_http(client, endpoint)
    options = {"aws_endpoint_url_s3": endpoint} if endpoint else {}
    signs_in = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"} & settings.keys()
    return options | ({} if signs_in and "AWS_PROFILE" not in settings else _profile(settings))


def _profile(settings: dict[str, str]) -> dict[str, str]:
    """Return the keys and the region of the profile, from AWS's own files."""
    name, home = settings.get("AWS_PROFILE", "default"), Path("~/.aws").expanduser()
    values: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", home / "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", home / "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        parser.read(settings.get(variable, file), encoding="utf-8")
        values |= dict(parser[section]) if section in parser else {}
    if "AWS_PROFILE" in settings and _OF_PROFILE[0] not in values:
        raise UsageError(
            f"the AWS profile {name} has no keys in {home}. If it signs in by a program or a browser, export "
            "its keys to the environment: "
            f'eval "$(aws configure export-credentials --profile {name} --format env)"'
        )
    if settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION"):
        values.pop("region", None)
    return {key: values[key] for key in _OF_PROFILE if key in values}


def _google(settings: dict[str, str], client: dict[str, Any]) -> dict[str, str]:
    """Return the settings for the emulator at STORAGE_EMULATOR_HOST, which takes any token; {} without it."""
    if not (host := settings.get("STORAGE_EMULATOR_HOST")):
        return {}
    url = host if re.match("https?://", host) else f"http://{host}"
    _allow_http(client, url)
    return {"base_url": url, "bearer_token": "of-an-emulator"}
