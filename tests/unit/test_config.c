/* Typed configuration access: errors name the whole key path. */
#include "support/cmocka_all.h"

#include "checkpoint/config.h"

#include <stdio.h>
#include <string.h>

static fl_json *parse(const char *text)
{
    fl_json *v;
    fl_error e;
    assert_int_equal(fl_json_parse(text, strlen(text), "config.json", &v, &e), FL_OK);
    return v;
}

static void test_values(void **state)
{
    (void)state;
    fl_json *root = parse("{\"text_config\": {\"hidden_size\": 256, \"eps\": 1e-05, \"beta\": 4, "
                          "\"nope\": true, \"act\": \"situ\", \"rank\": null, "
                          "\"linear\": {\"layers\": [1, 2, 3]}}, \"hidden_size\": 1}");
    fl_config c, sub;
    fl_error e;
    int64_t i;
    double d;
    bool b;
    fl_bytes s;
    const fl_json *list;
    assert_int_equal(fl_config_text(root, &c, &e), FL_OK);
    assert_int_equal(fl_config_int(&c, "hidden_size", &i, &e), FL_OK);
    assert_int_equal(i, 256);
    assert_int_equal(fl_config_float(&c, "eps", &d, &e), FL_OK);
    assert_true(d == 1e-5);
    assert_int_equal(fl_config_float(&c, "beta", &d, &e), FL_OK);
    assert_true(d == 4);
    assert_int_equal(fl_config_bool(&c, "nope", &b, &e), FL_OK);
    assert_true(b);
    assert_int_equal(fl_config_string(&c, "act", &s, &e), FL_OK);
    assert_int_equal(s.len, 4);
    assert_memory_equal(s.data, "situ", 4);
    assert_true(fl_config_has(&c, "act"));
    assert_false(fl_config_has(&c, "rank"));
    assert_false(fl_config_has(&c, "absent"));
    assert_int_equal(fl_config_object(&c, "linear", &sub, &e), FL_OK);
    assert_int_equal(fl_config_ints(&sub, "layers", &list, &e), FL_OK);
    assert_int_equal(fl_json_size(list), 3);
    fl_json_free(root);
}

static void test_flat(void **state)
{
    (void)state;
    fl_json *root = parse("{\"hidden_size\": 7, \"text_config\": null}");
    fl_config c;
    fl_error e;
    int64_t i;
    assert_int_equal(fl_config_text(root, &c, &e), FL_OK);
    assert_int_equal(fl_config_int(&c, "hidden_size", &i, &e), FL_OK);
    assert_int_equal(fl_config_int(&c, "vocab_size", &i, &e), FL_CONFIG);
    assert_string_equal(e.message, "vocab_size is missing, an integer is needed");
    fl_json_free(root);
}

static void test_errors_name_the_path(void **state)
{
    (void)state;
    fl_json *root = parse("{\"text_config\": {\"lin\": {\"dim\": \"x\", \"n\": 2.0, \"z\": null, "
                          "\"l\": [1, true], \"o\": 3}}}");
    fl_config c, lin;
    fl_error e;
    int64_t i = 5;
    double d;
    bool b;
    fl_bytes s;
    const fl_json *list;
    assert_int_equal(fl_config_text(root, &c, &e), FL_OK);
    assert_int_equal(fl_config_object(&c, "lin", &lin, &e), FL_OK);
    assert_int_equal(fl_config_int(&lin, "head_dim", &i, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.head_dim is missing, an integer is needed");
    assert_int_equal(fl_config_int(&lin, "n", &i, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.n is a fraction, an integer is needed");
    assert_int_equal(fl_config_float(&lin, "dim", &d, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.dim is a string, a number is needed");
    assert_int_equal(fl_config_bool(&lin, "z", &b, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.z is null, true or false is needed");
    assert_int_equal(fl_config_string(&lin, "o", &s, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.o is an integer, a string is needed");
    assert_int_equal(fl_config_ints(&lin, "l", &list, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.l[1] is a boolean, an integer is needed");
    assert_int_equal(fl_config_object(&lin, "o", &c, &e), FL_CONFIG);
    assert_string_equal(e.message, "text_config.lin.o is an integer, an object is needed");
    assert_int_equal(i, 5);
    fl_json_free(root);
}

static void test_not_an_object(void **state)
{
    (void)state;
    static const char *const texts[] = {"[1]", "{\"text_config\": 3}"};
    for (int k = 0; k < 2; k++) {
        fl_json *root = parse(texts[k]);
        fl_config c;
        fl_error e;
        assert_int_equal(fl_config_text(root, &c, &e), FL_CONFIG);
        fl_json_free(root);
    }
}

static void test_path_too_long(void **state)
{
    (void)state;
    char key[130], text[160];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    snprintf(text, sizeof text, "{\"%s\": {}}", key);
    fl_json *root = parse(text);
    fl_config c = fl_config_root(root), sub;
    fl_error e;
    assert_int_equal(fl_config_object(&c, key, &sub, &e), FL_CONFIG);
    fl_json_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_errors_name_the_path),
        cmocka_unit_test(test_not_an_object),
        cmocka_unit_test(test_path_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
