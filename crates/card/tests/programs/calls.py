"""What a program's calls mean, written down by both ends.

`calls.py server PORT` and `calls.py client ADDRESS PORT [STEP]...`: the client makes a connection for each
step below, has it answer a few times, so that it is handed off (not before steps that begin in the
kernel), names the step, and then both do their parts. Each writes what it saw. With the card and without it they must write the same.
"""

import array, errno, fcntl, hashlib, os, select, signal, socket, struct, sys, termios, threading, time

STEPS = {}
MEGABYTE = bytes(range(256)) * 4096


def step(function):
    STEPS.setdefault(function.__name__.split("_", 1)[1], {})[function.__name__.split("_")[0]] = function
    return function


def result(work, *arguments):
    """What a call returns, or the name of its error."""
    try:
        got = work(*arguments)
    except TimeoutError:
        return "timed out"
    except OSError as error:
        return errno.errorcode[error.errno]
    if isinstance(got, bytes) and len(got) > 64:
        return f"{len(got)} bytes {hashlib.sha256(got).hexdigest()[:16]}"
    return got


def readable(s, seconds=20):
    return bool(select.select([s], [], [], seconds)[0])


def exactly(s, length):
    got = b""
    while len(got) < length:
        part = s.recv(length - len(got))
        if not part:
            break
        got += part
    return got


def line(s):
    got = b""
    while not got.endswith(b"\n"):
        part = s.recv(1)
        if not part:
            return None
        got += part
    return got.decode().strip()


# Reading.

@step
def server_peek(s):
    readable(s)
    time.sleep(0.05)
    yield result(s.recv, 2, socket.MSG_PEEK)
    yield result(s.recv, 3)
    yield result(s.recv, 10)
    yield result(s.recv, 10, socket.MSG_DONTWAIT)
    yield result(s.recv, 0)


@step
def client_peek(s):
    s.sendall(b"hello")


@step
def server_nonblocking(s):
    s.setblocking(False)
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLOUT)
    yield result(s.recv, 10)
    yield [event for _, event in poll.poll(0)]
    s.setblocking(True)
    s.sendall(b"go")
    s.setblocking(False)
    readable(s)
    yield [event for _, event in poll.poll(0)]
    yield result(s.recv, 10)
    yield [event for _, event in poll.poll(0)]


@step
def client_nonblocking(s):
    yield exactly(s, 2)
    s.sendall(b"data")


@step
def server_all(s):
    yield result(s.recv, 10, socket.MSG_WAITALL)
    s.sendall(b"done")


@step
def client_all(s):
    s.sendall(b"1234")
    time.sleep(0.1)
    s.sendall(b"567890")
    yield exactly(s, 4)


@step
def server_timeouts(s):
    s.setblocking(True)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    began = time.monotonic()
    yield result(s.recv, 10)
    yield 0.05 < time.monotonic() - began < 5
    s.settimeout(0.1)
    yield result(s.recv, 10)
    s.settimeout(None)
    s.sendall(b"done")


@step
def client_timeouts(s):
    yield exactly(s, 4)


@step
def server_interrupted(s):
    def give_up(*_):
        raise ZeroDivisionError
    s.setblocking(True)
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.monotonic()
    try:
        yield result(s.recv, 10)
    except ZeroDivisionError:
        yield "interrupted"
    yield time.monotonic() - began < 5
    # A handler that lets the call go on.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    s.sendall(b"now")
    yield result(s.recv, 10)


@step
def client_interrupted(s):
    yield exactly(s, 3)
    time.sleep(0.3)
    s.sendall(b"late")


@step
def server_waiting_bytes(s):
    readable(s)
    time.sleep(0.05)
    unread = array.array("i", [0])
    fcntl.ioctl(s.fileno(), termios.FIONREAD, unread)
    yield unread[0]
    room = bytearray(3)
    yield s.recv_into(room), bytes(room)
    yield s.recvfrom(2)[0]
    parts = [bytearray(2), bytearray(10)]
    got, control, flags, _ = s.recvmsg_into(parts)
    yield got, bytes(parts[0]), bytes(parts[1]), control, flags
    fcntl.ioctl(s.fileno(), termios.FIONREAD, unread)
    yield unread[0]


@step
def client_waiting_bytes(s):
    s.sendall(b"abcdefghi")


# Writing.

@step
def server_writes(s):
    yield s.send(b"a"), s.send(b""), s.sendmsg([b"bc", b"", b"def"])
    yield s.send(b"g", socket.MSG_MORE), os.writev(s.fileno(), [b"h", b"ij"]), os.write(s.fileno(), b"k")


@step
def client_writes(s):
    yield exactly(s, 11)


@step
def server_much(s):
    def read():
        got.append(exactly(s, len(MEGABYTE)))

    got = []
    reader = threading.Thread(target=read)
    reader.start()
    s.sendall(MEGABYTE)
    reader.join()
    yield result(lambda: got[0])


@step
def client_much(s):
    writer = threading.Thread(target=s.sendall, args=(MEGABYTE,))
    writer.start()
    yield result(lambda: exactly(s, len(MEGABYTE)))
    writer.join()


@step
def server_full(s):
    s.setblocking(False)
    sent = 0
    while True:
        try:
            sent += s.send(MEGABYTE)
        except BlockingIOError:
            break
    yield sent > 65536, select.select([], [s], [], 0)[1]
    s.setblocking(True)
    s.sendall(b"go" * 4)  # only when the other end has begun to read
    yield "room again"
    s.shutdown(socket.SHUT_WR)


@step
def client_full(s):
    time.sleep(0.3)
    digest, got = hashlib.sha256(), 0
    tail = b""
    while part := s.recv(1 << 16):
        got += len(part)
        tail = (tail + part)[-8:]
    yield got > 65536, tail


@step
def server_file(s):
    with open("file", "rb") as file:
        yield os.sendfile(s.fileno(), file.fileno(), 0, 5000)
        yield os.sendfile(s.fileno(), file.fileno(), 4096, 10_000)
        yield os.sendfile(s.fileno(), file.fileno(), 100, 200)
        file.seek(8192)
        done = 0
        while done < 100_000:
            done += os.sendfile(s.fileno(), file.fileno(), 8192 + done, 100_000 - done)
        yield done, os.sendfile(s.fileno(), file.fileno(), 1 << 30, 10)
    yield result(os.sendfile, s.fileno(), s.fileno(), 0, 10)


@step
def client_file(s):
    yield result(lambda: exactly(s, 5000 + 10_000 + 200 + 100_000))


# Ends.

@step
def server_half_close(s):
    s.shutdown(socket.SHUT_WR)
    yield result(s.send, b"x")
    yield exactly(s, 4)
    yield result(s.recv, 10)
    yield result(s.recv, 10)


@step
def client_half_close(s):
    yield result(s.recv, 10)
    s.sendall(b"late")


@step
def server_deaf(s):
    s.shutdown(socket.SHUT_RD)
    yield result(s.recv, 10)
    s.sendall(b"still here")
    # Back in the kernel.
    s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    yield result(s.recv, 10)
    for _ in range(3):
        s.sendall(b"and")
        yield result(s.recv, 10)


@step
def client_deaf(s):
    yield exactly(s, 19)


@step
def server_deaf_from_before(s):
    s.shutdown(socket.SHUT_RD)
    for _ in range(4):
        s.sendall(b"one")
        yield result(s.recv, 10)


@step
def client_deaf_from_before(s):
    yield exactly(s, 12)


@step
def server_peers_half_close(s):
    yield exactly(s, 1)
    yield result(s.recv, 10)
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLRDHUP)
    yield [event for _, event in poll.poll(0)]
    s.sendall(b"goodbye")


@step
def client_peers_half_close(s):
    s.sendall(b"x")
    s.shutdown(socket.SHUT_WR)
    yield exactly(s, 7), result(s.recv, 10)


@step
def server_peers_reset(s):
    readable(s)
    time.sleep(0.05)
    poll = select.poll()
    poll.register(s, select.POLLIN)
    yield [event & (select.POLLERR | select.POLLHUP) != 0 for _, event in poll.poll(0)]
    yield result(s.recv, 10)
    yield result(s.recv, 10)
    yield result(s.send, b"x")
    yield result(s.getpeername)


@step
def client_peers_reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


@step
def server_error_option(s):
    readable(s)
    time.sleep(0.05)
    yield errno.errorcode.get(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    yield s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


client_error_option = client_peers_reset
STEPS["error_option"]["client"] = client_peers_reset


@step
def server_reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


@step
def client_reset(s):
    yield result(s.recv, 10)


@step
def server_close_unread(s):
    readable(s)
    time.sleep(0.05)
    s.close()


@step
def client_close_unread(s):
    s.sendall(b"nobody reads this")
    yield result(s.recv, 10)


@step
def server_close(s):
    s.sendall(MEGABYTE[:200_000])
    s.close()


@step
def client_close(s):
    time.sleep(0.1)
    yield result(lambda: exactly(s, 300_000))


# Signals.

class Alarm(Exception):
    pass


def alarmed(work):
    """Does something that waits, until an alarm."""
    def ring(number, frame):
        raise Alarm
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        work()
    except Alarm:
        return "alarm"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "done"


def write_for_ever(s):
    while True:
        s.sendall(MEGABYTE)


@step
def server_alarm(s):
    s.setblocking(True)
    yield alarmed(lambda: s.recv(10))
    began = time.monotonic()
    yield alarmed(lambda: write_for_ever(s))
    # Before the peer makes room.
    yield time.monotonic() - began < 1.5
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    yield result(lambda: write_for_ever(s))
    s.shutdown(socket.SHUT_WR)


@step
def client_alarm(s):
    time.sleep(2.5)
    while s.recv(1 << 20):
        pass


# Readiness.

@step
def server_epoll(s):
    for flag in (0, select.EPOLLET):
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN | flag)
        yield epoll.poll(0)
        s.sendall(b"go")
        yield [event for _, event in epoll.poll(20)]
        yield result(s.recv, 1)
        time.sleep(0.05)
        yield [event for _, event in epoll.poll(0)]
        yield result(s.recv, 10), epoll.poll(0)
        epoll.modify(s, select.EPOLLOUT | flag)
        yield [event for _, event in epoll.poll(0)]
        epoll.unregister(s)
        epoll.close()


@step
def client_epoll(s):
    for _ in range(2):
        yield exactly(s, 2)
        s.sendall(b"abc")


@step
def server_epoll_once(s):
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN | select.EPOLLONESHOT)
    for comes_back in (False, True):
        s.sendall(b"go")
        yield [event for _, event in epoll.poll(20)]
        # It has fired, which a move to the other side does not change.
        if comes_back:
            s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        yield epoll.poll(0)
        yield result(s.recv, 10)
        epoll.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    s.sendall(b"go")
    yield [event for _, event in epoll.poll(20)]
    yield result(s.recv, 10)


@step
def client_epoll_once(s):
    for _ in range(3):
        yield exactly(s, 2)
        s.sendall(b"abc")


def waits_beside(s, wait):
    """Another thread waits for the connection while this one uses it, also over a handoff."""
    seen = []
    other = threading.Thread(target=lambda: seen.append(wait()), daemon=True)
    other.start()
    time.sleep(0.1)
    s.sendall(b"ready")
    other.join(20)
    return seen


@step
def server_poll_beside(s):
    poll = select.poll()
    poll.register(s, select.POLLIN)
    yield waits_beside(s, lambda: [event for _, event in poll.poll(20_000)])
    yield exactly(s, 3)


@step
def client_poll_beside(s):
    yield exactly(s, 5)
    time.sleep(0.2)
    s.sendall(b"abc")


@step
def server_select_beside(s):
    yield waits_beside(s, lambda: len(select.select([s], [], [], 20)[0]))
    yield exactly(s, 3)


STEPS["select_beside"]["client"] = client_poll_beside


@step
def server_recv_beside(s):
    yield waits_beside(s, lambda: exactly(s, 3))


STEPS["recv_beside"]["client"] = client_poll_beside


@step
def server_poll_from_before(s):
    poll = select.poll()
    poll.register(s, select.POLLPRI)
    seen = []
    other = threading.Thread(target=lambda: seen.append([e for _, e in poll.poll(20_000)]))
    other.start()
    time.sleep(0.1)
    for _ in range(5):
        s.sendall(exactly(s, 4))
    other.join()
    yield seen


@step
def client_poll_from_before(s):
    for _ in range(5):
        s.sendall(b"turn")
        exactly(s, 4)
    s.send(b"!", socket.MSG_OOB)
    yield result(s.recv, 10)


# Names and options.

@step
def server_names(s):
    yield s.getsockname()[0], s.getsockname()[1], s.getpeername()[0]
    yield s.family.name, s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), s.proto


@step
def client_names(s):
    pass


@step
def server_options(s):
    for level, name, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4_000),
        (socket.SOL_SOCKET, socket.SO_PRIORITY, 3),
    ):
        s.setsockopt(level, name, value)
        yield s.getsockopt(level, name)
    yield result(s.setsockopt, socket.SOL_SOCKET, socket.SO_TYPE, 1)
    yield struct.unpack("B", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
    s.sendall(b"done")


@step
def client_options(s):
    yield exactly(s, 4)


# Copies of descriptors, and other processes.

@step
def server_copies(s):
    other = os.dup(s.fileno())
    yield os.write(other, b"one")
    s.close()
    yield os.read(other, 10)
    third = os.dup2(other, other + 20)
    os.close(other)
    yield os.write(third, b"two")
    yield os.read(third, 10)
    fourth = fcntl.fcntl(third, fcntl.F_DUPFD_CLOEXEC, 50)
    os.close(third)
    yield os.write(fourth, b"end")
    os.close(fourth)


@step
def client_copies(s):
    for _ in range(2):
        yield exactly(s, 3)
        s.sendall(b"more")
    yield exactly(s, 3), result(s.recv, 10)


@step
def server_fork(s):
    child = os.fork()
    if child == 0:
        s.sendall(b"child")
        got = exactly(s, 4)
        s.sendall(got.upper())
        os._exit(0)
    yield os.waitpid(child, 0)[1]
    s.sendall(b"parent")
    yield exactly(s, 4)


@step
def client_fork(s):
    yield exactly(s, 5)
    s.sendall(b"data")
    yield exactly(s, 10)
    s.sendall(b"more")


@step
def server_exec(s):
    os.set_inheritable(s.fileno(), True)
    child = os.fork()
    if child == 0:
        text = f"import os; os.write({s.fileno()}, b'another program'); print(os.read({s.fileno()}, 4), flush=True)"
        os.execv(sys.executable, [sys.executable, "-c", text])
    yield os.waitpid(child, 0)[1]
    yield result(s.recv, 10)


@step
def client_exec(s):
    yield exactly(s, 15)
    s.sendall(b"data")
    time.sleep(0.2)
    s.sendall(b"more")


@step
def server_pass(s):
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        s.close()
        _, fds, _, _ = socket.recv_fds(there, 1, 1)
        there.close()
        os.write(fds[0], b"passed")
        os.write(fds[0], os.read(fds[0], 10).upper())
        os._exit(0)
    there.close()
    socket.send_fds(here, [b"x"], [s.fileno()])
    s.close()
    yield os.waitpid(child, 0)[1]


@step
def client_pass(s):
    yield exactly(s, 6)
    s.sendall(b"data")
    yield exactly(s, 4), result(s.recv, 10)


@step
def server_spliced(s):
    reading, writing = os.pipe()
    moved = 0
    while moved < 5:
        moved += os.splice(s.fileno(), writing, 5 - moved)
    yield os.read(reading, 10)
    os.write(writing, b"other way")
    yield os.splice(reading, s.fileno(), 9)


@step
def client_spliced(s):
    s.sendall(b"splic")
    yield exactly(s, 9)


@step
def server_urgent(s):
    yield s.send(b"!", socket.MSG_OOB)
    s.sendall(b"rest")


@step
def client_urgent(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    yield exactly(s, 5)


def parts(work):
    return work if work is not None else ()


def note(who, name, what):
    print(who, name, what, flush=True)


def serve(s):
    while True:
        said = line(s)
        if said is None:
            return
        if said != "warm":
            break
        s.sendall(b"warm\n")
    for what in parts(STEPS[said]["server"](s)):
        note("server", said, what)
    s.close()


def server(port):
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        serve(connection)
        connection.close()


def client(address, port, names):
    for name in names or STEPS:
        s = socket.create_connection((address, port), timeout=30)
        for _ in range(0 if name.endswith("_from_before") else 3):
            s.sendall(b"warm\n")
            line(s)
        s.sendall(name.encode() + b"\n")
        for what in parts(STEPS[name]["client"](s)):
            note("client", name, what)
        s.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server(int(sys.argv[2]))
    client(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
