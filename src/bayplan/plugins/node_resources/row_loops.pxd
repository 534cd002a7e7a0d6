cimport cython

@cython.locals(rows=Py_ssize_t, row=Py_ssize_t, index=Py_ssize_t, weight_sum=double, amount=double, weight=double, share=double)
cpdef least_allocated(double[:, ::1] free, double[:, ::1] allocatable, tuple demand, object weights, double[::1] scores)

@cython.locals(row=Py_ssize_t, first=double, second=double, first_share=double, second_share=double, distance=double)
cpdef balanced_of_two(double[:, ::1] requested, double[:, ::1] allocatable, tuple demand, long long[::1] offset, double[::1] scores)
