/* Opening whole checkpoints: the bundled model, the names of the real K3, golden files. */
#include "support/cmocka_all.h"

#include "support/folder.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

#include <string.h>

static void test_tiny_model(void **state)
{
    (void)state;
    fl_checkpoint *ck;
    fl_error e;
    assert_int_equal(fl_checkpoint_open(FL_TINY_MODEL "//", FL_OPEN_DATA, &ck, &e), FL_OK);
    assert_string_equal(fl_checkpoint_dir(ck), FL_TINY_MODEL);
    assert_true(fl_checkpoint_has_tensors(ck));
    assert_true(fl_checkpoint_has_data(ck));
    assert_int_equal(fl_checkpoint_shards(ck), 3);
    assert_int_equal(fl_checkpoint_bytes(ck), 19265792);
    assert_int_equal(fl_checkpoint_count(ck), 1566);

    const fl_tensor_info *t = fl_checkpoint_find(ck, "model.layers.0.self_attn.k_conv1d.weight");
    assert_non_null(t);
    assert_string_equal(t->file, "model-00001-of-00003.safetensors");
    assert_int_equal(t->tensor.dtype, FL_F32);
    assert_int_equal(t->tensor.ndim, 3);
    assert_int_equal(t->tensor.shape[0], 256);
    assert_int_equal(t->tensor.shape[1], 1);
    assert_int_equal(t->tensor.shape[2], 4);
    assert_int_equal(t->begin, 1280);
    assert_int_equal(t->end, 5376);
    assert_true(t->shape_known);
    /* The first tensor of the file: 8 bytes of length and the header come before it. */
    assert_ptr_equal((const char *)t->tensor.data - 1280,
                     fl_checkpoint_find(ck, "model.layers.0.self_attn.A_log")->tensor.data);
    assert_null(fl_checkpoint_find(ck, "language_model.lm_head.weight"));
    assert_null(fl_checkpoint_at(ck, 1566));
    for (size_t i = 0; i < fl_checkpoint_count(ck); i++) {
        t = fl_checkpoint_at(ck, i);
        assert_ptr_equal(t, fl_checkpoint_find(ck, t->name));
        assert_int_equal(t->end - t->begin, fl_tensor_bytes(&t->tensor));
        assert_int_equal((uintptr_t)t->tensor.data % (unsigned)(fl_dtype_bits(t->tensor.dtype) / 8),
                         0);
    }

    fl_config text;
    int64_t hidden;
    assert_int_equal(fl_config_text(fl_checkpoint_config(ck), &text, &e), FL_OK);
    assert_int_equal(fl_config_int(&text, "hidden_size", &hidden, &e), FL_OK);
    assert_int_equal(hidden, 256);
    fl_checkpoint_close(ck);
}

static void test_tiny_model_is_sound(void **state)
{
    (void)state;
    fl_checkpoint *ck;
    fl_error e;
    assert_int_equal(fl_checkpoint_open(FL_TINY_MODEL, FL_OPEN_DATA, &ck, &e), FL_OK);
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_OK);
    fl_checkpoint_close(ck);
}

/* The names of all experts of the real thing, from config.json and the index alone. */
static void test_kimi_k3_survey(void **state)
{
    (void)state;
    folder dir;
    folder_make(&dir);
    folder_kimi_k3(&dir);
    fl_checkpoint *ck;
    fl_error e;
    assert_int_equal(fl_checkpoint_open(dir.path, FL_OPEN_SURVEY, &ck, &e), FL_OK);
    assert_int_equal(fl_checkpoint_count(ck), 497220);
    assert_int_equal(fl_checkpoint_shards(ck), 96);
    assert_int_equal(fl_checkpoint_bytes(ck), 1560860324864);
    assert_true(fl_checkpoint_has_tensors(ck));
    assert_false(fl_checkpoint_has_data(ck));
    const fl_tensor_info *t =
        fl_checkpoint_find(ck, "model.layers.92.block_sparse_moe.experts.895.w2.weight_packed");
    assert_non_null(t);
    assert_string_equal(t->file, "model-00093-of-000096.safetensors");
    assert_false(t->shape_known);
    assert_non_null(fl_checkpoint_find(ck, "vision_tower.patch_embed.proj.weight"));
    for (size_t i = 0; i < fl_checkpoint_count(ck); i++)
        assert_ptr_equal(fl_checkpoint_find(ck, fl_checkpoint_at(ck, i)->name),
                         fl_checkpoint_at(ck, i));
    fl_config text;
    int64_t layers;
    assert_int_equal(fl_config_text(fl_checkpoint_config(ck), &text, &e), FL_OK);
    assert_int_equal(fl_config_int(&text, "num_hidden_layers", &layers, &e), FL_OK);
    assert_int_equal(layers, 93);
    fl_checkpoint_close(ck);
    assert_int_equal(fl_checkpoint_open(dir.path, FL_OPEN_DATA, &ck, &e), FL_NOTFOUND);
    assert_non_null(strstr(e.message, ".safetensors: the shard is missing from"));
    folder_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_model),
        cmocka_unit_test(test_tiny_model_is_sound),
        cmocka_unit_test(test_kimi_k3_survey),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
