/* A small BLAS: matrix products in single precision, in the calling form of host code.
 *
 *   gcc -O3 -march=x86-64-v2 -shared -fPIC -o blas.so blas.c
 */
#include <stdint.h>
#include <string.h>

enum { ROWS = 4, COLUMNS = 16 };

/* C = A B: words are the addresses of C (m x n), A (m x k) and B (k x n), then n and k; iteration i makes row i of C. */
void sgemm(const uint64_t *words, uint64_t begin, uint64_t end) {
  float *restrict c = (float *)words[0];
  const float *restrict a = (const float *)words[1];
  const float *restrict b = (const float *)words[2];
  const uint64_t n = words[3], k = words[4];
  for (uint64_t i = begin; i < end; i += ROWS) {
    const uint64_t rows = end - i < ROWS ? end - i : ROWS;
    for (uint64_t j = 0; j < n; j += COLUMNS) {
      const uint64_t columns = n - j < COLUMNS ? n - j : COLUMNS;
      float sums[ROWS][COLUMNS] = {{0}};
      for (uint64_t l = 0; l < k; l++) {
        if (columns == COLUMNS) {
          for (uint64_t r = 0; r < rows; r++)
            for (uint64_t s = 0; s < COLUMNS; s++) sums[r][s] += a[(i + r) * k + l] * b[l * n + j + s];
        } else {
          for (uint64_t r = 0; r < rows; r++)
            for (uint64_t s = 0; s < columns; s++) sums[r][s] += a[(i + r) * k + l] * b[l * n + j + s];
        }
      }
      for (uint64_t r = 0; r < rows; r++) memcpy(&c[(i + r) * n + j], sums[r], columns * sizeof(float));
    }
  }
}

/* y = s x + y0: words are the addresses of y, x and y0 (each of the iterations' count), then the bits of s. */
void saxpy(const uint64_t *words, uint64_t begin, uint64_t end) {
  float *restrict y = (float *)words[0];
  const float *restrict x = (const float *)words[1], *restrict y0 = (const float *)words[2];
  float s;
  memcpy(&s, &words[3], sizeof s);
  for (uint64_t i = begin; i < end; i++) y[i] = s * x[i] + y0[i];
}
