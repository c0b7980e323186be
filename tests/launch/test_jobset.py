"""The manifest of a JobSet, against the schema that an API server checks."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from meshwright.errors import UsageError
from meshwright.launch._job import Job
from meshwright.launch._jobset import Pods, jobset_manifest

SCHEMA = json.loads(
    lzma.decompress((Path(__file__).parents[1] / "clusters/jobset.schema.json.xz").read_bytes())
)
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
COMMAND = ("meshwright", "train", "gpt.py:experiment", "workdir=/runs/gpt")


MOUNTED = Pods("r/x:1", mounts=("runs:/runs",))


def manifest(number=4, pods=MOUNTED, **more):
    return yaml.safe_load(jobset_manifest(Job(COMMAND, number, name="gpt", **more), pods))


@pytest.mark.parametrize(
    "pods",
    [
        MOUNTED,
        Pods("r/x:1", gpus=8, mounts=("runs:/runs",), namespace="research"),
        Pods("r/x:1", tpu="tpu-v5-lite-podslice:4x4:4", replicas=2, shared="gs://b/runs"),
    ],
)
def test_each_manifest_is_one_that_kubernetes_takes(pods):
    assert list(VALIDATOR.iter_errors(manifest(pods=pods))) == []


def test_the_schema_refuses_what_an_api_server_would_drop():
    wrong = manifest()
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["paralelism"] = 4
    wrong["spec"]["failurePolicy"]["rules"][0]["action"] = "Restart"
    assert len(list(VALIDATOR.iter_errors(wrong))) == 2


def test_a_pod_is_a_process_that_jax_finds_without_asking_the_cluster():
    job = manifest()["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    known = {each["name"]: each.get("value") for each in container["env"]}
    assert known == {
        "JAX_COORDINATOR_ADDRESS": "gpt-workers-0-0.gpt:55527",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": None,
        "MESHWRIGHT_START": None,
        "MESHWRIGHT_NODE": None,
    }
    assert (job["parallelism"], job["completions"]) == (4, 4)


def command(pods):
    job = manifest(pods=pods)["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize(
    ("pods", "place"),
    [
        (MOUNTED, "/runs"),
        (Pods("r/x:1", mounts=("data:/data", "runs:/runs"), shared="/runs/ends"), "/runs/ends"),
        (Pods("r/x:1", shared="gs://bucket/runs"), "gs://bucket/runs"),
    ],
)
def test_each_pod_leaves_its_end_where_all_see_it_with_no_shell_between_it_and_its_signals(pods, place):
    before = ["meshwright", "launch", "pod", "--name", "gpt", "--shared", place, "--"]
    assert command(pods) == [*before, *COMMAND]


def test_a_program_that_saves_nothing_needs_no_place():
    assert command(Pods("r/x:1", shared="none")) == list(COMMAND)


def test_tpus_are_chosen_by_their_labels():
    pods = Pods("r/x:1", tpu="tpu-v5-lite-podslice:4x4:4", replicas=2, shared="gs://b/runs")
    (jobs,) = manifest(8, pods)["spec"]["replicatedJobs"]
    pod = jobs["template"]["spec"]["template"]["spec"]
    assert (jobs["replicas"], jobs["template"]["spec"]["parallelism"]) == (2, 4)
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}


@pytest.mark.parametrize(
    ("pods", "more", "complaint"),
    [
        (replace(MOUNTED, replicas=3), {}, "--replicas is 3; it must divide"),
        (replace(MOUNTED, gpus=8, tpu="a:b:4"), {}, "--gpus and --tpu are both given"),
        (replace(MOUNTED, tpu="v5e"), {}, "expected ACCELERATOR:TOPOLOGY:CHIPS"),
        (Pods("r/x:1"), {}, "neither --mount nor --shared is given"),
        (replace(MOUNTED, shared="/run/x"), {}, r"expected a directory below a --mount \(/runs\)"),
        (Pods("r/x:1", shared="runs"), {}, "--shared is 'runs'; expected a directory below a --mount"),
        (Pods("r/x:1", shared="s3://key:secret@bucket"), {}, "credentials"),
        (Pods("r/x:1", mounts=("/runs",)), {}, "expected CLAIM:PATH"),
        (MOUNTED, {"processes_per_host": 2}, "--processes-per-host must be 1"),
    ],
)
def test_what_no_jobset_can_be_is_refused(pods, more, complaint):
    with pytest.raises(UsageError, match=complaint):
        manifest(pods=pods, **more)


def test_a_name_that_pods_could_not_have_is_refused():
    with pytest.raises(UsageError, match="Give a name of at most 45"):
        jobset_manifest(Job(COMMAND, 4, name="g" * 60), MOUNTED)
