// A fake libcublasLt.so: products of f32 and bf16 by loops, column-major like cuBLASLt.
//
//   FAKE_CUBLAS    its version, 130000 for 13.0
//   FAKE_SLOW      microseconds that its first algorithm wastes
//
// It proposes three algorithms: number 0, which may be slow; number 1, which does not support 19 columns of the result;
// and number 2, which does nothing. It has none for f16.

#define _GNU_SOURCE
#include "machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, F16 = 2, BF16 = 14 };
enum { EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32 };

struct operation_description {
  int is_transposed;
  unsigned epilogue;
  uint64_t bias;
};

struct layout {
  int type;
  uint64_t rows, columns;
  int64_t row_to_row;
  int batch;
  int64_t batch_stride;
};

struct preference {
  uint64_t workspace;
  unsigned split_sums;
  unsigned alignment[4];
};

struct algorithm {
  uint64_t data[8];
};

struct proposal {
  struct algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

size_t cublasLtGetVersion(void) { return (size_t)fake_setting("FAKE_CUBLAS", 130000); }

static int make(void** handle, size_t bytes, const void* value) {
  *handle = malloc(bytes);
  memcpy(*handle, value, bytes);
  fake_made(1);
  return OK;
}

static int destroy(void* handle) {
  free(handle);
  fake_made(-1);
  return OK;
}

int cublasLtCreate(void** handle) { return make(handle, 1, ""); }
int cublasLtDestroy(void* handle) { return destroy(handle); }

int cublasLtMatmulDescCreate(void** handle, int compute, int scale) {
  if (compute != 68 && compute != 77) return INVALID_VALUE;  // f32, TF32
  if (scale != F32) return INVALID_VALUE;
  return make(handle, sizeof(struct operation_description), &(struct operation_description){0, 1, 0});
}
int cublasLtMatmulDescDestroy(void* handle) { return destroy(handle); }

static int set(void* to, size_t expected, const void* from, size_t bytes) {
  if (bytes != expected) return INVALID_VALUE;
  memcpy(to, from, bytes);
  return OK;
}

int cublasLtMatmulDescSetAttribute(struct operation_description* it, int attribute, const void* from, size_t bytes) {
  switch (attribute) {
    case 3: return set(&it->is_transposed, 4, from, bytes);
    case 7: return set(&it->epilogue, 4, from, bytes);
    case 8: return set(&it->bias, 8, from, bytes);
  }
  return INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(void** handle, int type, uint64_t rows, uint64_t columns, int64_t row_to_row) {
  if (!rows || !columns) return INVALID_VALUE;
  return make(handle, sizeof(struct layout), &(struct layout){type, rows, columns, row_to_row, 1, 0});
}
int cublasLtMatrixLayoutDestroy(void* handle) { return destroy(handle); }

int cublasLtMatrixLayoutSetAttribute(struct layout* it, int attribute, const void* from, size_t bytes) {
  switch (attribute) {
    case 3: return set(&it->columns, 8, from, bytes);
    case 5: return set(&it->batch, 4, from, bytes);
    case 6: return set(&it->batch_stride, 8, from, bytes);
  }
  return INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(void** handle) {
  return make(handle, sizeof(struct preference), &(struct preference){0, 7, {256, 256, 256, 256}});
}
int cublasLtMatmulPreferenceDestroy(void* handle) { return destroy(handle); }

int cublasLtMatmulPreferenceSetAttribute(struct preference* it, int attribute, const void* from, size_t bytes) {
  if (attribute == 1) return set(&it->workspace, 8, from, bytes);
  if (attribute == 3) return set(&it->split_sums, 4, from, bytes);
  if (attribute >= 5 && attribute <= 8) return set(&it->alignment[attribute - 5], 4, from, bytes);
  return INVALID_VALUE;
}

// The parts of a product, by value: the descriptions may be changed before it is done.
struct product {
  struct operation_description operation;
  struct layout a, b, c, d;
  float alpha, beta;
  uint64_t at_a, at_b, at_c, at_d;
  uint64_t algorithm, workspace;
  size_t workspace_bytes;
};

static int is_sound(const struct product* it) {
  const struct layout *a = &it->a, *b = &it->b, *c = &it->c, *d = &it->d;
  uint64_t rows = it->operation.is_transposed ? a->columns : a->rows;
  uint64_t inner = it->operation.is_transposed ? a->rows : a->columns;
  int fits = rows == d->rows && inner == b->rows && b->columns == d->columns && c->rows == d->rows && c->columns == d->columns;
  int same = a->type == b->type && c->type == d->type && (d->type == a->type || d->type == F32);
  int wide = a->row_to_row >= (int64_t)a->rows && b->row_to_row >= (int64_t)b->rows && c->row_to_row >= (int64_t)c->rows &&
             d->row_to_row >= (int64_t)d->rows;
  int batched = a->batch == d->batch && b->batch == d->batch && c->batch == d->batch;
  int biased = !(it->operation.epilogue & EPILOGUE_BIAS) || it->operation.bias;
  return fits && same && wide && batched && biased;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, struct operation_description* operation, struct layout* a, struct layout* b,
                                   struct layout* c, struct layout* d, struct preference* preference, int wanted,
                                   struct proposal* proposals, int* count) {
  (void)handle;
  struct product product = {.operation = *operation, .a = *a, .b = *b, .c = *c, .d = *d};
  if (!is_sound(&product)) return INVALID_VALUE;
  if (a->type == F16 || preference->split_sums != 2) return NOT_SUPPORTED;  // 2: added in f32 alone
  const unsigned* alignment = preference->alignment;
  fake_say("proposed %d to w %u x %u add %u y %u\n", wanted, alignment[0], alignment[1], alignment[2], alignment[3]);
  *count = wanted < 3 ? wanted : 3;
  for (int i = 0; i < *count; ++i) proposals[i] = (struct proposal){{{(uint64_t)i}}, preference->workspace, OK, 1, {0}};
  return OK;
}

static float get(const struct layout* layout, uint64_t first, int batch, uint64_t row, uint64_t column) {
  uint64_t at = (uint64_t)batch * (uint64_t)layout->batch_stride + column * (uint64_t)layout->row_to_row + row;
  if (layout->type == F32) return fake_is_memory(first + 4 * at, 4) ? ((float*)first)[at] : 0;
  uint32_t bits = fake_is_memory(first + 2 * at, 2) ? (uint32_t)((uint16_t*)first)[at] << 16 : 0;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void put(const struct layout* layout, uint64_t first, int batch, uint64_t row, uint64_t column, float value) {
  uint64_t at = (uint64_t)batch * (uint64_t)layout->batch_stride + column * (uint64_t)layout->row_to_row + row;
  if (layout->type == F32) {
    if (fake_is_memory(first + 4 * at, 4)) ((float*)first)[at] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits += 0x7fff + (bits >> 16 & 1);
  if (fake_is_memory(first + 2 * at, 2)) ((uint16_t*)first)[at] = (uint16_t)(bits >> 16);
}

static void multiply(void* data) {
  const struct product* it = data;
  if (it->algorithm == 0) usleep((unsigned)fake_setting("FAKE_SLOW", 0));
  if (!fake_is_memory(it->workspace, it->workspace_bytes)) return;
  struct layout bias = {it->d.type, it->d.rows, 1, (int64_t)it->d.rows, 1, 0};
  for (int batch = 0; batch < it->d.batch; ++batch) {
    for (uint64_t column = 0; column < it->d.columns; ++column) {
      for (uint64_t row = 0; row < it->d.rows; ++row) {
        float sum = 0;
        for (uint64_t k = 0; k < it->b.rows; ++k) {
          float a = it->operation.is_transposed ? get(&it->a, it->at_a, batch, k, row) : get(&it->a, it->at_a, batch, row, k);
          sum += a * get(&it->b, it->at_b, batch, k, column);
        }
        sum *= it->alpha;
        if (it->beta != 0) sum += it->beta * get(&it->c, it->at_c, batch, row, column);
        unsigned epilogue = it->operation.epilogue;
        if (epilogue & EPILOGUE_BIAS) sum += get(&bias, it->operation.bias, 0, row, 0);
        if (epilogue & EPILOGUE_RELU) sum = sum < 0 ? 0 : sum;
        if (epilogue & EPILOGUE_GELU) sum = sum / 2 * (1 + tanhf(0.79788456f * (sum + 0.044715f * sum * sum * sum)));
        put(&it->d, it->at_d, batch, row, column, sum);
      }
    }
  }
}

int cublasLtMatmul(void* handle, struct operation_description* operation, const float* alpha, uint64_t at_a,
                   struct layout* a, uint64_t at_b, struct layout* b, const float* beta, uint64_t at_c, struct layout* c,
                   uint64_t at_d, struct layout* d, const struct algorithm* algorithm, uint64_t workspace, size_t bytes,
                   struct stream* stream) {
  (void)handle;
  struct product product = {*operation, *a,   *b,   *c,   *d,  *alpha, *beta, at_a, at_b, at_c, at_d, algorithm->data[0],
                            workspace,  bytes};
  if (!is_sound(&product)) return INVALID_VALUE;
  if (product.algorithm == 2 || (product.algorithm == 1 && d->columns == 19)) return NOT_SUPPORTED;
  fake_say("multiplied by algorithm %d\n", (int)product.algorithm);
  fake_enqueue(stream, multiply, &product, sizeof product);
  return OK;
}
