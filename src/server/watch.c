/* The watcher: a thread that waits for clients to go away.
 *
 * The HTTP library notices that only when it writes, and a request that waits or runs its prompt
 * writes nothing.  The same sockets are therefore in an epoll set of our own, once each.  A client
 * that closes its sending side counts as gone: a request over HTTP has no use for half a
 * connection. */
#define _GNU_SOURCE
#include "server/job_internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Jobs are named by number: one may be gone when its event is looked at. */
static void went_away(fl_server *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    for (fl_job *j = s->live; j; j = j->live) {
        if (j->id == id) {
            atomic_store(&j->dead, true);
            fl_job_wake_locked(j);
            pthread_cond_signal(&s->wake);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

static void *watch(void *server)
{
    fl_server *s = server;
    struct epoll_event events[64];
    for (;;) {
        int n = epoll_wait(s->epoll, events, 64, -1);
        if (n < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0)
                return NULL;
            went_away(s, events[i].data.u64);
        }
    }
}

fl_status fl_watch_start(fl_server *s, fl_error *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->event = eventfd(0, EFD_CLOEXEC);
    if (s->epoll < 0 || s->event < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->event, &e) != 0)
        return fl_fail(err, FL_IO, "epoll: %s", strerror(errno));
    int code = pthread_create(&s->watcher, NULL, watch, s);
    if (code != 0)
        return fl_fail(err, FL_IO, "cannot start a thread: %s", strerror(code));
    s->has_watcher = true;
    return FL_OK;
}

void fl_watch_stop(fl_server *s)
{
    uint64_t one = 1;
    if (s->has_watcher && write(s->event, &one, sizeof one) == sizeof one)
        pthread_join(s->watcher, NULL);
    if (s->event >= 0)
        close(s->event);
    if (s->epoll >= 0)
        close(s->epoll);
}

void fl_watch_add(fl_server *s, int fd, uint64_t id)
{
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    (void)epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e);
}

void fl_watch_remove(fl_server *s, int fd)
{
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, fd, NULL);
}
