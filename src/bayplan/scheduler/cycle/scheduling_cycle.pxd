cimport cython
from bayplan.cache.cache cimport Cache as CCache
from bayplan.framework.equivalence.equivalence_classes cimport EquivalenceClasses as CEquivalenceClasses
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.class_evaluation cimport ClassEvaluation as CClassEvaluation
from bayplan.scheduler.cycle.schedule_result cimport AssumedPod as CAssumedPod
from bayplan.snapshot.columns cimport NodeColumns as CNodeColumns
from bayplan.telemetry.plugin_timings cimport PointTimings as CPointTimings

cdef class SchedulingCycle:
    cdef public object extenders, framework, handle, sampler, sample_size, tie_break
    cdef public dict waiting_assumed
    cdef public CEquivalenceClasses classes
    cdef public bint _filters, _finds_one, _shares, runs_post_filters
    cdef public double _lookup_s
    cpdef object run(self, CCycle cycle)
    @cython.locals(cache=CCache)
    cpdef object prepare_for_binding(self, CCycle cycle, object decision)
    @cython.locals(cycle=CCycle)
    cdef object _reserve_and_permit(self, CAssumedPod assumed, object decision)
    cpdef object schedule_pod(self, CCycle cycle)
    @cython.locals(points=CPointTimings, evaluation=CClassEvaluation)
    cdef object _decide_from_class(self, CCycle cycle)
    cpdef CClassEvaluation class_evaluation(self, CCycle cycle)
    @cython.locals(columns=CNodeColumns, points=CPointTimings)
    cpdef object _decision_from_class(self, CCycle cycle, CClassEvaluation evaluation)
