"""Profiles made by hand: `{plane: {line: [(name, start, end, stats)]}}`, times in microseconds."""

from jax.profiler import ProfileData


def write(file, planes):
    """Write a profile; return where."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = " ".join(_plane(number, name, lines) for number, (name, lines) in enumerate(planes.items()))
    file.write_bytes(ProfileData.text_proto_to_serialized_xspace(text))
    return file


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
