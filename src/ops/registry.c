/* The one list of all operators and kernels.  Everything in it is constant: a file of kernels adds
 * itself by one line in ref_internal.h or cpu_files.h, an operator by one line in def_internal.h.
 */
#include "ops/ops.h"

#include "ops/cpu/cpu_files.h"
#include "ops/def/def_internal.h"
#include "ops/ref/ref_internal.h"

#define FL_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#define FL_CPU_DECLARE(file, level) extern const fl_kernel_list fl_cpu_kernels_##file##_##level;
FL_CPU_LEVELS(FL_CPU_FILES, FL_CPU_DECLARE)

#define FL_OP_POINTER(name) &fl_op_##name,
#define FL_REF_POINTER(file) &fl_ref_kernels_##file,
#define FL_CPU_POINTER(file, level) &fl_cpu_kernels_##file##_##level,

static const fl_op *const ops[] = {FL_OP_MAP(FL_OP_POINTER)};
static const fl_kernel_list *const lists[] = {FL_REF_FILES(FL_REF_POINTER)
                                                  FL_CPU_LEVELS(FL_CPU_FILES, FL_CPU_POINTER)};

static const fl_registry registry = {
    .ops = ops, .n_ops = FL_COUNT(ops), .lists = lists, .n_lists = FL_COUNT(lists)};

const fl_registry *fl_ops_registry(void)
{
    return &registry;
}
