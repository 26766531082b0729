/* The reference of `file_host` and `file_memory`: read(2) of a file in blocks into memory that is there. */
#include <time.h>
#include <unistd.h>

/* Return the nanoseconds of reading `size` bytes from the file's start, `block` at a time; negative on failure. */
double readblocks(int fd, char *memory, long size, long block) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (lseek(fd, 0, SEEK_SET) != 0)
        return -1;
    for (long done = 0; done < size;) {
        ssize_t n = read(fd, memory + done, (size_t)(size - done < block ? size - done : block));
        if (n <= 0)
            return -1;
        done += n;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
}
