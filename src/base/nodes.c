#include "base/nodes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 64, TEXT = 4096 };

/* Marks the numbers of a list such as "0-3,8,10-11"; false when it is not one. */
static bool read_list(const char *text, unsigned char *mark, int n)
{
    for (const char *at = text; *at && *at != '\n';) {
        char *end;
        long from = strtol(at, &end, 10), to = from;
        if (end == at)
            return false;
        if (*end == '-') {
            at = end + 1;
            to = strtol(at, &end, 10);
            if (end == at)
                return false;
        }
        if (from < 0 || to < from || to >= n)
            return false;
        memset(mark + from, 1, (size_t)(to - from) + 1);
        at = end + (*end == ',');
    }
    return true;
}

static bool read_marks(const char *root, const char *name, unsigned char *mark, int n)
{
    char path[512], text[TEXT];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    size_t len = fread(text, 1, sizeof text - 1, f);
    bool ok = !ferror(f) && feof(f);
    fclose(f);
    text[len] = 0;
    return ok && read_list(text, mark, n);
}

int fl_nodes_spread(const char *root, const unsigned char allowed[FL_MAX_CPUS], int n_threads,
                    int *cpus)
{
    unsigned char online[MAX_NODES] = {0};
    int order[FL_MAX_CPUS], first[MAX_NODES + 1] = {0}, n = 0, nodes = 0, used = 0;
    if (!read_marks(root, "online", online, MAX_NODES))
        return 0;
    for (int node = 0; node < MAX_NODES; node++) {
        char name[32];
        unsigned char near[FL_MAX_CPUS] = {0};
        if (!online[node])
            continue;
        snprintf(name, sizeof name, "node%d/cpulist", node);
        if (!read_marks(root, name, near, FL_MAX_CPUS))
            return 0;
        first[nodes] = n;
        for (int cpu = 0; cpu < FL_MAX_CPUS; cpu++) {
            if (near[cpu] && allowed[cpu] && n < FL_MAX_CPUS)
                order[n++] = cpu;
        }
        nodes += n > first[nodes]; /* a node of memory alone does not count */
    }
    first[nodes] = n;
    if (n_threads > n || nodes == 0)
        return 0;
    /* Node k gets the workers [k T / N, (k + 1) T / N), and if they are more than its processors,
     * processor order decides instead. */
    bool fair = true;
    for (int k = 0; k < nodes; k++) {
        int share = n_threads * (k + 1) / nodes - n_threads * k / nodes;
        fair &= share <= first[k + 1] - first[k];
    }
    for (int k = 0; k < nodes; k++) {
        int begin = fair ? n_threads * k / nodes : first[k];
        int end = fair ? n_threads * (k + 1) / nodes : first[k + 1];
        for (int t = begin; t < end && t < n_threads; t++)
            cpus[t] = order[first[k] + t - begin];
        used += begin < end && begin < n_threads;
    }
    return used;
}
