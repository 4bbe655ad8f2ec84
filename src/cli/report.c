/* Telling people and programs: errors, notes, progress, sizes, JSON; and reading a file whole. */
#define _GNU_SOURCE
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

int cli_report(const fl_error *err)
{
    fprintf(stderr, "firstlight: %s\n",
            err->message[0] ? err->message : fl_status_text(err->status));
    return 1;
}

void cli_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void cli_progress_begin(cli_progress *p, const char *what, const char *unit)
{
    *p = (cli_progress){what, unit, cli_seconds(), 0};
}

void cli_progress_at(cli_progress *p, double done, double total)
{
    double now = cli_seconds(), spent = now - p->start;
    bool tty = isatty(2);
    if (spent < 1 || now - p->last < (tty ? 0.2 : 10))
        return;
    p->last = now;
    fprintf(stderr,
            tty ? "\r%s: %.0f of %.0f %s, %.0f per second   "
                : "%s: %.0f of %.0f %s, %.0f per second\n",
            p->what, done, total, p->unit, done / spent);
}

void cli_progress_end(cli_progress *p)
{
    if (p->last > 0 && isatty(2))
        fprintf(stderr, "\r\033[K");
}

const char *cli_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;
    while (bytes >= 1000 && u < 5) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

void cli_json_text(const char *text)
{
    fl_buf b = {0};
    if (fl_json_quote(text, strlen(text), &b))
        fwrite(b.data, 1, b.n, stdout);
    else
        fputs("null", stdout);
    fl_vec_free(&b);
}

fl_status cli_read_file(const char *path, fl_buf *out, fl_error *err)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f)
        return fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
    fl_status s = FL_OK;
    for (;;) {
        if (!fl_vec_reserve(out, 65536)) {
            s = fl_fail(err, FL_NOMEM, "%s: no memory to read the file", path);
            break;
        }
        size_t n = fread(out->data + out->n, 1, out->cap - out->n, f);
        out->n += n;
        if (n == 0) {
            if (ferror(f))
                s = fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
            break;
        }
    }
    if (f != stdin)
        fclose(f);
    return s;
}
