/* Memory nodes: which processors lie near which memory.  On a machine with several, the workers of
 * a pool are spread over them and each stays where it is, so that what a worker touches first (its
 * part of a weight, its rows of a workspace) lies in memory near it and is read from there ever
 * after. */
#ifndef FL_BASE_NODES_H
#define FL_BASE_NODES_H

enum { FL_MAX_CPUS = 1024 };

/* Gives each of n_threads workers a processor of those that `allowed` marks: an equal share of the
 * workers per node, in the order of the nodes, neighbours on the same node.  root is the folder
 * that describes the nodes (FL_NODES_ROOT).  Writes cpus[n_threads] and returns how many nodes they
 * lie on; 0, and nothing is written, where the nodes are not described or have fewer processors
 * than there are workers. */
#define FL_NODES_ROOT "/sys/devices/system/node"
int fl_nodes_spread(const char *root, const unsigned char allowed[FL_MAX_CPUS], int n_threads,
                    int *cpus);

#endif
