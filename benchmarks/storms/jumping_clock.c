/* The time of day jumps, for all code of a process that asks the C library for it: LD_PRELOAD.

   Every three seconds it is right, an hour ahead or an hour back. Processes of other ids are at another place of that
   order, so that they disagree. Monotonic clocks, and times that the kernel gives files, are as they are. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS_PER_JUMP = 3, JUMP = 3600 };

static int real_gettime(clockid_t id, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return next(id, at);
}

static time_t offset(void) {
    struct timespec since;
    real_gettime(CLOCK_MONOTONIC, &since);
    return JUMP * ((since.tv_sec / SECONDS_PER_JUMP + getpid()) % 3 - 1);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = real_gettime(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
