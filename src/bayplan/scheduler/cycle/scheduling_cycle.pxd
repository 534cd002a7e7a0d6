cimport cython
from bayplan.framework.equivalence.equivalence_classes cimport Classes as CClasses
from bayplan.framework.api.cycle cimport Cycle as CCycle
from bayplan.framework.equivalence.class_evaluation cimport Standing as CStanding
from bayplan.snapshot.columns cimport NodeColumns as CNodeColumns
from bayplan.telemetry.plugin_timings cimport PointTimings as CPointTimings

cdef class Attempts:
    cdef public object extenders, framework, sampler, share, tie_break
    cdef public CClasses classes
    cdef public bint _filters, _finds_one, _shares, asks_post_filters
    cdef public double _sought_s
    cpdef object decide(self, CCycle cycle)
    @cython.locals(points=CPointTimings, standing=CStanding)
    cdef object _from_others(self, CCycle cycle)
    cpdef CStanding standing(self, CCycle cycle)
    @cython.locals(columns=CNodeColumns, points=CPointTimings)
    cpdef object _from_standing(self, CCycle cycle, CStanding standing)
