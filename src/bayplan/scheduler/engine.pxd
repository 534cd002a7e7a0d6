cimport cython
from bayplan.cache.cache cimport Cache as CCache
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.scheduler.cycle.schedule_result cimport ScheduleResult as CScheduleResult
from bayplan.scheduler.cycle.scheduling_cycle cimport SchedulingCycle as CSchedulingCycle
from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
from bayplan.telemetry.decisions cimport DecisionRing as CDecisionRing

cdef class PodEngine:
    cdef dict __dict__
    cdef object __weakref__
    cdef public object configuration, nominator, waiting_pods, bind_request_factory, timings
    cdef public object _clock, _chance, _writes, _post, _share, _sampler, _latest, _prepared, _tie_break, _registry
    cdef public bint _groups_placed, _groups_preempt, _in_dry_run
    cdef public CCache cache
    cdef public CDecisionRing records
    cdef public CSnapshot _snapshot
    cdef public dict pending, pods_to_activate, _waiting_assumed, _handles, _cycles
    cdef CSchedulingCycle _cycle_of(self, object scheduler_name)
    cdef object _record_placement(self, CCycle cycle, CScheduleResult placed)
