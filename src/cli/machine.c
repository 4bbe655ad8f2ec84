/* firstlight bench machine: what the processor, the memory and the disk give, by the same measure
 * that `bench MODEL` holds its figures against. */
#include "cli/cli.h"

#include <stdlib.h>

static struct machine_args {
    int threads;
    bool json;
    const char *disk;
} args;

static const struct argp_option options[] = {
    {"threads", 't', "N", 0, "Processors to use (default: all)", 0},
    {"disk", 'd', "FILE", 0, "Also read FILE, around the cache", 0},
    {"json", 'j', 0, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case 't':
        args.threads = (int)cli_int(state, "--threads", arg, 1, 4096);
        return 0;
    case 'd':
        args.disk = arg;
        return 0;
    case 'j':
        args.json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    options, parse, 0, "Measures arithmetic, memory and disk of this machine.", 0, 0, 0};

fl_status cli_machine(int threads, fl_machine *out, fl_error *err)
{
    fl_pool *pool;
    FL_TRY(fl_pool_create(threads ? threads : fl_cpu_count(), &pool, err));
    fl_status s = fl_machine_measure(pool, fl_cpu_isa(), out, err);
    fl_pool_destroy(pool);
    return s;
}

static fl_status disk(int threads, double *out, fl_error *err)
{
    fl_pool *pool;
    FL_TRY(fl_pool_create(threads, &pool, err));
    fl_status s = fl_machine_disk(pool, args.disk, out, err);
    fl_pool_destroy(pool);
    return s;
}

static void print(const char *name, int threads, const fl_machine *m)
{
    if (args.json)
        printf("\"%s\": {\"threads\": %d, \"memory\": %.0f, \"cache\": %.0f, \"f32\": %.0f, "
               "\"bf16\": %.0f, \"int8\": %.0f}",
               name, threads, m->memory, m->cache, m->f32, m->bf16, m->int8);
    else
        printf("%3d thread%s  memory %6.1f GB/s  cache %6.1f GB/s  f32 %6.0f  bf16 %6.0f  int8 "
               "%6.0f GFLOP/s\n",
               threads, threads == 1 ? " " : "s", m->memory / 1e9, m->cache / 1e9, m->f32 / 1e9,
               m->bf16 / 1e9, m->int8 / 1e9);
}

int cmd_bench_machine(int argc, char **argv)
{
    fl_machine one, all;
    fl_error err = {0};
    double bytes = 0;
    cli_parse(&argp, argc, argv, NULL);
    int threads = args.threads ? args.threads : fl_cpu_count();
    if (cli_machine(1, &one, &err) != FL_OK || cli_machine(threads, &all, &err) != FL_OK ||
        (args.disk && disk(threads, &bytes, &err) != FL_OK))
        return cli_report(&err);
    printf(args.json ? "{\"level\": \"%s\", " : "level %s\n", fl_isa_name(fl_cpu_isa()));
    print("one", 1, &one);
    if (args.json)
        printf(", ");
    print("all", threads, &all);
    if (args.disk)
        printf(args.json ? ", \"disk\": %.0f" : "disk %.2f GB/s\n",
               args.json ? bytes : bytes / 1e9);
    if (args.json)
        printf("}\n");
    return 0;
}
