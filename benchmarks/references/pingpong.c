/* The reference of `wait2`: two threads that wake each other through one futex word each. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Alignas(64) _Atomic uint32_t ping;
static _Alignas(64) _Atomic uint32_t pong;

static void wake(_Atomic uint32_t *word, uint32_t value) {
    atomic_store_explicit(word, value, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

static void await(_Atomic uint32_t *word, uint32_t value) {
    uint32_t seen;
    while ((seen = atomic_load_explicit(word, memory_order_acquire)) < value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
}

static void *other(void *argument) {
    uint32_t rounds = (uint32_t)(uintptr_t)argument;
    for (uint32_t i = 1; i <= rounds; i++) {
        await(&ping, i);
        wake(&pong, i);
    }
    return 0;
}

/* Return the nanoseconds of one way from a thread to the other, over `rounds` rounds of two; negative on failure. */
double pingpong(uint32_t rounds) {
    pthread_t thread;
    struct timespec a, b;
    atomic_store(&ping, 0);
    atomic_store(&pong, 0);
    if (pthread_create(&thread, 0, other, (void *)(uintptr_t)(rounds + 1)))
        return -1;
    wake(&ping, 1); /* the thread has started before the clock does */
    await(&pong, 1);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint32_t i = 2; i <= rounds + 1; i++) {
        wake(&ping, i);
        await(&pong, i);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    pthread_join(thread, 0);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (2.0 * rounds);
}
