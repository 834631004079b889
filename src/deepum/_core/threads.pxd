# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""POSIX locks, and a wait that ends."""

cdef extern from "threads.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_init(pthread_mutex_t* mutex, void* kind)
    int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* cond)
    int pthread_cond_broadcast(pthread_cond_t* cond)
    int pthread_cond_destroy(pthread_cond_t* cond)
    int deepum_recursive_init(pthread_mutex_t* mutex)
    bint deepum_lock_within(pthread_mutex_t* mutex, long milliseconds)
    int deepum_cond_init(pthread_cond_t* cond)
    bint deepum_wait_for(pthread_cond_t* cond, pthread_mutex_t* mutex, long microseconds)
