/* The reference of `decode`: a loop of trips over a table of functions, some of which take the trip as a word. */
#include <stdint.h>
#include <time.h>

typedef void (*kernel)(const uint64_t *words, uint64_t begin, uint64_t end);

struct entry {
    kernel f;
    uint64_t *words;
    uint64_t iterations;
    uint64_t *trip; /* where the trip goes, or null */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Call the first `before` entries once, then the other `n` in each of `trips` trips; return the milliseconds. */
double trips(const struct entry *table, uint64_t before, uint64_t n, uint64_t count) {
    double start = now();
    for (uint64_t i = 0; i < before; i++) table[i].f(table[i].words, 0, table[i].iterations);
    table += before;
    for (uint64_t t = 0; t < count; t++)
        for (uint64_t i = 0; i < n; i++) {
            if (table[i].trip) *table[i].trip = t;
            table[i].f(table[i].words, 0, table[i].iterations);
        }
    return now() - start;
}
