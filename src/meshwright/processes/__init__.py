"""The other processes of a run: their start, agreement, comparison, locks, signals and heartbeats.

_start, _rendezvous, …     the start of the processes of a run, and their connections
_compare, _agree           comparing plans before a program runs, and agreement on values and errors
_lock, _signals, _leave    locked directories, stop signals, and the end of a process
_sockets, _proc            lines of JSON over TCP, and processes of this machine in /proc
_when                      policies: functions of the step with the same answer on all processes
_heartbeat, _verdict       small files with the phase and step of each process, and a sentence about all
_slow, _sensors            slow processes, and readings of hosts and devices: memory, use, clocks
"""
