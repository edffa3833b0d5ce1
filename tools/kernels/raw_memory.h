/* What the names of parser/engine/kernels/raw_memory.py are in compiled kernels, and arithmetic with the meaning that it has in
 * Python. Whoever calls these functions has checked the addresses. */
#ifndef RAW_MEMORY_H
#define RAW_MEMORY_H
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LEAST_INT64 INT64_MIN

/* Whether this thread has divided by zero: a signal would end the process. The entry of a kernel raises ZeroDivisionError. */
static __thread int divided_by_zero;
static inline void begin_divisions(void) { divided_by_zero = 0; }
static inline int has_divided_by_zero(void) { return divided_by_zero; }

INLINE int64_t load(const uint8_t *data, int64_t at) {
  int64_t word;
  memcpy(&word, data + at, 8);
  return word;
}
INLINE int64_t swap(int64_t word) { return (int64_t)__builtin_bswap64((uint64_t)word); }
/* A function of its own: where it is needed is rare, and more instructions in the walk make all of the walk slower. */
static __attribute__((noinline, cold, unused)) int64_t are_zero(const uint8_t *data, int64_t at, int64_t size) {
  if (size <= 0) return 1;
  if (size > 8) size = 8;
  return (uint64_t)load(data, at) << (64 - 8 * size) == 0;
}
INLINE void copy(uint8_t *out, int64_t to, const uint8_t *data, int64_t at, int64_t size) { memcpy(out + to, data + at, (size_t)size); }
INLINE void store8(uint8_t *data, int64_t at, int64_t word) { data[at] = (uint8_t)word; }
INLINE void store16(uint8_t *data, int64_t at, int64_t word) {
  uint16_t value = (uint16_t)word;
  memcpy(data + at, &value, 2);
}
INLINE void store32(uint8_t *data, int64_t at, int64_t word) {
  uint32_t value = (uint32_t)word;
  memcpy(data + at, &value, 4);
}
INLINE void store64(uint8_t *data, int64_t at, int64_t word) { memcpy(data + at, &word, 8); }

INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t maximum(int64_t a, int64_t b) { return a > b ? a : b; }
/* Python rounds down. -1 is a case of its own, because the quotient of the least int64 has no room. */
INLINE int64_t divide_int(int64_t a, int64_t b) {
  if (b == 0) return divided_by_zero = 1, 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}
INLINE int64_t remainder_of_int(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a - (uint64_t)divide_int(a, b) * (uint64_t)b);
}
INLINE uint64_t divide_uint(uint64_t a, uint64_t b) { return b ? a / b : (divided_by_zero = 1, 0); }
INLINE uint64_t remainder_of_uint(uint64_t a, uint64_t b) { return b ? a % b : (divided_by_zero = 1, 0); }
#endif
