/* The reference of `kernels1000`: a loop over a table of functions and their arguments. */
#include <stdint.h>
#include <time.h>

typedef void (*kernel)(const uint64_t *words, uint64_t begin, uint64_t end);

struct entry {
    kernel f;
    const uint64_t *words;
    uint64_t begin, end;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Call the table's n kernels in order, `times` times; return the nanoseconds that one kernel took. */
double loop(const struct entry *table, uint64_t n, uint64_t times) {
    double start = now();
    for (uint64_t t = 0; t < times; t++)
        for (uint64_t i = 0; i < n; i++)
            table[i].f(table[i].words, table[i].begin, table[i].end);
    return (now() - start) / (double)(n * times);
}
