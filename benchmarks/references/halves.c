/* What two cores give at the moment: calls of a function over a range in two halves, one of them on a thread that spins
 * for its turn, so that nothing is waited for but the cores themselves. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef void (*kernel)(const uint64_t *words, uint64_t begin, uint64_t end);

struct job {
    kernel f;
    const uint64_t *words;
    uint64_t half, end;
    _Atomic uint64_t asked, done;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *second(void *arg) {
    struct job *job = arg;
    for (uint64_t turn = 1;; turn++) {
        uint64_t asked;
        while ((asked = atomic_load_explicit(&job->asked, memory_order_acquire)) < turn) {}
        if (asked == UINT64_MAX) return 0;
        job->f(job->words, job->half, job->end);
        atomic_store_explicit(&job->done, turn, memory_order_release);
    }
}

static void pin(pthread_t thread, int nth) {
    cpu_set_t all, one;
    pthread_getaffinity_np(pthread_self(), sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || nth-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

/* Call f `calls` times over 0..end, in two halves at once if `two`; return the microseconds of them all. */
double halves(kernel f, const uint64_t *words, uint64_t end, uint64_t calls, int two) {
    struct job job = {f, words, end / 2, end, 0, 0};
    pthread_t thread;
    cpu_set_t before;
    pthread_getaffinity_np(pthread_self(), sizeof before, &before);
    if (two) {
        if (pthread_create(&thread, 0, second, &job)) return -1;
        pin(thread, 1);
        pin(pthread_self(), 0);
        struct timespec nap = {0, 200000};
        nanosleep(&nap, 0);
    }
    double start = now();
    for (uint64_t turn = 1; turn <= calls; turn++) {
        if (!two) {
            f(words, 0, end);
            continue;
        }
        atomic_store_explicit(&job.asked, turn, memory_order_release);
        f(words, 0, job.half);
        while (atomic_load_explicit(&job.done, memory_order_acquire) < turn) {}
    }
    double took = (now() - start) / 1e3;
    if (two) {
        atomic_store_explicit(&job.asked, UINT64_MAX, memory_order_release);
        pthread_join(thread, 0);
        pthread_setaffinity_np(pthread_self(), sizeof before, &before);
    }
    return took;
}
