"""Every way to be told about one's peers, and every half-way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.processes import _internal as processes

TRIO = {"JAX_COORDINATOR_ADDRESS": "host:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
TORCHRUN = {"MASTER_ADDR": "host", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}
STEP = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "n[01-02]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
UNEVEN = STEP | {"SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_GPUS_ON_NODE": "4"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2"}
TPU = {"TPU_ML_PLATFORM": "JAX"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}

SAID = {
    "nothing at all": ({}, ("nobody", None, 1, 0, None)),
    "JAX_*": (TRIO, ("JAX_* variables", "host:1", 4, 3, None)),
    "JAX_*, the other spelling": (
        {"JAX_COORDINATOR_ADDRESS": "host:1", "JAX_PROCESS_COUNT": "4", "JAX_PROCESS_INDEX": "3"},
        ("JAX_* variables", "host:1", 4, 3, None),
    ),
    "JAX_*, the port apart": (
        TRIO | {"JAX_COORDINATOR_ADDRESS": "host", "JAX_COORDINATOR_PORT": "9"},
        ("JAX_* variables", "host:9", 4, 3, None),
    ),
    "JAX_* with devices": (
        TRIO | {"JAX_LOCAL_DEVICE_IDS": "2,3"},
        ("JAX_* variables", "host:1", 4, 3, (2, 3)),
    ),
    "JAX_*, one process": ({"JAX_NUM_PROCESSES": "1"}, ("JAX_* variables", None, 1, 0, None)),
    "JAX_* before torchrun": (TRIO | TORCHRUN, ("JAX_* variables", "host:1", 4, 3, None)),
    "one process by JAX_* in a SLURM script": (
        {"JAX_NUM_PROCESSES": "1", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"},
        ("JAX_* variables", None, 1, 0, None),
    ),
    "torchrun": (TORCHRUN, ("torchrun", "host:29500", 8, 5, (1,))),
    "torchrun, one process a machine": (
        TORCHRUN | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        ("torchrun", "host:29500", 8, 5, None),
    ),
    "torchrun, whose agent holds the port": (
        TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        ("torchrun", "host:62269", 8, 5, (1,)),
    ),
    "torchrun, one process": ({"WORLD_SIZE": "1", "RANK": "0"}, ("torchrun", None, 1, 0, None)),
    "torchrun before SLURM": (TORCHRUN | STEP, ("torchrun", "host:29500", 8, 5, (1,))),
    "SLURM, with torch's variables for everybody": (
        STEP | {"MASTER_ADDR": "host", "MASTER_PORT": "1", "WORLD_SIZE": "4"},
        ("SLURM", "n01:61441", 4, 3, (1,)),
    ),
    "SLURM": (STEP, ("SLURM", "n01:61441", 4, 3, (1,))),
    "SLURM, one task a node": (
        STEP
        | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
        | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"},
        ("SLURM", "n01:61441", 2, 1, None),
    ),
    "SLURM, the third of three tasks here and one elsewhere": (
        UNEVEN | {"SLURM_NODEID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "2"},
        ("SLURM", "n01:61441", 4, 2, (2,)),
    ),
    "SLURM, one task here and three elsewhere": (
        UNEVEN | {"SLURM_LOCALID": "0"},
        ("SLURM", "n01:61441", 4, 3, None),
    ),
    "SLURM, many nodes of two layouts": (
        STEP
        | {"SLURM_STEP_NODELIST": "n[01-05]", "SLURM_STEP_NUM_TASKS": "14", "SLURM_PROCID": "13"}
        | {"SLURM_STEP_TASKS_PER_NODE": "4,2(x3),4", "SLURM_NODEID": "4", "SLURM_LOCALID": "3"}
        | {"SLURM_GPUS_ON_NODE": "8"},
        ("SLURM", "n01:61441", 14, 13, (6, 7)),
    ),
    "SLURM, eight GPUs for two tasks": (
        STEP | {"SLURM_GPUS_ON_NODE": "8"},
        ("SLURM", "n01:61441", 4, 3, (4, 5, 6, 7)),
    ),
    "SLURM with --gpus-per-task": (STEP | {"SLURM_GPUS_PER_TASK": "1"}, ("SLURM", "n01:61441", 4, 3, None)),
    "SLURM, which has bound the GPUs": (
        STEP | {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0"},
        ("SLURM", "n01:61441", 4, 3, None),
    ),
    "SLURM with another port": (STEP | {"JAX_COORDINATOR_PORT": "5"}, ("SLURM", "n01:5", 4, 3, (1,))),
    "SLURM with another coordinator": (
        STEP | {"JAX_COORDINATOR_ADDRESS": "n01-ib:5"},
        ("SLURM and JAX_* variables", "n01-ib:5", 4, 3, (1,)),
    ),
    "SLURM, a script with one task": (
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"},
        ("SLURM", None, 1, 0, None),
    ),
    "SLURM, an editor on the node": ({"SLURM_JOB_ID": "7"}, ("SLURM", None, 1, 0, None)),
    "mpirun": (MPIRUN | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1"}, ("Open MPI", None, None, None, None)),
    "mpirun of Open MPI 5": (MPIRUN, ("Open MPI 5", None, None, None, None)),
    "mpirun inside a SLURM script": (
        MPIRUN | {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"},
        ("Open MPI 5", None, None, None, None),
    ),
    "mpirun -n 1": ({"OMPI_COMM_WORLD_SIZE": "1"}, ("Open MPI", None, 1, 0, None)),
    "TPU slice on Kubernetes": (
        TPU | POD | {"TPU_WORKER_HOSTNAMES": "a,b"},
        ("Cloud TPU", None, None, None, None),
    ),
    "one TPU machine": (TPU | {"TPU_WORKER_HOSTNAMES": "localhost"}, ("Cloud TPU", None, 1, 0, None)),
    "several TPU slices of one machine": (
        TPU | {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"},
        ("Cloud TPU", None, None, None, None),
    ),
    "TPU machine with metadata": (TPU, ("Cloud TPU", None, None, None, None)),
    "TPU machine without metadata": (TPU | {"TPU_SKIP_MDS_QUERY": "1"}, ("nobody", None, 1, 0, None)),
    "TPU variables without a TPU": ({"TPU_WORKER_HOSTNAMES": "a,b"}, ("nobody", None, 1, 0, None)),
    "indexed Kubernetes job": (POD, ("Kubernetes", None, None, None, None)),
    "one of several jobs of a JobSet": (
        {
            **TRIO,
            **POD,
            "JAX_NUM_PROCESSES": "8",
            "JAX_PROCESS_ID": "",
            "MESHWRIGHT_JOB_INDEX": "1",
            "MESHWRIGHT_PODS_PER_JOB": "4",
        },
        ("JAX_* variables", "host:1", 8, 6, None),
    ),
    "any other pod": ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("nobody", None, 1, 0, None)),
}

REFUSED = {
    "coordinator only": ({"JAX_COORDINATOR_ADDRESS": "h:1"}, "JAX_NUM_PROCESSES.*JAX_PROCESS_ID"),
    "no process id": ({**TRIO, "JAX_PROCESS_ID": ""}, r"but not process_id \(JAX_PROCESS_ID\)"),
    "no coordinator": ({**TRIO, "JAX_COORDINATOR_ADDRESS": ""}, "but not coordinator"),
    "no port": (TRIO | {"JAX_COORDINATOR_ADDRESS": "host"}, "no port"),
    "no number": (TRIO | {"JAX_NUM_PROCESSES": "four"}, "JAX_NUM_PROCESSES='four'"),
    "process id too high": (TRIO | {"JAX_PROCESS_ID": "4"}, "process id is 4.*from 0 to 3"),
    "no processes": (TRIO | {"JAX_NUM_PROCESSES": "0"}, "at least 1"),
    "device ids": (TRIO | {"JAX_LOCAL_DEVICE_IDS": "all"}, "JAX_LOCAL_DEVICE_IDS='all'"),
    "torchrun without a port": ({**TORCHRUN, "MASTER_PORT": ""}, "but MASTER_PORT is missing"),
    "torchrun without a rank": (
        {"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
        "but RANK is missing",
    ),
    "SLURM script without srun": ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, "srun"),
    "SLURM nodes without srun": ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}, "srun"),
    "SLURM, half set": ({**STEP, "SLURM_PROCID": ""}, "SLURM_PROCID is not set"),
    "SLURM without its layout": ({**STEP, "SLURM_STEP_TASKS_PER_NODE": ""}, "TASKS_PER_NODE is not set"),
    "SLURM layout": (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "TASKS_PER_NODE='2.x'.*2.x3.,1"),
    "SLURM layout of fewer nodes": (STEP | {"SLURM_NODEID": "2"}, "NODEID is 2, but .*lists 2 node"),
    "SLURM, too few GPUs": (UNEVEN | {"SLURM_GPUS_ON_NODE": "2", "SLURM_NODEID": "0"}, "3 tasks.*2 GPUs"),
    "SLURM node list": (STEP | {"SLURM_STEP_NODELIST": "n[1-"}, "node list 'n"),
}


@pytest.mark.parametrize(("environ", "expected"), SAID.values(), ids=SAID.keys())
def test_the_environment_says_who_the_peers_are(environ, expected):
    found = processes.detect_processes(environ)
    assert (
        found.source,
        found.coordinator,
        found.num_processes,
        found.process_id,
        found.local_device_ids,
    ) == expected


@pytest.mark.parametrize(("environ", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_half_an_answer_is_refused_by_name(environ, complaint):
    with pytest.raises(UsageError, match=complaint):
        processes.detect_processes(environ)


def test_arguments_come_before_all_variables():
    arguments = {"coordinator": "other:2", "process_id": 0, "local_device_ids": [1]}
    found = processes.detect_processes(TRIO | TORCHRUN, **arguments)
    assert found.source == "arguments and JAX_* variables"
    assert (found.coordinator, found.num_processes, found.process_id) == ("other:2", 4, 0)
    assert found.local_device_ids == (1,)


def test_one_process_by_argument_is_alone_whatever_the_environment_says():
    assert processes.detect_processes(TORCHRUN, num_processes=1).num_processes == 1


def test_the_reason_is_a_sentence_for_people():
    assert processes.detect_processes(STEP).reason == "task 3 of 4 on 2 node(s) from n01, in SLURM job 4097"


@st.composite
def brackets(draw):
    """A bracket of a node list, and the numbers it stands for."""
    width = draw(st.integers(1, 4))
    lows = draw(st.lists(st.integers(0, 999), min_size=1, max_size=4))
    ranges = [(low, low + draw(st.integers(0, 12))) for low in lows]
    items = [f"{a:0{width}}-{b:0{width}}" if a < b else f"{a:0{width}}" for a, b in ranges]
    numbers = [f"{n:0{max(width, len(str(a)))}}" for a, b in ranges for n in range(a, b + 1)]
    return f"[{','.join(items)}]", numbers


words = st.text("abcxyz-.09", min_size=1, max_size=5).map(lambda text: (text, [text]))
node_names = st.lists(st.one_of(words, brackets()), min_size=1, max_size=3)


@given(st.lists(node_names, min_size=1, max_size=4))
def test_a_node_list_stands_for_its_nodes(parts):
    text = ",".join("".join(written for written, _ in part) for part in parts)
    names = []
    for part in parts:
        expanded = [""]
        for _, choices in part:
            expanded = [name + choice for name in expanded for choice in choices]
        names += expanded
    assert processes.expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", "a,,b", "n[", "n[1-2", "n]1[", "n[3-1]", "n[x]", "n[[1]]", "a b"])
def test_a_node_list_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="node list"):
        processes.expand_nodes(text)
