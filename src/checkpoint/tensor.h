/* Element types and the description of a tensor, shared by every room.
 *
 * A tensor does not own its bytes: weights point into the mapped checkpoint, folded constants into
 * the graph's arena.  Shapes are row-major, [out, in] for a matrix, as in the checkpoint. */
#ifndef FL_CHECKPOINT_TENSOR_H
#define FL_CHECKPOINT_TENSOR_H

#include "base/status.h"

/* name, safetensors spelling, bits per element.  The last three are never in a header.  Two are
 * pairs of tensors.  MXFP4: X.weight_packed + X.weight_scale (compressed-tensors), 4-bit codes with
 * one E8M0 byte per 32.  F8_BLOCK: X.weight (F8_E4M3) + X.weight_scale_inv (F32), one factor for
 * each block of 128 rows and 128 columns; the blocks at the lower and right edge may be smaller. Q8
 * is in no checkpoint: weights kept in signed bytes, -127 to 127, with a factor for each 128
 * elements of a row, the last ones filled up with 0; of each 128 the even elements stand before the
 * odd ones. */
#define FL_DTYPE_MAP(X)                                                                            \
    X(F32, "F32", 32)                                                                              \
    X(BF16, "BF16", 16)                                                                            \
    X(F16, "F16", 16)                                                                              \
    X(I32, "I32", 32)                                                                              \
    X(U8, "U8", 8)                                                                                 \
    X(I8, "I8", 8)                                                                                 \
    X(I16, "I16", 16)                                                                              \
    X(U16, "U16", 16)                                                                              \
    X(U32, "U32", 32)                                                                              \
    X(I64, "I64", 64)                                                                              \
    X(U64, "U64", 64)                                                                              \
    X(F64, "F64", 64)                                                                              \
    X(BOOL, "BOOL", 8)                                                                             \
    X(F8_E4M3, "F8_E4M3", 8)                                                                       \
    X(F8_E5M2, "F8_E5M2", 8)                                                                       \
    X(F8_E8M0, "F8_E8M0", 8)                                                                       \
    X(MXFP4, "MXFP4", 4)                                                                           \
    X(F8_BLOCK, "F8_BLOCK", 8)                                                                     \
    X(Q8, "Q8", 8)

typedef enum fl_dtype {
#define FL_DTYPE_ENUM(name, text, bits) FL_##name,
    FL_DTYPE_MAP(FL_DTYPE_ENUM)
#undef FL_DTYPE_ENUM
        FL_DTYPE_COUNT
} fl_dtype;

enum { FL_MAX_DIMS = 6, FL_MX_GROUP = 32, FL_F8_SIDE = 128, FL_Q8_BLOCK = 128 };

typedef struct fl_tensor {
    fl_dtype dtype;
    int ndim;                   /* 0..FL_MAX_DIMS; 0 is a scalar */
    int64_t shape[FL_MAX_DIMS]; /* logical elements: an MXFP4 matrix is [out, in] */
    const void *data;           /* NULL while only planning; MXFP4: packed codes [out][in / 2] */
    const uint8_t *scale;       /* MXFP4 only: E8M0 bytes [out][in / 32] */
    const float *block_scale;   /* F8_BLOCK: [fl_f8_blocks(out)][fl_f8_blocks(in)]; Q8:
                                   [out][in / 128 rounded up] */
} fl_tensor;

const char *fl_dtype_name(fl_dtype dtype); /* "BF16" */
int fl_dtype_bits(fl_dtype dtype);
bool fl_dtype_parse(const char *text, size_t len, fl_dtype *out); /* header spellings only */

/* Blocks of F8_BLOCK along n rows or columns. */
static inline int64_t fl_f8_blocks(int64_t n)
{
    return (n + FL_F8_SIDE - 1) / FL_F8_SIDE;
}

/* Bytes of so many elements in rows of `row` (the last dim), with their scales. */
int64_t fl_dtype_bytes(fl_dtype dtype, int64_t elements, int64_t row);
int64_t fl_dtype_data_bytes(fl_dtype dtype, int64_t elements, int64_t row); /* without scales */
int64_t fl_tensor_elements(const fl_tensor *t);
int64_t fl_tensor_bytes(const fl_tensor *t); /* with scales */
/* Writes "[2, 3]" to out (size bytes, always terminated) and returns out. */
char *fl_shape_text(const int64_t *shape, int ndim, char *out, size_t size);

/* The product of the dims; false when a dim is negative or the byte size of so many elements of
 * any type would not fit in int64_t. */
bool fl_shape_elements(const int64_t *shape, int ndim, int64_t *out);

/* Joins X.weight_packed (U8 [.., out, in / 2]) and X.weight_scale (U8 or F8_E8M0 [.., out, in /
 * 32]) into one MXFP4 tensor [.., out, in]; both data are NULL or neither.  The message says which
 * dims disagree; the caller adds the name. */
FL_MUST_CHECK fl_status fl_tensor_mxfp4(const fl_tensor *packed, const fl_tensor *scale,
                                        fl_tensor *out, fl_error *err);

/* Decodes n elements starting at element `first` into float32: F32, BF16, F16, F8_E4M3, F8_E5M2,
 * F8_BLOCK and Q8 (value times factor, rounded once), and MXFP4 (first and n multiples of 2). Exact
 * but for those two.  FL_UNSUPPORTED for other types, FL_ARGUMENT for
 * a range outside the tensor or a tensor without data. */
FL_MUST_CHECK fl_status fl_tensor_to_f32(const fl_tensor *t, int64_t first, int64_t n, float *out);

/* Makes a Q8 matrix of `from`, a matrix of BF16, F16 or F32 with data.  Rows [begin, end) are
 * written to the memory that `to` has for all rows; a block with NaN or infinity becomes NaN. */
void fl_tensor_to_q8(const fl_tensor *from, const fl_tensor *to, int64_t begin, int64_t end);

float fl_bf16_to_f32(uint16_t x);
uint16_t fl_f32_to_bf16(float x); /* round to nearest even; NaN stays NaN */
float fl_f16_to_f32(uint16_t x);
float fl_e4m3_to_f32(uint8_t x);      /* the variant of checkpoints: no infinities, 127 is NaN */
uint8_t fl_f32_to_e4m3(float x);      /* nearest even; beyond 448 it is 448; NaN stays NaN */
float fl_e8m0_to_f32(uint8_t x);      /* 2^(x - 127); 255 is NaN */
extern const float fl_e2m1_table[16]; /* the sixteen MXFP4 code values */

#endif
