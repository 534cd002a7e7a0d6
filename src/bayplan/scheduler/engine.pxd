cimport cython
from bayplan.cache.cache cimport Cache as CCache
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.scheduler.cycle.scheduling_cycle cimport Attempts as CAttempts
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
from bayplan.telemetry.decisions cimport DecisionRing as CDecisionRing

cdef class Held:
    cdef public object framework, pod
    cdef public CCycle cycle

cdef class Placed:
    cdef public object decision, status, waits_s
    cdef public Held held

cdef class PodEngine:
    cdef dict __dict__
    cdef object __weakref__
    cdef public object configuration, nominations, waiting, desk, timings
    cdef public object _clock, _chance, _writes, _post, _share, _sampler, _latest, _prepared, _tie_break, _registry
    cdef public bint _groups_placed, _groups_preempt, _tries_out
    cdef public CCache cache
    cdef public CDecisionRing records
    cdef public CSnapshot _snapshot
    cdef public dict pending, activated, _held, _handles, _attempts
    cdef CAttempts _attempts_of(self, object scheduler_name)
    cdef object _placed(self, object framework, CCycle cycle, object decision)
    cdef object _carry_out(self, object framework, CCycle cycle, object decision)
    cdef object _commit_assumed(self, object framework, CCycle cycle, object decision, object bound)
