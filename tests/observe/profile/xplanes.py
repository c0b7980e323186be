"""Profiles made by hand: `{plane: {line: [(name, start, end, stats)]}}`, times in microseconds.

    python tests/observe/profile/xplanes.py

writes `gpu.xplane.pb`: two steps of a GPU, half of whose time is in CUDA graphs.
"""

from pathlib import Path

from jax.profiler import ProfileData

from meshwright.base._protobufs import messages

HLO = {
    "Hlo": ["Module hlo_module = 1"],
    "Module": ["string name = 1", "repeated Computation computations = 3"],
    "Computation": ["repeated Instruction instructions = 2", "int64 id = 5"],
    "Instruction": [
        "string name = 1",
        "string opcode = 2",
        "OpMetadata metadata = 7",
        "repeated int64 called_computation_ids = 38",
    ],
    "OpMetadata": ["string op_name = 2"],
}
"""The fields of hlo.proto that matter here."""


def write(file, planes, programs=None):
    """Write a profile; return where.

    Args:
      file: The file.
      planes: The events by plane and line.
      programs: The sources of operations, by the names of program and operation.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    text = " ".join(_plane(number, name, lines) for number, (name, lines) in enumerate(planes.items()))
    file.write_bytes(ProfileData.text_proto_to_serialized_xspace(text + _programs(programs or {})))
    return file


def on_a_gpu():
    """Return the planes and the programs of two steps, in which CUDA graphs hide operations of the loop."""
    stream, first = [], "jit_step"
    for start in (0, 100):
        stream += [
            ("gemm", start, start + 20, {"hlo_op": "fusion.1", "hlo_module": first}),
            ("CudaGraphExec:7", start + 20, start + 60),
            ("gemm", start + 60, start + 80, {"hlo_op": "command_buffer_3", "hlo_module": first}),
            ("gemm", start + 80, start + 95, {"hlo_op": "fusion.2", "hlo_module": first}),
        ]
    sources = {
        "fusion.1": "jit(step)/jvp(head)/dot_general",
        "fusion.2": "jit(step)/transpose(jvp(head))/mul",
    }
    return {**steps((0, 5), (100, 105)), "/device:GPU:0": {"Stream #13(Compute)": stream}}, {first: sources}


def _programs(programs):
    if not programs:
        return ""
    entries = " ".join(
        f'event_metadata {{ key: {key} value {{ id: {key} name: "{name}" '
        f'stats {{ metadata_id: 1 bytes_value: "{_hlo(name, sources)}" }} }} }}'
        for key, (name, sources) in enumerate(programs.items(), 1)
    )
    return f' planes {{ id: 99 name: "/host:metadata" {entries} {_table("stat_metadata", ["hlo_proto"])} }}'


def _hlo(name, sources):
    """Return an `HloProto`, as text for a field of bytes."""
    declared = messages("xplanes.hlo", HLO)
    hlo = declared["Hlo"]()
    hlo.hlo_module.name = name
    computation = hlo.hlo_module.computations.add(id=1)
    for op, source in sources.items():
        computation.instructions.add(name=op, opcode="fusion").metadata.op_name = source
    return "".join(f"\\{byte:03o}" for byte in hlo.SerializeToString())


def steps(*spans):
    """Return the plane of a host that launched steps 1, 2, …"""
    events = [("train", start, end, {"step_num": number}) for number, (start, end) in enumerate(spans, 1)]
    return {"/host:CPU": {"python": events}}


def _plane(number, name, lines):
    events = [event for line in lines.values() for event in line]
    names = {event[0] for event in events}
    keys = {key for event in events for key in _stats(event)}
    tables = [_table("event_metadata", sorted(names)), _table("stat_metadata", sorted(keys))]
    ids = {text: i for table in (sorted(names), sorted(keys)) for i, text in enumerate(table, 1)}
    made = " ".join(
        f'lines {{ name: "{line}" {" ".join(_event(event, ids) for event in events)} }}'
        for line, events in lines.items()
    )
    return f'planes {{ id: {number} name: "{name}" {made} {" ".join(tables)} }}'


def _event(event, ids):
    name, start, end, *_ = event
    stats = " ".join(
        f"stats {{ metadata_id: {ids[key]} {_value(value)} }}" for key, value in _stats(event).items()
    )
    offset, duration = round(start * 1e6), round((end - start) * 1e6)
    return f"events {{ metadata_id: {ids[name]} offset_ps: {offset} duration_ps: {duration} {stats} }}"


def _stats(event):
    return event[3] if len(event) > 3 else {}


def _value(value):
    return f"int64_value: {value}" if isinstance(value, int) else f'str_value: "{value}"'


def _table(kind, texts):
    return " ".join(
        f'{kind} {{ key: {i} value {{ id: {i} name: "{text}" }} }}' for i, text in enumerate(texts, 1)
    )


if __name__ == "__main__":
    print(write(Path(__file__).with_name("gpu.xplane.pb"), *on_a_gpu()))
