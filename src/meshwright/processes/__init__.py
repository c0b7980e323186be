"""All about other processes: start, compare, agree, lock, signals, and who is alive.

_start, _rendezvous, …     the start of the processes of a run, and their connections
_compare, _agree           comparing plans before a program runs, and agreement on values and errors
_lock, _signals, _leave    locked directories, stop signals, and how a process ends
_sockets, _proc            lines of JSON over TCP, and processes of this machine in /proc
_when                      policies: functions of the step that all processes answer alike
_heartbeat/                small files that say which phase and step each process is in
_sensors/                  readings of this host and its devices: memory, use, temperature, clocks
"""
